package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// contestant is a gateway with its options.
type contestant struct {
	name    string
	about   string // the options, as they are documented
	ours    bool   // select-service with its picker
	rival   bool   // another gateway
	session string // header by which it knows a chat; "": none
	// only says in which plays it takes part; nil: in all.
	only func(*play) bool
	// start starts the gateways of a play and returns their URLs.
	start func(ctx context.Context, w *world) ([]string, error)
}

var contestants = []contestant{
	{name: "proxy", ours: true, about: "select-service --proxy-port, the default policy of a proxy", start: func(ctx context.Context, w *world) ([]string, error) {
		ports, err := w.startServices(ctx, "--proxy-port", "")
		return addresses(ports), err
	}},
	{name: "proxy-cost", ours: true, about: "the same with Dynamo's cost", start: func(ctx context.Context, w *world) ([]string, error) {
		ports, err := w.startServices(ctx, "--proxy-port", "default")
		return addresses(ports), err
	}},
	{name: "select-service", ours: true, about: "behind Envoy, the default policy", start: func(ctx context.Context, w *world) ([]string, error) {
		return w.startPicked(ctx, "default")
	}},
	{name: "predicted-ttft", ours: true, about: "select-service behind Envoy, that policy", start: func(ctx context.Context, w *world) ([]string, error) {
		return w.startPicked(ctx, "predicted-ttft")
	}},
	{
		name: "without-answers", ours: true, about: "select-service with response_body_mode NONE and response_header_mode SKIP, so that no answer passes through the picker",
		only: func(p *play) bool { return p.prefill == 0 || p.name == "eight-75" },
		start: func(ctx context.Context, w *world) ([]string, error) {
			w.withoutAnswers = true
			return w.startPicked(ctx, "default")
		},
	},
	{
		name: "first-tokens", ours: true, about: "the same and a second filter that shows first tokens, with predicted-ttft",
		only: func(p *play) bool { return p.prefill == 0 || p.name == "eight-75" },
		start: func(ctx context.Context, w *world) ([]string, error) {
			w.withoutAnswers, w.firstTokens = true, true
			return w.startPicked(ctx, "predicted-ttft")
		},
	},
	{name: "smg", rival: true, about: "SMG, --policy cache_aware, what its documentation recommends for production", start: func(ctx context.Context, w *world) ([]string, error) {
		return w.startSMG(ctx)
	}},
	{
		name: "smg-tuned", rival: true,
		about: "SMG, cache_aware with a low --cache-threshold, as for conversations, and low thresholds of balance, as for bursts and unequal engines",
		start: func(ctx context.Context, w *world) ([]string, error) {
			return w.startSMG(ctx, "--cache-threshold", "0.1", "--balance-abs-threshold", "4", "--balance-rel-threshold", "1.2", "--load-monitor-interval", "1")
		},
	},
	{name: "vllm-router", rival: true, about: "vllm-router, --policy cache_aware", start: func(ctx context.Context, w *world) ([]string, error) {
		return w.startVLLMRouter(ctx, "cache_aware")
	}},
	{name: "vllm-router-kv", rival: true, about: "vllm-router, --policy kv_aware with the engines' events and replays", start: func(ctx context.Context, w *world) ([]string, error) {
		args := []string{"--kv-event-block-size", fmt.Sprint(blockSize), "--kv-event-model", model}
		for _, e := range w.engines {
			args = append(args, "--kv-event-source", e.url+"="+e.events, "--kv-event-replay-source", e.url+"="+e.replay)
		}
		return w.startVLLMRouter(ctx, "kv_aware", args...)
	}},
	{
		name: "vllm-router-hash", rival: true, about: "vllm-router, --policy consistent_hash by X-Session-ID, what its documentation recommends for chats with a history",
		session: "X-Session-ID", only: func(p *play) bool { return p.traffic.Turns > 1 },
		start: func(ctx context.Context, w *world) ([]string, error) {
			return w.startVLLMRouter(ctx, "consistent_hash")
		},
	},
	{name: "round-robin", about: "the same Envoy without a picker, engines in turn", start: func(ctx context.Context, w *world) ([]string, error) {
		return w.startEnvoys(ctx, nil)
	}},
	{
		name: "direct", about: "no gateway", only: func(p *play) bool { return p.prefill == 0 },
		start: func(_ context.Context, w *world) (urls []string, err error) {
			for _, e := range w.engines {
				urls = append(urls, e.url)
			}
			return urls, nil
		},
	},
}

// startPicked starts Envoys, each with a picker of its own; two are replicas of each other.
func (w *world) startPicked(ctx context.Context, policy string) ([]string, error) {
	pickers, err := w.startServices(ctx, "--gateway-port", policy)
	if err != nil {
		return nil, err
	}
	return w.startEnvoys(ctx, pickers)
}

