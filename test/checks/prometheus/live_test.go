package prometheus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// liveEnv turns TestLive on.
const liveEnv = "SELECT_SERVICE_PROMETHEUS"

// TestLive: a real Prometheus server scrapes two replicas, a service with the wait
// queue and a gateway, all of which serve known traffic from engines with real KV events.
// Every query of the dashboard and the rules has data, counts are exact, and the
// alerts that are due, and no others, are on their way.
func TestLive(t *testing.T) {
	if os.Getenv(liveEnv) != "1" {
		t.Skipf("needs prometheus and promtool: make test-metrics sets %s=1", liveEnv)
	}
	tr := newTraffic(t)
	var targets []string
	for _, s := range tr.services() {
		targets = append(targets, s.Address())
	}
	s := startServer(t, targets...)
	s.scraped(len(targets), time.Now()) // every counter of the model is seen at zero
	tr.play(12 * time.Second)           // more than $__rate_interval
	at := s.scraped(len(targets), time.Now())

	t.Run("panels", func(t *testing.T) { s.checkPanels(t, at) })
	t.Run("rules", func(t *testing.T) { s.checkRules(t, at) })
	t.Run("alerts", func(t *testing.T) { s.checkAlerts(t) })
	t.Run("requirement", func(t *testing.T) { s.checkRequirement(t, tr, at) })
	t.Run("page", func(t *testing.T) { s.checkPage(t, tr, at) })
	t.Run("counts", func(t *testing.T) { s.checkCounts(t, tr, at) })
	t.Run("exposition", func(t *testing.T) { checkExposition(t, tr) })
	t.Run("aliases", func(t *testing.T) { s.checkAliases(t, tr, at) })
}

// newTraffic starts all processes. The second replica starts last and reads the
// index of the first.
func newTraffic(t *testing.T) *traffic {
	t.Helper()
	tr := &traffic{
		t: t, engines: startEngines(t, 2), lossy: zmqtest.NewPublisher(t, ""),
		issued: make(map[*service]int), rejected: make(map[*service]int),
	}
	t.Cleanup(tr.lossy.Close)
	ports, sync := [3]int{}, [2]int{}
	for i := range ports {
		ports[i] = e2e.FreePort(t)
	}
	for i := range sync {
		sync[i] = e2e.FreePort(t)
	}
	replica := func(own int) []string {
		return []string{
			"--replica-sync-port", fmt.Sprint(sync[own]), "--replica-sync-peers", fmt.Sprintf("tcp://127.0.0.1:%d", sync[1-own]),
			"--advertise-url", fmt.Sprintf("http://127.0.0.1:%d", ports[own]),
		}
	}
	tr.first = start(t, "first", ports[0], replica(0)...)
	shown := e2e.NewAuthority(t).Issue(t, "queue", time.Now().Add(30*24*time.Hour))
	tr.queue = start(t, "queue", ports[2], "--router-policy-config", policyFile(t), "--data-dir", t.TempDir(), "--snapshot-interval", "1s",
		"--peer-cert", shown.Cert, "--peer-key", shown.Key)
	for id, e := range tr.engines {
		tr.first.register(id+1, model, e.Events, e.Replay)
	}
	tr.queue.register(1, model, tr.engines[0].Events, tr.engines[0].Replay)
	tr.first.register(9, noisy, tr.lossy.Endpoint, "")
	tr.first.must(http.StatusOK, "PATCH", "/workers/9", object{"load_metrics": object{"url": loadPage(t)}})
	tr.first.must(http.StatusOK, "POST", "/conductor/register", object{
		"type": "vLLM", "modelname": model, "instance_id": "engine-1", "block_size": blockSize, "dp_rank": 0,
		"endpoint": tr.engines[0].Events, "replay_endpoint": tr.engines[0].Replay,
	})
	tr.gateway = startGateway(t, tr.engines)
	tr.engines[0].subscribed(t, 4)
	tr.engines[1].subscribed(t, 2)
	tr.lossy.Subscribers(1)
	tr.publish(batch(t, []any{})) // what was before the first message is not missed
	for _, e := range tr.engines {
		e.generate(t, "warm", prompt(0))
	}
	tr.pods = startPods(t, tr.engines[0])
	tr.second = startWith(t, tr.pods.env(), "second", ports[1], append(replica(1), "--metrics-dynamo-aliases", "--indexer-peers", tr.first.url(""),
		"--kubeconfig", tr.pods.Kubeconfig(t), "--kube-namespace", namespace, "--kube-inference-pool", pool, "--kube-peer-service", "peers")...)
	for id, e := range tr.engines {
		tr.second.register(id+1, model, e.Events, e.Replay)
	}
	tr.engines[1].subscribed(t, 3)
	for _, s := range []*service{tr.first, tr.second} {
		e2e.Eventually(t, s.name+" follows its peer", func() error {
			if !bytes.Contains(s.metrics(), []byte("select_service_replica_peers{state=\"connected\"} 1\n")) {
				return fmt.Errorf("not yet")
			}
			return get(s.url("/ready"), nil)
		})
	}
	// Thresholds of the second replica are never reached; the first one has none
	// but for moments.
	tr.second.must(http.StatusOK, "POST", "/busy_threshold", object{"model": model, thresholds[0]: 0.9, thresholds[1]: 100_000, thresholds[2]: 4})
	tr.load()
	return tr
}

