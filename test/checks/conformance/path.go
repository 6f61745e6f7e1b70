package conformance

import (
	"fmt"
	"regexp"
	"strconv"
)

// path names places in a value: $.a[0].b, $[*], $["a:b"].
type path []pathStep

// pathStep goes to a key of an object, to an index of a list (from its end if
// negative), or to every place there is.
type pathStep struct {
	every   bool
	isIndex bool
	index   int
	key     string
}

// missing is what get returns for a place that the value does not have.
type missing struct{}

var pathToken = regexp.MustCompile(`^(?:\.([^.\[\]]+)|\[(\*|-?\d+)\]|\["([^"]*)"\])`)

func parsePath(text string) (path, error) {
	if text == "" || text[0] != '$' {
		return nil, fmt.Errorf("path %q does not start with $", text)
	}
	var p path
	for rest := text[1:]; rest != ""; {
		m := pathToken.FindStringSubmatch(rest)
		if m == nil {
			return nil, fmt.Errorf("path %q: cannot read %q", text, rest)
		}
		rest = rest[len(m[0]):]
		name, index, quoted := m[1], m[2], m[3]
		switch {
		case name == "*" || index == "*":
			p = append(p, pathStep{every: true})
		case index != "":
			i, err := strconv.Atoi(index)
			if err != nil {
				return nil, fmt.Errorf("path %q: %w", text, err)
			}
			p = append(p, pathStep{isIndex: true, index: i})
		default:
			p = append(p, pathStep{key: name + quoted})
		}
	}
	return p, nil
}

// in returns the position of an index step in a list of n items.
func (s pathStep) in(n int) (int, bool) {
	i := s.index
	if i < 0 {
		i += n
	}
	return i, s.isIndex && i >= 0 && i < n
}

// get returns the value at the one place that the path names, or missing.
func (p path) get(v any) (any, error) {
	for _, s := range p {
		if s.every {
			return nil, fmt.Errorf("a path to a single value has no wildcard")
		}
		switch c := v.(type) {
		case map[string]any:
			x, ok := c[s.key]
			if !ok || s.isIndex {
				return missing{}, nil
			}
			v = x
		case []any:
			i, ok := s.in(len(c))
			if !ok {
				return missing{}, nil
			}
			v = c[i]
		default:
			return missing{}, nil
		}
	}
	return v, nil
}

// get returns the value at a path, or missing.
func get(v any, text string) (any, error) {
	p, err := parsePath(text)
	if err != nil {
		return nil, err
	}
	return p.get(v)
}

// edit replaces what is at every place that the path names, in place; it
// returns the new root.
func (p path) edit(v any, f func(any) any) any {
	if len(p) == 0 {
		return f(v)
	}
	s, rest := p[0], p[1:]
	switch c := v.(type) {
	case map[string]any:
		for k, x := range c {
			if s.every || (!s.isIndex && k == s.key) {
				c[k] = rest.edit(x, f)
			}
		}
	case []any:
		if i, ok := s.in(len(c)); ok {
			c[i] = rest.edit(c[i], f)
		}
		for i := range c {
			if s.every {
				c[i] = rest.edit(c[i], f)
			}
		}
	}
	return v
}
