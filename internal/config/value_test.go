package config_test

import (
	"math"
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
	const share, tokens, multiple = "--active-decode-blocks-threshold", "--active-prefill-tokens-threshold", "--active-prefill-tokens-threshold-frac"
	for arg, want := range map[string]string{
		share + "=1.01":       share + " must be between 0.0 and 1.0, got 1.01",
		share + "=-1":         share + " must be between 0.0 and 1.0, got -1",
		share + "=inf":        share + " must be between 0.0 and 1.0, got +Inf",
		share + "=nan":        share + " must be between 0.0 and 1.0, got NaN",
		share + "=0x1":        share + `: "0x1" is not a number`,
		tokens + "=-1":        tokens + " must be >= 0, got -1",
		multiple + "=-.5":     multiple + " must be a finite value >= 0, got -0.5",
		multiple + "=1e99999": multiple + " must be a finite value >= 0, got +Inf",
		multiple + "=-inf":    multiple + " must be a finite value >= 0, got -Inf",
		multiple + "=NaN":     multiple + " must be a finite value >= 0, got NaN",
		multiple + "=x":       multiple + `: "x" is not a number`,
	} {
		if _, err := (setup{args: []string{arg}}).load(); err == nil || err.Error() != "invalid configuration: "+want {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
	}
}

// TestOneZero: -0 is in range, and read as the 0 that it is.
func TestOneZero(t *testing.T) {
	limits := setup{args: []string{"--active-decode-blocks-threshold=-0", "--active-prefill-tokens-threshold-frac=-0.0e9"}}.mustLoad(t).Overload.Thresholds
	for _, v := range []*float64{limits.DecodeBlocks, limits.PrefillFraction} {
		if v == nil || *v != 0 || math.Signbit(*v) {
			t.Errorf("thresholds are %v", limits)
		}
	}
}

// TestQueueBesidePrefillThreshold: that a wait queue leaves nothing to prefill
// thresholds is warned of once, by the names under which the settings were given.
func TestQueueBesidePrefillThreshold(t *testing.T) {
	files := map[string]string{"p.yaml": policy, "c.yaml": "queue: {threshold: 2}\n"}
	const tokens, share = "--active-prefill-tokens-threshold", "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC"
	for name, tc := range map[string]struct {
		args       []string
		env        map[string]string
		start, end string
	}{
		"threshold": {
			[]string{"--router-queue-threshold=0", tokens + "=0"},
			nil,
			tokens + " beside the wait queue of --router-queue-threshold: ", "queue threshold times max_num_batched_tokens",
		},
		"threshold of the file": {
			[]string{"--config=c.yaml"},
			map[string]string{share: "3"},
			share + " beside the wait queue of c.yaml: queue.threshold (line 1): ", "queue threshold times max_num_batched_tokens",
		},
		"policy, which goes before": {
			[]string{"--config=c.yaml", "--router-policy-config=p.yaml", tokens + "=9"},
			map[string]string{share: "3"},
			tokens + " and " + share + " beside the wait queue of --router-policy-config: ", "the busy thresholds of its class",
		},
	} {
		got := setup{args: tc.args, env: tc.env, files: files}.mustLoad(t).Warnings()
		if len(got) != 1 || !strings.HasPrefix(got[0], tc.start) || !strings.Contains(got[0], "mark, "+tc.end+", and only then") {
			t.Errorf("%s: %q", name, got)
		}
	}
}
