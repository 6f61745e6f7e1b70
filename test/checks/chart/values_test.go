package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// TestIDs proves that the manifests have the ids of the image's user, and that of OpenShift none:
// the SCC restricted-v2 has runAsUser and fsGroup of the kind MustRunAs with the range of the
// namespace, so that it refuses a pod with ids of its own (OpenShift, "Managing security context
// constraints").
func TestIDs(t *testing.T) {
	for file, want := range map[string]int{"deploy/kubernetes/istio.yaml": 65532, "deploy/kubernetes/openshift.yaml": 0} {
		p := one(t, objects(t, read(t, file)), "Deployment", "select-service").Spec.Template.Spec
		for name, id := range map[string]*int{
			"runAsUser": p.SecurityContext.RunAsUser, "runAsGroup": p.SecurityContext.RunAsGroup, "fsGroup": p.SecurityContext.FSGroup,
		} {
			if id == nil && want != 0 || id != nil && *id != want {
				t.Errorf("%s: %s is %v, want %d (0: none)", file, name, id, want)
			}
		}
		if c := p.Containers[0].SecurityContext; c.RunAsUser != nil {
			t.Errorf("%s: the container has the user %d", file, *c.RunAsUser)
		}
	}
}

// TestSecurityContext proves that values go over what the chart has in both securityContexts, key by
// key, and that null leaves a key out.
func TestSecurityContext(t *testing.T) {
	pod := func(values string) map[string]any {
		var d struct {
			Spec struct{ Template struct{ Spec map[string]any } }
		}
		if err := yaml.Unmarshal(render(t, values, "--show-only", "templates/deployment.yaml"), &d); err != nil {
			t.Fatal(err)
		}
		return d.Spec.Template.Spec
	}
	seccomp := map[string]any{"type": "RuntimeDefault"}
	for values, want := range map[string]map[string]any{
		"openshift: true": {"runAsNonRoot": true, "seccompProfile": seccomp},
		"{openshift: true, podSecurityContext: {runAsUser: 1000660000}}": {"runAsNonRoot": true, "runAsUser": 1000660000, "seccompProfile": seccomp},
		"podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null, seccompProfile: {type: Localhost, localhostProfile: p}}": {
			"runAsNonRoot": true, "seccompProfile": map[string]any{"type": "Localhost", "localhostProfile": "p"},
		},
	} {
		if diff := cmp.Diff(want, pod(values)["securityContext"]); diff != "" {
			t.Errorf("%s: -want +got:\n%s", values, diff)
		}
	}
	container, _ := pod("securityContext: {readOnlyRootFilesystem: false, runAsUser: 7}")["containers"].([]any)[0].(map[string]any)
	want := map[string]any{
		"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": false, "runAsUser": 7, "capabilities": map[string]any{"drop": []any{"ALL"}},
	}
	if diff := cmp.Diff(want, container["securityContext"]); diff != "" {
		t.Errorf("container: -want +got:\n%s", diff)
	}
}

// TestGrace proves that the pod's grace is the drain's two times, as the program reads them, and ten
// seconds, wherever the drain is set, and that Google's load balancer waits for the same answers. The
// kubelet kills what runs longer than the grace.
func TestGrace(t *testing.T) {
	for values, want := range map[string]struct{ grace, answers int }{
		"{}": {130, 115},
		"drain: {delaySeconds: 0, timeoutSeconds: 600}":                                         {610, 600},
		"config: {gateway: {drain_timeout: 600s}}":                                              {615, 600},
		"config: {gateway: {drain_timeout: 600}}":                                               {615, 600},
		"config: {gateway: {drain_timeout: '600'}}":                                             {615, 600},
		"config: {gateway: {drain_timeout: 600.5}}":                                             {616, 601},
		"config: {gateway: {drain_timeout: 1h2m3.5s}}":                                          {3739, 3724},
		"config: {gateway: {drain_timeout: 1500000}}":                                           {1500015, 1500000},
		"config: {gateway: {drain_delay: 20s}}":                                                 {145, 115},
		"config: {gateway: {drain_delay: 0}}":                                                   {125, 115},
		"config: {gateway: {drain_delay: 100ms, drain_timeout: 1m}}":                            {71, 60},
		"{config: {gateway: {drain_delay: 30s}}, drain: {delaySeconds: 1, timeoutSeconds: 60}}": {100, 60},
		"{config: {gateway: {drain_timeout: 10m}}, drain: {delaySeconds: 1}}":                   {611, 600},
	} {
		all := objects(t, render(t, values))
		if got := one(t, all, "Deployment", "select-service").Spec.Template.Spec.TerminationGracePeriodSeconds; got != want.grace {
			t.Errorf("%s: the grace is %d s, want %d", values, got, want.grace)
		}
		all = objects(t, render(t, values, "--set", "provider=gke"))
		if got := one(t, all, "GCPBackendPolicy", "llm").Spec.Default.TimeoutSec; got != want.answers {
			t.Errorf("%s: the load balancer waits %d s, want %d", values, got, want.answers)
		}
	}
	refused(t, map[string]string{
		"config: {gateway: {drain_timeout: soon}}":                                  "config.gateway.drain_timeout: soon is not a duration",
		"config: {gateway: {drain_delay: -1s}}":                                     "config.gateway.drain_delay: -1s is not a duration",
		"env: [{name: SELECT_SERVICE_GATEWAY_DRAIN_TIMEOUT, value: 600s}]":          "SELECT_SERVICE_GATEWAY_DRAIN_TIMEOUT; set drain.",
		"env: [{name: SELECT_SERVICE_GATEWAY_DRAIN_DELAY, valueFrom: {}}]":          "SELECT_SERVICE_GATEWAY_DRAIN_DELAY; set drain.",
		"env: [{name: DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS, value: \"600\"}]": "DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS; set drain.",
	})
}

