package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/simulation/workload"
)

// TestPlot proves that the plot is well-formed, names every policy once however many
// rounds it has, shows slow phases, and stays within its frame whatever the figures.
func TestPlot(t *testing.T) {
	conf := defaults()
	conf.Engines, conf.Slow = []string{"http://a"}, []string{"1:0.3:0.33-0.67"}
	round := []firstToken{{ttft: 0}, {at: 30 * time.Second, ttft: 12.5}, {at: time.Minute, ttft: 90_000}}
	rep := report{Config: conf, Workload: workload.Summary{Requests: 3, Span: time.Minute}, Results: []result{
		{Policy: "select-service", Model: "sim", first: round},
		{Policy: "select-service/<b>", Model: "<b>", first: round[1:2]},
		{Policy: "random"}, // every request failed
		{Policy: "select-service", Model: "sim", first: round},
	}}
	file := filepath.Join(t.TempDir(), "plot.svg")
	if err := rep.writePlot(file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var labels []string
	for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if chars, ok := token.(xml.CharData); ok {
			labels = append(labels, string(chars))
		}
	}
	all := strings.Join(labels, "\n")
	for want, n := range map[string]int{"select-service\n": 1, "select-service/<b>\n": 1, "random\n": 1, "engine 1 at 0.3 of its speed": 1} {
		if got := strings.Count(all, want); got != n {
			t.Errorf("%q is there %d times, want %d", want, got, n)
		}
	}
	if strings.Contains(string(text), "NaN") || strings.Contains(string(text), "Inf") {
		t.Errorf("a figure is not finite:\n%s", text)
	}
}
