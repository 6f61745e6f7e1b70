package servicetest

import (
	"fmt"
	"testing"

	"github.com/select-service/select-service/internal/codec/yamlread"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/pkg/selector"
)

// Policies is a change of the configuration: the section worker_selection of a policy
// file.
func Policies(t testing.TB, section string) func(*node.Config) {
	t.Helper()
	n, err := yamlread.Root([]byte(section))
	if err != nil {
		t.Fatal(err)
	}
	s, err := policies.ParseSection(n)
	if err != nil {
		t.Fatal(err)
	}
	table, err := s.Resolve(policies.Settings{Weights: selector.DefaultWeights()})
	if err != nil {
		t.Fatal(err)
	}
	return func(c *node.Config) { c.Scopes.Policies = table }
}

// Policy is a change of the configuration: an instance of a type decides, with
// parameters as in a YAML mapping, without its braces.
func Policy(t testing.TB, kind, parameters string) func(*node.Config) {
	t.Helper()
	return Policies(t, fmt.Sprintf("aggregated: p\ninstances: [{name: p, type: %s, parameters: {%s}}]", kind, parameters))
}
