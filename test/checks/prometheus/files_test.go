package prometheus

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/test/checks/e2e"
)

// dashboard is what the tests read of the dashboard's JSON.
type dashboard struct {
	ID            *int    `json:"id"`
	UID           string  `json:"uid"`
	SchemaVersion int     `json:"schemaVersion"`
	Panels        []panel `json:"panels"`
	Templating    struct {
		List []struct {
			Name, Type string
			Datasource *datasource
			Query      json.RawMessage // an object, but for the data source
		} `json:"list"`
	} `json:"templating"`
}

type datasource struct{ Type, UID string }

type panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	Datasource  *datasource
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct {
		Defaults struct{ Unit string }
	}
	Options struct {
		Legend *struct {
			ShowLegend bool
			Placement  string
		}
	}
	Targets []struct {
		RefID        string
		Expr         string
		LegendFormat string
		Datasource   *datasource
	}
}

// rule is an alert or a recording rule.
type rule struct {
	Alert       string            `yaml:"alert"`
	Record      string            `yaml:"record"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// path of a file of the project.
func path(t *testing.T, elem ...string) string {
	t.Helper()
	root, err := e2e.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

func read(t *testing.T, elem ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(path(t, elem...))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func readDashboard(t *testing.T) (d dashboard, raw []byte) {
	t.Helper()
	raw = read(t, "deploy", "grafana", "select-service.json")
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d, raw
}

func readRules(t *testing.T) []rule {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []rule }
	}
	if err := yaml.Unmarshal(read(t, "deploy", "prometheus", "rules.yml"), &file); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// families are the metric families that the service exposes: its own ones by the
// golden file of internal/telemetry, those of the runtime and the process by the
// client library. The value is the type, as in "# TYPE name type".
func families(t *testing.T) map[string]string {
	t.Helper()
	known := make(map[string]string)
	for line := range strings.Lines(string(read(t, "internal", "telemetry", "testdata", "families.golden"))) {
		if f := strings.Fields(line); len(f) == 4 && f[1] == "TYPE" {
			known[f[2]] = f[3]
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range gathered {
		known[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	return known
}

// series are the names that queries may use: of the families, of their
// histograms' series, of what the rules record, and up.
func series(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{"up": true}
	for name, kind := range families(t) {
		if kind == "histogram" {
			names[name+"_bucket"], names[name+"_sum"], names[name+"_count"] = true, true, true
			continue
		}
		names[name] = true
	}
	for _, r := range readRules(t) {
		if r.Record != "" {
			names[r.Record] = true
		}
	}
	return names
}
