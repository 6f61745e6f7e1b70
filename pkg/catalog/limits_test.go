package catalog_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// refused tells what a call was refused with: the limit, "full" before it if room
// may come; "" if it was not refused.
func refused(t *testing.T, err error) string {
	t.Helper()
	limit, ok := errors.AsType[*catalog.LimitError](err)
	switch {
	case err == nil:
		return ""
	case !ok:
		t.Fatalf("another error: %v", err)
	case limit.Full:
		return "full " + limit.Limit
	}
	return limit.Limit
}

// TestTextLimits: every text and list of a record has a limit, for Put, Patch and
// Reconcile; a record at the limits is taken.
func TestTextLimits(t *testing.T) {
	text := func(n int) string { return strings.Repeat("x", n) }
	numbered := func(n int) (list []string, m map[string]string) {
		m = make(map[string]string)
		for i := range n {
			list = append(list, strconv.Itoa(i))
			m[strconv.Itoa(i)] = "x"
		}
		return list, m
	}
	mostTaints, _ := numbered(1024)
	taints, _ := numbered(1025)
	_, mostDomains := numbered(256)
	_, domains := numbered(257)
	tests := map[string]struct {
		patch catalog.Patch
		want  string
	}{
		"all at the limits": {catalog.Patch{
			Endpoint: new(text(4096)), StableRoutingID: new(text(1024)), KVTransferDomain: new(text(1024)),
			Taints: mostTaints, TopologyDomains: mostDomains,
		}, ""},
		"endpoint":            {catalog.Patch{Endpoint: new(text(4097))}, catalog.LimitText},
		"event endpoint":      {catalog.Patch{KVEventsEndpoint: new(text(4097))}, catalog.LimitText},
		"event endpoints":     {catalog.Patch{KVEventsEndpoints: map[uint32]string{0: "x", 1: text(4097)}}, catalog.LimitText},
		"replay endpoint":     {catalog.Patch{ReplayEndpoint: new(text(4097))}, catalog.LimitText},
		"replay endpoints":    {catalog.Patch{ReplayEndpoints: map[uint32]string{7: text(4097)}}, catalog.LimitText},
		"load endpoint":       {catalog.Patch{LoadEndpoint: new(text(4097))}, catalog.LimitText},
		"load endpoints":      {catalog.Patch{LoadEndpoints: map[uint32]string{0: text(4097)}}, catalog.LimitText},
		"load metrics":        {catalog.Patch{LoadMetrics: &catalog.LoadMetrics{URL: new("http://" + text(4097))}}, catalog.LimitText},
		"stable routing id":   {catalog.Patch{StableRoutingID: new(text(1025))}, catalog.LimitText},
		"kv transfer domain":  {catalog.Patch{KVTransferDomain: new(text(1025))}, catalog.LimitText},
		"taint":               {catalog.Patch{Taints: []string{text(1025)}}, catalog.LimitText},
		"taints":              {catalog.Patch{Taints: taints}, catalog.LimitEntries},
		"adapters":            {catalog.Patch{Adapters: taints}, catalog.LimitEntries},
		"adapter":             {catalog.Patch{Adapters: []string{strings.Repeat("x", catalog.MaxName+1)}}, catalog.LimitText},
		"rank endpoint":       {catalog.Patch{RankEndpoints: map[uint32]string{0: "http://" + strings.Repeat("h", 4097)}}, catalog.LimitText},
		"topology domain key": {catalog.Patch{TopologyDomains: map[string]string{text(1025): ""}}, catalog.LimitText},
		"topology domain":     {catalog.Patch{TopologyDomains: map[string]string{"": text(1025)}}, catalog.LimitText},
		"topology domains":    {catalog.Patch{TopologyDomains: domains}, catalog.LimitEntries},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := newWorld(t, eventsOff)
			put(t, c, record(1))
			_, err := c.Patch(1, tt.patch)
			equal(t, "Patch", refused(t, err), tt.want)
			p := tt.patch
			whole := catalog.Record{
				ID: 2, Scope: m1, Endpoint: p.Endpoint, KVEventsEndpoint: p.KVEventsEndpoint, KVEventsEndpoints: p.KVEventsEndpoints,
				ReplayEndpoint: p.ReplayEndpoint, ReplayEndpoints: p.ReplayEndpoints, StableRoutingID: p.StableRoutingID,
				Taints: p.Taints, TopologyDomains: p.TopologyDomains, KVTransferDomain: p.KVTransferDomain,
				RankEndpoints: p.RankEndpoints, Adapters: p.Adapters, LoadEndpoint: p.LoadEndpoint, LoadEndpoints: p.LoadEndpoints, LoadMetrics: p.LoadMetrics,
			}
			_, err = c.Put(whole)
			equal(t, "Put", refused(t, err), tt.want)
			_, err = c.Reconcile(catalog.Set{Records: []catalog.Record{whole}, Scope: catalog.ScopeFilter{Model: new("other")}})
			if tt.want != "" {
				equal(t, "Reconcile", refused(t, err), tt.want)
			}
		})
	}
}

