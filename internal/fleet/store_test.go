package fleet

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/settings"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

type noScopes struct{}

func (noScopes) Change(change func()) { change() }

// TestStore: what the store of one replica says of a change is what all replicas have then, and a change that
// cannot be made now is refused as contract.Away with the words of docs/run/fleet.md, "NATS is away: changes are
// 503", whatever it is about.
func TestStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		local := catalog.New(catalog.Settings{}, quiet{})
		a := New(Config{Bucket: &cuttable{memory: m}, Fleet: member{m, "a"}, Replica: "a", Log: zerolog.Nop()})
		store, shared := a.Store(), a.SettingsStore()
		store.Attach(workers.NewChanges(local, noScopes{}, func(string) {}, func() {}))
		shared.Attach(settings.Process{
			Thresholds: overload.NewTable(overload.Thresholds{}, func(string) bool { return true }), Apply: func([]byte) error { return nil },
		})
		as := &testReplica{Catalog: a, local: local, name: "a"}
		m.locked(func() { m.replicas = append(m.replicas, as) })
		go func() { _ = a.Run(t.Context()) }()
		b := m.join(t, "b", func(c *Config) {
			c.Thresholds, c.Policies = overload.NewTable(overload.Thresholds{}, func(string) bool { return true }), func([]byte) error { return nil }
		})
		id := uint64(1)
		registers := func(c *catalog.Catalog) (*catalog.Worker, error) { return c.Put(worker(id)) }
		if w, err := store.Edit(registers); err != nil || w != local.WorkerIn(catalog.ScopeFilter{}, 1) || w == nil {
			t.Fatalf("%v, %v", w, err)
		}
		set := catalog.Set{Kind: catalog.SourceAPI, Records: []catalog.Record{worker(1), worker(2)}}
		if d, err := store.Compare(set); err != nil || fmt.Sprint(d.Added) != "[2]" || len(local.List(nil, nil)) != 1 {
			t.Errorf("compared: %+v, %v", d, err)
		}
		if d, err := store.Replace(set); err != nil || fmt.Sprint(d.Added) != "[2]" || d.Unchanged != 1 {
			t.Errorf("replaced: %+v, %v", d, err)
		}
		agree(t, as, b)
		edits := func(s *settings.Settings) error {
			_, err := s.Thresholds.Set("m", overload.Thresholds{PrefillTokens: &id})
			return err
		}
		if behind, err := shared.Edit(edits); err != nil || behind != nil {
			t.Errorf("settings: %v, %v", behind, err)
		}
		if v := shared.Version(); v != a.Status().Version {
			t.Errorf("the settings are of version %d, the catalog that first had them is of %d", v, a.Status().Version)
		}

		m.locked(func() { m.away = true })
		id = 3
		for what, err := range map[string]error{
			"edit":     second(store.Edit(registers)),
			"replace":  second(store.Replace(catalog.Set{Kind: catalog.SourceAPI})),
			"settings": second(shared.Edit(edits)),
		} {
			if e, is := errors.AsType[*contract.Error](err); !is || e.Kind != contract.Away || e.Reason != "fleet_away" || !errors.Is(err, ErrAway) {
				t.Errorf("%s without NATS: %v", what, err)
			}
		}
		m.locked(func() { m.away = false })
	})
}

func second[T any](_ T, err error) error { return err }
