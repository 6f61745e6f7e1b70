package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// dump is the JSON of GET /dump as a peer reads it.
type dump map[string]struct {
	BlockSize int          `json:"block_size"`
	Events    []dumpedItem `json:"events"`
}

type dumpedItem struct {
	Worker uint64 `json:"worker_id"`
	Tier   string `json:"storage_tier"`
	Event  struct {
		ID   uint64 `json:"event_id"`
		DP   uint32 `json:"dp_rank"`
		Data struct {
			Stored struct {
				Parent *uint64 `json:"parent_hash"`
				Start  *uint64 `json:"start_position"`
				Blocks []struct {
					Block  uint64          `json:"block_hash"`
					Tokens uint64          `json:"tokens_hash"`
					MM     json.RawMessage `json:"mm_extra_info"`
				} `json:"blocks"`
			} `json:"stored"`
		} `json:"data"`
	} `json:"event"`
}

func dumpOf(w *servicetest.World) dump {
	w.T.Helper()
	var buf bytes.Buffer
	if err := w.Dump(context.Background(), &buf, contract.V13); err != nil {
		w.T.Fatal(err)
	}
	var d dump
	dec := json.NewDecoder(&buf)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		w.T.Fatal(err)
	}
	return d
}

// TestDumpRoundTrip: what the dump says, fed into an empty index, gives the same
// overlaps; parents come before their children, whatever the tier.
func TestDumpRoundTrip(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 2))
	w.Put(servicetest.Record(2, 1))
	w.Put(servicetest.Record(3, 1, func(r *catalog.Record) { r.Scope = catalog.Scope{Model: `q"uote`, Tenant: "t"} }))
	a := servicetest.Prompt(1, 64)
	fork := append(servicetest.Prompt(1, 32), servicetest.Prompt(2, 32)...)
	long := servicetest.Prompt(3, 4000) // more than one chunk of output
	e1, e2 := w.Engine(1, 0), w.Engine(2, 0)
	e1.Publish(0, e1.Stored(a, servicetest.BlockSize, nil), e1.Stored(fork, servicetest.BlockSize, nil), e1.Stored(long, servicetest.BlockSize, nil))
	e1.Publish(0, e1.Removed(a, servicetest.BlockSize, 12, "GPU"), e1.Stored(a, servicetest.BlockSize, servicetest.Dict{"medium": "DISK"}))
	e1.Publish(1, e1.Stored(fork[:16], servicetest.BlockSize, nil))
	e2.Publish(0, e2.Stored(a, servicetest.BlockSize, servicetest.Dict{"medium": "EXTERNAL"}), e2.Stored(a[:24], servicetest.BlockSize, nil))
	e2.Publish(0, servicetest.Dict{ // on the host behind a block on disk: tiers are dumped side by side
		"type": "BlockStored", "block_hashes": e2.Names(fork, servicetest.BlockSize)[8:], "parent_block_hash": e2.Names(fork, servicetest.BlockSize)[7],
		"token_ids": fork[32:], "block_size": servicetest.BlockSize, "medium": "CPU",
	})

	d := dumpOf(w)
	if len(d) != 2 || d["m:t"].BlockSize != servicetest.BlockSize {
		t.Fatalf("dump has %d scopes, block size %d", len(d), d["m:t"].BlockSize)
	}
	if q, ok := d[`q"uote:t`]; !ok || q.Events == nil || len(q.Events) != 0 {
		t.Errorf("a scope without blocks is shown as %+v", q)
	}
	slots := map[catalog.Rank]uint32{{Worker: 1}: 0, {Worker: 1, DP: 1}: 1, {Worker: 2}: 2}
	copied := load(t, d["m:t"].Events, slots)

	for name, p := range map[string][]uint32{"a": a, "fork": fork, "long": long} {
		want, err := w.OverlapScores(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: servicetest.Ask(p).Prompt})
		if err != nil {
			t.Fatal(err)
		}
		var o indexer.Overlap
		copied.Overlap(servicetest.Local(p, servicetest.BlockSize), &o)
		for _, row := range want.Rows {
			device, host, disk := o.At(slots[row.Rank])
			if device != row.Device || host != row.Host || disk != row.Disk {
				t.Errorf("%s on %v: %d %d %d from the dump, %d %d %d live", name, row.Rank, device, host, disk, row.Device, row.Host, row.Disk)
			}
		}
	}
	if got, want := copied.Stats().Blocks, [4]int{16 + 8 + 1000 - 4 + 4 + 6, 8, 16, 16}; got != want {
		t.Errorf("blocks per tier from the dump: %v, want %v", got, want)
	}
}

