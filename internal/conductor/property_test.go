package conductor_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// testMedia are the media of the tests by the name that engines give them and the one that
// answers show.
var testMedia = map[string]string{"GPU": "GPU", "CPU": "CPU", "STORAGE": "DISK", "SHARED": "EXTERNAL"}

var engineMedia = []string{"GPU", "CPU", "STORAGE", "SHARED"}

// randomPrompt returns tokens of blocks of four of which there are few, so that
// prompts share prefixes, and equal blocks stand at several depths.
func randomPrompt(rnd *rand.Rand) []uint32 {
	tokens := make([]uint32, 0, 32)
	for range 1 + rnd.IntN(8) {
		k := 10 + rnd.Uint32N(2)
		tokens = append(tokens, k, k, k, k)
	}
	return tokens
}

// waitFor waits until every Conductor stream has applied what its engine sent.
func waitFor(w *servicetest.World, sent map[string]uint64) {
	w.T.Helper()
	for {
		behind := 0
		for _, s := range w.Conductor().Services() {
			if n := sent[s.Endpoint]; n > 0 && (!s.HasLast || s.Last < n-1) {
				behind++
			}
		}
		if behind == 0 {
			return
		}
		runtime.Gosched()
	}
}

// conductorHits asks the Conductor by tokens or by hashes. Instances without a hit are left
// out, and so are ranks.
func conductorHits(w *servicetest.World, id conductor.Identity, tokens []uint32, byHash bool) ([]string, []conductor.InstanceMatch) {
	w.T.Helper()
	q := &conductor.Query{Identity: id, Tokens: tokens}
	if byHash {
		q.ByHash, q.Hashes = true, servicetest.Sequence(tokens, int(id.BlockSize))
	}
	var a conductor.Answer
	if err := w.Conductor().Query(q, &a); err != nil {
		w.T.Fatal(err)
	}
	var hits []conductor.InstanceMatch
	for _, row := range a.Instances {
		if row.Longest == 0 {
			continue
		}
		row.Ranks = slices.DeleteFunc(slices.Clone(row.Ranks), func(r conductor.RankMatch) bool { return r.Tokens == 0 })
		row.Media = slices.Clone(row.Media)
		hits = append(hits, row)
	}
	return slices.Clone(a.Media), hits
}

// mirror is a set of engines of which each publishes the same events to a
// selection worker's stream and to a Conductor publisher's.
type mirror struct {
	*servicetest.World
	rnd     *rand.Rand
	model   cacheModel
	engines []*mirrored
	sent    map[string]uint64
	tidy    bool // no holes: media hold whole prefixes
}

type mirrored struct {
	worker, conductor *servicetest.Engine
	owner             *cacheOwner
	rank              catalog.Rank
}

func conductorIdentity() conductor.Identity {
	return conductor.Identity{Tenant: servicetest.Scope.Tenant, Model: servicetest.Scope.Model, BlockSize: servicetest.BlockSize}
}

func newMirror(t *testing.T, seed uint64, workers uint64, ranks uint32, tidy bool) *mirror {
	m := &mirror{World: servicetest.Start(t), rnd: rand.New(rand.NewPCG(seed, 5)), sent: map[string]uint64{}, tidy: tidy}
	for id := uint64(1); id <= workers; id++ {
		// The Conductor API's spaces are sets, so only a worker whose blocks are one has the same.
		m.Put(servicetest.Record(id, ranks, func(r *catalog.Record) { r.KVEventCopies = new(catalog.SetCopies) }))
		for dp := range ranks {
			address := fmt.Sprintf("tcp://conductor-%d:%d", id, 6000+dp)
			name := fmt.Sprintf("instance-%d", id)
			err := m.Conductor().Register(conductor.Registration{
				Type: conductor.VLLM, Identity: conductorIdentity(), Instance: name, Rank: dp,
				Endpoint: address, HashSeed: hashing.Seed,
			})
			if err != nil {
				t.Fatal(err)
			}
			m.engines = append(m.engines, &mirrored{
				worker: m.Engine(id, dp), conductor: m.Net.Engine(address, id*7919),
				owner: m.model.owner(name, dp, ""), rank: catalog.Rank{Worker: id, DP: dp},
			})
		}
	}
	return m
}

func (m *mirror) publish(e *mirrored, events ...any) {
	e.worker.Publish(e.rank.DP, events...)
	e.conductor.Publish(e.rank.DP, events...)
	m.sent[e.conductor.Address] = e.conductor.Seq
}

