package mapping

import (
	"cmp"
	"fmt"
	"maps"
	"math"
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
	faults []string
}

// podField is a field of a record that pods may have in an annotation.
type podField struct {
	annotation string // without the prefix
	*catalog.Field
}

// podFields are the fields with Pods, in their order.
var podFields = func() (all []podField) {
	for i, f := range catalog.Fields() {
		if f.Pods {
			all = append(all, podField{strings.ReplaceAll(f.Name, "_", "-"), &catalog.Fields()[i]})
		}
	}
	return all
}()

// The annotations that are no fields of a record.
const (
	annotationModel      = "model"
	annotationCordoned   = "cordoned"
	annotationEventsPort = "kv-events-port"
	annotationReplayPort = "kv-replay-port"
	annotationLoadPort   = "kv-load-port"
	annotationHintPort   = "router-hint-control-port"
	annotationPeerPort   = "kv-peer-port"
)

// Annotations returns the names of the annotations that have a meaning, without their prefix.
func Annotations() []string {
	names := []string{annotationModel, annotationCordoned, annotationEventsPort, annotationReplayPort, annotationLoadPort, annotationHintPort, annotationPeerPort}
	for _, f := range podFields {
		names = append(names, f.annotation)
	}
	return names
}

var known = Annotations()

// unknown returns the annotations with the prefix that are not known, in order.
func (a *annotations) unknown() []string {
	var names []string
	for _, key := range slices.Sorted(maps.Keys(a.pod.Annotations)) {
		if name, ok := strings.CutPrefix(key, AnnotationPrefix); ok && !slices.Contains(known, name) {
			names = append(names, key)
		}
	}
	return names
}

// read sets the fields of a record that annotations give. The role is not among them: see role.
func (a *annotations) read(r *catalog.Record) {
	for _, f := range podFields {
		switch of := f.Of.(type) {
		case catalog.Pointer[string]:
			if f.Name != catalog.FieldRole {
				set(of(r), a.word(f.annotation, f.Words))
			}
		case catalog.Pointer[bool]:
			set(of(r), a.flag(f.annotation))
		case catalog.Pointer[uint32]:
			if n := a.number(f.annotation, cmp.Or(f.Most, math.MaxUint32)); n != nil {
				*of(r) = new(uint32(*n))
			}
		case catalog.Pointer[uint64]:
			set(of(r), a.number(f.annotation, math.MaxInt64))
		case catalog.Pointer[catalog.LoadMetrics]:
			if read := a.flag(f.annotation); read != nil {
				*of(r) = nil
				if *read {
					*of(r) = new(catalog.LoadMetrics)
				}
			}
		case catalog.List:
			if items := a.list(f.annotation); items != nil {
				*of(r) = items
			}
		default:
			panic("mapping: the field " + f.Name + " has no known kind")
		}
	}
}

// set sets a field to a value that is given.
func set[T any](field **T, value *T) {
	if value != nil {
		*field = value
	}
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
	text, given := a.value(AnnotationPrefix + name)
	if given && text == "" {
		a.fault(AnnotationPrefix+name, "it is empty")
	}
	return text
}

// number returns a whole number from 1 to most, nil if it is not given or wrong.
func (a *annotations) number(name string, most uint64) *uint64 {
	text, given := a.value(AnnotationPrefix + name)
	if !given {
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 || n > most {
		hint := ""
		if name == annotationEventsPort {
			hint = "; a pod without KV events has " + AnnotationPrefix + "kv-events: \"false\""
		}
		a.fault(AnnotationPrefix+name, "%q is not a number from 1 to %d%s", catalog.Clip(text), most, hint)
		return nil
	}
	return &n
}

// port returns a port, 0 if it is not given or wrong.
func (a *annotations) port(name string) uint16 {
	if n := a.number(name, math.MaxUint16); n != nil {
		return uint16(*n)
	}
	return 0
}

// flag returns a boolean, nil if it is not given or wrong.
func (a *annotations) flag(name string) *bool {
	text, given := a.value(AnnotationPrefix + name)
	if !given {
		return nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		a.fault(AnnotationPrefix+name, "%q is neither true nor false", catalog.Clip(text))
		return nil
	}
	return &v
}

// word returns one of some words, any text if these are nil; nil if it is not given or wrong.
func (a *annotations) word(name string, words []string) *string {
	text, given := a.value(AnnotationPrefix + name)
	if !given {
		return nil
	}
	if words != nil && !slices.Contains(words, text) {
		a.fault(AnnotationPrefix+name, "%q is not %s", catalog.Clip(text), catalog.AnyOf(words))
		return nil
	}
	return &text
}

// list returns the elements of a list with commas; nil if it is not given.
func (a *annotations) list(name string) []string {
	text, given := a.value(AnnotationPrefix + name)
	if !given {
		return nil
	}
	return trimmedList(text)
}

// role returns the pod's role, nil for both phases, and whether it serves requests at all: an
// annotation, else what the entry fixes, else a label.
func (a *annotations) role(e *Entry) (role *string, serves bool) {
	if text, given := a.value(AnnotationPrefix + "role"); given {
		return a.roleOf("annotation "+AnnotationPrefix+"role", text)
	}
	if role := e.Worker.Role; role != nil {
		return role, true
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
