package workersfile

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/pkg/catalog"
)

// maxFaults bounds the faults that are told of one file.
const maxFaults = 20

// reader collects the faults of a file.
type reader struct {
	faults []error
	more   int // faults beyond maxFaults
}

func (r *reader) fault(path string, n *yaml.Node, what string) {
	switch {
	case n.Kind == yaml.AliasNode:
		what = "aliases are not supported"
	case n.Tag == "!!merge": // the key <<
		what = "merge keys are not supported"
	}
	if len(r.faults) >= maxFaults {
		r.more++
		return
	}
	r.faults = append(r.faults, fmt.Errorf("%s (line %d): %s", catalog.Clip(path), n.Line, what))
}

func (r *reader) count() int { return len(r.faults) + r.more }

// err joins the faults in one line, nil if there are none.
func (r *reader) err() error {
	if len(r.faults) == 0 {
		return nil
	}
	texts := make([]string, len(r.faults), len(r.faults)+1)
	for i, f := range r.faults {
		texts[i] = f.Error()
	}
	if r.more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more faults", r.more))
	}
	return errors.New(strings.Join(texts, "; "))
}

// pairs yields the keys of a mapping, each once.
func (r *reader) pairs(path string, n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		if n.Kind != yaml.MappingNode {
			r.fault(path, n, "want keys with values")
			return
		}
		seen := make(map[string]struct{}, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode {
				r.fault(path, key, "want a plain key")
				continue
			}
			if _, twice := seen[key.Value]; twice {
				r.fault(join(path, key.Value), key, "given twice")
				continue
			}
			seen[key.Value] = struct{}{}
			if !yield(key, n.Content[i+1]) {
				return
			}
		}
	}
}

// join names a key inside of path; the top level has no name.
func join(path, key string) string {
	if path == topLevel {
		return key
	}
	return path + "." + key
}

// A value is read by a function that says what is wrong with it.
type read[V any] func(n *yaml.Node) (V, error)

var (
	errText     = errors.New("want a string; put numbers, dates and words like true in quotes")
	errBool     = errors.New("want true or false")
	errFloat    = errors.New("want a number")
	errList     = errors.New("want a list of strings")
	errMap      = errors.New("want keys with strings")
	errByRank   = errors.New("want ranks with strings")
	errRequired = errors.New("want required or preferred")
)

func text(n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		return "", errText
	}
	return n.Value, nil
}

func enforcement(n *yaml.Node) (string, error) {
	v, err := text(n)
	if err == nil && v != "required" && v != "preferred" {
		err = errRequired
	}
	return v, err
}

func boolean(n *yaml.Node) (bool, error) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
		return false, errBool
	}
	return strings.EqualFold(n.Value, "true"), nil
}

func u64(n *yaml.Node) (uint64, error) { return unsigned(n, 64) }

func u32(n *yaml.Node) (uint32, error) {
	v, err := unsigned(n, 32)
	return uint32(v), err
}

// unsigned reads decimal digits, so that ids are exact and a leading zero does not
// make them octal.
func unsigned(n *yaml.Node, bits int) (uint64, error) {
	want := fmt.Errorf("want a whole decimal number of at most %d bits", bits)
	if n.Kind != yaml.ScalarNode || n.Tag == "!!str" || len(n.Value) > 1 && n.Value[0] == '0' {
		return 0, want
	}
	v, err := strconv.ParseUint(n.Value, 10, bits)
	if err != nil {
		return 0, want
	}
	return v, nil
}

func float(n *yaml.Node) (float32, error) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!float" && n.Tag != "!!int" {
		return 0, errFloat
	}
	v, err := strconv.ParseFloat(n.Value, 32)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, errFloat
	}
	return float32(v), nil
}

func list(n *yaml.Node) ([]string, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, errList
	}
	all := make([]string, len(n.Content))
	for i, item := range n.Content {
		var err error
		if all[i], err = text(item); err != nil {
			return nil, errList
		}
	}
	return all, nil
}

func byName(n *yaml.Node) (map[string]string, error) { return mapping(n, text, errMap) }

func byRank(n *yaml.Node) (map[uint32]string, error) { return mapping(n, rank, errByRank) }

// rank reads a key; JSON has only strings there.
func rank(n *yaml.Node) (uint32, error) {
	plain := *n
	plain.Tag = "!!int"
	return u32(&plain)
}

func mapping[K comparable](n *yaml.Node, key read[K], want error) (map[K]string, error) {
	if n.Kind != yaml.MappingNode {
		return nil, want
	}
	all := make(map[K]string, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, err := key(n.Content[i])
		if err != nil {
			return nil, want
		}
		if _, twice := all[k]; twice {
			return nil, fmt.Errorf("%s is given twice", catalog.Clip(n.Content[i].Value))
		}
		if all[k], err = text(n.Content[i+1]); err != nil {
			return nil, want
		}
	}
	return all, nil
}
