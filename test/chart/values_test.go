package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestGrace proves that the pod's grace is the drain's two times, as the program reads them, and ten
// seconds, wherever the drain is set, and that Google's load balancer waits for the same answers. The
// kubelet kills what runs longer than the grace.
func TestGrace(t *testing.T) {
	for values, want := range map[string]struct{ grace, answers int }{
		"{}": {130, 115},
		"drain: {delaySeconds: 0, timeoutSeconds: 600}":                                         {610, 600},
		"config: {gateway: {drain_timeout: 600s}}":                                              {615, 600},
		"config: {gateway: {drain_timeout: 600}}":                                               {615, 600},
		"config: {gateway: {drain_timeout: '600'}}":                                             {615, 600},
		"config: {gateway: {drain_timeout: 600.5}}":                                             {616, 601},
		"config: {gateway: {drain_timeout: 1h2m3.5s}}":                                          {3739, 3724},
		"config: {gateway: {drain_timeout: 1500000}}":                                           {1500015, 1500000},
		"config: {gateway: {drain_delay: 20s}}":                                                 {145, 115},
		"config: {gateway: {drain_delay: 0}}":                                                   {125, 115},
		"config: {gateway: {drain_delay: 100ms, drain_timeout: 1m}}":                            {71, 60},
		"{config: {gateway: {drain_delay: 30s}}, drain: {delaySeconds: 1, timeoutSeconds: 60}}": {100, 60},
		"{config: {gateway: {drain_timeout: 10m}}, drain: {delaySeconds: 1}}":                   {611, 600},
	} {
		all := objects(t, render(t, values))
		if got := one(t, all, "Deployment", "select-service").Spec.Template.Spec.TerminationGracePeriodSeconds; got != want.grace {
			t.Errorf("%s: the grace is %d s, want %d", values, got, want.grace)
		}
		all = objects(t, render(t, values, "--set", "provider=gke"))
		if got := one(t, all, "GCPBackendPolicy", "llm").Spec.Default.TimeoutSec; got != want.answers {
			t.Errorf("%s: the load balancer waits %d s, want %d", values, got, want.answers)
		}
	}
	refused(t, map[string]string{
		"config: {gateway: {drain_timeout: soon}}":                                  "config.gateway.drain_timeout: soon is not a duration",
		"config: {gateway: {drain_delay: -1s}}":                                     "config.gateway.drain_delay: -1s is not a duration",
		"env: [{name: SELECT_SERVICE_GATEWAY_DRAIN_TIMEOUT, value: 600s}]":          "SELECT_SERVICE_GATEWAY_DRAIN_TIMEOUT; set drain.",
		"env: [{name: SELECT_SERVICE_GATEWAY_DRAIN_DELAY, valueFrom: {}}]":          "SELECT_SERVICE_GATEWAY_DRAIN_DELAY; set drain.",
		"env: [{name: DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS, value: \"600\"}]": "DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS; set drain.",
	})
}

// refused proves that the chart does not render with values, each for its reason.
func refused(t *testing.T, why map[string]string) {
	t.Helper()
	for _, values := range slices.Sorted(maps.Keys(why)) {
		out, err := renderCommand(t, values)
		if err == nil || !strings.Contains(string(out), why[values]) {
			t.Errorf("%s: %v, want %q\n%s", values, err, why[values], out)
		}
	}
}
