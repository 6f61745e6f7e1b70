package config

import (
	"errors"
	"math"
	"slices"
)

// dynamoCompat are environment variables of Dynamo's router (1.6.1) that are no settings of
// this service.
var dynamoCompat = []option{
	{
		env:        []string{"DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "DYN_OVERLAP_SCORE_WEIGHT"},
		deprecated: "DYN_ROUTER_PREFILL_LOAD_SCALE",
		bind:       bindOldWeight,
		help:       "Deprecated: sets the prefill load scale; 0 also sets the overlap credit to 0.",
	},
	inert("DYN_ROUTER_REPLICA_SYNC", func() value { return boolean(new(bool)) }),
	inert("DYN_ROUTER_TRACK_ACTIVE_BLOCKS", func() value { return boolean(new(bool)) }),
	inert("DYN_ROUTER_TRACK_OUTPUT_BLOCKS", func() value { return boolean(new(bool)) }),
	inert("DYN_ROUTER_MIN_INITIAL_WORKERS", func() value { return integer(new(int), 0, math.MaxInt) }),
	inert("DYN_ROUTER_ASSUME_KV_REUSE", func() value { return boolean(new(bool)) }),
	inert("DYN_ROUTER_CONDITIONAL_DISAGG", func() value { return boolean(new(bool)) }),
	inert("DYN_ROUTER_CONDITIONAL_DISAGG_POLICY", func() value { return text(new(string)) }),
	inert("DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD", func() value { return integer(new(int), 0, math.MaxInt) }),
	inert("DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD", func() value { return fraction(new(float64)) }),
	inert("DYN_ROUTER_PREFILL_LOAD_MODEL", func() value { return text(new(string)) }),
	inert("DYN_ROUTER_TRACKING_HASH", func() value { return choice(new(string), "public-xxh3-v1", "keyed-xxh3-v1") }),
	inert("DYN_ROUTER_TRACKING_KEY_FILE", func() value { return text(new(string)) }),
	inert("DYN_ROUTER_TRACKING_KEY_ID", func() value { return text(new(string)) }),
	inert("DYN_ROUTER_PREFILL_POLICY", func() value { return text(new(string)) }),
	inert("DYN_ROUTER_DECODE_POLICY", func() value { return text(new(string)) }),
	inert("DYN_USE_REMOTE_INDEXER", func() value { return boolean(new(bool)) }),
	inert("DYN_SHARED_CACHE_TYPE", func() value { return choice(new(string), "none", "hicache") }),
	inert("DYN_SHARED_CACHE_MULTIPLIER", func() value { return fraction(new(float64)) }),
}

// inert is a variable of Dynamo's router that a shared environment may have. Its syntax is
// checked; its value has no effect.
func inert(name string, scratch func() value) option {
	return option{
		env:   []string{name},
		inert: true,
		bind:  func(*Config) value { return scratch() },
		help:  "Checked, without effect in this service.",
	}
}

// dynamoPicker are variables of Dynamo's endpoint picker that this service cannot follow. Such a
// variable stops the start, since the picker would not do what the variable says.
var dynamoPicker = []option{
	refused("DYN_EPP_MODE", "there is only the mode standalone", "standalone"),
	refused("DYN_EPP_TOPOLOGY_MODE", "give workers a role (prefill or decode) instead", "aggregated"),
	refused("DYN_KUBE_DISCOVERY_MODE", "workers are the pods, not their containers", "pod"),
	refused("DYN_EPP_PREFILL_MAX_NUM_BATCHED_TOKENS", "give workers their max_num_batched_tokens"),
	refused("DYN_EPP_DECODE_MAX_NUM_BATCHED_TOKENS", "give workers their max_num_batched_tokens"),
	refused("DYN_EPP_METRICS_PORT", "metrics are at /metrics of --port", "0"),
	refused("DYN_EPP_PROBE_PORT", "choices are explained by POST /explain of --port", "0"),
}

// refused is a variable that may only have values that describe what the service does anyway.
func refused(name, instead string, allowed ...string) option {
	help := "Refused: " + instead + "."
	if len(allowed) > 0 {
		help = "Refused but for " + allowed[0] + ": " + instead + "."
	}
	return option{
		env: []string{name},
		bind: func(*Config) value {
			return typed[string]{
				field: new(string),
				parse: func(s string) (string, error) {
					if slices.Contains(allowed, s) {
						return s, nil
					}
					return "", errors.New("is not supported: " + instead)
				},
			}
		},
		help: help,
	}
}

// oldWeight is the deprecated overlap weight. It sets the prefill scale; its 0 meant
// "ignore the caches".
type oldWeight struct {
	value  // of weight
	weight float64
	conf   *Config
}

func bindOldWeight(c *Config) value {
	w := &oldWeight{conf: c}
	w.value = number(&w.weight)
	return w
}

func (w *oldWeight) set(text string) error {
	if err := w.value.set(text); err != nil {
		return err
	}
	w.conf.Router = w.conf.Router.WithOverlapWeight(w.weight)
	return nil
}