// addresses returns the URLs of ports of this machine.
func addresses(ports []int) (urls []string) {
	for _, p := range ports {
		urls = append(urls, fmt.Sprintf("http://%s:%d", loopback, p))
	}
	return urls
}

// startServices starts select-services with a port for requests, given by an option, and returns these ports; two
// are replicas of each other. policy names an instance of demo/policies.yaml, "": the default.
func (w *world) startServices(ctx context.Context, option, policy string) ([]int, error) {
	var file strings.Builder
	file.WriteString("workers:\n")
	metrics := ""
	if w.play.traffic.Around > 0 {
		metrics = ", load_metrics: {}"
	}
	for i, e := range w.engines {
		fmt.Fprintf(&file, "  - {worker_id: %d, model_name: %s, endpoint: %q, block_size: %d, kv_events_endpoint: %q, replay_endpoint: %q, max_num_batched_tokens: 8192%s}\n",
			i+1, model, e.url, blockSize, e.events, e.replay, metrics)
	}
	workers := filepath.Join(w.dir, "workers.yaml")
	if err := os.WriteFile(workers, []byte(file.String()), 0o644); err != nil {
		return nil, err
	}
	type service struct{ http, front, sync int }
	services := make([]service, w.gateways())
	for i := range services {
		p, err := ports(3)
		if err != nil {
			return nil, err
		}
		services[i] = service{p[0], p[1], p[2]}
	}
	var fronts []int
	for i, p := range services {
		args := []string{
			"--listen", loopback, "--port", fmt.Sprint(p.http), option, fmt.Sprint(p.front), "--workers-file", workers, "--log-format", "json", "--log-level", "warn",
		}
		for k, other := range services {
			if k != i {
				args = append(args, "--replica-sync-port", fmt.Sprint(p.sync),
					"--replica-sync-peers", fmt.Sprintf("tcp://%s:%d", loopback, other.sync), "--indexer-peers", fmt.Sprintf("http://%s:%d", loopback, other.http))
			}
		}
		var env []string
		if policy != "" {
			env = []string{"DYN_ROUTER_POLICY_CONFIG=demo/policies.yaml", "DYN_ROUTER_WORKER_SELECTION_POLICY=" + policy}
		}
		if err := w.startGateway(fmt.Sprintf("select-service-%d", i+1), env, w.service, args...); err != nil {
			return nil, err
		}
		fronts = append(fronts, p.front)
	}
	for _, p := range services {
		if err := w.answers(ctx, fmt.Sprintf("http://%s:%d/ready", loopback, p.http)); err != nil {
			return nil, err
		}
	}
	return fronts, nil
}

