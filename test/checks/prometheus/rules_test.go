package prometheus

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

const runbook = "https://github.com/select-service/select-service/blob/main/docs/run/runbook.md#"

// TestRules proves that every alert says how bad it is, what it means, what to
// do and where that is written, and that every name in an expression is a metric.
func TestRules(t *testing.T) {
	known := series(t)
	page := strings.ToLower(string(read(t, "docs", "run", "runbook.md")))
	for _, r := range readRules(t) {
		for _, name := range metrics(r.Expr) {
			if !known[name] {
				t.Errorf("%s%s uses %s, which is no metric", r.Alert, r.Record, name)
			}
		}
		if r.Alert == "" {
			continue
		}
		if _, err := time.ParseDuration(r.For); err != nil {
			t.Errorf("%s: for: %v", r.Alert, err)
		}
		if s := r.Labels["severity"]; s != "warning" && s != "critical" {
			t.Errorf("%s has severity %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" || len(r.Annotations["description"]) < 80 {
			t.Errorf("%s does not say what to do", r.Alert)
		}
		anchor := strings.ToLower(r.Alert)
		if r.Annotations["runbook_url"] != runbook+anchor {
			t.Errorf("%s links to %s", r.Alert, r.Annotations["runbook_url"])
		}
		if !regexp.MustCompile(`(?m)^#+ ` + anchor + `$`).MatchString(page) {
			t.Errorf("docs/run/runbook.md has no section %s", r.Alert)
		}
	}
}

// TestRejectionAlert holds the alert against the requirement's text.
func TestRejectionAlert(t *testing.T) {
	want := rule{
		Alert: "HighRequestRejectionRate", For: "5m",
		Expr: "sum(rate(dynamo_tasks_rejected_total[5m])) / sum(rate(dynamo_tasks_issued_total[5m])) > 0.1",
	}
	for _, r := range readRules(t) {
		if r.Alert != want.Alert {
			continue
		}
		if expr := strings.Join(strings.Fields(r.Expr), " "); expr != want.Expr || r.For != want.For || r.Labels["severity"] != "warning" {
			t.Errorf("%s for %s, severity %s", expr, r.For, r.Labels["severity"])
		}
		return
	}
	t.Errorf("there is no alert %s", want.Alert)
}

// TestRulesAreTested proves that promtool is told of every alert a case in which
// it fires, and one in which nothing does.
func TestRulesAreTested(t *testing.T) {
	var file struct {
		Tests []struct {
			Expr []struct {
				Expr    string `yaml:"expr"`
				Samples []struct {
					Labels string `yaml:"labels"`
				} `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		} `yaml:"tests"`
	}
	if err := yaml.Unmarshal(read(t, "deploy", "prometheus", "rules_test.yml"), &file); err != nil {
		t.Fatal(err)
	}
	fires := make(map[string]bool)
	alert := regexp.MustCompile(`^ALERTS\{alertname="(\w+)"`)
	for _, test := range file.Tests {
		silent := false
		for _, e := range test.Expr {
			silent = silent || strings.HasPrefix(e.Expr, "ALERTS") && len(e.Samples) == 0
			for _, s := range e.Samples {
				if m := alert.FindStringSubmatch(s.Labels); m != nil {
					fires[m[1]] = true
				}
			}
		}
		if !silent {
			t.Error("a test never expects silence")
		}
	}
	for _, r := range readRules(t) {
		if r.Alert != "" && !fires[r.Alert] {
			t.Errorf("no test makes %s fire", r.Alert)
		}
	}
}
