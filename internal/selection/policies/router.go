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

// settings are the keys that the section may have, with what checks their values.
var settings = map[string]func(*yaml.Node) error{
	"host_cache_hit_weight":           check(number),
	"disk_cache_hit_weight":           check(number),
	"use_kv_events":                   check(boolean),
	"use_remote_indexer":              check(boolean),
	"serve_indexer":                   check(boolean),
	"shared_cache_type":               variant("none", "hicache"),
	"router_replica_sync":             check(boolean),
	"router_track_active_blocks":      check(boolean),
	"router_track_output_blocks":      check(boolean),
	"router_track_prefill_tokens":     check(boolean),
	"router_assume_kv_reuse":          check(boolean),
	"router_ttl_secs":                 check(number),
	"router_predicted_ttl_secs":       check(optional),
	"router_approximate_cache_policy": variant("ttl", "lru"),
	"router_prefill_load_model":       variant("none", "aic", "ais"),
	"router_event_threads":            check(unsigned),
	"router_tracking_hash":            variant("public-xxh3-v1", "keyed-xxh3-v1"),
	"router_tracking_key_file":        anyText,
	"router_tracking_key_id":          anyText,
}

// ParseRouter reads the section router of a policy file, which in Dynamo configures its router's
// caches and tracking. It checks the types of values only. The error lists every fault.
func ParseRouter(n *yaml.Node) ([]Setting, error) {
	r := yamlread.Reader{Format: describe, Aliases: true}
	var found []Setting
	var faults []error
	for key, value := range r.Pairs("router", n) {
		accept, known := settings[key.Name]
		if !known {
			faults = append(faults, fmt.Errorf("invalid router policy config: unknown router setting: %s", key.Name))
			continue
		}
		if err := accept(value); err != nil {
			faults = append(faults, fmt.Errorf("invalid router policy config: %s: %w", key.Path, err))
			continue
		}
		if !yamlread.IsNull(value) {
			found = append(found, Setting{key.Name, value.Value})
		}
	}
	return found, errors.Join(append(r.Faults(), faults...)...)
}

// check accepts what read can read.
func check[T any](read func(dst *T) func(*yaml.Node) error) func(*yaml.Node) error {
	return func(n *yaml.Node) error { return read(new(T))(n) }
}

// variant accepts one of some texts.
func variant(known ...string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if err := anyText(n); err != nil {
			return err
		}
		if slices.Contains(known, n.Value) {
			return nil
		}
		expected := "`" + strings.Join(known, "` or `") + "`"
		if len(known) > 2 {
			expected = "one of `" + strings.Join(known, "`, `") + "`"
		}
		return fmt.Errorf("unknown variant `%s`, expected %s", n.Value, expected)
	}
}

func anyText(n *yaml.Node) error {
	if !yamlread.IsString(n) {
		return wrongType(n, "a string")
	}
	return nil
}
