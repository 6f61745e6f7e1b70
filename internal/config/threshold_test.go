package config_test

import (
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/config"
)

// TestNoThreshold proves that the word none, in any case, unsets a threshold that
// a weaker source has set, in every source; an empty text does not (D19).
func TestNoThreshold(t *testing.T) {
	for _, s := range settings {
		if !strings.HasPrefix(s.key, "overload.active_") {
			continue
		}
		set := config.Default()
		s.want(&set)
		files := map[string]string{"c.yaml": fileWith(s.key, s.text)}
		for text, want := range map[string]config.Config{
			"none": config.Default(), "None": config.Default(), "NONE": config.Default(), "": set,
		} {
			for name, start := range map[string]setup{
				"flag over file":        {args: []string{"--config=c.yaml", "--" + s.flag + "=" + text}, files: files},
				"flag over environment": {args: []string{"--" + s.flag, text}, env: map[string]string{s.env[0]: s.text}},
				"environment over file": {args: []string{"--config=c.yaml"}, env: map[string]string{s.env[0]: text}, files: files},
			} {
				t.Run(s.key+"/"+name+"="+text, func(t *testing.T) { equal(t, start.mustLoad(t), want) })
			}
			equal(t, fromFile(fileWith(s.key, text)).mustLoad(t), config.Default())
		}
		mustFail(t, setup{args: []string{"slots", "--" + s.flag + "=" + s.text}}, "--"+s.flag+": unknown flag")
	}
}

// TestThresholdTexts proves that a bad threshold is refused in the words of
// Dynamo's frontend, beside the name under which it was given.
func TestThresholdTexts(t *testing.T) {
	for arg, want := range map[string]string{
		"--active-decode-blocks-threshold=1.01":      "--active-decode-blocks-threshold: must be between 0.0 and 1.0, got 1.01",
		"--active-decode-blocks-threshold=-1":        "--active-decode-blocks-threshold: must be between 0.0 and 1.0, got -1",
		"--active-prefill-tokens-threshold=-1":       "--active-prefill-tokens-threshold: must be >= 0, got -1",
		"--active-prefill-tokens-threshold-frac=-.5": "--active-prefill-tokens-threshold-frac: must be a finite value >= 0, got -0.5",
	} {
		if _, err := (setup{args: []string{arg}}).load(); err == nil || err.Error() != "invalid configuration: "+want {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
	}
}
