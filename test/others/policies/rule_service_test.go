package policies

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// service plays the service itself, with a policy; "": the built-in one.
func service(policy string) func(*world) Rule {
	return func(w *world) Rule {
		random := &source{rnd: rand.New(rand.NewPCG(1, 0x5e1ec7))}
		change := []func(*node.Config){func(c *node.Config) { c.Selection.Random = random }}
		if policy != "" {
			change = append(change, servicetest.Policy(w.t, policy, ""))
		}
		s := servicetest.Start(w.t, change...)
		for i := range w.events {
			s.Put(servicetest.Record(uint64(i), 1, func(r *catalog.Record) {
				r.BlockSize, r.MaxNumBatchedTokens = new(uint32(blockSize)), new(uint64(8192))
			}))
			w.events[i] = s.Engine(uint64(i), 0)
		}
		return ours{s}
	}
}

type ours struct{ *servicetest.World }

func (o ours) Place(r *Request) int {
	sel, err := o.Select(context.Background(), &selection.SelectRequest{
		Scope: servicetest.Scope, ReservationID: &r.Name, Prompt: selection.Prompt{TokenIDs: r.Prompt, HasTokenIDs: true},
	}, true)
	if err != nil {
		o.T.Fatal(err)
	}
	return int(sel.Rank.Worker)
}

func (o ours) Prefilled(r *Request) { _ = o.PrefillComplete(r.Name) } // as a gateway: it may have ended
func (o ours) Block(r *Request)     { _ = o.OutputBlock(r.Name, nil) }
func (o ours) Ended(r *Request)     { _ = o.Free(r.Name) }

// source is a selector.Source for goroutines.
type source struct {
	mu  sync.Mutex // guards rnd
	rnd *rand.Rand
}

func (s *source) IntN(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

func (s *source) Float64() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.Float64()
}
