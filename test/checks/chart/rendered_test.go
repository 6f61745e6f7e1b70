package chart

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

var rewrite = flag.Bool("rewrite", false, "write what the chart renders to, with SELECT_SERVICE_HELM")

// cases are values of the chart, and the file that has what they render to.
var cases = []struct{ file, values string }{
	{"deploy/kubernetes/select-service.yaml", ""},
	{"deploy/kubernetes/istio.yaml", "provider: istio"},
	{"deploy/kubernetes/openshift.yaml", "{provider: istio, openshift: true}"},
	{"deploy/kubernetes/gke.yaml", "provider: gke"},
	{"deploy/kubernetes/agentgateway.yaml", "provider: agentgateway"},
	{"test/checks/chart/testdata/all.yaml", allValues},
}

// allValues has every value at something else than its default.
const allValues = `
image: {digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", pullPolicy: Always}
imagePullSecrets: [{name: registry}]
replicas: 3
pools:
  - {name: chat, create: true, matchLabels: {app: vllm, model: chat}, targetPorts: [8000, 8001], failureMode: FailOpen, options: {model: llama}}
  - {name: batch, options: {namespace: other, block_size: 32}}
namespaces: [extra]
provider: istio
istio: {connectTimeout: 500ms, outlierDetection: false}
openshift: true
podSecurityContext: {fsGroup: 1000660000, supplementalGroups: [1000660001]}
securityContext: {runAsNonRoot: true}
proxy: {port: 8080}
httpRoute: {create: true, gateway: inference, gatewayNamespace: gateways, hostnames: [llm.example.com]}
config: {log: {level: debug}, gateway: {lease: 20s}}
drain: {delaySeconds: 10, timeoutSeconds: 600}
networkPolicy: {proxy: [{podSelector: {}}], api: [{podSelector: {matchLabels: {app: router}}}]}
monitoring: {serviceMonitor: true, labels: {release: prometheus}, interval: 30s, tokenSecret: {name: metrics, key: token}}
serviceAccount: {annotations: {example.com/role: reader}}
podAnnotations: {example.com/team: serving}
podLabels: {team: serving}
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: dedicated, operator: Exists}]
affinity: {nodeAffinity: {}}
priorityClassName: system-cluster-critical
env: [{name: GODEBUG, value: madvdontneed=1}]
volumes: [{name: tokens, secret: {secretName: tokens}}]
volumeMounts: [{name: tokens, mountPath: /etc/select-service-tokens, readOnly: true}]
`

