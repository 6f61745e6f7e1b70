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

// file is the content of a tokens file.
type file struct {
	Tokens []tokenEntry  `yaml:"tokens,null"`
	Names  []callerEntry `yaml:"names,null"`
}

type tokenEntry struct {
	Sum tokenSum `yaml:"sha256,required"`
	callerEntry
}

// callerEntry is a caller with its roles and scope.
type callerEntry struct {
	yamlread.Place
	Name   text      `yaml:"name,required"`
	Roles  roleNames `yaml:"roles,required"`
	Model  *text     `yaml:"model"`
	Tenant *text     `yaml:"tenant"`
}

// Check refuses what no caller can have.
func (e *callerEntry) Check() error {
	roles := e.caller().roles
	switch {
	case len(e.Name) > maxName:
		return fmt.Errorf("name: more than %d bytes", maxName)
	case (e.Model != nil || e.Tenant != nil) && (roles.has(Peer) || roles.has(Metrics)):
		return errors.New("the roles peer and metrics have no model or tenant")
	}
	return nil
}

func (e *callerEntry) caller() *Caller {
	c := &Caller{Name: string(e.Name), scope: catalog.ScopeFilter{Model: (*string)(e.Model), Tenant: (*string)(e.Tenant)}}
	for _, role := range e.Roles {
		c.roles = c.roles.with(role)
	}
	return c
}

// roleNames are the roles of a caller.
type roleNames []Role

// Check refuses a caller without any role.
func (ro roleNames) Check() error {
	if len(ro) == 0 {
		return errors.New("want at least one role")
	}
	return nil
}

// text is not empty, nor longer than the name of a model may be.
type text string

// Check refuses what is too short or too long.
func (t text) Check() error {
	if t == "" || len(t) > catalog.MaxName {
		return fmt.Errorf("want a text of 1 to %d bytes", catalog.MaxName)
	}
	return nil
}

// tokenSum is a token's hash.
type tokenSum [sha256.Size]byte

// UnmarshalText reads hexadecimal digits. The error does not repeat them: they may be the token itself.
func (s *tokenSum) UnmarshalText(digits []byte) error {
	sum, err := hex.DecodeString(string(digits))
	if err != nil || len(sum) != len(s) {
		return fmt.Errorf("want the SHA-256 of the token, %d hexadecimal digits", 2*sha256.Size)
	}
	*s = tokenSum(sum)
	return nil
}

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
	var f file
	r.Decode("", root, &f)
	d.add(r, root, &f)
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

var (
	errTwice   = errors.New("another entry has the same")
	errTooMany = fmt.Errorf("more than %d entries", maxTokens)
)

// add adds the callers of a file.
func (d *directory) add(r *yamlread.Reader, root *yaml.Node, f *file) {
	if len(f.Tokens) > maxTokens {
		r.Fault("tokens", root, errTooMany)
		return
	}
	if len(f.Names) > maxTokens {
		r.Fault("names", root, errTooMany)
		return
	}
	for _, e := range f.Tokens {
		if slices.ContainsFunc(d.tokens, func(t token) bool { return t.sum == e.Sum && e.Sum != tokenSum{} }) {
			r.Fault(e.Path+".sha256", e.Node, errTwice)
		}
		d.tokens = append(d.tokens, token{e.Sum, e.caller()})
	}
	for _, e := range f.Names {
		if e.Name != "" && d.names[string(e.Name)] != nil {
			r.Fault(e.Path+".name", e.Node, errTwice)
		}
		d.names[string(e.Name)] = e.caller()
	}
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

// UnmarshalText reads the name of a role that a token can have.
func (r *Role) UnmarshalText(name []byte) (err error) {
	*r, err = ParseRole(string(name))
	return err
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