// checkPanels evaluates every query of the dashboard, those of its variables too.
func (s *server) checkPanels(t *testing.T, at time.Time) {
	d, _ := readDashboard(t)
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		var q struct{ Query string }
		if err := json.Unmarshal(v.Query, &q); err != nil {
			t.Fatalf("variable %s: %v", v.Name, err)
		}
		m := labelValues.FindStringSubmatch(q.Query)
		if m == nil {
			t.Errorf("variable %s: %s is no label_values query", v.Name, q.Query)
			continue
		}
		points, err := s.query(substitute(m[1]), at)
		if err != nil || !slices.ContainsFunc(points, func(p point) bool { return p.Metric[m[2]] != "" }) {
			t.Errorf("variable %s: %s offers nothing (%v)", v.Name, q.Query, err)
		}
	}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			if err := s.answers(substitute(q.Expr), at); err != nil {
				t.Errorf("panel %q, %s: %v", p.Title, q.Expr, err)
			}
		}
	}
}

// checkRules evaluates what the alerts watch and what the others record; the
// server must have evaluated all of them without an error.
func (s *server) checkRules(t *testing.T, at time.Time) {
	for _, r := range readRules(t) {
		expr := r.Record
		if r.Alert != "" {
			expr = watched(r.Expr)
		}
		for _, operand := range alternatives(expr) {
			if err := s.answers(operand, at); err != nil {
				t.Errorf("%s%s, %s: %v", r.Alert, r.Record, operand, err)
			}
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	s.api("rules", &rules)
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			n++
			if r.Health != "ok" {
				t.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	if want := len(readRules(t)); n != want {
		t.Errorf("the server has %d rules, want %d", n, want)
	}
}

// checkAlerts proves on the real service what rules_test.yml says of made-up
// series: an alert has begun for each fault of the traffic, and for nothing else.
// Those that a stall of this machine sets off do not count.
func (s *server) checkAlerts(t *testing.T) {
	want := []string{
		"HighModelRejectionRate", "HighRequestRejectionRate", "KVEventsLost", "KVEventsRefused", "KVStreamsStale",
		"KubernetesPodsExcluded", "KubernetesPodsIncomplete", "ModelNotServed",
		"PredictionsReplaced", // answers through the gateway are at their end at once, as if the prefill was reported with it
		"SelectServiceQueueFull", "ThresholdsDiffer",
	}
	var answer struct {
		Alerts []struct{ Labels map[string]string }
	}
	s.api("alerts", &answer)
	var got []string
	for _, a := range answer.Alerts {
		if name := a.Labels["alertname"]; name != "KVEventLagHigh" && name != "ReplicasDiverge" {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("alerts %q, want %q", got, want)
	}
}

// checkRequirement runs the example queries of the requirement.
func (s *server) checkRequirement(t *testing.T, tr *traffic, at time.Time) {
	points, err := s.query("rate(dynamo_tasks_rejected_total[5m])", at)
	if err != nil {
		t.Fatal(err)
	}
	rising := 0
	for _, p := range points {
		switch refuses := p.Metric["instance"] == tr.first.Address() && p.Metric["model"] == model; {
		case refuses && p.Value > 0:
			rising++
		case p.Value != 0:
			t.Errorf("%v has rejections", p.Metric)
		}
	}
	if rising != 2 {
		t.Errorf("rejections rise on %d of the two endpoints: %v", rising, points)
	}
	// Rates of instances that are scraped at different moments are extrapolated a
	// little differently. Those of one instance are not.
	const percentage = "sum(rate(dynamo_tasks_rejected_total[5m])) / sum(rate(dynamo_tasks_issued_total[5m])) * 100"
	if got, want := s.value(t, percentage, at), 100*float64(total(tr.rejected))/float64(total(tr.issued)); math.Abs(got/want-1) > 0.15 {
		t.Errorf("%v%% of the requests were rejected, want %v%%", got, want)
	}
	own := strings.ReplaceAll(percentage, "_total", fmt.Sprintf("_total{instance=%q}", tr.first.Address()))
	want := 100 * float64(tr.rejected[tr.first]) / float64(tr.issued[tr.first])
	if got := s.value(t, own, at); math.Abs(got/want-1) > 1e-9 {
		t.Errorf("%v%% of the first replica's requests were rejected, want %v%%", got, want)
	}
	// "watch -n 1 'curl -s localhost:8000/metrics | grep kv_blocks'"
	if !bytes.Contains(tr.first.metrics(), []byte("kv_blocks{")) {
		t.Error("/metrics has no kv_blocks")
	}
}

// checkPage runs the queries of docs/run/operate.md that say how near ranks are to
// the thresholds. What is booked for good are prompts of eight blocks.
func (s *server) checkPage(t *testing.T, tr *traffic, at time.Time) {
	_, block, _ := strings.Cut(string(read(t, "docs", "run", "operate.md")), "```promql\n")
	block, _, _ = strings.Cut(block, "```")
	queries := strings.Split(block, "\n\n")
	for i, q := range queries {
		points, err := s.query(q, at)
		if err != nil || len(points) != len(tr.engines) {
			t.Errorf("%s: %v (%v), want the ranks of the replica with thresholds", q, points, err)
		}
		for _, p := range points {
			if want := 8.0 / kvBlocks / 0.9; i == 0 && math.Abs(p.Value-want) > 1e-9 {
				t.Errorf("%s: %v, want %v", q, p, want)
			}
		}
	}
}

// checkCounts compares counters with what was asked for.
func (s *server) checkCounts(t *testing.T, tr *traffic, at time.Time) {
	for expr, want := range map[string]int{
		"sum(dynamo_tasks_issued_total)":                                                    total(tr.issued),
		"sum(dynamo_tasks_rejected_total)":                                                  total(tr.rejected),
		"sum(dynamo_frontend_model_rejection_total)":                                        total(tr.rejected),
		`sum(select_service_selections_total{outcome="overloaded",model_name="org/model"})`: total(tr.rejected),
		`sum(select_service_selections_total{outcome="not_ready",model_name=""})`:           tr.unserved,
		`sum(select_service_selections_total{outcome="not_ready"})`:                         tr.unserved,
		`sum(select_service_workers{model_name="org/model",lifecycle="schedulable"})`:       5, // two each of the replicas, one with a queue
		`sum(select_service_workers{model_name="noisy",lifecycle="schedulable"})`:           1,
		"sum(select_service_workers_unjudged)":                                              0,
		`sum(select_service_rejections_total{cause="active_decode_blocks"})`:                total(tr.rejected) / len(thresholds),
		`sum(select_service_rejections_total{cause="active_prefill_tokens"})`:               total(tr.rejected) / len(thresholds),
		`sum(select_service_rejections_total{cause="active_prefill_tokens_frac"})`:          total(tr.rejected) / len(thresholds),
		`sum(select_service_rejections_total{cause="queue_limit"})`:                         tr.queueFull,
		`sum(select_service_selections_total{outcome="queue_full"})`:                        tr.queueFull,
		`sum(select_service_queue_wait_seconds_count)`:                                      tr.queueFull, // one waits in each round
		`sum(select_service_selections_total{outcome="id_taken"})`:                          tr.conflicts,
		`sum(select_service_selections_total{outcome="invalid"})`:                           tr.round,
		`sum(select_service_http_requests_total{route="",code="404"})`:                      tr.round,
		`sum(select_service_http_requests_total{route="/conductor/query",code="200"})`:      tr.round,
		"sum(select_service_kv_messages_lost_total)":                                        tr.lost,
		`sum(select_service_kv_gaps_total{outcome="unrepaired"})`:                           tr.round,
		`sum(select_service_kv_messages_total{outcome="undecodable"})`:                      tr.round,
		`sum(select_service_kv_events_total{outcome="unknown_medium"})`:                     tr.round,
		`sum(select_service_kv_streams{state="stale"})`:                                     1,
		"sum(dynamo_queued_requests)":                                                       0,
		"max(select_service_reservations_live)":                                             len(tr.engines),
		"min(select_service_reservations_live)":                                             0,
		`sum(up{job="select-service"})`:                                                     4,
		"sum(select_service_ready)":                                                         4,
		`sum(select_service_gateway_requests_total{outcome="booked"})`:                      2 * tr.round, // one through the proxy
		`sum(select_service_proxy_ttft_seconds_count)`:                                      tr.round,
		"sum(select_service_worker_overloaded)":                                             0,
	} {
		if got := s.value(t, expr, at); got != float64(want) {
			t.Errorf("%s is %v, want %d", expr, got, want)
		}
	}
}

// checkExposition holds real answers against Prometheus' own rules.
func checkExposition(t *testing.T, tr *traffic) {
	for _, s := range []*service{tr.first, tr.queue} {
		lint := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
		lint.Stdin = bytes.NewReader(s.metrics())
		if out, err := lint.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("promtool check metrics of %s: %v\n%s", s.name, err, out)
		}
	}
}

// checkAliases proves that the names of Dynamo's indexer are there if asked for.
func (s *server) checkAliases(t *testing.T, tr *traffic, at time.Time) {
	for _, name := range []string{"dynamo_kvindexer_workers", "dynamo_kvindexer_listeners", "dynamo_kvrouter_kv_cache_events_applied"} {
		if err := s.answers(fmt.Sprintf("%s{instance=%q}", name, tr.second.Address()), at); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if bytes.Contains(tr.first.metrics(), []byte("dynamo_kv")) {
		t.Error("the aliases are shown unasked")
	}
}
