package conductor_test

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
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/servicetest"
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
	*servicetest.World
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

func (is *isolated) register() {
	id := is.identities[is.rnd.IntN(len(is.identities))]
	kind := publisherKind(is.rnd.IntN(numberOfKind))
	types := [numberOfKind]conductor.PublisherType{
		engineKind: conductor.VLLM, hashedKind: conductor.Standard, tokensKind: conductor.Mooncake, bothKind: conductor.Standard,
	}
	name := fmt.Sprintf("p%d", is.next)
	is.next++
	p := &publisher{
		kind:   kind,
		Engine: is.Net.Engine("tcp://"+name+":5557", is.rnd.Uint64()),
		Registration: conductor.Registration{
			Type: types[kind], Identity: id, Instance: name, Rank: is.rnd.Uint32N(2),
			Endpoint: "tcp://" + name + ":5557", HashSeed: hashing.Seed,
		},
		eventIDs: map[string]uint64{},
	}
	if err := is.Conductor().Register(p.Registration); err != nil {
		is.T.Fatal(err)
	}
	is.publishers = append(is.publishers, p)
}

func (is *isolated) unregister() {
	i := is.rnd.IntN(len(is.publishers))
	p := is.publishers[i]
	is.publishers = slices.Delete(is.publishers, i, i+1)
	removed, err := is.Conductor().Unregister(conductor.Filter{Instance: p.Instance, Tenant: p.Tenant})
	if err != nil || len(removed) != 1 {
		is.T.Fatalf("unregistered %v: %v", removed, err)
	}
	delete(is.sent, p.Endpoint)
	is.model.owners = slices.DeleteFunc(is.model.owners, func(o *cacheOwner) bool { return o.instance == p.Instance })
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
		return servicetest.Sequence(tokens, int(id.BlockSize))
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
func (is *isolated) target(p *publisher) conductor.Identity {
	id := p.Identity
	other := is.identities[is.rnd.IntN(len(is.identities))]
	if is.rnd.IntN(2) == 0 {
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

func (is *isolated) step() {
	if len(is.publishers) < 4 || len(is.publishers) < 40 && is.rnd.IntN(12) == 0 {
		is.register()
		return
	}
	if is.rnd.IntN(60) == 0 {
		is.unregister()
		return
	}
	p := is.publishers[is.rnd.IntN(len(is.publishers))]
	is.event(p, is.target(p), randomPrompt(is.rnd), is.rnd.IntN(10))
}

// event publishes one event about a prompt and tells the model.
func (is *isolated) event(p *publisher, id conductor.Identity, tokens []uint32, what int) {
	all := cut(worldOf(id), tokens, int(id.BlockSize))
	if len(all) == 0 {
		return
	}
	medium := engineMedia[is.rnd.IntN(len(engineMedia))]
	backend := ""
	if p.kind != engineKind {
		backend = fmt.Sprintf("store-%d", is.rnd.IntN(2))
	}
	o := is.model.owner(p.Instance, p.Rank, backend)
	from := is.rnd.IntN(len(all))
	names := p.names(id, tokens)
	var ev servicetest.Dict
	switch {
	case what == 0:
		ev = is.clear(p, o, id, medium)
	case what < 3:
		ev = servicetest.Dict{"type": "BlockRemoved", "event_type": "removed", "block_hashes": names[from:], "medium": medium}
		for _, c := range all[from:] {
			o.remove(testMedia[medium], c)
		}
	default:
		if p.kind == engineKind && id.Salt != p.Salt && from > 0 && !o.anywhere(all[from-1]) {
			from = 0 // the salt of an orphan cannot be known
		}
		ev = is.stored(p, id, tokens, names, from)
		o.store(testMedia[medium], all, from, p.standard())
	}
	ev["medium"] = medium
	if p.kind == engineKind {
		delete(ev, "event_type")
		p.Publish(p.Rank, ev)
	} else {
		p.Publish(0, p.envelope(ev, id, backend, is.rnd.IntN(2) == 0))
	}
	is.sent[p.Endpoint] = p.Seq
}

func (is *isolated) clear(p *publisher, o *cacheOwner, id conductor.Identity, medium string) servicetest.Dict {
	if p.kind == engineKind {
		o.clear("", "")
		return servicetest.Cleared()
	}
	o.clear(worldOf(id), testMedia[medium])
	return servicetest.Dict{"event_type": "cleared"}
}

func (is *isolated) stored(p *publisher, id conductor.Identity, tokens []uint32, names []uint64, from int) servicetest.Dict {
	size := int(id.BlockSize)
	ev := servicetest.Dict{"type": "BlockStored", "event_type": "stored", "block_hashes": names[from:], "block_size": id.BlockSize}
	if from > 0 {
		ev["parent_block_hash"] = names[from-1]
	}
	if p.kind != hashedKind {
		ev["token_ids"] = tokens[from*size : len(names)*size]
	}
	if p.kind == engineKind {
		ev["extra_keys"] = make([]any, len(names)-from) // the event states all keys, whatever the medium
		if id.LoRA != "" && (id.LoRA != p.LoRA || is.rnd.IntN(2) == 0) {
			ev["lora_name"] = id.LoRA
		}
		if id.Salt != p.Salt && from == 0 {
			ev["cache_salt"] = id.Salt
		}
		return ev
	}
	if p.kind == hashedKind && is.rnd.IntN(2) == 0 {
		delete(ev, "parent_block_hash") // known by its depth alone
	}
	ev["base_block_idx"] = from
	return ev
}

// envelope turns an event into the standard form. What the registration says
// may be left out.
func (p *publisher) envelope(ev servicetest.Dict, id conductor.Identity, backend string, terse bool) servicetest.Dict {
	out := servicetest.Dict{
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
func (is *isolated) check(tokens []uint32) {
	is.T.Helper()
	waitFor(is.World, is.sent)
	for _, id := range is.identities {
		for _, byHash := range []bool{false, true} {
			media, hits := conductorHits(is.World, id, tokens, byHash)
			want := is.model.query(cut(worldOf(id), tokens, int(id.BlockSize)), int(id.BlockSize), media)
			slices.SortFunc(want, func(a, b conductor.InstanceMatch) int { return cmp.Compare(a.Instance, b.Instance) })
			if !reflect.DeepEqual(hits, want) {
				is.T.Fatalf("%+v, prompt %v, by hash %t:\n got %+v\nwant %+v", id, tokens, byHash, hits, want)
			}
			is.matched[id] += len(hits)
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
				World: servicetest.Start(t), rnd: rand.New(rand.NewPCG(seed, 6)),
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
func (is *isolated) control() {
	is.T.Helper()
	for i := range is.identities {
		is.next++
		name := fmt.Sprintf("control-%d", i)
		p := &publisher{
			kind: engineKind, Engine: is.Net.Engine("tcp://"+name+":5557", is.rnd.Uint64()),
			Registration: conductor.Registration{Identity: is.identities[i], Instance: name, Endpoint: "tcp://" + name + ":5557", HashSeed: hashing.Seed},
		}
		if err := is.Conductor().Register(p.Registration); err != nil {
			is.T.Fatal(err)
		}
		is.event(p, p.Identity, servicetest.Prompt(7, 16), 9)
		if from := is.model.owner(name, 0, ""); !from.anywhere(cut(worldOf(p.Identity), servicetest.Prompt(7, 16), int(p.BlockSize))[0]) {
			is.event(p, p.Identity, servicetest.Prompt(7, int(p.BlockSize)), 9) // the first one began in the middle
		}
	}
	clear(is.matched)
	is.check(servicetest.Prompt(7, 16))
	for _, id := range is.identities {
		if is.matched[id] == 0 {
			is.T.Errorf("%+v matches nothing", id)
		}
	}
}
