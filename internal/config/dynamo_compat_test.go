package config_test

import (
	"strings"
	"testing"
)

// TestWithoutEffect proves that what Dynamo's router reads and this service does
// not is a warning that names it, and stops the start where Dynamo 1.6.1 would not
// take it or could not read it.
func TestWithoutEffect(t *testing.T) {
	for _, tc := range []struct{ name, good, bad string }{ // bad: what is refused
		{"REPLICA_SYNC", "true", "perhaps"},
		{"TRACK_ACTIVE_BLOCKS", "false", "2"},
		{"TRACK_OUTPUT_BLOCKS", "1", "-"},
		{"MIN_INITIAL_WORKERS", "0", "-1"},
		{"ASSUME_KV_REUSE", "on", "maybe"},
		{"CONDITIONAL_DISAGG", "off", "perhaps"},
		{"CONDITIONAL_DISAGG_POLICY", "isl_bounding", ""},
		{"CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD", "2048", "-1 1.5 many"},
		{"CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD", "0.7", "2 -1 nan"},
		{"PREFILL_LOAD_MODEL", "none", ""},
		{"TRACKING_HASH", "keyed-xxh3-v1", "sha256"},
		{"TRACKING_KEY_FILE", "/run/secrets/key", ""},
		{"TRACKING_KEY_ID", "2026-11", ""},
		{"PREFILL_POLICY", "some", ""},
		{"DECODE_POLICY", "some", ""},
	} {
		name := "DYN_ROUTER_" + tc.name
		got := setup{env: map[string]string{name: tc.good}}.mustLoad(t).Warnings()
		if len(got) != 1 || got[0] != name+" has no effect in this service" {
			t.Errorf("%s=%s warns %q", name, tc.good, got)
		}
		for bad := range strings.FieldsSeq(tc.bad) {
			mustFail(t, setup{env: map[string]string{name: bad}}, name)
		}
	}
}

// TestPredictedTTLIsWritten proves that no time and a time of 0 are told apart.
func TestPredictedTTLIsWritten(t *testing.T) {
	for given, want := range map[string]string{"none": "null", "0": "0", "0.5": "0.5"} {
		var text strings.Builder
		conf := setup{args: []string{"--router-predicted-ttl-secs=" + given}}.mustLoad(t)
		if err := conf.WriteYAML(&text); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), "\n  predicted_ttl_secs: "+want+"\n") {
			t.Errorf("%s is not written as %s:\n%s", given, want, text.String())
		}
	}
}

// TestKeptInFractions proves that the time of kept selections may be a part of a
// second, down to a millisecond, and is written as it was read.
func TestKeptInFractions(t *testing.T) {
	for given, want := range map[string]string{"0": "0", "0.0": "0", "1.5": "1.5", "0.0001": "0.001", "120": "120", "1e3": "1000"} {
		var text strings.Builder
		conf := setup{args: []string{"--selection-cache-ttl-secs=" + given}}.mustLoad(t)
		if err := conf.WriteYAML(&text); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), "\n  cache_ttl_secs: "+want+"\n") {
			t.Errorf("%s is not written as %s:\n%s", given, want, text.String())
		}
	}
}