// refused proves that the chart does not render with values, each for its reason.
func refused(t *testing.T, why map[string]string) {
	t.Helper()
	for _, values := range slices.Sorted(maps.Keys(why)) {
		out, err := renderCommand(t, values)
		if err == nil || !strings.Contains(string(out), why[values]) {
			t.Errorf("%s: %v, want %q\n%s", values, err, why[values], out)
		}
	}
}

// TestDestinationRule proves how Istio's gateways speak with the picker: as port 9002 speaks by the
// configuration, past a picker that is dead, with the settings of which a real Istio failed one
// request of ten instead of eight (make test-istio), and that both can be switched off.
func TestDestinationRule(t *testing.T) {
	const outliers = "{splitExternalLocalOriginErrors: true, consecutiveLocalOriginFailures: 1, consecutiveGatewayErrors: 0, " +
		"consecutive5xxErrors: 0, interval: 1s, baseEjectionTime: 2s, maxEjectionPercent: 100}"
	for values, want := range map[string]string{
		"{}": "{port: {number: 9002}, tls: {mode: SIMPLE, insecureSkipVerify: true}, connectionPool: {tcp: {connectTimeout: 1s}}, outlierDetection: " + outliers + "}",
		"istio: {connectTimeout: '', outlierDetection: false}": "{port: {number: 9002}, tls: {mode: SIMPLE, insecureSkipVerify: true}}",
		"{istio: {connectTimeout: 2500ms, outlierDetection: false}, config: {gateway: {self_signed: false}}}": "{port: {number: 9002}, " +
			"tls: {mode: DISABLE}, connectionPool: {tcp: {connectTimeout: 2500ms}}}",
	} {
		all := objects(t, render(t, values, "--set", "provider=istio"))
		rule := one(t, all, "DestinationRule", "select-service").Spec.TrafficPolicy.PortLevelSettings
		if len(rule) != 1 {
			t.Fatalf("%s: settings of %d ports", values, len(rule))
		}
		var got, expected any
		if err := yaml.Unmarshal([]byte(want), &expected); err != nil {
			t.Fatal(err)
		}
		if err := rule[0].Decode(&got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", values, diff)
		}
		h2c := one(t, all, "Service", "select-service").Spec.Ports[0].AppProtocol == "kubernetes.io/h2c"
		if plain := strings.Contains(values, "self_signed: false"); h2c != plain {
			t.Errorf("%s: the Service says h2c: %t, want %t", values, h2c, plain)
		}
	}
}

// proxyValues are those of docs/start/kubernetes.md for a service that clients call without a gateway, and without any CRD.
const proxyValues = `
pools: []
proxy: {port: 8080}
config: {kubernetes: {pools: [{selector: app=vllm, target_ports: [8000]}]}}
`

// TestProxyPort proves that the proxy's port, however it is given, is that of the container, of the Service and of the
// policy, which lets the whole cluster to it or those that it names; and that without one there is no such port.
func TestProxyPort(t *testing.T) {
	for values, want := range map[string]struct{ port, from int }{
		"{}":                            {0, 0},
		"proxy: {port: 0}":              {0, 0},
		"proxy: {port: 8080}":           {8080, 0},
		proxyValues:                     {8080, 0},
		"config: {proxy: {port: 8081}}": {8081, 0},
		"{proxy: {port: 8080}, config: {proxy: {port: 8081}}}":                                  {8081, 0},
		"{proxy: {port: 8080}, networkPolicy: {proxy: [{podSelector: {}}, {podSelector: {}}]}}": {8080, 2},
	} {
		all := objects(t, render(t, values))
		container, service, policy := 0, 0, -1
		for _, p := range one(t, all, "Deployment", "select-service").Spec.Template.Spec.Containers[0].Ports {
			if p.Name == "proxy" {
				container = p.ContainerPort
			}
		}
		for _, p := range one(t, all, "Service", "select-service").Spec.Ports {
			if p.TargetPort == "proxy" {
				service = p.Port
			}
		}
		for _, rule := range one(t, all, "NetworkPolicy", "select-service").Spec.Ingress {
			if rule.Ports[0].Port == "proxy" {
				policy = len(rule.From)
			}
		}
		if container != want.port || service != want.port || want.port > 0 && policy != want.from || want.port == 0 && policy >= 0 {
			t.Errorf("%s: the container has port %d, the Service %d, want %d; the policy names %d peers, want %d (-1: no rule)",
				values, container, service, want.port, policy, want.from)
		}
	}
}
