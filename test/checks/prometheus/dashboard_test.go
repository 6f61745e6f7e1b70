package prometheus

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

const source = "${datasource}"

// TestDashboard proves that the dashboard can be imported anywhere and that no
// panel lacks what makes it readable.
func TestDashboard(t *testing.T) {
	d, _ := readDashboard(t)
	if d.ID != nil || d.UID != "select-service" || d.SchemaVersion < 41 {
		t.Errorf("id %v, uid %q, schema %d", d.ID, d.UID, d.SchemaVersion)
	}
	var variables, rows []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		if v.Type != "datasource" && (v.Datasource == nil || v.Datasource.UID != source) {
			t.Errorf("variable %s does not use the variable of the data source", v.Name)
		}
	}
	if want := []string{"datasource", "job", "instance", "model"}; !slices.Equal(variables, want) {
		t.Errorf("variables %v, want %v", variables, want)
	}
	seen := make(map[int]string)
	for _, p := range d.Panels {
		if other, taken := seen[p.ID]; taken || p.ID <= 0 {
			t.Errorf("panel %q has id %d, as %q has", p.Title, p.ID, other)
		}
		seen[p.ID] = p.Title
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		p.check(t)
	}
	want := []string{
		"Overview", "Requests", "Decisions", "Overload", "Load per rank", "KV events", "Index",
		"Replicas and recovery", "Conductor", "Process", "Limits", "State on disk", "Policies", "Gateway",
		"Engines' own load", "Kubernetes",
	}
	if !slices.Equal(rows, want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
}

func (p *panel) check(t *testing.T) {
	t.Helper()
	if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
		t.Errorf("panel %d %q lacks a title, description, unit or query", p.ID, p.Title)
	}
	if p.Datasource == nil || p.Datasource.UID != source || p.Datasource.Type != "prometheus" {
		t.Errorf("panel %q does not use the variable of the data source", p.Title)
	}
	if p.Type != "stat" && (p.Options.Legend == nil || !p.Options.Legend.ShowLegend) {
		t.Errorf("panel %q has no legend", p.Title)
	}
	for _, q := range p.Targets {
		if q.Datasource == nil || q.Datasource.UID != source {
			t.Errorf("panel %q: query %s does not use the variable of the data source", p.Title, q.RefID)
		}
		if q.LegendFormat == "" {
			t.Errorf("panel %q: query %s has no legend", p.Title, q.RefID)
		}
		if !strings.Contains(q.Expr, `job=~"$job"`) {
			t.Errorf("panel %q: query %s is not limited to the job", p.Title, q.RefID)
		}
	}
}

// TestDashboardLayout proves that panels fill the 24 columns without overlap.
func TestDashboardLayout(t *testing.T) {
	d, _ := readDashboard(t)
	taken := make(map[[2]int]string)
	for _, p := range d.Panels {
		at := p.GridPos
		if at.W <= 0 || at.H <= 0 || at.X < 0 || at.X+at.W > 24 {
			t.Errorf("panel %q is at %+v", p.Title, at)
		}
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("panels %q and %q overlap", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// TestDashboardFormat proves that a change of the dashboard shows as that change
// in a diff: two spaces, no trailing garbage, and none of the fields that every
// server fills in differently.
func TestDashboardFormat(t *testing.T) {
	_, raw := readDashboard(t)
	var want bytes.Buffer
	if err := json.Indent(&want, raw, "", "  "); err != nil {
		t.Fatal(err)
	}
	if got := string(raw); got != strings.TrimSpace(want.String())+"\n" {
		t.Error("the dashboard is not indented by two spaces, or does not end with one line break")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"version", "iteration", "gnetId", "__inputs", "__requires", "__elements"} {
		if _, present := fields[field]; present {
			t.Errorf("the dashboard has %s", field)
		}
	}
}

// TestDashboardMetrics proves that every name in a query is a metric, and that
// the service has no metric of its own that the dashboard leaves out.
func TestDashboardMetrics(t *testing.T) {
	d, _ := readDashboard(t)
	known, used := series(t), make(map[string]bool)
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			for _, name := range metrics(q.Expr) {
				used[name] = true
				if !known[name] {
					t.Errorf("panel %q uses %s, which is no metric", p.Title, name)
				}
			}
		}
	}
	for name, kind := range families(t) {
		if !strings.HasPrefix(name, "select_service_") {
			continue // of the runtime, or under Dynamo's name what another has under ours
		}
		if kind == "histogram" {
			name += "_bucket"
		}
		if !used[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}
