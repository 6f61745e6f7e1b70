package selection_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestNeverMoreThanOneAbove: however many clients ask at once, no worker with a
// single rank ever carries more than one request above its threshold, and the
// threshold is made use of in full.
func TestNeverMoreThanOneAbove(t *testing.T) {
	// A request is 8 tokens in 2 blocks, none of which another request has. With
	// these limits a worker takes a fifth one, and no sixth.
	tests := []struct {
		name   string
		limits overload.Thresholds
		of     func(selection.RankLoad) uint64
		most   uint64
	}{
		{"prefill tokens", overload.Thresholds{PrefillTokens: new(uint64(39))}, func(l selection.RankLoad) uint64 { return l.PrefillTokens }, 40},
		{"prefill share", overload.Thresholds{PrefillFraction: new(.39)}, func(l selection.RankLoad) uint64 { return l.PrefillTokens }, 40},
		{"blocks", overload.Thresholds{DecodeBlocks: new(.45)}, func(l selection.RankLoad) uint64 { return l.DecodeBlocks }, 10},
		{"blocks, as many as allowed", overload.Thresholds{DecodeBlocks: new(.4)}, func(l selection.RankLoad) uint64 { return l.DecodeBlocks }, 10},
	}
	for i := range 2 * len(tests) {
		tt, late := tests[i/2], i%2 == 1
		t.Run(fmt.Sprintf("%s, late %t", tt.name, late), func(t *testing.T) {
			w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(tt.limits))
			for id := range uint64(3) {
				w.Put(servicetest.Record(id, 1, servicetest.Total(20)))
			}
			w.CheckOverloadLate(servicetest.Scope, late)
			check := func() {
				for _, sc := range w.Loads(nil, nil) {
					for _, l := range sc.Loads {
						if load := tt.of(l); load > tt.most {
							t.Errorf("%v carries %d, more than %d", l.Rank, load, tt.most)
						}
					}
				}
			}
			var clients [16]client
			all := func(do func(c *client)) {
				var running sync.WaitGroup
				for i := range clients {
					running.Go(func() { do(&clients[i]) })
				}
				running.Wait()
			}
			for i := range clients {
				clients[i] = client{World: w, number: uint32(i), rnd: rand.New(rand.NewPCG(uint64(i), 3))}
			}
			all(func(c *client) {
				for c.ask() {
				}
			})
			w.WantLoad("0/0: 40 10 5, 1/0: 40 10 5, 2/0: 40 10 5")
			all(func(c *client) {
				for range 200 {
					if c.ask() {
						check()
					}
					for len(c.live) > int(c.rnd.Uint32N(4)) {
						c.end()
					}
				}
			})
			all(func(c *client) {
				for len(c.live) > 0 {
					c.end()
				}
			})
			w.WantLoad("0/0: 0 0 0, 1/0: 0 0 0, 2/0: 0 0 0")
			wantFree(w)
		})
	}
}

// client is one of many that ask at the same time.
type client struct {
	*servicetest.World
	number, asked uint32
	rnd           *rand.Rand
	live          []string
}

// ask selects and books. It is false if every worker is overloaded.
func (c *client) ask() bool {
	c.asked++
	sel, err := c.Select(context.Background(), servicetest.Ask(servicetest.Prompt(c.number<<16|c.asked, 8)), true)
	var over *contract.OverloadError
	switch {
	case errors.As(err, &over):
		return false
	case err != nil:
		c.T.Error(err)
		return false
	}
	c.live = append(c.live, *sel.ReservationID)
	return true
}

func (c *client) end() {
	i := c.rnd.IntN(len(c.live))
	id := c.live[i]
	c.live = slices.Delete(c.live, i, i+1)
	if c.rnd.IntN(2) == 0 {
		if err := c.PrefillComplete(id); err != nil {
			c.T.Error(err)
		}
	}
	if err := c.Free(id); err != nil {
		c.T.Error(err)
	}
}
