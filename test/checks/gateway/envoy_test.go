package gateway

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/test/checks/e2e"
)

// envoy is a running Envoy.
type envoy struct {
	*e2e.Process
	url    string // of the listener whose requests the picker places
	inTurn string // of the one without the picker
	admin  string
}

// Ports of examples/gateway/envoy.yaml.
const (
	pickedPort = 10000
	inTurnPort = 10001
	adminPort  = 9901
	pickerPort = 9002
)

// edit changes Envoy's configuration.
type edit func(config)

// config is Envoy's configuration, and finds what tests change in it.
type config struct{ root object }

func startEnvoy(t *testing.T, picker int, engines []*backend, edits ...edit) *envoy {
	t.Helper()
	root, err := e2e.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "examples", "gateway", "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var c config
	if err := yaml.Unmarshal(text, &c.root); err != nil {
		t.Fatal(err)
	}
	ports := map[int]int{pickerPort: picker}
	for _, port := range []int{pickedPort, inTurnPort, adminPort} {
		ports[port] = e2e.FreePort(t)
	}
	setPorts(c.root, ports)
	c.setEngines(t, "engines", engines)
	c.setPatience()
	for _, e := range edits {
		e(c)
	}
	if text, err = json.MarshalIndent(c.root, "", " "); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	address := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", ports[port]) }
	e := &envoy{url: address(pickedPort), inTurn: address(inTurnPort), admin: address(adminPort)}
	e.Process = e2e.Start(t, e2e.Options{Command: []string{
		os.Getenv(envoyEnv), "--config-path", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning",
	}})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("Envoy wrote: %s", e.Output())
		}
	})
	e2e.Eventually(t, "Envoy is ready", func() error {
		if code, ended := e.Wait(0); ended {
			t.Fatalf("Envoy ended with code %d: %s", code, e.Output())
		}
		a, err := e2e.Call(t.Context(), http.DefaultClient, http.MethodGet, e.admin+"/ready", nil)
		if err == nil && a.Status != http.StatusOK {
			err = fmt.Errorf("%v", a)
		}
		return err
	})
	return e
}

// setPorts replaces ports in a tree of values.
func setPorts(v any, ports map[int]int) {
	switch v := v.(type) {
	case object:
		if port, ok := v["port_value"].(int); ok && ports[port] != 0 {
			v["port_value"] = ports[port]
		}
		for _, below := range v {
			setPorts(below, ports)
		}
	case []any:
		for _, below := range v {
			setPorts(below, ports)
		}
	}
}

// setPatience gives each cluster time for a connection, and the picker for its health, as on a machine that stands still for
// seconds: with the second of examples/gateway Envoy has no picker then, and answers 500. What is closed refuses at once, whatever
// the patience.
func (c config) setPatience() {
	const patience = "60s"
	for _, cluster := range at(c.root, "static_resources", "clusters").([]any) {
		cluster := cluster.(object)
		cluster["connect_timeout"] = patience
		if checks, ok := cluster["health_checks"].([]any); ok {
			checks[0].(object)["timeout"] = patience
		}
	}
}

// at follows keys, and numbers in lists, down a tree of values.
func at(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			v = v.(object)[step]
		case int:
			v = v.([]any)[step]
		}
	}
	return v
}

func objectAt(v any, path ...any) object { return at(v, path...).(object) }

