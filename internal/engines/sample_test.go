package engines

import (
	"errors"
	"math"
	"testing"
)

// TestReadSample: lines of Prometheus' text format, and lines that are none.
func TestReadSample(t *testing.T) {
	for text, want := range map[string]struct {
		name   string
		value  float64
		engine string
	}{
		`a 1`:                                 {"a", 1, ""},
		"a\t2.5 1700000000000\n":              {"a", 2.5, ""},
		`a{} 3`:                               {"a", 3, ""},
		`a{engine="0",} 4 # {trace_id="x"} 1`: {"a", 4, "0"},
		`a { engine = "1" , b="}" } 5`:        {"a", 5, "1"},
		`a{b="\"",engine="\\\"\n"} 1e3`:       {"a", 1000, "\\\"\n"},
		`a{engine="1",engine="2"} -Inf`:       {"a", math.Inf(-1), "1"},
	} {
		s, err := ReadSample([]byte(text))
		if err != nil || s.Name != want.name || s.Value != want.value || s.Label(LabelEngine) != want.engine {
			t.Errorf("%s: %+v, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "a", "a{", `a{engine`, `a{engine=`, `a{engine="`, `a{engine="\\`, `a{engine="1"`, `a{engine=1} 1`, "a x", "a{} ", " 1", "{} 1"} {
		if _, err := ReadSample([]byte(text)); !errors.Is(err, ErrNoSample) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// FuzzReadSample: no line makes it panic.
func FuzzReadSample(f *testing.F) {
	f.Add(`a{engine="0",b="\\""} 1 2`)
	f.Fuzz(func(_ *testing.T, text string) { _, _ = ReadSample([]byte(text)) })
}
