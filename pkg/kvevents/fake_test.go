package kvevents_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// block is what the recorder holds: one block of a rank in a tier.
type block struct {
	slot uint32
	tier indexer.Tier
	name uint64
}

type content struct {
	local, seed uint64
}

// recorder is an index that writes down its calls and keeps blocks in the
// plainest way. It shares no code with the real one.
type recorder struct {
	calls  []string
	blocks map[block]content
	asked  int // ParentSeed calls
}

func newRecorder() *recorder { return &recorder{blocks: map[block]content{}} }

func (r *recorder) log(format string, args ...any) {
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
}

func (r *recorder) Store(ev *indexer.Store) indexer.Outcome {
	parent := "root"
	if ev.HasParent {
		parent = fmt.Sprint(ev.Parent)
	}
	r.log("store slot=%d %s %s<-%v known=%t", ev.Slot, ev.Tier, parent, ev.EngineHashes, ev.SeedKnown)
	out := indexer.Outcome{}
	for i, name := range ev.EngineHashes {
		at := block{ev.Slot, ev.Tier, name}
		if _, held := r.blocks[at]; held {
			out.Known++
		} else {
			out.Stored++
		}
		r.blocks[at] = content{local: ev.Local[i], seed: ev.Seed}
	}
	return out
}

func (r *recorder) StoreByEngineHash(slot uint32, t indexer.Tier, names []uint64) (resolved, unresolved int) {
	r.log("named slot=%d %s %v", slot, t, names)
	return 0, len(names)
}

func (r *recorder) Remove(slot uint32, t indexer.Tier, names []uint64) (removed, unknown int) {
	r.log("remove slot=%d %s %v", slot, t, names)
	for _, name := range names {
		at := block{slot, t, name}
		if _, held := r.blocks[at]; held {
			delete(r.blocks, at)
			removed++
		}
	}
	return removed, len(names) - removed
}

func (r *recorder) StoreInGroup(ev *indexer.GroupStore) bool {
	if ev.Main {
		r.log("group slot=%d group=%d main %v", ev.Slot, ev.Group, ev.Kind)
		return true
	}
	r.log("group slot=%d group=%d %v dense=%t %v", ev.Slot, ev.Group, ev.EngineHashes, ev.Dense, ev.Kind)
	return true
}

func (r *recorder) RemoveFromGroup(slot uint32, group int32, names []uint64) bool {
	r.log("ungroup slot=%d group=%d %v", slot, group, names)
	return true
}

func (r *recorder) ForgetGroups(slot uint32) { r.log("forget slot=%d", slot) }

func (r *recorder) MakeProvisional(slot uint32) { r.log("provisional slot=%d", slot) }

func (r *recorder) Clear(slot uint32) {
	r.log("clear slot=%d", slot)
	for at := range r.blocks {
		if at.slot == slot {
			delete(r.blocks, at)
		}
	}
}

func (r *recorder) ParentSeed(slot uint32, parent uint64) (uint64, bool) {
	r.asked++
	for tier := range indexer.Tier(indexer.NumTiers) {
		if c, held := r.blocks[block{slot, tier, parent}]; held {
			return c.seed, true
		}
	}
	return 0, false
}

// locals returns the local hashes held by a slot on the device, by name.
func (r *recorder) locals(slot uint32, names ...uint64) []uint64 {
	var out []uint64
	for _, name := range names {
		out = append(out, r.blocks[block{slot, indexer.Device, name}].local)
	}
	return out
}

// pack encodes v as engines do: integers in their shortest form.
func pack(t testing.TB, v any) []byte {
	t.Helper()
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.UseCompactInts(true)
	enc.SetSortMapKeys(true)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Short forms for messages.
type (
	list = []any
	dict = map[string]any
)

// message is a batch of rank 0.
func message(events ...any) any { return list{1.5, events, 0} }

// decode decodes v, which has to be a good message.
func decode(t testing.TB, v any) *kvevents.Batch {
	t.Helper()
	var dec kvevents.Decoder
	var b kvevents.Batch
	if err := dec.Decode(pack(t, v), &b); err != nil {
		t.Fatalf("Decode(%v): %v", v, err)
	}
	return &b
}

// stored is a plain map event of as many blocks of 4 tokens as there are names;
// more sets or replaces fields.
func stored(names []uint64, more dict) dict {
	tokens := list{}
	for _, name := range names {
		tokens = append(tokens, name+1, name+2, name+3, name+4)
	}
	ev := dict{
		"type": "BlockStored", "block_hashes": names, "parent_block_hash": nil,
		"token_ids": tokens, "block_size": 4, "medium": "GPU",
	}
	for key, value := range more {
		ev[key] = value
	}
	return ev
}

func without(ev dict, keys ...string) dict {
	for key := range ev {
		if slices.Contains(keys, key) {
			delete(ev, key)
		}
	}
	return ev
}