// connections is the HTTP connection manager of the listener with the picker.
func (c config) connections() object {
	return objectAt(c.root, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
}

// extProc is the filter that asks the picker.
func (c config) extProc() object { return objectAt(c.connections(), "http_filters", 0, "typed_config") }

func (c config) modes() object { return objectAt(c.extProc(), "processing_mode") }

// route is the route behind the picker.
func (c config) route() object {
	return objectAt(c.connections(), "route_config", "virtual_hosts", 0, "routes", 0, "route")
}

func (c config) cluster(name string) object {
	for _, cluster := range at(c.root, "static_resources", "clusters").([]any) {
		if cluster := cluster.(object); cluster["name"] == name {
			return cluster
		}
	}
	panic("no cluster " + name)
}

// before puts a filter before the one that asks the picker.
func (c config) before(name, kind string, settings object) {
	settings["@type"] = "type.googleapis.com/" + kind
	filters := c.connections()["http_filters"].([]any)
	c.connections()["http_filters"] = append([]any{object{"name": name, "typed_config": settings}}, filters...)
}

// observer leaves the answers out of the filter that asks the picker, and adds the second one that
// docs/how-it-works/gateway.md has for first tokens.
func observer(t *testing.T) edit {
	t.Helper()
	root, err := e2e.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "how-it-works", "gateway.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "```yaml\n")
	text, _, closed := strings.Cut(text, "```")
	var second []any
	if err := yaml.Unmarshal([]byte(text), &second); err != nil || !found || !closed || len(second) != 1 {
		t.Fatalf("the page has no second filter: %v", err)
	}
	return func(c config) {
		c.modes()["response_header_mode"], c.modes()["response_body_mode"] = "SKIP", "NONE"
		filters := c.connections()["http_filters"].([]any)
		c.connections()["http_filters"] = append(append(filters[:1:1], second...), filters[1:]...)
	}
}

func (c config) setEngines(t *testing.T, cluster string, engines []*backend) {
	t.Helper()
	var endpoints []any
	for _, e := range engines {
		host, port, err := net.SplitHostPort(e.address)
		if err != nil {
			t.Fatal(err)
		}
		number, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		endpoints = append(endpoints, object{"endpoint": object{"address": object{"socket_address": object{"address": host, "port_value": number}}}})
	}
	objectAt(c.cluster(cluster), "load_assignment", "endpoints", 0)["lb_endpoints"] = endpoints
}

// mode sets one of the processing modes.
func mode(name, value string) edit { return func(c config) { c.modes()[name] = value } }

// retries lets the route try another host after a refused connection.
func retries(n int) edit {
	return func(c config) { c.route()["retry_policy"] = object{"retry_on": "connect-failure", "num_retries": n} }
}

// failOpen lets requests pass when there is no picker.
func failOpen(c config) { c.extProc()["failure_mode_allow"] = true }

// http2 speaks HTTP/2 with the engines, where requests and answers have trailers.
func http2(c config) {
	c.cluster("engines")["typed_extension_protocol_options"] = c.cluster("picker")["typed_extension_protocol_options"]
}

// subsetOf lets the gateway allow only some endpoints, as a list or a text.
func subsetOf(endpoints any) edit {
	return func(c config) {
		c.before("envoy.filters.http.set_metadata", "envoy.extensions.filters.http.set_metadata.v3.Config", object{
			"metadata": []any{object{
				"metadata_namespace": "envoy.lb.subset_hint",
				"value":              object{"x-gateway-destination-endpoint-subset": endpoints},
			}},
		})
	}
}

// selfSigned lets Envoy speak TLS with the picker, without verifying it.
func selfSigned(c config) {
	picker := c.cluster("picker")
	picker["transport_socket"] = object{"name": "envoy.transport_sockets.tls", "typed_config": object{
		"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
	}}
	objectAt(picker, "health_checks", 0)["tls_options"] = object{"alpn_protocols": []any{"h2"}}
}

// aiGateway is the shape of what Envoy AI Gateway 1.1 makes of an InferencePool: TLS with the picker
// and no health check of it, no metadata, and a cluster that connects to the one endpoint which the
// picker's header names, so that it cannot tell who served.
func aiGateway(c config) {
	selfSigned(c)
	delete(c.cluster("picker"), "health_checks")
	delete(c.extProc(), "metadata_options")
	c.extProc()["message_timeout"] = "300s"
	engines := c.cluster("engines")
	for _, key := range []string{"load_assignment", "load_balancing_policy"} {
		delete(engines, key)
	}
	engines["type"], engines["lb_policy"] = "ORIGINAL_DST", "CLUSTER_PROVIDED"
	engines["original_dst_lb_config"] = object{"use_http_header": true, "http_header_name": "x-gateway-destination-endpoint"}
}

// pickerAt names another address of the picker.
func pickerAt(ip string) edit {
	return func(c config) {
		objectAt(c.cluster("picker"), "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address", "socket_address")["address"] = ip
	}
}