// TestStreamLimit: event streams count, also those of incomplete workers, where the
// catalog follows them; a map hides the single endpoint.
func TestStreamLimit(t *testing.T) {
	s := catalog.Settings{KVEvents: true}
	s.Limits = catalog.Limits{Streams: 4}
	c, _ := newWorld(t, s)
	endpoints := func(n uint32) map[uint32]string {
		m := make(map[uint32]string)
		for dp := range n {
			m[dp] = "tcp://a:1"
		}
		return m
	}
	for _, step := range []struct {
		what   string
		record catalog.Record
		want   string
	}{
		{"one", catalog.Record{ID: 1, Scope: m1, KVEventsEndpoint: new("tcp://a:1")}, ""},
		{"one that is not for all ranks", catalog.Record{ID: 2, Scope: m1, KVEventsEndpoint: new("tcp://a:1"), Size: new(uint32(9))}, ""},
		{"too many", catalog.Record{ID: 3, Scope: m1, KVEventsEndpoints: endpoints(4)}, "full streams"},
		{"as many as may be", catalog.Record{ID: 3, Scope: m1, KVEventsEndpoint: new("tcp://a:1"), KVEventsEndpoints: endpoints(3)}, ""},
		{"none", catalog.Record{ID: 4, Scope: m1, Size: new(uint32(9))}, ""},
		{"one more", catalog.Record{ID: 4, Scope: m1, KVEventsEndpoint: new("tcp://a:1")}, "full streams"},
		{"a smaller one in its place", catalog.Record{ID: 3, Scope: m1, KVEventsEndpoints: endpoints(2)}, ""},
	} {
		_, err := c.Put(step.record)
		if got := refused(t, err); got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
}

// TestCountLimits: workers, ranks and scopes of both contracts count, incomplete ones
// and those with events only too; what replaces another or makes room is not refused,
// and a refusal changes nothing.
func TestCountLimits(t *testing.T) {
	s := eventsOff
	s.Limits = catalog.Limits{Workers: 3, Ranks: 10, Scopes: 2}
	c, _ := newWorld(t, s)
	steps := []struct {
		what string
		do   func() error
		want string
	}{
		{"first", func() error { _, err := c.Put(record(1, size(6))); return err }, ""},
		{"too many ranks", func() error { _, err := c.Put(record(2, size(5))); return err }, "full ranks"},
		{"an incomplete one", func() error { _, err := c.Put(catalog.Record{ID: 2, Scope: m2, Size: new(uint32(2))}); return err }, ""},
		{"a third scope", func() error {
			_, err := c.PutTracked(tracked(3, catalog.Scope{Model: "m3"}, 4, 0, 1))
			return err
		}, "full models"},
		{"too many tracked ranks", func() error { _, err := c.PutTracked(tracked(3, m1, 4, 0, 3)); return err }, "full ranks"},
		{"tracked", func() error { _, err := c.PutTracked(tracked(3, m1, 4, 0, 2)); return err }, ""},
		{"one too many", func() error { _, err := c.Put(record(4)); return err }, "full workers"},
		{"the same again", func() error { _, err := c.Put(record(1, size(6))); return err }, ""},
		{"grown", func() error { _, err := c.Patch(1, catalog.Patch{Size: new(uint32(7))}); return err }, "full ranks"},
		{"grown by event streams", func() error {
			_, err := c.Patch(1, catalog.Patch{KVEventsEndpoints: map[uint32]string{5: "", 6: ""}})
			return err
		}, "full ranks"},
		{"a move to a third scope", func() error { _, err := c.Put(record(1, in(catalog.Scope{Model: "m3"}))); return err }, "full models"},
		{"the sole worker moves", func() error {
			_, err := c.Put(catalog.Record{ID: 2, Scope: catalog.Scope{Model: "m3"}, Size: new(uint32(2))})
			return err
		}, ""},
		{"shrunk", func() error { _, err := c.Patch(1, catalog.Patch{Size: new(uint32(1))}); return err }, ""},
		{"a set that fits", func() error {
			_, err := c.Reconcile(catalog.Set{Records: []catalog.Record{record(7, size(4)), record(8, size(4))}})
			return err
		}, ""},
		{"a set with too many workers", func() error {
			_, err := c.Reconcile(catalog.Set{Records: []catalog.Record{record(7), record(8), record(9)}})
			return err
		}, "full workers"},
		{"a set with too many ranks", func() error {
			_, err := c.Reconcile(catalog.Set{Records: []catalog.Record{record(7, size(9))}})
			return err
		}, "full ranks"},
		{"a set beside the others' scopes", func() error {
			_, err := c.Reconcile(catalog.Set{Records: []catalog.Record{record(9, in(m2))}, Scope: catalog.ScopeFilter{Model: new("m2")}})
			return err
		}, "full workers"},
	}
	for _, step := range steps {
		before := c.List(nil, nil)
		if got := refused(t, step.do()); got != step.want {
			t.Fatalf("%s: refused by %q, want %q", step.what, got, step.want)
		}
		if step.want != "" {
			equal(t, "workers after "+step.what, len(c.List(nil, nil)), len(before))
		}
	}
}

// TestHeldScopes: scopes that only a peer's dump names count, too.
func TestHeldScopes(t *testing.T) {
	s := eventsOff
	s.Limits = catalog.Limits{Scopes: 2}
	c, _ := newWorld(t, s)
	for i, want := range []bool{true, true, false} {
		if _, ok := c.ReserveSlot(catalog.Scope{Model: strconv.Itoa(i)}, 4, catalog.Rank{}); ok != want {
			t.Errorf("slot in scope %d: %t", i, ok)
		}
	}
	if _, ok := c.ReserveSlot(catalog.Scope{Model: "1"}, 4, catalog.Rank{Worker: 1}); !ok {
		t.Error("one more rank of a scope with reserved ranks is refused")
	}
}
