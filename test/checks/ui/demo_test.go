package ui

import (
	"fmt"
	"os"
	"testing"
)

// TestDemo shows the views of a running demo, whose address is in SELECT_SERVICE_DEMO, in both colours, on a
// laptop and on a phone, and in the size of the pictures in README and docs.
func TestDemo(t *testing.T) {
	base := os.Getenv("SELECT_SERVICE_DEMO")
	if base == "" {
		t.Skip("SELECT_SERVICE_DEMO is not set: make demo-policies ARGS=--keep")
	}
	views := map[string]struct{ hash, says string }{
		"fleet": {"#/fleet", "of prompt blocks"}, "rank": {"#/fleet?worker=1&rank=0", "The engine says"}, "why": {"#/why?decision=last", "candidate"}, "ask": {"#/why?as=message", "The prompt is"},
		"decisions": {"#/decisions", "Share of each worker"}, "cache": {"#/cache", "Hottest prefixes"}, "doctor": {"#/doctor", "What was looked at"}, "replicas": {"#/replicas", "Replicas"},
	}
	for name, view := range views {
		t.Run(name, func(t *testing.T) {
			p := open(t, base, view.hash, 1200, 720, false)
			p.says(view.says)
			p.shoot("demo-"+name, false)
			for _, width := range []int64{1440, 390} {
				for _, dark := range []bool{false, true} {
					at := fmt.Sprintf("demo-%s-%d-%s", name, width, map[bool]string{false: "light", true: "dark"}[dark])
					p := open(t, base, view.hash, width, 900, dark)
					p.says(view.says)
					if wide := p.is("document.documentElement.scrollWidth - document.documentElement.clientWidth"); wide.(float64) > 0 {
						t.Errorf("%s: the page is %v px wider than its window", at, wide)
					}
					p.shoot(at, true)
				}
			}
		})
	}
}