func (m *mirror) step() {
	e := m.engines[m.rnd.IntN(len(m.engines))]
	medium := engineMedia[m.rnd.IntN(len(engineMedia))]
	shown := testMedia[medium]
	tokens := randomPrompt(m.rnd)
	all := cut("", tokens, servicetest.BlockSize)
	switch m.rnd.IntN(10) {
	case 0:
		if m.rnd.IntN(4) == 0 {
			m.publish(e, servicetest.Cleared())
			e.owner.clear("", "")
		}
	case 1, 2, 3:
		from := m.rnd.IntN(len(all))
		if m.tidy {
			m.evictBelow(e, medium, tokens, from)
			return
		}
		m.publish(e, e.worker.Removed(tokens, servicetest.BlockSize, from, medium))
		for _, c := range all[from:] {
			e.owner.remove(shown, c)
		}
	default:
		from := 0
		if !m.tidy && m.rnd.IntN(2) == 0 {
			from = m.rnd.IntN(len(all))
		}
		ev := e.worker.Stored(tokens, servicetest.BlockSize, servicetest.Dict{"medium": medium})
		if names := e.worker.Names(tokens, servicetest.BlockSize); from > 0 {
			ev["parent_block_hash"], ev["block_hashes"], ev["token_ids"] = names[from-1], names[from:], tokens[from*servicetest.BlockSize:]
		}
		m.publish(e, ev)
		e.owner.store(shown, all, from, false)
	}
}

// evictBelow removes whatever a medium holds from a depth of a prompt on, and
// everything below it: engines evict leaves first.
func (m *mirror) evictBelow(e *mirrored, medium string, tokens []uint32, from int) {
	shown := testMedia[medium]
	cut := cut("", tokens, servicetest.BlockSize)[from]
	for c := range e.owner.held[shown] {
		if len(c.tokens) < len(cut.tokens) || c.tokens[:len(cut.tokens)] != cut.tokens {
			continue
		}
		m.publish(e, e.worker.Removed(c.tokenIDs(), servicetest.BlockSize, len(c.tokens)/4/servicetest.BlockSize-1, medium))
		e.owner.remove(shown, c)
	}
}

func (m *mirror) check() {
	m.T.Helper()
	waitFor(m.World, m.sent)
	tokens := randomPrompt(m.rnd)
	prompt := cut("", tokens, servicetest.BlockSize)
	longest := map[catalog.Rank]uint64{}
	m.Settle()
	scores, err := m.OverlapScores(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: servicetest.Ask(tokens).Prompt})
	if err != nil {
		m.T.Fatal(err)
	}
	for _, row := range scores.Rows {
		e := m.engines[slices.IndexFunc(m.engines, func(e *mirrored) bool { return e.rank == row.Rank })]
		device, host, disk := e.owner.overlap(prompt)
		if row.Device != device || row.Host != host || row.Disk != disk {
			m.T.Fatalf("prompt %v: rank %v overlaps %d+%d+%d, want %d+%d+%d", tokens, row.Rank, row.Device, row.Host, row.Disk, device, host, disk)
		}
		longest[row.Rank] = uint64(device+host+disk) * servicetest.BlockSize
	}
	for _, byHash := range []bool{false, true} {
		media, hits := conductorHits(m.World, conductorIdentity(), tokens, byHash)
		want := m.model.query(prompt, servicetest.BlockSize, media)
		for _, row := range slices.Clone(want) { // the same engines as selection workers (decision C7)
			row.Instance = row.Instance[len("instance-"):]
			want = append(want, row)
		}
		slices.SortFunc(want, func(a, b conductor.InstanceMatch) int { return cmp.Compare(a.Instance, b.Instance) })
		if !reflect.DeepEqual(hits, want) {
			m.T.Fatalf("prompt %v by hash %t:\n got %+v\nwant %+v", tokens, byHash, hits, want)
		}
	}
	if m.tidy { // one rank per instance: both contracts tell the same length
		_, hits := conductorHits(m.World, conductorIdentity(), tokens, false)
		for _, row := range hits {
			id, err := strconv.ParseUint(row.Instance, 10, 64)
			if err != nil {
				continue
			}
			if rank := (catalog.Rank{Worker: id}); longest[rank] != row.Longest {
				m.T.Fatalf("prompt %v: instance %d matches %d tokens, overlap says %d", tokens, id, row.Longest, longest[rank])
			}
		}
	}
}

// TestBothContractsKeepTheSameBooks: engines publish the same random histories,
// with holes, evictions in the middle, orphans and several media, to a selection
// worker and to a Conductor instance; one naive model says what /overlap_scores,
// /query and /query_by_hash have to answer.
func TestBothContractsKeepTheSameBooks(t *testing.T) {
	seeds := uint64(length.Of(12, 3, 1))
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newMirror(t, seed, 3, 2, false)
			for range 300 {
				m.step()
				m.check()
			}
		})
	}
}

// TestContractsAgreeWithoutHoles: where media hold whole prefixes and an
// instance has one rank, the tiers' sum of /overlap_scores is /query's
// longest_matched.
func TestContractsAgreeWithoutHoles(t *testing.T) {
	seeds := uint64(length.Of(6, 2, 1))
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newMirror(t, seed, 4, 1, true)
			for range 300 {
				m.step()
				m.check()
			}
		})
	}
}
