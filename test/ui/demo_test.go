package ui

import (
	"os"
	"testing"
)

// TestDemo shows the views of a running demo, whose address is in SELECT_SERVICE_DEMO.
func TestDemo(t *testing.T) {
	base := os.Getenv("SELECT_SERVICE_DEMO")
	if base == "" {
		t.Skip("SELECT_SERVICE_DEMO is not set: make demo ARGS=--keep")
	}
	for name, view := range map[string]struct{ hash, says string }{
		"fleet": {"#/fleet", "Worker · rank"}, "why": {"#/why?decision=last", "candidate"}, "decisions": {"#/decisions", "Share of each worker"},
		"cache": {"#/cache", "Hottest prefixes"},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, base, view.hash, 1200, 720, false)
			p.says(view.says)
			p.shoot("demo-"+name, false)
		})
	}
}
