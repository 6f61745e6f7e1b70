package catalog_test

import (
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

func at(endpoint string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.Endpoint = &endpoint }
}

func rankHeader(form string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.RankHeader = &form }
}

// of has the engine of a kind describe the worker.
func of(engine string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.Describe = &catalog.Describe{Engine: engine} }
}

// TestRankHeader: a record without rank_header is told local ranks only if it starts above rank
// 0, has several ranks, and no other record has its endpoint in any spelling (decision U2).
func TestRankHeader(t *testing.T) {
	const node, head = "http://node:8000", "http://head:8000"
	other := catalog.Scope{Model: "other", Tenant: "t"}
	for name, tc := range map[string]struct {
		record catalog.Record
		others []catalog.Record
		want   string
	}{
		"from rank 0":            {record(1, at(node), size(4)), nil, catalog.RankGlobal},
		"from 0, stated":         {record(1, at(node), start(0), size(4)), nil, catalog.RankGlobal},
		"above 0":                {record(1, at(node), start(2), size(2)), []catalog.Record{record(2, at(head), size(2))}, catalog.RankLocal},
		"one rank above 0":       {record(1, at(node), start(2)), nil, catalog.RankGlobal},
		"at the head's":          {record(1, at(head), start(2), size(2)), []catalog.Record{record(2, at(head), size(2))}, catalog.RankGlobal},
		"in another scope":       {record(1, at(head), start(2), size(2)), []catalog.Record{record(2, at(head), in(other))}, catalog.RankGlobal},
		"beside an incomplete":   {record(1, at(head), start(2), size(2)), []catalog.Record{record(2, at(head), blocks(0))}, catalog.RankGlobal},
		"a slash at the end":     {record(1, at(head), start(2), size(2)), []catalog.Record{record(2, at(head+"/"))}, catalog.RankGlobal},
		"without the scheme":     {record(1, at(head), start(2), size(2)), []catalog.Record{record(2, at("HEAD:8000"))}, catalog.RankGlobal},
		"the default port":       {record(1, at("http://h"), start(2), size(2)), []catalog.Record{record(2, at("http://H:80"))}, catalog.RankGlobal},
		"another port":           {record(1, at("http://h"), start(2), size(2)), []catalog.Record{record(2, at("https://h"))}, catalog.RankLocal},
		"another path":           {record(1, at(head+"/a"), start(2), size(2)), []catalog.Record{record(2, at(head+"/b"))}, catalog.RankLocal},
		"local, stated":          {record(1, at(node), size(4), rankHeader("local")), nil, catalog.RankLocal},
		"none, stated":           {record(1, at(node), start(2), size(2), rankHeader("none")), nil, catalog.RankNone},
		"global, stated":         {record(1, at(node), start(2), size(2), rankHeader("global")), nil, catalog.RankGlobal},
		"local beside another":   {record(1, at(head), start(2), size(2), rankHeader("local")), []catalog.Record{record(2, at(head))}, catalog.RankLocal},
		"its engine has none":    {record(1, at(node), size(4), of(catalog.EngineTRTLLM)), nil, catalog.RankNone},
		"stated for one without": {record(1, at(node), size(4), of(catalog.EngineTRTLLM), rankHeader("global")), nil, catalog.RankGlobal},
		"others have no others":  {record(1, at(node), start(2), size(2)), []catalog.Record{record(2, at(head)), record(3, at(head))}, catalog.RankLocal},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newWorld(t, eventsOff)
			for _, r := range append(tc.others, tc.record) {
				put(t, c, r)
			}
			all := c.List(nil, nil)
			w := all[slices.IndexFunc(all, func(w *catalog.Worker) bool { return w.ID == 1 })]
			if got := c.RankHeader(w); got != tc.want {
				t.Errorf("is told %s ranks, want %s", got, tc.want)
			}
		})
	}
}

// TestRankHeaderFollowsTheCatalog: the default is that of the records as they are, also for a
// worker of an older snapshot.
func TestRankHeaderFollowsTheCatalog(t *testing.T) {
	c, _ := newWorld(t, eventsOff)
	w := put(t, c, record(1, at("http://a:1"), start(2), size(2)))
	check := func(want string) {
		t.Helper()
		if got := c.RankHeader(w); got != want {
			t.Errorf("is told %s ranks, want %s", got, want)
		}
	}
	check(catalog.RankLocal)
	put(t, c, record(2, at("http://b:1")))
	check(catalog.RankLocal)
	if _, err := c.Patch(2, catalog.Patch{Endpoint: new("http://a:1")}); err != nil {
		t.Fatal(err)
	}
	check(catalog.RankGlobal)
	if _, err := c.Delete(1); err != nil {
		t.Fatal(err)
	}
	check(catalog.RankGlobal) // its record is gone, the other's stays
	if _, err := c.Delete(2); err != nil {
		t.Fatal(err)
	}
	check(catalog.RankLocal)
	put(t, c, record(1, at("http://a:1"), start(2), size(2)))
	if _, err := c.Patch(1, catalog.Patch{RankHeader: new(catalog.RankNone)}); err != nil {
		t.Fatal(err)
	}
	w = c.List(nil, nil)[0]
	check(catalog.RankNone)
}
