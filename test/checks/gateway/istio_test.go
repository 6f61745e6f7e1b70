package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/kubetest"
)

// Names of what a test with Istio needs from outside.
const (
	istioEnv       = "TEST_ISTIO"        // the program pilot-discovery
	istioModuleEnv = "TEST_ISTIO_MODULE" // the folder of its module
	gatewayCRDsEnv = "TEST_GATEWAY_CRDS" // the folder of the definitions of the Gateway API
)

// Addresses of the network namespace, and ports.
const (
	controlPlane = "10.77.0.1"
	gatewayPod   = "10.77.0.3"
	enginePort   = 8000
	secondPort   = 8001 // of the same engines
)

// mesh is a real Istio on a real API server: its control plane, the Envoy that it programs as the
// gateway llm of the namespace llm, and the pickers of deploy/kubernetes/istio.yaml behind it. The
// test writes what the kubelet and the controllers of a cluster would.
type mesh struct {
	*bed
	cluster *kubetest.Cluster
	config  string // the pickers' file, that of the manifest's ConfigMap
	kube    string // their kubeconfig, of the manifest's account
	pickers []*meshPicker
	pods    []*podEngine
}

// meshPicker is a replica of the picker. Each has its own address, and its own port for the others.
type meshPicker struct {
	*e2e.Service
	pod, ip string
	sync    int // port for the other replicas
	gone    bool
}

var serving = object{"ready": true, "serving": true, "terminating": false}

// TestIstio: behind a real Istio every request is booked and answered; one whose engine refuses is
// served by the next; a replica of the picker that is told to stop costs no request, one that is
// killed at most one; pools may have several ports; and another gateway at the same address is asked
// what it can do itself. make test-istio runs it.
func TestIstio(t *testing.T) {
	if os.Getenv(istioEnv) == "" {
		t.Skipf("needs Istio: make test-istio sets %s", istioEnv)
	}
	m := newMesh(t)
	for _, step := range []struct { // each begins with what the one before leaves
		name string
		play func(*mesh)
	}{
		{"status", (*mesh).status},
		{"every request is booked", (*mesh).booked},
		{"an engine refuses", (*mesh).refused},
		{"a picker is stopped", (*mesh).stopped},
		{"a picker is dead", (*mesh).dead},
		{"two ports", (*mesh).twoPorts},
		{"another gateway at the same address", (*mesh).sameAddress},
	} {
		t.Log(step.name)
		if step.play(m); t.Failed() {
			t.FailNow()
		}
	}
}

func newMesh(t *testing.T) *mesh {
	t.Helper()
	m := &mesh{bed: &bed{t: t}, cluster: kubetest.NewCluster(t)}
	definitions, err := filepath.Glob(filepath.Join(os.Getenv(gatewayCRDsEnv), "gateway.networking.k8s.io_*s.yaml"))
	if err != nil || len(definitions) == 0 {
		t.Fatalf("no definitions of the Gateway API in %q: %v", os.Getenv(gatewayCRDsEnv), err)
	}
	for _, file := range append(definitions, m.module("charts/base/files/crd-all.gen.yaml")) {
		if strings.Contains(file, "_vap_") {
			continue // a policy, which guards updates of the definitions
		}
		m.cluster.ApplyFile(file, nil)
	}
	root, err := e2e.Root()
	if err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(root, "deploy", "kubernetes", "istio.yaml")
	m.cluster.ApplyFile(manifest, func(o object) {
		if o["kind"] == "ConfigMap" {
			m.config = filepath.Join(t.TempDir(), "select-service.yaml")
			m.write(m.config, at(o, "data", "select-service.yaml").(string))
		}
	})
	m.kube = m.cluster.Kubeconfig(t)
	// As docs/start/kubernetes.md and the chart's httpRoute.
	m.cluster.Apply(object{
		"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": object{"namespace": "llm", "name": "llm"},
		"spec": object{"gatewayClassName": "istio", "listeners": []object{{"name": "http", "port": 80, "protocol": "HTTP"}}},
	}, "")
	m.cluster.Apply(object{
		"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": object{"namespace": "llm", "name": "select-service"},
		"spec": object{
			"parentRefs": []object{{"name": "llm"}},
			"rules": []object{{
				"matches":     []object{{"path": object{"type": "PathPrefix", "value": "/"}}},
				"backendRefs": []object{{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "llm"}},
				"timeouts":    object{"request": "0s"},
			}},
		},
	}, "")
	for i := range 3 {
		e := newPodEngine(t, fmt.Sprint("vllm-", i), fmt.Sprint("10.77.0.", 11+i), enginePort)
		m.pods, m.engines = append(m.pods, e), append(m.engines, e.backend)
		m.cluster.Put("pods", e.object())
	}
	m.cluster.Put("pods", kubetest.Pod("llm", "llm-istio-0", gatewayPod,
		kubetest.Labels("gateway.networking.k8s.io/gateway-name", "llm", "gateway.networking.k8s.io/gateway-class-name", "istio")))
	for i := range 2 {
		m.addPicker(&meshPicker{pod: fmt.Sprint("select-service-", i), ip: fmt.Sprint("10.77.0.", 21+i), sync: 9092 + i})
	}
	m.startControlPlane()
	m.cluster.Put("endpointslices", kubetest.Slice("llm", "llm-istio-x", "llm-istio", "IPv4", map[string]int{"http": 80, "status-port": 15021},
		kubetest.Endpoint("llm", "llm-istio-0", gatewayPod, serving)))
	m.slicePool()
	m.startEnvoy()
	e2e.Eventually(t, "Istio's gateway places a request", func() error {
		a, err := m.send(t.Context(), http.MethodPost, chats, chat("Hello"))
		if err == nil && a.status != http.StatusOK {
			err = fmt.Errorf("%v", a)
		}
		return err
	})
	return m
}