// load feeds a dump into an empty index and checks the order of its events.
func load(t *testing.T, events []dumpedItem, slots map[catalog.Rank]uint32) *indexer.Space {
	t.Helper()
	tiers := map[string]indexer.Tier{}
	for tier := range indexer.Tier(indexer.NumTiers) {
		tiers[tier.String()] = tier
	}
	space := indexer.New()
	ids := map[uint64]bool{}
	for _, it := range events {
		if ids[it.Event.ID] {
			t.Fatalf("event id %d twice", it.Event.ID)
		}
		ids[it.Event.ID] = true
		slot, known := slots[catalog.Rank{Worker: it.Worker, DP: it.Event.DP}]
		tier, named := tiers[it.Tier]
		if !known || !named {
			t.Fatalf("unknown rank or tier in %+v", it)
		}
		stored := it.Event.Data.Stored
		ev := indexer.Store{Slot: slot, Tier: tier, HasParent: stored.Parent != nil}
		if ev.HasParent {
			ev.Parent = *stored.Parent
		}
		for _, b := range stored.Blocks {
			if string(b.MM) != "null" {
				t.Fatalf("mm_extra_info is %s", b.MM)
			}
			ev.EngineHashes, ev.Local = append(ev.EngineHashes, b.Block), append(ev.Local, b.Tokens)
		}
		if out := space.Store(&ev); out.Orphaned+out.Dropped > 0 {
			t.Fatalf("event %d came before its parent: %+v", it.Event.ID, out)
		}
	}
	return space
}

// TestDumpFails: an error of the writer, and the end of the caller, end a dump.
func TestDumpFails(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	e := w.Engine(1, 0)
	e.Publish(0, e.Stored(servicetest.Prompt(1, 4000), servicetest.BlockSize, nil))
	w.Settle()
	if err := w.Dump(context.Background(), brokenWriter{}, contract.V13); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("with a broken writer: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.Dump(ctx, io.Discard, contract.V13); !errors.Is(err, context.Canceled) {
		t.Errorf("for a caller who has left: %v", err)
	}
}

// writer is a function as an io.Writer.
type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// TestDumpWhileRanksChange: a rank that leaves while the index is dumped may be
// in the dump in part, but what the next owner of its slot stores is never shown
// as the leaver's. A rank that stays is there with all its blocks.
func TestDumpWhileRanksChange(t *testing.T) {
	w := servicetest.Start(t)
	const blocks = 20_000 // of each rank; several pieces of the index
	tokens := func(id uint64, chat int) []uint32 {
		return servicetest.Prompt(uint32(id)<<16+uint32(chat), blocks/10*servicetest.BlockSize)
	}
	publish := func(workers ...uint64) {
		engines := map[uint64]*servicetest.Engine{}
		for _, id := range workers {
			w.Put(servicetest.Record(id, 1))
			engines[id] = w.Engine(id, 0)
		}
		for chat := range 10 {
			for id, e := range engines {
				if id == 3 {
					id = 2 // the same prompts: blocks that the dump may not have come to
				}
				e.Publish(0, e.Stored(tokens(id, chat), servicetest.BlockSize, nil))
			}
			w.Settle()
		}
	}
	publish(1, 2)
	var buf bytes.Buffer
	changed := false
	err := w.Dump(context.Background(), writer(func(p []byte) (int, error) {
		if !changed {
			changed = true
			w.Remove(1)
			publish(3) // takes the slot
		}
		return buf.Write(p)
	}), contract.V13)
	if err != nil {
		t.Fatal(err)
	}
	var d dump
	if err := json.Unmarshal(buf.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	owner := map[uint64]uint64{} // by local hash
	for id := range uint64(2) {
		for chat := range 10 {
			for _, l := range servicetest.Local(tokens(id+1, chat), servicetest.BlockSize) {
				owner[l] = id + 1
			}
		}
	}
	shown := map[uint64]int{}
	for _, it := range d["m:t"].Events {
		for _, b := range it.Event.Data.Stored.Blocks {
			if owner[b.Tokens] != it.Worker {
				t.Fatalf("a block of worker %d is shown as one of worker %d", owner[b.Tokens], it.Worker)
			}
			shown[it.Worker]++
		}
	}
	if shown[1] == 0 || shown[1] == blocks || shown[2] != blocks || shown[3] != 0 {
		t.Errorf("blocks by worker: %v, want some of 1 and all of 2", shown)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestDumpOfNothing: no scope, no entry.
func TestDumpOfNothing(t *testing.T) {
	w := servicetest.Start(t)
	if d := dumpOf(w); len(d) != 0 {
		t.Errorf("dump of an empty service: %v", d)
	}
	w.Put(servicetest.Record(1, 1))
	w.Remove(1)
	if d := dumpOf(w); fmt.Sprint(d) != "map[]" {
		t.Errorf("dump of a past scope: %v", d)
	}
}

// TestDumpOfAwaitedRank: what was recovered of a worker that has not come yet is there for the next
// replica, and is gone when it is no longer awaited.
func TestDumpOfAwaitedRank(t *testing.T) {
	w := servicetest.Start(t)
	parts := w.Parts()
	slot, ok := parts.Catalog.ReserveSlot(servicetest.Scope, servicetest.BlockSize, catalog.Rank{Worker: 17})
	if !ok {
		t.Fatal("no slot")
	}
	parts.Scopes.Of(servicetest.Scope).Space.Store(&indexer.Store{Slot: slot, EngineHashes: []uint64{1}, Local: []uint64{11}})
	for _, want := range []int{1, 0} {
		d := dumpOf(w)
		if got := d["m:t"]; len(d) != want || want > 0 && got.Events[0].Worker != 17 {
			t.Errorf("dump is %+v, want %d scopes", d, want)
		}
		parts.Catalog.ReleaseReservedSlots()
	}
}
