package selection_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/demo/sim/kvwire"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// The links of the play, for the 131 kB that an 8B model's cache has for a token: 200 Gb/s at three quarters of the rate, and 1 Gb/s
// at nine tenths, which is later than to compute a token at 12,000 a second.
var (
	fastLink = engine.Link{Setup: 5 * time.Millisecond, PerToken: 7 * time.Microsecond}
	slowLink = engine.Link{Setup: 20 * time.Millisecond, PerToken: 1170 * time.Microsecond}
)

// fetchPlay is a fleet of simulated engines, which fetch what hints say.
type fetchPlay struct {
	*servicetest.World
	engines []*engine.Engine
	events  []*servicetest.Engine
	zones   []string
	links   map[bool]engine.Link // between places, or within one
	began   time.Time
	running map[string]*played
	n       int
}

// played is one request of the play.
type played struct {
	engine int
	source int // -1: no fetch
	ttft   time.Duration
}

func startFetchPlay(t *testing.T, mode selector.FetchMode, zones []string, between engine.Link, blocks int) *fetchPlay {
	p := &fetchPlay{
		World: servicetest.Start(t, servicetest.Policy(t, "predicted-ttft", ""), fetchMode(mode)), zones: zones,
		links: map[bool]engine.Link{false: fastLink, true: between}, began: time.Now(), running: make(map[string]*played),
	}
	for i, zone := range zones {
		id := uint64(i)
		p.Put(servicetest.Record(id, 1, hinted("decode"), func(r *catalog.Record) {
			r.BlockSize, r.TotalKVBlocks, r.MaxNumBatchedTokens = new(uint32(simBlock)), new(uint64(blocks)), new(uint64(8192))
			r.KVTransferDomain, r.KVTransferEnforcement = new("zone"), new("preferred")
			r.TopologyDomains = map[string]string{"zone": zone}
			r.RouterHintSourceControlEndpoints = map[uint32]string{0: fmt.Sprint(i)}
		}))
		p.engines = append(p.engines, engine.New(engine.Config{BlockSize: simBlock, CacheBlocks: blocks, PrefillRate: 12000, DecodeRate: 50, HashSeed: id + 1}))
		p.events = append(p.events, p.Engine(id, 0))
	}
	return p
}

// send sends a request now. pinned is the only engine that may have it, -1: any.
func (p *fetchPlay) send(prompt []uint32, pinned, output int) *played {
	p.n++
	id := fmt.Sprint(p.n)
	req := servicetest.Ask(prompt)
	req.ReservationID, req.Hint = &id, selection.HintInAnswer
	if pinned >= 0 {
		req.Pinned = &catalog.Rank{Worker: uint64(pinned)}
	}
	got, err := p.Select(context.Background(), req, true)
	if err != nil {
		p.T.Fatal(err)
	}
	r := &played{engine: int(got.Rank.Worker), source: -1}
	request := engine.Request{ID: id, Prompt: prompt, Output: make([]uint32, output)}
	for i := range request.Output {
		request.Output[i] = rand.Uint32()
	}
	if f := got.Fetch; f != nil {
		r.source = int(f.Source.Worker)
		source := p.engines[r.source]
		tokens := source.Named(f.Hashes)
		if want := len(f.Hashes) * simBlock; tokens != want || source.Cached(engine.Keys{}, prompt) < want {
			p.T.Errorf("the source has %d tokens of %d blocks that are named", tokens, len(f.Hashes))
		}
		has := p.engines[r.engine].Cached(engine.Keys{}, prompt)
		request.Transfer = source.Send(time.Since(p.began), tokens, has, p.links[p.zones[r.source] != p.zones[r.engine]])
	}
	if err := p.engines[r.engine].Submit(time.Since(p.began), request); err != nil {
		p.T.Fatal(err)
	}
	p.running[id] = r
	p.advance()
	return r
}

// until plays until a time, or until nothing runs (0).
func (p *fetchPlay) until(at time.Duration) {
	for {
		next, some := at, at > 0
		for _, e := range p.engines {
			if due, busy := e.Next(); busy && (!some || due < next) {
				next, some = due, true
			}
		}
		if !some {
			return
		}
		time.Sleep(next - time.Since(p.began))
		p.advance()
		if at > 0 && next >= at {
			return
		}
	}
}

