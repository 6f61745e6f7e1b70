package catalog_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestLeft: the names of models and adapters that the last schedulable worker took along are remembered,
// 1,024 of them, however it went.
func TestLeft(t *testing.T) {
	c, _ := newWorld(t, catalog.Settings{Now: time.Now})
	record := func(id uint64, model string, adapters ...string) catalog.Record {
		return catalog.Record{
			ID: id, Scope: catalog.Scope{Model: model, Tenant: "default"}, Endpoint: new(fmt.Sprintf("http://w%d", id)),
			BlockSize: new(uint32(4)), Adapters: adapters,
		}
	}
	put := func(r catalog.Record) {
		t.Helper()
		if w, err := c.Put(r); err != nil || w.Lifecycle != catalog.Schedulable {
			t.Fatalf("%+v, %v", w, err)
		}
	}
	want := func(model, adapter string, gone bool) {
		t.Helper()
		sc := catalog.Scope{Model: model, Tenant: "default"}
		if _, ok := c.Left(sc, adapter); ok != gone || adapter != "" && slices.Contains(c.LeftWith(adapter), sc) != gone {
			t.Errorf("%s, adapter %q: has left %t, want %t; scopes %v", model, adapter, ok, gone, c.LeftWith(adapter))
		}
	}
	want("a", "", false)
	put(record(1, "a", "x"))
	put(record(2, "a", "x", "y"))
	if got := c.WithAdapter("y"); len(got) != 1 || got[0].Model != "a" {
		t.Errorf("scopes with y: %v", got)
	}
	if _, err := c.Delete(2); err != nil {
		t.Fatal(err)
	}
	want("a", "", false)
	want("a", "x", false)
	want("a", "y", true)
	put(record(1, "b", "x")) // it moves
	want("a", "", true)
	want("a", "x", true)
	want("b", "x", false)
	if _, err := c.Drain(catalog.ScopeFilter{}, 1, catalog.Drain{}); err != nil {
		t.Fatal(err)
	}
	want("b", "", true)
	if got := c.WithAdapter("x"); len(got) != 1 {
		t.Errorf("scopes with x, of a drained worker: %v", got)
	}
	set := catalog.Set{Kind: catalog.SourceFile}
	for i := range uint64(1100) {
		set.Records = append(set.Records, record(10+i, fmt.Sprint("m", i)))
	}
	if d, err := c.Reconcile(set); err != nil || len(d.Excluded) > 0 {
		t.Fatalf("%+v, %v", d, err)
	}
	set.Records = nil
	if _, err := c.Reconcile(set); err != nil {
		t.Fatal(err)
	}
	known := 0
	for i := range 1100 {
		if _, ok := c.Left(catalog.Scope{Model: fmt.Sprint("m", i), Tenant: "default"}, ""); ok {
			known++
		}
	}
	want("a", "", false) // the longest ago
	if known != 1024 {
		t.Errorf("%d of 1,100 models are remembered, want 1,024", known)
	}
}
