package conductorapi_test

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/test/length"
	"github.com/select-service/select-service/test/servicetest"
)

// combinations are all identities over two values of every dimension.
func combinations() []conductor.Identity {
	var all []conductor.Identity
	for _, tenant := range []string{"red", "blue"} {
		for _, model := range []string{"m", "n"} {
			for _, lora := range []string{"", "sql"} {
				for _, salt := range []string{"", "w8"} {
					for _, size := range []uint32{4, 8} {
						all = append(all, conductor.Identity{Tenant: tenant, Model: model, LoRA: lora, Salt: salt, BlockSize: size})
					}
				}
			}
		}
	}
	return all
}

// isolated is a world of publishers of every kind. All publish the same few
// tokens, so that a block that is seen in another world than its own is met.
type isolated struct {
	*world
	rnd        *rand.Rand
	model      cacheModel
	identities []conductor.Identity
	publishers []*publisher
	sent       map[string]uint64
	next       int
	matched    map[conductor.Identity]int // queries with a hit
}

// publisher is one registration and the program behind it.
type publisher struct {
	*servicetest.Engine
	conductor.Registration
	kind     publisherKind
	eventIDs map[string]uint64 // of each event stream
}

type publisherKind int

const (
	engineKind   publisherKind = iota // engine events: tokens, names of its own
	hashedKind                        // envelopes with standard hashes and no tokens
	tokensKind                        // envelopes with tokens and names of its own
	bothKind                          // envelopes with tokens and standard hashes
	numberOfKind = iota
)

func (w *isolated) register() {
	id := w.identities[w.rnd.IntN(len(w.identities))]
	kind := publisherKind(w.rnd.IntN(numberOfKind))
	types := [numberOfKind]conductor.PublisherType{
		engineKind: conductor.VLLM, hashedKind: conductor.Standard, tokensKind: conductor.Mooncake, bothKind: conductor.Standard,
	}
	name := fmt.Sprintf("p%d", w.next)
	w.next++
	p := &publisher{
		kind:   kind,
		Engine: w.Net.Engine("tcp://"+name+":5557", w.rnd.Uint64()),
		Registration: conductor.Registration{
			Type: types[kind], Identity: id, Instance: name, Rank: w.rnd.Uint32N(2),
			Endpoint: "tcp://" + name + ":5557", HashSeed: hashing.Seed,
		},
		eventIDs: map[string]uint64{},
	}
	if err := w.Conductor().Register(p.Registration); err != nil {
		w.T.Fatal(err)
	}
	w.publishers = append(w.publishers, p)
}

func (w *isolated) unregister() {
	i := w.rnd.IntN(len(w.publishers))
	p := w.publishers[i]
	w.publishers = slices.Delete(w.publishers, i, i+1)
	removed, err := w.Conductor().Unregister(conductor.Filter{Instance: p.Instance, Tenant: p.Tenant})
	if err != nil || len(removed) != 1 {
		w.T.Fatalf("unregistered %v: %v", removed, err)
	}
	delete(w.sent, p.Endpoint)
	w.model.owners = slices.DeleteFunc(w.model.owners, func(o *cacheOwner) bool { return o.instance == p.Instance })
}

func worldOf(id conductor.Identity) string {
	return fmt.Sprintf("%q", []any{id.Tenant, id.Model, id.LoRA, id.Salt, id.BlockSize})
}

// standard tells whether the publisher's hashes are the standard's: these tell
// the place of its blocks.
func (p *publisher) standard() bool { return p.kind == hashedKind || p.kind == bothKind }

// names are the publisher's own hashes of the blocks. An engine's cover LoRA and
// salt; a store's do not: it states the identity with every event.
func (p *publisher) names(id conductor.Identity, tokens []uint32) []uint64 {
	if p.standard() {
		return sequence(tokens, int(id.BlockSize))
	}
	var out []uint64
	for _, c := range cut("", tokens, int(id.BlockSize)) {
		h := fnv.New64a()
		if p.kind == engineKind {
			fmt.Fprint(h, id.LoRA, "|", id.Salt, "|")
		}
		fmt.Fprint(h, p.NameSalt, c.tokens)
		out = append(out, h.Sum64())
	}
	return out
}