func (p *fetchPlay) advance() {
	for i, e := range p.engines {
		for _, u := range e.Advance(time.Since(p.began)) {
			if len(u.Events) > 0 {
				payload, err := kvwire.Batch(1, u.Events, simBlock, 0)
				if err != nil {
					p.T.Fatal(err)
				}
				p.events[i].Deliver(payload)
			}
			r := p.running[u.Request]
			if r == nil { // only events
				continue
			}
			switch u.Kind {
			case engine.FirstToken:
				r.ttft = u.TTFT
				if err := p.PrefillComplete(u.Request); err != nil {
					p.T.Error(err)
				}
			case engine.Done:
				if err := p.Free(u.Request); err != nil {
					p.T.Error(err)
				}
			}
		}
	}
	synctest.Wait()
}

// prompt returns tokens that no other prompt has.
func (p *fetchPlay) prompt(tokens int) []uint32 {
	p.n++
	return servicetest.Prompt(uint32(p.n)<<16, tokens)
}

// learn has the service learn what computing takes, and with selector.FetchPriced what fetches take over each link.
func (p *fetchPlay) learn() {
	for i := range 60 {
		p.send(p.prompt(64+97*(i%20)), i%len(p.engines), 2)
		p.until(0)
	}
	for i := range 12 {
		for target := 1; target < len(p.engines); target++ {
			prompt := p.prompt(512 + 512*i)
			p.send(prompt, 0, 2)
			p.until(0)
			p.send(prompt, target, 2)
			p.until(0)
		}
	}
}

// subAgents plays an agent with a head of 20,000 tokens, and its 43 sub-agents, which come every 20 ms with 1,000 tokens of their
// own and have answers of 100. It returns their mean and longest time to first token and how many have fetched.
func (p *fetchPlay) subAgents() (mean, longest time.Duration, fetched int) {
	head := p.prompt(20000)
	p.send(head, -1, 100)
	p.until(0)
	var all []*played
	start := time.Since(p.began)
	for i := range 43 {
		p.until(start + time.Duration(i+1)*20*time.Millisecond)
		all = append(all, p.send(append(head[:len(head):len(head)], p.prompt(1000)...), -1, 100))
	}
	p.until(0)
	for _, r := range all {
		if mean, longest = mean+r.ttft, max(longest, r.ttft); r.source >= 0 {
			fetched++
		}
	}
	return mean / time.Duration(len(all)), longest, fetched
}

// TestFetchPlay: 43 sub-agents that share a head get their first tokens sooner with fetching, where links are fast. Where engines
// are in two places, priced fetching is no later than the better of always and never. It logs the figures of docs/run/kv-hints.md.
func TestFetchPlay(t *testing.T) {
	type outcome struct{ mean, longest time.Duration }
	for name, tt := range map[string]struct {
		zones   []string
		between engine.Link
	}{
		"eight engines in one place":           {[]string{"a", "a", "a", "a", "a", "a", "a", "a"}, slowLink},
		"eight in two places with a slow link": {[]string{"a", "b", "a", "b", "a", "b", "a", "b"}, slowLink},
	} {
		t.Run(name, func(t *testing.T) {
			by := make(map[selector.FetchMode]outcome)
			for _, mode := range []selector.FetchMode{selector.FetchOff, selector.FetchContract, selector.FetchPriced} {
				synctest.Test(t, func(t *testing.T) {
					p := startFetchPlay(t, mode, tt.zones, tt.between, 1<<15)
					p.learn()
					mean, longest, fetched := p.subAgents()
					by[mode] = outcome{mean, longest}
					t.Logf("%s: first token %d ms, the longest %d ms, %d of 43 fetch", mode, mean.Milliseconds(), longest.Milliseconds(), fetched)
				})
			}
			off, contract, priced := by[selector.FetchOff], by[selector.FetchContract], by[selector.FetchPriced]
			if priced.mean > off.mean*6/10 {
				t.Errorf("with fetching first tokens come after %v, without after %v", priced.mean, off.mean)
			}
			if least := min(off.mean, contract.mean); float64(priced.mean) > 1.1*float64(least) {
				t.Errorf("priced fetching has first tokens after %v, the better of never and always after %v", priced.mean, least)
			}
		})
	}
}

