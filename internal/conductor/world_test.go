package conductor

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
)

// world is a Registry that is fed as the streams would feed it: with payloads.
type world struct {
	testing.TB
	*Registry
	work kvevents.Workspace
}

func newWorld(t testing.TB) *world {
	return &world{TB: t, Registry: newRegistry(nil)}
}

// base is what most registrations of the tests have in common.
func base(instance string, rank uint32) Registration {
	return Registration{
		Type: Standard, Identity: Identity{Tenant: "default", Model: "m", BlockSize: 4},
		Instance: instance, Rank: rank, Endpoint: fmt.Sprintf("tcp://%s:%d", instance, 5000+rank), HashSeed: hashing.Seed,
	}
}

func (w *world) add(reg Registration) *Publisher {
	w.Helper()
	p, fresh, err := w.Registry.add(reg)
	if err != nil || !fresh {
		w.Fatalf("Add(%+v) = %v, %v, want a fresh publisher", reg, fresh, err)
	}
	return p
}

// event is a map event of an engine or a standard envelope.
type event map[string]any

// apply sends events in one batch that states no rank.
func (w *world) apply(p *Publisher, events ...event) {
	w.Helper()
	w.batch(p, nil, events...)
}

func (w *world) batch(p *Publisher, rank any, events ...event) {
	w.Helper()
	if err := p.Apply(w.payload(rank, events...), &w.work); err != nil {
		w.Fatalf("Apply: %v", err)
	}
}

func (w *world) payload(rank any, events ...event) []byte {
	w.Helper()
	payload, err := msgpack.Marshal([]any{0, append([]event{}, events...), rank})
	if err != nil {
		w.Fatal(err)
	}
	return payload
}

// reasons returns how many events were not applied, by reason, and forgets them.
func (w *world) reasons() map[kvevents.Reason]uint64 {
	found := make(map[kvevents.Reason]uint64)
	for _, tiers := range w.work.Tally.Events {
		for _, reasons := range tiers {
			for reason, n := range reasons {
				if n > 0 && kvevents.Reason(reason) != kvevents.Applied {
					found[kvevents.Reason(reason)] += n
				}
			}
		}
	}
	w.work.Tally = kvevents.Tally{}
	return found
}

func (w *world) wantReasons(want map[kvevents.Reason]uint64) {
	w.Helper()
	if got := w.reasons(); !maps.Equal(got, want) {
		w.Errorf("events not applied: %v, want %v", got, want)
	}
}

// engineStored is a store of an engine; parent nil is the root.
func engineStored(names []uint64, parent any, tokens []uint32, medium string, more ...any) event {
	return event{
		"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent,
		"token_ids": tokens, "block_size": 4, "medium": medium,
	}.with(more...)
}

func engineRemoved(names []uint64, medium string) event {
	return event{"type": "BlockRemoved", "block_hashes": names, "medium": medium}
}

// stored is a standard store with hashes alone, from the root unless more says
// otherwise.
func stored(hashes []uint64, medium string, more ...any) event {
	return event{
		"event_type": "stored", "seq_hashes": hashes, "base_block_idx": 0, "medium": medium,
		"backend_id": "cache",
	}.with(more...)
}

func removed(hashes []uint64, medium string, more ...any) event {
	return event{"event_type": "removed", "seq_hashes": hashes, "medium": medium, "backend_id": "cache"}.with(more...)
}

func cleared(medium string, more ...any) event {
	return event{"event_type": "cleared", "medium": medium, "backend_id": "cache"}.with(more...)
}

func (e event) with(more ...any) event {
	for i := 0; i < len(more); i += 2 {
		e[more[i].(string)] = more[i+1]
	}
	return e
}

// prompt returns the tokens of n blocks of 4; prompts with different texts share
// no block.
func prompt(text, n int) []uint32 {
	tokens := make([]uint32, 4*n)
	for i := range tokens {
		tokens[i] = uint32(text<<16 + i)
	}
	return tokens
}

// rolling returns the standard's hashes of a prompt.
func rolling(tokens []uint32) []uint64 {
	return rollingSeed(tokens, 4, hashing.Seed)
}

func rollingSeed(tokens []uint32, blockSize int, seed uint64) []uint64 {
	local := hashing.Layout{BlockSize: blockSize}.AppendLocal(nil, tokens, seed, nil)
	return hashing.AppendSequenceSeed(nil, local, seed)
}

// answer asks by tokens and, with the hashes that the standard gives them, by
// hash: both have to say the same. The text has a line for each instance.
func (w *world) answer(id Identity, tokens []uint32) string {
	w.Helper()
	var byTokens, byHash Answer
	w.queryTokens(id, tokens, "", &byTokens)
	seed := hashing.Seed
	if ns := w.lookup(id); ns != nil {
		seed = ns.space.key.HashSeed
	}
	w.queryHashes(id, rollingSeed(tokens, int(id.BlockSize), seed), "", &byHash)
	if a, b := byTokens.text(), byHash.text(); a != b {
		w.Errorf("by tokens: %s\nby hash: %s", a, b)
	}
	return byTokens.text()
}

func (a *Answer) text() string {
	var b strings.Builder
	for i := range a.Instances {
		im := &a.Instances[i]
		fmt.Fprintf(&b, "%s %d", im.Instance, im.Longest)
		for k, n := range im.Media {
			if n > 0 || k >= len(naturalMedia) {
				fmt.Fprintf(&b, " %s=%d", a.Media[k], n)
			}
		}
		for _, r := range im.Ranks {
			fmt.Fprintf(&b, " %d:%d", r.Rank, r.Tokens)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// want compares the answer for a prompt with the lines of the instances.
func (w *world) want(id Identity, tokens []uint32, lines ...string) {
	w.Helper()
	want := ""
	for _, line := range lines {
		want += line + "\n"
	}
	if got := w.answer(id, tokens); got != want {
		w.Errorf("answer for %+v:\n%swant:\n%s", id, got, want)
	}
}

func (st Status) blocks() string {
	var parts []string
	for _, m := range st.Blocks {
		parts = append(parts, fmt.Sprintf("%s=%d", m.Medium, m.Blocks))
	}
	return strings.Join(parts, " ")
}

func from(n, count uint64) []uint64 {
	var all []uint64
	for i := range count {
		all = append(all, n+i)
	}
	return all
}