// target is an identity that the publisher's next event is about: its
// registration's, or one that the event states.
func (w *isolated) target(p *publisher) conductor.Identity {
	id := p.Identity
	other := w.identities[w.rnd.IntN(len(w.identities))]
	if w.rnd.IntN(2) == 0 {
		return id
	}
	if id.LoRA == "" {
		id.LoRA = other.LoRA
	}
	if id.Salt == "" {
		id.Salt = other.Salt
	}
	if p.kind != engineKind {
		id.Tenant, id.Model, id.BlockSize = other.Tenant, other.Model, other.BlockSize
	}
	return id
}

func (w *isolated) step() {
	if len(w.publishers) < 4 || len(w.publishers) < 40 && w.rnd.IntN(12) == 0 {
		w.register()
		return
	}
	if w.rnd.IntN(60) == 0 {
		w.unregister()
		return
	}
	p := w.publishers[w.rnd.IntN(len(w.publishers))]
	w.event(p, w.target(p), randomPrompt(w.rnd), w.rnd.IntN(10))
}

// event publishes one event about a prompt and tells the model.
func (w *isolated) event(p *publisher, id conductor.Identity, tokens []uint32, what int) {
	all := cut(worldOf(id), tokens, int(id.BlockSize))
	if len(all) == 0 {
		return
	}
	medium := engineMedia[w.rnd.IntN(len(engineMedia))]
	backend := ""
	if p.kind != engineKind {
		backend = fmt.Sprintf("store-%d", w.rnd.IntN(2))
	}
	o := w.model.owner(p.Instance, p.Rank, backend)
	from := w.rnd.IntN(len(all))
	names := p.names(id, tokens)
	var ev dict
	switch {
	case what == 0:
		ev = w.clear(p, o, id, medium)
	case what < 3:
		ev = dict{"type": "BlockRemoved", "event_type": "removed", "block_hashes": names[from:], "medium": medium}
		for _, c := range all[from:] {
			o.remove(testMedia[medium], c)
		}
	default:
		if p.kind == engineKind && id.Salt != p.Salt && from > 0 && !o.anywhere(all[from-1]) {
			from = 0 // the salt of an orphan cannot be known
		}
		ev = w.stored(p, id, tokens, names, from)
		o.store(testMedia[medium], all, from, p.standard())
	}
	ev["medium"] = medium
	if p.kind == engineKind {
		delete(ev, "event_type")
		p.Publish(p.Rank, ev)
	} else {
		p.Publish(0, p.envelope(ev, id, backend, w.rnd.IntN(2) == 0))
	}
	w.sent[p.Endpoint] = p.Seq
}

func (w *isolated) clear(p *publisher, o *cacheOwner, id conductor.Identity, medium string) dict {
	if p.kind == engineKind {
		o.clear("", "")
		return cleared()
	}
	o.clear(worldOf(id), testMedia[medium])
	return dict{"event_type": "cleared"}
}

func (w *isolated) stored(p *publisher, id conductor.Identity, tokens []uint32, names []uint64, from int) dict {
	size := int(id.BlockSize)
	ev := dict{"type": "BlockStored", "event_type": "stored", "block_hashes": names[from:], "block_size": id.BlockSize}
	if from > 0 {
		ev["parent_block_hash"] = names[from-1]
	}
	if p.kind != hashedKind {
		ev["token_ids"] = tokens[from*size : len(names)*size]
	}
	if p.kind == engineKind {
		ev["extra_keys"] = make([]any, len(names)-from) // the event states all keys, whatever the medium
		if id.LoRA != "" && (id.LoRA != p.LoRA || w.rnd.IntN(2) == 0) {
			ev["lora_name"] = id.LoRA
		}
		if id.Salt != p.Salt && from == 0 {
			ev["cache_salt"] = id.Salt
		}
		return ev
	}
	if p.kind == hashedKind && w.rnd.IntN(2) == 0 {
		delete(ev, "parent_block_hash") // known by its depth alone
	}
	ev["base_block_idx"] = from
	return ev
}