// module returns the path of a file of Istio's module, below manifests.
func (m *mesh) module(file string) string {
	return filepath.Join(os.Getenv(istioModuleEnv), "manifests", filepath.FromSlash(file))
}

func (m *mesh) write(path, text string) {
	m.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		m.t.Fatal(err)
	}
}

// addPicker starts a replica as the manifest's Deployment does, and makes it an endpoint.
func (m *mesh) addPicker(p *meshPicker) {
	m.t.Helper()
	labels := kubetest.Labels("app.kubernetes.io/name", "select-service", "app.kubernetes.io/instance", "select-service")
	m.cluster.Put("pods", kubetest.Pod("llm", p.pod, p.ip, labels))
	p.Service = e2e.New(m.t, e2e.Options{
		Command: []string{
			e2e.Binary(m.t), "--config", m.config, "--listen", p.ip, "--replica-sync-port", fmt.Sprint(p.sync),
			"--kubeconfig", m.kube, "--kube-namespace", "llm",
		},
		Env:     map[string]string{"POD_NAMESPACE": "llm", "POD_NAME": p.pod, "POD_IP": p.ip, "DYN_KV_CACHE_BLOCK_SIZE": fmt.Sprint(blockSize)},
		Address: p.ip + ":8092",
	})
	p.Run()
	e2e.Eventually(m.t, p.pod+" knows the engines", func() error {
		var status struct{ Sources []struct{ Schedulable int } }
		if err := p.Do(m.t.Context(), http.MethodGet, "/kubernetes", nil, &status); err != nil {
			return err
		}
		if len(status.Sources) != 1 || status.Sources[0].Schedulable != len(m.engines) {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	m.pickers = append(m.pickers, p)
	m.slicePickers()
}

// slicePickers writes the endpoints of the pickers that are not gone, those of the other replicas
// each in a slice of its own, as their ports differ here.
func (m *mesh) slicePickers() {
	var endpoints []object
	for _, p := range m.pickers {
		if p.gone {
			continue
		}
		endpoints = append(endpoints, kubetest.Endpoint("llm", p.pod, p.ip, serving))
		m.cluster.Put("endpointslices", kubetest.Slice("llm", p.pod+"-peers", "select-service-peers", "IPv4",
			map[string]int{"replica-agg": p.sync, "http": 8092}, kubetest.Endpoint("llm", p.pod, p.ip, serving)))
	}
	m.cluster.Put("endpointslices", kubetest.Slice("llm", "select-service-x", "select-service", "IPv4",
		map[string]int{"grpc-ext-proc": 9002, "http": 8092}, endpoints...))
}

// slicePool writes the endpoints of the Service that Istio makes for the pool: a port http-0, http-1, …
// for each of its target ports.
func (m *mesh) slicePool(more ...int) {
	m.t.Helper()
	var name string
	e2e.Eventually(m.t, "Istio makes a Service for the pool", func() error {
		for _, one := range m.cluster.List("v1", "Service", "llm") {
			if have := at(one, "metadata", "name").(string); strings.HasPrefix(have, "llm-ip-") && len(at(one, "spec", "ports").([]any)) == 1+len(more) {
				name = have
				return nil
			}
		}
		return errors.New("none has as many ports")
	})
	ports := map[string]int{"http-0": enginePort}
	for i, port := range more {
		ports[fmt.Sprint("http-", 1+i)] = port
	}
	var endpoints []object
	for _, e := range m.pods {
		endpoints = append(endpoints, kubetest.Endpoint("llm", e.pod, e.ip, serving))
	}
	m.cluster.Put("endpointslices", kubetest.Slice("llm", name+"-x", name, "IPv4", ports, endpoints...))
}

// startControlPlane starts pilot-discovery with the settings of an installation: Istio's chart has
// the template of a gateway's Deployment and Service, and its values.
func (m *mesh) startControlPlane() {
	m.t.Helper()
	dir := m.t.TempDir()
	// Without istio-agent there is nobody who would give the gateway certificates of the mesh.
	m.write(filepath.Join(dir, "mesh"), "{enableAutoMtls: false, rootNamespace: istio-system, trustDomain: cluster.local, "+
		"defaultConfig: {discoveryAddress: '"+controlPlane+":15012'}}\n")
	const chart = "charts/istio-control/istio-discovery/"
	template, err := os.ReadFile(m.module(chart + "files/kube-gateway.yaml"))
	if err != nil {
		m.t.Fatal(err)
	}
	text, err := os.ReadFile(m.module(chart + "values.yaml"))
	if err != nil {
		m.t.Fatal(err)
	}
	var values object
	if err := yaml.Unmarshal(text, &values); err != nil {
		m.t.Fatal(err)
	}
	if inner, ok := values["_internal_defaults_do_not_set"].(object); ok {
		values = inner
	}
	inject := filepath.Join(dir, "var", "lib", "istio", "inject")
	m.write(filepath.Join(inject, "config"), m.json(object{"policy": "enabled", "templates": object{"kube-gateway": string(template)}}))
	m.write(filepath.Join(inject, "values"), m.json(values))
	m.cluster.Apply(object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": "istio-system"}}, "")
	p := e2e.Start(m.t, e2e.Options{
		Command: []string{
			"sh", "-c", `cd "$0" && exec "$@"`, dir, os.Getenv(istioEnv), "discovery", "--kubeconfig", m.cluster.AdminKubeconfig(),
			"--meshConfig", filepath.Join(dir, "mesh"), "--networksConfig", filepath.Join(dir, "none"),
			"--httpAddr", controlPlane + ":8080", "--grpcAddr", controlPlane + ":15010", "--secureGRPCAddr", controlPlane + ":15012",
			"--httpsAddr", controlPlane + ":15017", "--monitoringAddr", controlPlane + ":15014",
		},
		Env: map[string]string{
			"POD_NAME": "istiod-0", "POD_NAMESPACE": "istio-system", "REVISION": "default", "CLUSTER_ID": "Kubernetes", "KUBECONFIG": "",
			"PILOT_CERT_PROVIDER": "istiod", "ENABLE_GATEWAY_API_INFERENCE_EXTENSION": "true",
			// The filters of Istio's own Envoy, which the one of the wheel does not have.
			"PILOT_ENABLE_METADATA_EXCHANGE": "false", "PILOT_ENABLE_ALPN_FILTER": "false",
			"INJECTION_WEBHOOK_CONFIG_NAME": "", "VALIDATION_WEBHOOK_CONFIG_NAME": "", "PILOT_ENABLE_ANALYSIS": "false",
		},
	})
	m.logs("Istio", p)
	e2e.Eventually(m.t, "Istio is ready", func() error {
		if code, ended := p.Wait(0); ended {
			m.t.Fatalf("Istio ended with code %d", code)
		}
		a, err := e2e.Call(m.t.Context(), http.DefaultClient, http.MethodGet, "http://"+controlPlane+":8080/ready", nil)
		if err == nil && a.Status != http.StatusOK {
			err = fmt.Errorf("%v", a)
		}
		return err
	})
}

// logs shows at a failure what a process wrote last.
func (m *mesh) logs(name string, p *e2e.Process) {
	t := m.t
	t.Cleanup(func() {
		if t.Failed() {
			out := p.Output()
			t.Logf("%s wrote: …%s", name, out[max(0, len(out)-6000):])
		}
	})
}

func (m *mesh) json(v any) string {
	m.t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

// startEnvoy starts the gateway's Envoy, which gets all else from Istio, as istio-agent would.
func (m *mesh) startEnvoy() {
	m.t.Helper()
	port := func(address string, n int) object {
		return object{"address": object{"socket_address": object{"address": address, "port_value": n}}}
	}
	ads := object{"ads": object{}, "resource_api_version": "V3"}
	const http2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	admin := e2e.FreePort(m.t)
	file := filepath.Join(m.t.TempDir(), "envoy.json")
	m.write(file, m.json(object{
		"node": object{
			"id": "router~" + gatewayPod + "~llm-istio-0.llm~llm.svc.cluster.local", "cluster": "llm-istio.llm",
			"metadata": object{
				"NAME": "llm-istio-0", "NAMESPACE": "llm", "CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.31.0", "INSTANCE_IPS": gatewayPod,
				"SERVICE_ACCOUNT": "llm-istio", "WORKLOAD_NAME": "llm-istio", "MESH_ID": "cluster.local", "NODE_NAME": "node", "PROXY_CONFIG": object{},
				"LABELS": object{
					"gateway.networking.k8s.io/gateway-name": "llm", "gateway.networking.k8s.io/gateway-class-name": "istio",
					"gateway.istio.io/managed": "istio.io-gateway-controller", "service.istio.io/canonical-name": "llm-istio",
				},
			},
		},
		"admin": port("127.0.0.1", admin),
		"dynamic_resources": object{
			"ads_config": object{
				"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": []object{{"envoy_grpc": object{"cluster_name": "xds-grpc"}}},
			},
			"cds_config": ads, "lds_config": ads,
		},
		"static_resources": object{"clusters": []object{{
			"name": "xds-grpc", "type": "STATIC", "connect_timeout": "1s",
			"typed_extension_protocol_options": object{http2: object{
				"@type": "type.googleapis.com/" + http2, "explicit_http_config": object{"http2_protocol_options": object{}},
			}},
			"load_assignment": object{
				"cluster_name": "xds-grpc", "endpoints": []object{{"lb_endpoints": []object{{"endpoint": port(controlPlane, 15010)}}}},
			},
		}}},
	}))
	m.envoy = &envoy{url: "http://" + gatewayPod, admin: fmt.Sprint("http://127.0.0.1:", admin)}
	m.envoy.Process = e2e.Start(m.t, e2e.Options{Command: []string{
		os.Getenv(envoyEnv), "--config-path", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning",
	}})
	m.logs("Envoy", m.envoy.Process)
}

// sum adds a metric of all running pickers.
func (m *mesh) sum(name string) (sum int) {
	m.t.Helper()
	for _, p := range m.pickers {
		if p.gone {
			continue
		}
		n, err := p.Sum(m.t.Context(), name)
		if err != nil {
			m.t.Fatal(err)
		}
		sum += int(n)
	}
	return sum
}

const (
	bookedTotal   = `select_service_gateway_requests_total{outcome="booked",via="ext_proc"}`
	chosenTotal   = `select_service_gateway_served_total{endpoint="chosen",via="ext_proc"}`
	fallbackTotal = `select_service_gateway_served_total{endpoint="fallback",via="ext_proc"}`
	unknownTotal  = `select_service_gateway_served_total{endpoint="unknown",via="ext_proc"}`
)

// sendAll sends n chats with the prompts from a number on, one after the other, and returns what did
// not get 200, and how many each engine answered.
func (m *mesh) sendAll(from, n int) (failed []string, engines map[string]int) {
	engines = make(map[string]int)
	for i := range n {
		m.note(chat(words(uint32(from+i), 64)), func(why, engine string) {
			if why != "" {
				failed = append(failed, why)
			} else {
				engines[engine]++
			}
		})
	}
	return failed, engines
}

// note sends a chat and tells why it did not get 200, or which engine has answered.
func (m *mesh) note(body object, done func(why, engine string)) {
	a, err := m.send(m.t.Context(), http.MethodPost, chats, body)
	switch {
	case err != nil:
		done(err.Error(), "")
	case a.status != http.StatusOK:
		done(a.String(), "")
	default:
		done("", a.engine())
	}
}

// status: the route's conditions and the gateway's are those that docs/start/kubernetes.md says
// to expect.
func (m *mesh) status() {
	t := m.t
	m.cluster.Apply(object{
		"apiVersion": "v1", "kind": "Service", "metadata": object{"namespace": "llm", "name": "llm-istio"},
		"status": object{"loadBalancer": object{"ingress": []object{{"ip": gatewayPod}}}},
	}, "status")
	e2e.Eventually(t, "the route is accepted and the gateway programmed", func() error {
		route := m.cluster.Read("gateway.networking.k8s.io/v1", "HTTPRoute", "llm", "select-service")
		status, _ := route["status"].(object)
		parents, _ := status["parents"].([]any)
		var reasons []string
		for _, p := range parents {
			for _, c := range at(p, "conditions").([]any) {
				reasons = append(reasons, at(c, "reason").(string))
			}
		}
		slices.Sort(reasons)
		if !slices.Equal(reasons, []string{"Accepted", "ResolvedRefs"}) {
			return fmt.Errorf("the route's reasons are %q", reasons)
		}
		gateway := m.cluster.Read("gateway.networking.k8s.io/v1", "Gateway", "llm", "llm")
		for _, c := range at(gateway, "status", "conditions").([]any) {
			if at(c, "type") == "Programmed" && at(c, "status") == "True" {
				return nil
			}
		}
		return fmt.Errorf("the gateway's conditions are %v", at(gateway, "status", "conditions"))
	})
}

// booked: each request is answered by the engine that a picker has booked, both pickers are asked,
// and a prompt that was seen goes to the engine that has it.
func (m *mesh) booked() {
	t := m.t
	before, chosen := m.sum(bookedTotal), m.sum(chosenTotal)
	const n = 30
	failed, engines := m.sendAll(0, n)
	if len(failed) > 0 {
		t.Errorf("failed: %q; served by %v", failed, engines)
	}
	if got := m.sum(bookedTotal) - before; got != n {
		t.Errorf("%d of %d requests are booked", got, n)
	}
	if got := m.sum(chosenTotal) - chosen; got != n {
		t.Errorf("%d of %d requests are served by the chosen engine", got, n)
	}
	for _, p := range m.pickers {
		if p.Metric(t, bookedTotal) == 0 {
			t.Errorf("%s was asked nothing", p.pod)
		}
	}
	prompt := chat(words(999, 400))
	first := m.post(http.StatusOK, chats, prompt)
	e2e.Eventually(t, "the prompt goes where it is cached", func() error {
		for range 4 {
			if a := m.post(http.StatusOK, chats, prompt); a.engine() != first.engine() {
				return fmt.Errorf("%s, not %s", a.engine(), first.engine())
			}
		}
		return nil
	})
}

// refused: while an engine refuses connections, Istio's retry sends its requests to the picker's next
// endpoint, and the picker hears of it. It is the engine that has the first prompt.
func (m *mesh) refused() {
	t := m.t
	first := m.post(http.StatusOK, chats, chat(words(0, 64))).engine()
	engine := m.engines[slices.IndexFunc(m.engines, func(b *backend) bool { return b.name == first })]
	before, fallback := m.sum(bookedTotal), m.sum(fallbackTotal)
	engine.refuse()
	const n = 12
	failed, engines := m.sendAll(0, n)
	if len(failed) > 0 || engines[first] > 0 {
		t.Errorf("failed: %q; served by %v", failed, engines)
	}
	if got := m.sum(bookedTotal) - before; got != n {
		t.Errorf("%d of %d requests are booked", got, n)
	}
	if got := m.sum(fallbackTotal) - fallback; got == 0 {
		t.Error("no picker heard that a fallback served a request")
	}
	ln, err := net.Listen("tcp", engine.address)
	if err != nil {
		t.Fatal(err)
	}
	engine.serve(ln)
}

// sameAddress: a gateway that takes one endpoint, as Envoy AI Gateway makes them, gets one, also
// when another gateway with its address, here Istio's, has asked for several before. Each picker has
// seen answers of Istio's.
func (m *mesh) sameAddress() {
	t := m.t
	for _, p := range m.pickers {
		if p.gone {
			continue
		}
		one := &bed{t: t, engines: m.engines, envoy: startEnvoy(t, 9002, m.engines, pickerAt(p.ip), aiGateway)}
		for i := range 6 {
			one.post(http.StatusOK, chats, chat(words(uint32(100+i), 64)))
		}
		if p.Metric(t, chosenTotal) == 0 {
			t.Errorf("%s has heard of no endpoint from Istio's gateway", p.pod)
		}
	}
}

// stopped: a replica is told to stop under load, and its endpoint goes a second later, as in a
// rolling update. No request fails.
func (m *mesh) stopped() {
	t := m.t
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	traffic := m.flow(ctx, 20)
	p := m.pickers[0]
	pause(ctx, time.Second)
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	pause(ctx, time.Second)
	p.gone = true
	m.slicePickers()
	m.cluster.Delete("endpointslices", "llm", p.pod+"-peers")
	if code, ended := p.Wait(e2e.Patience); !ended || code != 0 {
		t.Errorf("the picker: code %d, ended: %t", code, ended)
	}
	m.addPicker(&meshPicker{pod: "select-service-2", ip: "10.77.0.23", sync: 9094})
	pause(ctx, time.Second)
	stop()
	t.Logf("%d requests", traffic.ended())
}

// dead: a replica is killed and stays in the EndpointSlice. The manifest's DestinationRule lets one
// request fail, after which Istio's gateway leaves the replica out for 2 s; on a machine that is
// slower than this another one fails each time that it is let in again.
func (m *mesh) dead() {
	t := m.t
	p := m.pickers[1]
	p.Kill()
	p.gone = true // for sum; the slice stays
	failed, engines := m.sendAll(200, 20)
	ejected := m.ejections()
	t.Logf("failed: %q; served by %v; the replica was left out %d times", failed, engines, ejected)
	if ejected == 0 || len(failed) > ejected {
		t.Errorf("%d requests failed, and a replica was left out %d times", len(failed), ejected)
	}
	m.slicePickers()
	m.cluster.Delete("endpointslices", "llm", p.pod+"-peers")
}

// ejections returns how often Envoy has left out a picker.
func (m *mesh) ejections() (n int) {
	m.t.Helper()
	a, err := e2e.Call(m.t.Context(), http.DefaultClient, http.MethodGet, m.envoy.admin+"/stats?filter=9002.*ejections_enforced_total", nil)
	if err != nil {
		m.t.Fatal(err)
	}
	_, number, found := strings.Cut(strings.TrimSpace(string(a.Body)), ": ")
	if _, err := fmt.Sscan(number, &n); !found || err != nil {
		m.t.Fatalf("Envoy's statistics have no ejections of pickers: %q", a.Body)
	}
	return n
}

// twoPorts: a pool with two target ports has two workers a pod, all of which get requests.
func (m *mesh) twoPorts() {
	t := m.t
	for _, e := range m.pods {
		m.engines = append(m.engines, newBackendAt(t, fmt.Sprint(e.ip, ":", secondPort), e.pod+"-second", 1, 1, nil))
	}
	m.cluster.Put("inferencepools", kubetest.Pool("llm", "llm", "vllm", enginePort, secondPort))
	m.slicePool(secondPort)
	unknown, from := 0, 1000
	e2e.Eventually(t, "all six engines serve requests that are chosen", func() error {
		unknown = m.sum(unknownTotal)
		const together = 24
		var mu sync.Mutex // guards what follows
		var failed []string
		engines := make(map[string]bool)
		var all sync.WaitGroup
		for range together {
			from++
			body := chat(words(uint32(from), 64))
			all.Go(func() {
				m.note(body, func(why, engine string) {
					mu.Lock()
					defer mu.Unlock()
					if why != "" {
						failed = append(failed, why)
					} else {
						engines[engine] = true
					}
				})
			})
		}
		all.Wait()
		if len(failed) > 0 || len(engines) != len(m.engines) {
			return fmt.Errorf("failed: %q; served by %v", failed, slices.Sorted(maps.Keys(engines)))
		}
		return nil
	})
	if got := m.sum(unknownTotal) - unknown; got != 0 {
		t.Errorf("%d requests were served by engines that no picker knows", got)
	}
}
