package service

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strconv"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// Dump writes the whole index in the recovery format of dynamo-kv-router
// 1.3.1: an object with one entry per scope, blocks as "stored" events, parents
// before children whatever their tiers. Events received before the call are in it.
func (s *Service) Dump(ctx context.Context, w io.Writer) error {
	if err := s.streams.Barrier(ctx); err != nil {
		return err
	}
	pools := *s.pools.Load()
	scopes := make([]catalog.Scope, 0, len(pools))
	for sc := range pools {
		scopes = append(scopes, sc)
	}
	slices.SortFunc(scopes, catalog.Scope.Compare)
	d := dumpWriter{w: bufio.NewWriterSize(w, 64<<10)}
	d.text("{")
	for i, sc := range scopes {
		if i > 0 {
			d.text(",")
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		p := pools[sc]
		before := s.catalog.Snapshot(sc)
		runs := p.space.Runs()
		d.scope(sc, p.layout.BlockSize, settled(before, s.catalog.Snapshot(sc)), runs)
	}
	d.text("}")
	d.flush()
	return d.w.Flush()
}

// settled returns the ranks, by slot, that are in both snapshots. In between a
// slot may have gone to another rank.
func settled(before, after *catalog.Snapshot) map[uint32]catalog.Rank {
	ranks := make(map[uint32]catalog.Rank)
	if before == nil || after == nil {
		return ranks
	}
	for _, e := range before.Known {
		if now, ok := after.KnownEntry(e.Rank); ok && now.Slot == e.Slot {
			ranks[e.Slot] = e.Rank
		}
	}
	return ranks
}

// dumpWriter renders runs; the writer under it keeps the first error.
type dumpWriter struct {
	w     *bufio.Writer
	buf   []byte
	event uint64
}

func (d *dumpWriter) text(s string) { d.buf = append(d.buf, s...) }

func (d *dumpWriter) uint(v uint64) { d.buf = strconv.AppendUint(d.buf, v, 10) }

func (d *dumpWriter) flush() {
	_, _ = d.w.Write(d.buf) // Flush reports the first error
	d.buf = d.buf[:0]
}

func (d *dumpWriter) scope(sc catalog.Scope, blockSize int, ranks map[uint32]catalog.Rank, runs []indexer.Run) {
	key, _ := json.Marshal(sc.Model + ":" + sc.Tenant) // a string always can be
	d.buf = append(d.buf, key...)
	d.text(`:{"block_size":`)
	d.uint(uint64(blockSize))
	d.text(`,"events":[`)
	first := true
	for i := range runs { // parents come first
		for tier := range indexer.Tier(indexer.NumTiers) {
			for _, slot := range runs[i].Slots[tier] {
				rank, ok := ranks[slot]
				if !ok {
					continue
				}
				if !first {
					d.text(",")
				}
				first = false
				d.stored(rank, tier, &runs[i])
			}
		}
	}
	d.text("]}")
	d.flush()
}

func (d *dumpWriter) stored(r catalog.Rank, t indexer.Tier, run *indexer.Run) {
	d.text(`{"worker_id":`)
	d.uint(r.Worker)
	d.text(`,"storage_tier":"`)
	d.text(t.String())
	d.text(`","event":{"event_id":`)
	d.uint(d.event)
	d.event++
	d.text(`,"dp_rank":`)
	d.uint(uint64(r.DP))
	d.text(`,"data":{"stored":{"parent_hash":`)
	if run.HasParent {
		d.uint(run.Parent)
	} else {
		d.text("null")
	}
	d.text(`,"start_position":null,"blocks":[`)
	for i := range run.Names {
		if i > 0 {
			d.text(",")
		}
		d.text(`{"block_hash":`)
		d.uint(run.Names[i])
		d.text(`,"tokens_hash":`)
		d.uint(run.Local[i])
		d.text(`,"mm_extra_info":null}`)
		if len(d.buf) > 32<<10 {
			d.flush()
		}
	}
	d.text("]}}}}")
}