// TestFresh proves, without helm, that the rendered files are of this chart: their
// sum is of its sources. The rules and the dashboard, which the chart takes as they
// are, do not count.
func TestFresh(t *testing.T) {
	h := sha256.New()
	for _, dir := range []string{"deploy/chart", "deploy/chart/templates"} {
		entries, err := os.ReadDir(filepath.Join(root(t), dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Type().IsRegular() && e.Name() != "values.schema.json" {
				fmt.Fprintf(h, "%s %x\n", e.Name(), sha256.Sum256(read(t, dir, e.Name())))
			}
		}
	}
	for _, c := range cases {
		fmt.Fprintf(h, "%s\n%s\n", c.file, c.values)
	}
	sum := fmt.Sprintf("%x\n", h.Sum(nil))
	if *rewrite && os.Getenv("SELECT_SERVICE_HELM") != "" {
		write(t, []byte(sum), "test/checks/chart/testdata/chart.sha256")
	}
	if got := read(t, "test/checks/chart/testdata/chart.sha256"); string(got) != sum {
		t.Error("the chart has changed since its files were rendered: make test-chart ARGS=-rewrite")
	}
}

func write(t *testing.T, content []byte, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root(t), name), content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// helm runs helm, or skips the test where there is none, and returns what it printed.
func helm(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := helmCommand(t, args...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", args[0], err, out)
	}
	return out
}

// helmCommand runs helm and returns what it printed, after an error also what it said.
func helmCommand(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	program := os.Getenv("SELECT_SERVICE_HELM")
	if program == "" {
		t.Skip("SELECT_SERVICE_HELM is not set: make test-chart")
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		out = append(out, stderr.Bytes()...)
	}
	return out, err
}

// render renders a chart with values.
func render(t *testing.T, values string, more ...string) []byte {
	t.Helper()
	out, err := renderCommand(t, values, more...)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	return slices.Concat([]byte("# Made from deploy/chart; make test-chart ARGS=-rewrite\n"), out)
}

// renderCommand returns what helm printed, after an error also what it said.
func renderCommand(t *testing.T, values string, more ...string) ([]byte, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return helmCommand(t, append([]string{"template", "select-service", "deploy/chart", "--namespace", "llm", "--kube-version", "1.31.0", "--values", file}, more...)...)
}

// TestRendered proves that the files are what the chart renders to, and that helm finds
// no fault in it.
func TestRendered(t *testing.T) {
	helm(t, "lint", "--strict", "deploy/chart")
	for _, c := range cases {
		t.Run(c.file, func(t *testing.T) {
			got := render(t, c.values)
			if *rewrite {
				write(t, got, c.file)
			}
			if diff := cmp.Diff(string(read(t, c.file)), string(got)); diff != "" {
				t.Errorf("-file +rendered:\n%s", diff)
			}
		})
	}
	if diff := cmp.Diff(string(render(t, "")), string(render(t, "provider: nginx"))); diff != "" {
		t.Errorf("nginx differs from none:\n%s", diff)
	}
}

// TestMonitoring proves that rules and dashboard come out as they are in deploy/.
func TestMonitoring(t *testing.T) {
	out := render(t, "monitoring: {prometheusRule: true, dashboard: true}", "--show-only", "templates/monitoring.yaml")
	rules, dashboard := false, false
	for _, doc := range strings.Split(string(out), "\n---\n") {
		var o struct {
			Kind string
			Spec any
			Data map[string]string
		}
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		switch o.Kind {
		case "PrometheusRule":
			var want any
			if err := yaml.Unmarshal(read(t, "deploy/prometheus/rules.yml"), &want); err != nil {
				t.Fatal(err)
			}
			rules = true
			if diff := cmp.Diff(want, o.Spec); diff != "" {
				t.Errorf("rules:\n%s", diff)
			}
		case "ConfigMap":
			dashboard = true
			if diff := cmp.Diff(strings.TrimSpace(string(read(t, "deploy/grafana/select-service.json"))), strings.TrimSpace(o.Data["select-service.json"])); diff != "" {
				t.Errorf("dashboard:\n%s", diff)
			}
		}
	}
	if !rules || !dashboard {
		t.Errorf("rules %t, dashboard %t", rules, dashboard)
	}
}

// TestSchema proves that the chart's schema takes the defaults and the values of the
// cases, knows every value, and refuses what is misspelt or cannot work.
func TestSchema(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(read(t, "deploy/chart/values.schema.json")))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("values.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	validate := func(values string) error {
		v, err := jsonValue([]byte(values))
		if err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v)
	}
	defaults := string(read(t, "deploy/chart/values.yaml"))
	for _, values := range []string{defaults, allValues, "provider: nginx", "{}"} {
		if err := validate(values); err != nil {
			t.Errorf("%v\n%s", err, values)
		}
	}
	for _, values := range []string{
		"replica: 2", "replicas: 0", "replicas: two", "provider: kong", "pools: [{name: A}]", "pools: [{create: false}]",
		"pools: [{name: a, create: true}]", "pools: [{name: a, create: true, matchLabels: {}, targetPorts: [1]}]",
		"pools: [{name: a, targetPorts: [0]}]", "pools: [{name: a, targetPorts: [1, 2, 3, 4, 5, 6, 7, 8, 9]}]",
		"pools: [{name: a, failureMode: failOpen}]", "httpRoute: {create: true}", "image: {digest: abc}", "drain: {delaySeconds: -1}",
		"monitoring: {enabled: true}", "openshift: restricted-v2", "podSecurityContext: 65532", "securityContext: []",
		"istio: {outlierDetection: {interval: 1s}}", "istio: {connectTimeout: 1}", "istio: {connectTimeout: soon}",
	} {
		if validate(values) == nil {
			t.Errorf("the schema takes %s", values)
		}
	}

	var have map[string]any
	if err := yaml.Unmarshal([]byte(defaults), &have); err != nil {
		t.Fatal(err)
	}
	properties, _ := doc.(map[string]any)["properties"].(map[string]any)
	delete(properties, "global") // helm's own
	if diff := cmp.Diff(slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(properties))); diff != "" {
		t.Errorf("-values.yaml +values.schema.json:\n%s", diff)
	}
}

// jsonValue reads YAML as what the schema validates.
func jsonValue(text []byte) (any, error) {
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		return nil, err
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(b))
}

// TestVersions proves that everything in the tree names the same next release: the
// chart, the manifests' image and the Python client.
func TestVersions(t *testing.T) {
	var chart struct {
		Version    string
		AppVersion string `yaml:"appVersion"`
	}
	if err := yaml.Unmarshal(read(t, "deploy/chart/Chart.yaml"), &chart); err != nil {
		t.Fatal(err)
	}
	if chart.Version != chart.AppVersion {
		t.Errorf("the chart is %s, the program %s", chart.Version, chart.AppVersion)
	}
	if !strings.Contains(string(read(t, "clients/python/pyproject.toml")), "\nversion = \""+chart.Version+"\"\n") {
		t.Errorf("clients/python/pyproject.toml is not of version %s", chart.Version)
	}
	if !strings.Contains(string(read(t, "deploy/kubernetes/select-service.yaml")), "/select-service:"+chart.Version+`"`) {
		t.Errorf("deploy/kubernetes/select-service.yaml is not of version %s", chart.Version)
	}
}
