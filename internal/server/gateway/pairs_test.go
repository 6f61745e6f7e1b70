package gateway_test

import (
	"sync"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestPairsAreReportedInTime: the first byte of an answer ends the reservation of the rank that
// prefilled. Its report is no late one, as one would be that comes with the end of a request: after
// twenty of those, predicted-ttft would leave the decision to Dynamo's cost (ttft.LateScope).
func TestPairsAreReportedInTime(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) {
		servicetest.Policies(t, "aggregated: p\ninstances: [{name: p, type: predicted-ttft}]")(c)
	})
	w.put(1, 1, role("prefill"))
	w.put(2, 1, role("decode"))
	for i := range uint32(25) {
		e, p := w.post(chatPath, chat(servicetest.Prompt(1+100*i, 16), `,"stream":true`))
		if p.headers[prefiller] != at(1) {
			t.Fatalf("answered %+v", p)
		}
		e.response(200, sse, false)
		e.chunk(event("a"), false)
		e.chunk("data: [DONE]\n\n", true)
		e.close()
	}
	w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0")
	for _, p := range w.Policies(catalog.ScopeFilter{}) {
		for _, rail := range p.Learned.Rails {
			if rail.Engagements > 0 {
				t.Errorf("the guard rail %v has engaged", rail.Rail)
			}
		}
	}
}

// TestPairsSpread: 200 requests at a time are spread evenly over the ranks that prefill and over those that decode: each
// rank's share differs from the mean by nothing.
func TestPairsSpread(t *testing.T) {
	const side, pairs = 4, 200
	w := start(t, func(_ *node.Config, c *settings) { c.MaxStreams = pairs })
	for id := range uint64(side) {
		w.put(1+id, 1, role("prefill"))
		w.put(11+id, 1, role("decode"))
	}
	var all sync.WaitGroup
	placed := make([]placed, pairs)
	open := make([]*envoy, pairs)
	for i := range pairs {
		open[i] = w.open()
		open[i].request(chatPath, false)
		all.Go(func() {
			open[i].body(chat(servicetest.Prompt(uint32(1000*i), 16), `,"stream":true`), true)
			placed[i] = open[i].placement(true, false)
		})
	}
	all.Wait()
	prefills, decodes := map[string]int{}, map[string]int{}
	for _, p := range placed {
		prefills[p.headers[prefiller]]++
		decodes[p.destination]++
	}
	for id := range uint64(side) {
		if prefills[at(1+id)] != pairs/side || decodes[at(11+id)] != pairs/side {
			t.Errorf("prefills %v, decodes %v", prefills, decodes)
		}
	}
	for _, e := range open {
		e.close()
	}
	w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0; 3/0: 0 0 0; 4/0: 0 0 0; 11/0: 0 0 0; 12/0: 0 0 0; 13/0: 0 0 0; 14/0: 0 0 0")
}

// TestConditionalPairs: the worker that decodes prefills what is short, or mostly cached there, if it is configured so.
func TestConditionalPairs(t *testing.T) {
	w := start(t, func(_ *node.Config, c *settings) {
		c.Conditional = &selection.Conditional{MaxUncachedTokens: new(uint64(8)), MaxUncachedShare: new(0.7)}
	})
	w.put(1, 1, role("prefill"))
	w.put(2, 1, role("decode"))
	ids := servicetest.Prompt(1, 16)
	w.cache(2, ids[:12])
	for name, tt := range map[string]struct {
		ids   []uint32
		apart bool
		loads string
	}{
		"long":            {servicetest.Prompt(9, 16), true, "1/0: 16 4 1; 2/0: 0 4 1"},
		"mostly cached":   {ids, false, "1/0: 0 0 0; 2/0: 4 4 1"},
		"hardly any":      {servicetest.Prompt(5, 4), true, "1/0: 4 1 1; 2/0: 0 1 1"}, // all of it, which is more than 0.7
		"longer uncached": {append(ids[:12:12], servicetest.Prompt(7, 8)...), true, "1/0: 20 5 1; 2/0: 0 5 1"},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := w.post(chatPath, chat(tt.ids, `,"stream":true`))
			if p.destination != at(2) || (p.headers[prefiller] != "") != tt.apart {
				t.Errorf("%+v", p)
			}
			w.wantLoads(tt.loads)
			e.close()
			w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0")
		})
	}
}