// envelope turns an event into the standard form. What the registration says
// may be left out.
func (p *publisher) envelope(ev dict, id conductor.Identity, backend string, terse bool) dict {
	out := dict{
		"event_type": ev["event_type"], "timestamp": 1739145600000, "backend_id": backend, "medium": ev["medium"],
		"tenant_id": id.Tenant, "model_name": id.Model, "block_size": id.BlockSize, "dp_rank": p.Rank,
		"lora_name": nil, "additional_salt": nil,
	}
	if id.LoRA != "" {
		out["lora_name"] = id.LoRA
	}
	if id.Salt != "" {
		out["additional_salt"] = id.Salt
	}
	if terse && id == p.Identity {
		for _, key := range []string{"tenant_id", "model_name", "block_size", "dp_rank", "lora_name", "additional_salt"} {
			out[key] = nil
		}
	}
	for from, to := range map[string]string{"block_hashes": "seq_hashes", "parent_block_hash": "parent_hash", "token_ids": "token_ids", "base_block_idx": "base_block_idx"} {
		if v, ok := ev[from]; ok {
			out[to] = v
		}
	}
	stream := worldOf(id) + backend + ev["medium"].(string)
	p.eventIDs[stream]++
	out["event_id"] = p.eventIDs[stream]
	return out
}

// check asks every combination for one prompt.
func (w *isolated) check(tokens []uint32) {
	w.T.Helper()
	w.waitFor(w.sent)
	for _, id := range w.identities {
		for _, byHash := range []bool{false, true} {
			media, hits := w.conductorHits(id, tokens, byHash)
			want := w.model.query(cut(worldOf(id), tokens, int(id.BlockSize)), int(id.BlockSize), media)
			slices.SortFunc(want, func(a, b conductor.InstanceMatch) int { return cmp.Compare(a.Instance, b.Instance) })
			if !reflect.DeepEqual(hits, want) {
				w.T.Fatalf("%+v, prompt %v, by hash %t:\n got %+v\nwant %+v", id, tokens, byHash, hits, want)
			}
			w.matched[id] += len(hits)
		}
	}
}

// TestNothingLeaks: publishers of every kind are registered and publish at
// random over two values of every identity dimension, all of them the same few
// tokens; queries of all 32 combinations see exactly what the naive model says,
// and in the end every combination is shown to match.
func TestNothingLeaks(t *testing.T) {
	seeds := uint64(8)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &isolated{
				world: start(t), rnd: rand.New(rand.NewPCG(seed, 6)),
				identities: combinations(), sent: map[string]uint64{}, matched: map[conductor.Identity]int{},
			}
			for range length.Of(400, 400, 100) {
				w.step()
				w.check(randomPrompt(w.rnd))
			}
			w.control()
		})
	}
}

// control stores a prompt in every combination and finds it there.
func (w *isolated) control() {
	w.T.Helper()
	for i := range w.identities {
		w.next++
		name := fmt.Sprintf("control-%d", i)
		p := &publisher{
			kind: engineKind, Engine: w.Net.Engine("tcp://"+name+":5557", w.rnd.Uint64()),
			Registration: conductor.Registration{Identity: w.identities[i], Instance: name, Endpoint: "tcp://" + name + ":5557", HashSeed: hashing.Seed},
		}
		if err := w.Conductor().Register(p.Registration); err != nil {
			w.T.Fatal(err)
		}
		w.event(p, p.Identity, prompt(7, 16), 9)
		if from := w.model.owner(name, 0, ""); !from.anywhere(cut(worldOf(p.Identity), prompt(7, 16), int(p.BlockSize))[0]) {
			w.event(p, p.Identity, prompt(7, int(p.BlockSize)), 9) // the first one began in the middle
		}
	}
	clear(w.matched)
	w.check(prompt(7, 16))
	for _, id := range w.identities {
		if w.matched[id] == 0 {
			w.T.Errorf("%+v matches nothing", id)
		}
	}
}
