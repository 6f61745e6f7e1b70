package fleet

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
)

// FuzzBucket proves that nothing that the bucket may have stops a replica: what can be read as a head
// and a shard makes a state that can be applied and changed.
func FuzzBucket(f *testing.F) {
	worker := `{"created":1,"record":{"ID":1,"Scope":{"Model":"m","Tenant":"t"},"BlockSize":16}}`
	shards := strings.Repeat(`"",`, shardOf(1)) + `"part.A"`
	head := `{"format":1,"version":1,"ids":["a"],"parts":[` + shards + `],"settings":{"version":1,"thresholds":{"m":{}}}}`
	for _, shard := range []string{
		"[" + worker + "]", "[" + worker + "," + worker + "]", `[null]`, `null`, `{}`, `[{}]`, `[{"record":null}]`,
		`[{"record":{"ID":7,"Describe":{},"Drain":{}}}]`, `[{"record":{"KVEventsEndpoints":{"4294967295":""},"Size":4294967295}}]`,
	} {
		f.Add(head, shard)
	}
	for _, head := range []string{`{}`, `null`, `{"version":1,"settings":{"thresholds":{"m":null}}}`, `{"version":18446744073709551615}`, `{"version":1,"old":[{"key":">"}],"parts":["head"]}`} {
		f.Add(head, `[`+worker+`]`)
	}
	f.Fuzz(func(t *testing.T, head, text string) {
		h, err := readHead([]byte(head), 0)
		if err != nil {
			return
		}
		value, err := zip([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		s := &state{version: h.Version, ids: h.IDs, file: h.File, settings: h.Settings}
		for n := range s.shards {
			if h.Shards[n] == "" {
				continue
			}
			if s.shards[n], err = unpack(n, "part.A", value); err != nil {
				return
			}
		}
		local := catalog.New(catalog.Settings{Limits: catalog.Limits{Workers: 8, Ranks: 8, Scopes: 8}}, quiet{})
		overload.NewTable(overload.Thresholds{}, func(string) bool { return true }).Replace(s.shared().Thresholds)
		if _, err := local.Reconcile(catalog.Set{Kind: catalog.SourceAPI, Records: s.records(local, new(state)), Copied: true}); err != nil {
			t.Fatal(err)
		}
		sh := newShadow(nil, s, local)
		_ = sh.try(func(c *catalog.Catalog) error {
			_, err := c.Put(catalog.Record{ID: 2, Scope: catalog.Scope{Model: "m"}, BlockSize: new(uint32(32))})
			return err
		})
		next, err := sh.next()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(next.entries()); err != nil {
			t.Fatal(err)
		}
	})
}
