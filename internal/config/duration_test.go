package config_test

import (
	"testing"
	"time"

	"github.com/select-service/select-service/internal/config"
)

// TestDurations: every duration takes a number, which has the unit of its name, and a number with units. The
// numbers mean what they mean for Dynamo.
func TestDurations(t *testing.T) {
	ttl := func(c config.Config) time.Duration { return c.KVEvents.ApproximateTTL }
	session := func(c config.Config) time.Duration { return c.Selections.SessionTTL }
	drain := func(c config.Config) time.Duration { return c.Gateway.DrainDelay }
	tokens := func(c config.Config) time.Duration { return c.Gateway.Tokenizer.Timeout }
	refresh := func(c config.Config) time.Duration { return c.Queue.OverlapRefreshAfter }
	for _, tc := range []struct {
		variable, text string
		of             func(config.Config) time.Duration
		want           time.Duration // negative: a fault
	}{
		{"DYN_ROUTER_TTL_SECS", "1.5", ttl, 1500 * time.Millisecond},
		{"DYN_ROUTER_TTL_SECS", "2m", ttl, 2 * time.Minute},
		{"DYN_ROUTER_TTL_SECS", "0.0001", ttl, time.Millisecond},
		{"DYN_ROUTER_TTL_SECS", "721h", ttl, -1},
		{"SELECT_SERVICE_SESSION_AFFINITY_TTL_SECS", "600", session, 10 * time.Minute},
		{"SELECT_SERVICE_SESSION_AFFINITY_TTL_SECS", "1h", session, time.Hour},
		{"SELECT_SERVICE_SESSION_AFFINITY_TTL_SECS", "1.5s", session, -1},
		{"SELECT_SERVICE_GATEWAY_DRAIN_DELAY", "2", drain, 2 * time.Second},
		{"SELECT_SERVICE_GATEWAY_DRAIN_DELAY", "250ms", drain, 250 * time.Millisecond},
		{"DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS", "2", drain, 2 * time.Second},
		{"DYN_EPP_TOKENIZATION_TIMEOUT_MS", "1500", tokens, 1500 * time.Millisecond},
		{"DYN_EPP_TOKENIZATION_TIMEOUT_MS", "2s", tokens, 2 * time.Second},
		{"DYN_EPP_TOKENIZATION_TIMEOUT_MS", "0", tokens, -1},
		{"DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS", "-3", refresh, 0},
		{"DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS", "1e9", refresh, 1e9 * time.Second},
	} {
		s := setup{env: map[string]string{tc.variable: tc.text}}
		if tc.want < 0 {
			mustFail(t, s, tc.variable)
		} else if got := tc.of(s.mustLoad(t)); got != tc.want {
			t.Errorf("%s=%s: %v, want %v", tc.variable, tc.text, got, tc.want)
		}
	}
}