// TestLinksDiffer: the same prefix is fetched within a place and computed in another one, and each is sooner than the other would be.
func TestLinksDiffer(t *testing.T) {
	first := make(map[selector.FetchMode][3]played)
	for _, mode := range []selector.FetchMode{selector.FetchOff, selector.FetchContract, selector.FetchPriced} {
		synctest.Test(t, func(t *testing.T) {
			p := startFetchPlay(t, mode, []string{"a", "a", "b"}, slowLink, 1<<15)
			p.learn()
			prefix := p.prompt(8000)
			p.send(prefix, 0, 2)
			p.until(0)
			var by [3]played
			for target := 1; target <= 2; target++ {
				r := p.send(append(prefix[:len(prefix):len(prefix)], p.prompt(100)...), target, 2)
				p.until(0)
				by[target] = *r
				t.Logf("%s, engine %d: source %d, first token after %v", mode, target, r.source, r.ttft)
				if target == 1 { // it holds the prefix now, too
					prefix = p.prompt(8000)
					p.send(prefix, 0, 2)
					p.until(0)
				}
			}
			first[mode] = by
		})
	}
	off, always, priced := first[selector.FetchOff], first[selector.FetchContract], first[selector.FetchPriced]
	if priced[1].source != 0 || priced[2].source != -1 {
		t.Errorf("engine 1 fetches from %d, and engine 2 from %d", priced[1].source, priced[2].source)
	}
	if always[1].ttft >= off[1].ttft || always[2].ttft <= off[2].ttft || priced[1].ttft > always[1].ttft || priced[2].ttft > off[2].ttft {
		t.Errorf("first tokens: never %v and %v, always %v and %v, priced %v and %v",
			off[1].ttft, off[2].ttft, always[1].ttft, always[2].ttft, priced[1].ttft, priced[2].ttft)
	}
}

// TestNamedBlocksAreThere: while small caches turn over, the source of each hint holds every block that it names (see send).
func TestNamedBlocksAreThere(t *testing.T) {
	for seed := range uint64(4) {
		for _, mode := range []selector.FetchMode{selector.FetchContract, selector.FetchPriced} {
			synctest.Test(t, func(t *testing.T) {
				p := startFetchPlay(t, mode, []string{"a", "a", "b"}, engine.Link{Setup: time.Millisecond, PerToken: 30 * time.Microsecond}, 400)
				random := rand.New(rand.NewPCG(seed, uint64(mode)))
				fetched := 0
				var heads [][]uint32
				for range 6 {
					heads = append(heads, p.prompt(1000+random.IntN(1000)))
				}
				for range 400 {
					head := heads[random.IntN(len(heads))]
					head = head[:1+random.IntN(len(head))]
					if r := p.send(append(head[:len(head):len(head)], p.prompt(1+random.IntN(200))...), random.IntN(4)-1, 1+random.IntN(20)); r.source >= 0 {
						fetched++
					}
					if random.IntN(3) > 0 {
						p.until(time.Since(p.began) + time.Duration(random.IntN(200))*time.Millisecond)
					}
				}
				p.until(0)
				if fetched < 20 {
					t.Errorf("only %d requests have fetched", fetched)
				}
			})
		}
	}
}

// learnToCompute has the service learn that computing takes long, so that fetching is sooner.
func learnToCompute(b *testing.B, w *servicetest.World) {
	for i := range 20 {
		id, req := fmt.Sprint("learn", i), servicetest.Ask(servicetest.Prompt(uint32(2000+i)<<16, 512))
		req.ReservationID, req.Pinned = &id, &catalog.Rank{Worker: 1}
		if _, err := w.Select(context.Background(), req, true); err != nil {
			b.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
		_ = w.PrefillComplete(id)
		time.Sleep(20 * time.Millisecond)
		_ = w.Free(id)
	}
}
