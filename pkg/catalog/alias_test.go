package catalog_test

import (
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestAliases proves which further names stand for a model: those of its engines, in their tenant, unless
// a model of that name has workers.
func TestAliases(t *testing.T) {
	c, _ := newWorld(t, events)
	scope := func(model, tenant string) catalog.Scope { return catalog.Scope{Model: model, Tenant: tenant} }
	is := func(what string, of, want catalog.Scope) {
		t.Helper()
		equal(t, what, c.Named(of), want)
	}
	names := func(d *catalog.Description) { d.Aliases = []string{"gpt-4", "b"} }
	m := scope("m1", "default")
	is("nobody", scope("gpt-4", "default"), scope("gpt-4", "default"))
	if _, err := c.Put(asked()); err != nil {
		t.Fatal(err)
	}
	c.Describe(c.List(nil, nil)[0], told(1, names), "")
	is("a further name", scope("gpt-4", "default"), m)
	is("another one", scope("b", "default"), m)
	is("its own", m, m)
	is("of another tenant", scope("gpt-4", "t"), scope("gpt-4", "t"))
	equal(t, "shown", c.List(nil, nil)[0].Describe.Filled["model_aliases"], "/v1/models")
	if _, err := c.Put(record(2, in(scope("b", "default")))); err != nil {
		t.Fatal(err)
	}
	is("a model of that name", scope("b", "default"), scope("b", "default"))
	if _, err := c.Delete(2); err != nil {
		t.Fatal(err)
	}
	is("that has left", scope("b", "default"), m)
	c.Describe(c.List(nil, nil)[0], told(1), "")
	is("a name no more", scope("gpt-4", "default"), scope("gpt-4", "default"))
	own := asked(func(r *catalog.Record) { r.Scope.Model, r.Describe = "gpt-4", new(catalog.Describe) })
	if _, err := c.Put(own); err != nil {
		t.Fatal(err)
	}
	c.Describe(c.List(nil, nil)[0], told(1, names), "")
	is("the record's name is a further one", m, scope("gpt-4", "default"))
	own.Scope.Model = "mine"
	if _, err := c.Put(own); err != nil {
		t.Fatal(err)
	}
	c.Describe(c.List(nil, nil)[0], told(1, names), "")
	is("the record's name is none of the engine's", m, m)
}
