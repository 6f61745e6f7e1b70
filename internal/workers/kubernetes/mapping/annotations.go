package mapping

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
)

// maxAnnotation bounds the value of an annotation, in bytes.
const maxAnnotation = 1 << 10

// annotations reads the annotations of a pod, and collects what is wrong with them.
type annotations struct {
	pod    *Pod
	prefix string
	faults []string
}

// known are the names of annotations that have a meaning.
var known = []string{
	"model", "adapters", "block-size", "kv-events-port", "kv-replay-port", "data-parallel-size", "total-kv-blocks",
	"max-num-batched-tokens", "role", "taints", "cordoned", "rank-header", "kv-load-port", "load-metrics", "kv-events",
}

// unknown returns the annotations with the prefix that are not known, in order.
func (a *annotations) unknown() []string {
	var names []string
	for _, key := range slices.Sorted(maps.Keys(a.pod.Annotations)) {
		if name, ok := strings.CutPrefix(key, a.prefix); ok && !slices.Contains(known, name) {
			names = append(names, key)
		}
	}
	return names
}

func (a *annotations) fault(key, format string, args ...any) {
	a.faults = append(a.faults, "annotation "+key+": "+fmt.Sprintf(format, args...))
}

// value returns the annotation's text, and whether the pod has it. One that is too long is a
// fault.
func (a *annotations) value(key string) (string, bool) {
	text, given := a.pod.Annotations[key]
	if len(text) > maxAnnotation {
		a.fault(key, "it has more than %d bytes", maxAnnotation)
		return "", false
	}
	return text, given
}

// text returns a text that must not be empty, "" if it is not given.
func (a *annotations) text(name string) string {
	text, given := a.value(a.prefix + name)
	if given && text == "" {
		a.fault(a.prefix+name, "it is empty")
	}
	return text
}

// number returns a whole number from 1 to most, 0 if it is not given or wrong.
func (a *annotations) number(name string, most uint64) uint64 {
	text, given := a.value(a.prefix + name)
	if !given {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 || n > most {
		hint := ""
		if name == "kv-events-port" {
			hint = "; a pod without KV events has " + a.prefix + "kv-events: \"false\""
		}
		a.fault(a.prefix+name, "%q is not a number from 1 to %d%s", catalog.Clip(text), most, hint)
		return 0
	}
	return n
}

// flag returns a boolean, or what holds if it is not given or wrong.
func (a *annotations) flag(name string, otherwise bool) bool {
	text, given := a.value(a.prefix + name)
	if !given {
		return otherwise
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		a.fault(a.prefix+name, "%q is neither true nor false", catalog.Clip(text))
		return otherwise
	}
	return v
}

// list returns the elements of a list with commas; nil if it is not given.
func (a *annotations) list(name string) []string {
	text, given := a.value(a.prefix + name)
	if !given {
		return nil
	}
	return trimmedList(text)
}

// rankHeader returns how the engine's frontend wants to be told a rank, "" if it is not given.
func (a *annotations) rankHeader() string {
	text, given := a.value(a.prefix + "rank-header")
	switch text {
	case catalog.RankLocal, catalog.RankGlobal, catalog.RankNone:
		return text
	}
	if given {
		a.fault(a.prefix+"rank-header", "%q is not local, global or none", catalog.Clip(text))
	}
	return ""
}

// role returns the pod's role, nil for both phases, and whether it serves requests at all: an
// annotation, else what the entry fixes, else a label.
func (a *annotations) role(e *Entry) (role *string, serves bool) {
	if text, given := a.value(a.prefix + "role"); given {
		return a.roleOf("annotation "+a.prefix+"role", text)
	}
	if e.Role != "" {
		return &e.Role, true
	}
	for _, label := range e.RoleLabels {
		if text, given := a.pod.Labels[label]; given {
			return a.roleOf("label "+label, text)
		}
	}
	return nil, true
}

// roleOf reads the values of llm-d's label. What also encodes serves the phases that it names.
func (a *annotations) roleOf(what, text string) (role *string, serves bool) {
	switch text {
	case "prefill", "encode-prefill":
		return new(catalog.RolePrefill), true
	case "decode":
		return new(catalog.RoleDecode), true
	case "both", "prefill-decode", "encode-prefill-decode":
		return nil, true
	case "encode":
		return nil, false
	}
	a.faults = append(a.faults, fmt.Sprintf("%s: %q is not a role", what, catalog.Clip(text)))
	return nil, true
}

// activePorts returns which target ports the pod has. Of a list that is wrong it has all, as
// incomplete workers.
func (a *annotations) activePorts() func(uint16) bool {
	every := func(uint16) bool { return true }
	for _, key := range activePorts {
		text, given := a.value(key)
		if !given {
			continue
		}
		items := trimmedList(text)
		if len(items) == 0 {
			a.fault(key, "it names no port")
			return every
		}
		var active []uint16
		for _, item := range items {
			n, err := strconv.ParseUint(item, 10, 16)
			if err != nil || n == 0 {
				a.fault(key, "%q is not a port", catalog.Clip(item))
				return every
			}
			active = append(active, uint16(n))
		}
		return func(port uint16) bool { return slices.Contains(active, port) }
	}
	return every
}
