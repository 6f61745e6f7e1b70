package policies

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
)

// Setting is a key of the section router of a policy file, with its value as text.
type Setting struct{ Name, Text string }

// settings are the keys that the section may have, with the variables that take their values.
var settings = map[string]func() any{
	"host_cache_hit_weight":           variable[float64],
	"disk_cache_hit_weight":           variable[float64],
	"use_kv_events":                   variable[bool],
	"use_remote_indexer":              variable[bool],
	"serve_indexer":                   variable[bool],
	"shared_cache_type":               variant("none", "hicache"),
	"router_replica_sync":             variable[bool],
	"router_track_active_blocks":      variable[bool],
	"router_track_output_blocks":      variable[bool],
	"router_track_prefill_tokens":     variable[bool],
	"router_assume_kv_reuse":          variable[bool],
	"router_ttl_secs":                 variable[float64],
	"router_predicted_ttl_secs":       variable[*float64],
	"router_approximate_cache_policy": variant("ttl", "lru"),
	"router_prefill_load_model":       variant("none", "aic", "ais"),
	"router_event_threads":            variable[uint64],
	"router_tracking_hash":            variant("public-xxh3-v1", "keyed-xxh3-v1"),
	"router_tracking_key_file":        variable[string],
	"router_tracking_key_id":          variable[string],
}

// ParseRouter reads the section router of a policy file, which in Dynamo configures its router's
// caches and tracking. It checks the types of values only. The error lists every fault.
func ParseRouter(n *yaml.Node) ([]Setting, error) {
	r := yamlread.Reader{Aliases: true}
	var found []Setting
	var faults []error
	for key, value := range r.Pairs("router", n) {
		of, known := settings[key.Name]
		if !known {
			faults = append(faults, fmt.Errorf("invalid router policy config: unknown router setting: %s", key.Name))
			continue
		}
		r.Decode(key.Path, value, of())
		if !yamlread.IsNull(value) {
			found = append(found, Setting{key.Name, value.Value})
		}
	}
	return found, errors.Join(append(r.Faults(), faults...)...)
}

func variable[T any]() any { return new(T) }

// variant takes one of some texts.
func variant(known ...string) func() any {
	return func() any { return &word{known} }
}

type word struct{ known []string }

// UnmarshalText refuses other texts than those that are known.
func (w *word) UnmarshalText(text []byte) error {
	if !slices.Contains(w.known, string(text)) {
		return fmt.Errorf("want one of %s", strings.Join(w.known, ", "))
	}
	return nil
}
