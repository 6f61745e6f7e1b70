package access

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/internal/codec/yamlread"
	"github.com/select-service/select-service/pkg/catalog"
)

const (
	// maxTokens bounds the tokens of a file: each request compares with all of them.
	maxTokens = 1024
	// maxName is the longest name of a caller in bytes.
	maxName = 256
)

// decode reads the content of a tokens file. The error names every fault with its
// line. An empty file has no callers.
func decode(path string, content []byte) (*directory, error) {
	root, err := yamlread.Root(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	d := &directory{names: make(map[string]*Caller)}
	if root == nil {
		return d, nil
	}
	r := &yamlread.Reader{MaxFaults: 20}
	r.Mapping("", root, yamlread.Fields{
		"tokens": func(path string, n *yaml.Node) { d.readTokens(r, path, n) },
		"names":  func(path string, n *yaml.Node) { d.readNames(r, path, n) },
	})
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

var (
	errMissing   = errors.New("is missing")
	errText      = errors.New("want a text")
	errSum       = fmt.Errorf("want the SHA-256 of the token, %d hexadecimal digits", 2*sha256.Size)
	errTwice     = errors.New("another entry has the same")
	errNoScope   = errors.New("the roles peer and metrics have no model or tenant")
	errTooLong   = fmt.Errorf("more than %d bytes", maxName)
	errTooMany   = fmt.Errorf("more than %d entries", maxTokens)
	errEmptyList = errors.New("want at least one role")
)

func (d *directory) readTokens(r *yamlread.Reader, path string, n *yaml.Node) {
	for path, n := range r.List(path, n) {
		var sum *[sha256.Size]byte
		caller := readCaller(r, path, n, yamlread.Fields{
			"sha256": func(path string, n *yaml.Node) { sum = readSum(r, path, n) },
		}, &sum)
		if caller == nil {
			continue
		}
		if len(d.tokens) == maxTokens {
			r.Fault(path, n, errTooMany)
			return
		}
		if slices.ContainsFunc(d.tokens, func(t token) bool { return t.sum == *sum }) {
			r.Fault(path+".sha256", n, errTwice)
		}
		d.tokens = append(d.tokens, token{*sum, caller})
	}
}

func (d *directory) readNames(r *yamlread.Reader, path string, n *yaml.Node) {
	for path, n := range r.List(path, n) {
		caller := readCaller(r, path, n, nil, nil)
		if caller == nil {
			continue
		}
		if len(d.names) == maxTokens {
			r.Fault(path, n, errTooMany)
			return
		}
		if d.names[caller.Name] != nil {
			r.Fault(path+".name", n, errTwice)
		}
		d.names[caller.Name] = caller
	}
}

// readCaller reads an entry, with the further members that it may have. sum, if not nil, must
// be set by one of them. The caller is nil if the entry has faults.
func readCaller(r *yamlread.Reader, path string, n *yaml.Node, further yamlread.Fields, sum **[sha256.Size]byte) *Caller {
	before := r.Count()
	c := new(Caller)
	fields := yamlread.Fields{
		"name":   func(path string, n *yaml.Node) { c.Name = readText(r, path, n, maxName) },
		"roles":  func(path string, n *yaml.Node) { c.roles = readRoles(r, path, n) },
		"model":  func(path string, n *yaml.Node) { c.scope.Model = new(readText(r, path, n, catalog.MaxName)) },
		"tenant": func(path string, n *yaml.Node) { c.scope.Tenant = new(readText(r, path, n, catalog.MaxName)) },
	}
	for name, read := range further {
		fields[name] = read
	}
	r.Mapping(path, n, fields)
	if r.Count() > before {
		return nil
	}
	switch {
	case c.Name == "":
		r.Fault(path+".name", n, errMissing)
	case sum != nil && *sum == nil:
		r.Fault(path+".sha256", n, errMissing)
	case c.roles == 0:
		r.Fault(path+".roles", n, errMissing)
	case c.Scoped() && (c.roles.has(Peer) || c.roles.has(Metrics)):
		r.Fault(path+".roles", n, errNoScope)
	default:
		return c
	}
	return nil
}

// readText reads a text that is not empty.
func readText(r *yamlread.Reader, path string, n *yaml.Node, limit int) string {
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag != "!!str" || n.Value == "":
		r.Fault(path, n, errText)
	case len(n.Value) > limit:
		r.Fault(path, n, errTooLong)
	}
	return n.Value
}

// readSum reads a token's hash. A fault does not repeat the value: it may be the token itself.
func readSum(r *yamlread.Reader, path string, n *yaml.Node) *[sha256.Size]byte {
	sum := new([sha256.Size]byte)
	if n.Kind != yaml.ScalarNode || len(n.Value) != 2*sha256.Size {
		r.Fault(path, n, errSum)
		return sum
	}
	if _, err := hex.Decode(sum[:], []byte(n.Value)); err != nil {
		r.Fault(path, n, errSum)
	}
	return sum
}

func readRoles(r *yamlread.Reader, path string, n *yaml.Node) (set roles) {
	empty := true
	for path, n := range r.List(path, n) {
		empty = false
		role, err := ParseRole(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil {
			r.Fault(path, n, errUnknownRole)
			continue
		}
		set = set.with(role)
	}
	if empty && n.Kind == yaml.SequenceNode {
		r.Fault(path, n, errEmptyList)
	}
	return set
}

var errUnknownRole = func() error {
	names := make([]string, len(Grantable))
	for i, r := range Grantable {
		names[i] = r.String()
	}
	return fmt.Errorf("want one of %s", strings.Join(names, ", "))
}()

// ParseRoles returns the roles of names that a token can have.
func ParseRoles(names []string) (found []Role, err error) {
	for _, name := range names {
		role, err := ParseRole(strings.TrimSpace(name))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		found = append(found, role)
	}
	return found, nil
}

// ParseRole returns the role of a name that a token can have.
func ParseRole(name string) (Role, error) {
	for _, r := range Grantable {
		if r.String() == name {
			return r, nil
		}
	}
	return 0, errUnknownRole
}
