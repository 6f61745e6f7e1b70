package conductor

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// TestConcurrency: streams, registrations, queries, sweeps and status reports at
// once. Nobody is in an answer of an identity that is not his, no answer is
// impossible, and in the end nothing is left.
func TestConcurrency(t *testing.T) {
	const publishers, rounds = 8, 40
	w := newWorld(t)
	tokens := prompt(1, 8)
	h := rolling(tokens)
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for n := range publishers {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(n)))
			mine := &world{TB: t, Registry: w.Registry}
			reg := base(fmt.Sprint("i", n/2), uint32(n%2))
			reg.LoRA = fmt.Sprint("lora", n%4/2) // instances 0 and 2 one, 1 and 3 another
			for range rounds {
				p, _, err := w.Registry.add(reg)
				if err != nil {
					t.Error(err)
					return
				}
				for range 10 {
					mine.random(p, rnd, tokens, h)
				}
				if rnd.IntN(2) == 0 {
					p.Clear()
				}
				rank := reg.Rank
				for _, p := range w.withdrawAll(Filter{Instance: reg.Instance, Tenant: reg.Tenant, Rank: &rank}) {
					w.drop(p)
				}
			}
		})
	}
	for n := range 3 {
		readers.Go(func() {
			var a Answer
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				switch {
				case n < 2:
					id := base("", 0).Identity
					id.LoRA = fmt.Sprint("lora", i%2)
					if n == 0 {
						w.queryTokens(id, tokens, "", &a)
					} else {
						w.queryHashes(id, h, "", &a)
					}
					checkAnswer(t, &a, id)
				case i%3 == 0:
					w.sweep()
				case i%3 == 1:
					w.Stats()
				default:
					for _, p := range w.Publishers() {
						p.Status()
					}
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	st := w.Stats()
	if st.Publishers+st.Spaces+st.Namespaces+st.Owners != 0 || st.Index != (indexer.Stats{}) {
		t.Errorf("Stats = %+v, want nothing left", st)
	}
}

// random applies a batch of a few random events.
func (w *world) random(p *Publisher, rnd *rand.Rand, tokens []uint32, h []uint64) {
	medium := []string{"gpu", "cpu", "npu"}[rnd.IntN(3)]
	at := rnd.IntN(len(h))
	var ev event
	switch rnd.IntN(6) {
	case 0:
		ev = engineStored(from(1, uint64(at+1)), nil, tokens[:4*(at+1)], medium)
	case 1:
		ev = engineRemoved(from(uint64(at+1), 1), medium)
	case 2:
		ev = stored(h[at:], medium, "base_block_idx", at, "event_id", rnd.IntN(50))
	case 3:
		ev = removed(h[at:at+1], medium)
	case 4:
		ev = cleared(medium)
	default:
		ev = stored(h[:at+1], medium, "token_ids", tokens[:4*(at+1)], "model_name", fmt.Sprint(rnd.IntN(3)))
	}
	w.apply(p, ev)
}

// checkAnswer: instances 0 and 2 are registered for one adapter, 1 and 3 for the
// other; nobody has more than the joint prefix.
func checkAnswer(t *testing.T, a *Answer, id Identity) {
	for _, im := range a.Instances {
		var n int
		if _, err := fmt.Sscanf(im.Instance, "i%d", &n); err != nil || fmt.Sprint("lora", n%2) != id.LoRA {
			t.Errorf("%s is in the answer for %s", im.Instance, id.LoRA)
		}
		most := uint64(0)
		for _, n := range im.Media {
			most += n
			if n > im.Longest {
				t.Errorf("more than the prefix: %+v", im)
			}
		}
		if most < im.Longest {
			t.Errorf("media do not make the prefix: %+v", im)
		}
		for _, r := range im.Ranks {
			if r.Tokens > im.Longest {
				t.Errorf("rank beyond the prefix: %+v", im)
			}
		}
	}
}

// FuzzApply: no payload makes a publisher panic, or its answers impossible.
func FuzzApply(f *testing.F) {
	seeds := newWorld(f)
	f.Add(seeds.payload(0, engineStored([]uint64{1, 2}, nil, prompt(1, 2), "GPU", "cache_salt", "tea"), engineRemoved([]uint64{1}, "GPU")))
	f.Add(seeds.payload(nil, stored(rolling(prompt(1, 2)), "npu", "event_id", 3), stored([]uint64{7}, "cpu", "token_ids", prompt(1, 1)),
		removed([]uint64{7}, "cpu", "event_id", 1), cleared("npu", "lora_name", "sql")))
	f.Fuzz(func(t *testing.T, payload []byte) {
		w := newWorld(t)
		p := w.add(base("i", 0))
		var work kvevents.Workspace
		for range 2 {
			_ = p.Apply(payload, &work) // an error is fine
		}
		var a Answer
		w.queryTokens(p.Identity, prompt(1, 2), "", &a)
		w.sweep()
		p.Status()
		w.drop(p)
		st := w.Stats()
		if st.Publishers+st.Spaces+st.Namespaces+st.Owners != 0 || st.Index != (indexer.Stats{}) {
			t.Errorf("Stats = %+v, want nothing left", st)
		}
	})
}