// startEnvoys starts Envoys with the pickers at these ports, without pickers if there are none.
func (w *world) startEnvoys(ctx context.Context, pickers []int) (urls []string, err error) {
	text, err := os.ReadFile(w.envoyConfig)
	if err != nil {
		return nil, err
	}
	for i := range w.gateways() {
		p, err := ports(3)
		if err != nil {
			return nil, err
		}
		picked, inTurn, admin := p[0], p[1], p[2]
		picker := 1 // nobody listens there
		if pickers != nil {
			picker = pickers[i]
		}
		config, err := w.envoy(string(text), map[int]int{10000: picked, 10001: inTurn, 9901: admin, 9002: picker})
		if err != nil {
			return nil, err
		}
		path := filepath.Join(w.dir, fmt.Sprintf("envoy-%d.yaml", i+1))
		if err := os.WriteFile(path, []byte(config), 0o644); err != nil {
			return nil, err
		}
		err = w.startGateway(fmt.Sprintf("envoy-%d", i+1), nil, w.programs.envoy,
			"--config-path", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error")
		if err != nil {
			return nil, err
		}
		if pickers == nil {
			picked = inTurn
		} else if err := w.says(ctx, fmt.Sprintf("http://%s:%d/clusters", loopback, admin), "picker::"+fmt.Sprintf("%s:%d", loopback, picker)+"::health_flags::healthy"); err != nil {
			return nil, err
		}
		urls = append(urls, fmt.Sprintf("http://%s:%d", loopback, picked))
		if err := w.answers(ctx, urls[i]+"/v1/models"); err != nil {
			return nil, err
		}
	}
	return urls, nil
}

// envoy adapts the example's configuration: the ports, the engines and, where an engine is
// restarted, the retry that docs/start/gateway.md has.
func (w *world) envoy(text string, ports map[int]int) (string, error) {
	var engines strings.Builder
	for _, e := range w.engines {
		fmt.Fprintf(&engines, "              - endpoint: {address: {socket_address: {address: %s, port_value: %d}}}\n", loopback, e.port)
	}
	old := []string{}
	for _, port := range []int{8001, 8002} {
		old = append(old, fmt.Sprintf("              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}\n", port))
	}
	replace := [][2]string{{strings.Join(old, ""), engines.String()}}
	for from, to := range ports {
		replace = append(replace, [2]string{fmt.Sprintf("port_value: %d}", from), fmt.Sprintf("port_value: %d}", to)})
	}
	if w.play.restart {
		const route = "route: {cluster: engines, timeout: 0s"
		replace = append(replace, [2]string{route, route + ", retry_policy: {retry_on: connect-failure, num_retries: 1}"})
	}
	if w.withoutAnswers {
		replace = append(replace, [2]string{"response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: NONE"}, [2]string{"response_header_mode: SEND", "response_header_mode: SKIP"})
	}
	if w.firstTokens {
		text = strings.Replace(text, router, observer+router, 1) // of the listener with a picker, which is the first
	}
	for _, r := range replace {
		if !strings.Contains(text, r[0]) {
			return "", fmt.Errorf("%s has no %q", w.envoyConfig, r[0])
		}
		text = strings.ReplaceAll(text, r[0], r[1])
	}
	return text, nil
}

// router is the filter that observer stands before: the second filter of docs/how-it-works/gateway.md, which shows the picker
// an answer up to its first token.
const (
	router   = "                  - name: envoy.filters.http.router\n"
	observer = `                  - name: answers
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
                      grpc_service: {envoy_grpc: {cluster_name: picker}}
                      observability_mode: true
                      failure_mode_allow: true
                      deferred_close_timeout: 1s
                      processing_mode: {request_header_mode: SKIP, response_header_mode: SEND, response_body_mode: STREAMED, response_trailer_mode: SEND}
                      metadata_options: {forwarding_namespaces: {untyped: [envoy.lb]}}
`
)

// startSMG starts SMG; several are one mesh.
func (w *world) startSMG(ctx context.Context, options ...string) (urls []string, err error) {
	n := w.gateways()
	p, err := ports(3 * n)
	if err != nil {
		return nil, err
	}
	for i := range n {
		own := p[3*i : 3*i+3]
		args := append([]string{
			"launch", "--host", loopback, "--port", fmt.Sprint(own[0]), "--prometheus-host", loopback, "--prometheus-port", fmt.Sprint(own[1]),
			"--log-level", "warn", "--policy", "cache_aware", "--worker-startup-check-interval", "1",
		}, options...)
		if w.play.restart {
			args = append(args, "--health-check-interval-secs", "1")
		}
		if n > 1 {
			args = append(args, "--enable-mesh", "--mesh-host", loopback, "--mesh-port", fmt.Sprint(own[2]), "--mesh-server-name", fmt.Sprintf("smg-%d", i+1))
			if i > 0 {
				args = append(args, "--mesh-peer-urls", fmt.Sprintf("%s:%d", loopback, p[2]))
			}
		}
		args = append(append(args, "--worker-urls"), w.engineURLs()...)
		if err := w.startGateway(fmt.Sprintf("smg-%d", i+1), nil, w.smg, args...); err != nil {
			return nil, err
		}
		urls = append(urls, fmt.Sprintf("http://%s:%d", loopback, own[0]))
	}
	return urls, w.haveWorkers(ctx, urls)
}

// startVLLMRouter starts vllm-routers, which know nothing of each other.
func (w *world) startVLLMRouter(ctx context.Context, policy string, options ...string) (urls []string, err error) {
	for i := range w.gateways() {
		p, err := ports(2)
		if err != nil {
			return nil, err
		}
		args := append([]string{
			"--host", loopback, "--port", fmt.Sprint(p[0]), "--prometheus-port", fmt.Sprint(p[1]), "--log-level", "warning",
			"--policy", policy, "--worker-startup-check-interval", "1",
		}, options...)
		if w.play.restart {
			args = append(args, "--health-check-interval-secs", "1")
		}
		args = append(append(args, "--worker-urls"), w.engineURLs()...)
		if err := w.startGateway(fmt.Sprintf("vllm-router-%d", i+1), nil, w.vllmRouter, args...); err != nil {
			return nil, err
		}
		urls = append(urls, fmt.Sprintf("http://%s:%d", loopback, p[0]))
	}
	return urls, w.haveWorkers(ctx, urls)
}

// haveWorkers waits until gateways of this kind know all engines.
func (w *world) haveWorkers(ctx context.Context, urls []string) error {
	for _, url := range urls {
		if err := w.says(ctx, url+"/readiness", fmt.Sprintf(`"healthy_workers":%d`, len(w.engines))); err != nil {
			return err
		}
	}
	return nil
}

// answers waits until an address answers with 200.
func (w *world) answers(ctx context.Context, url string) error {
	return w.await(ctx, url, func(status int, _ string) bool { return status == http.StatusOK })
}

// says waits until an address answers with a text.
func (w *world) says(ctx context.Context, url, text string) error {
	return w.await(ctx, url, func(_ int, body string) bool { return strings.Contains(body, text) })
}
