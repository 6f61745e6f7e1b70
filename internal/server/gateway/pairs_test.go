package gateway_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector/ttft"
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

// TestBriefAnswersTeach: streamed answers whose end comes with their first token, and requests without an answer, do not turn
// predictions off, neither of pairs nor of single workers. What the request or the engine says of their length is believed.
func TestBriefAnswersTeach(t *testing.T) {
	two := []string{event("a"), event("b") + "data: [DONE]\n\n"}
	counted := []string{event("a"), event("b") + `data: {"choices":[],"usage":{"prompt_tokens":16,"completion_tokens":2}}` + "\n\ndata: [DONE]\n\n"}
	for name, tt := range map[string]struct {
		more    string
		answer  []string
		status  int
		teaches bool
	}{
		"two tokens, by the engine's count": {`,"stream":true`, counted, 200, true},
		"two tokens, by the limit":          {`,"stream":true,"max_tokens":2`, two, 200, true},
		"one token, at once":                {`,"stream":true,"max_tokens":1`, []string{event("a") + "data: [DONE]\n\n"}, 200, true},
		"two pieces":                        {`,"stream":true`, two, 200, false},
		"not streamed":                      {``, []string{`{"usage":{"prompt_tokens":16,"completion_tokens":2}}`}, 200, false},
		"refused":                           {`,"stream":true`, []string{`{}`}, 503, false},
		"no text":                           {`,"stream":true`, []string{"data: [DONE]\n\n"}, 200, false},
	} {
		for _, apart := range []bool{false, true} {
			t.Run(fmt.Sprint(name, apart), func(t *testing.T) {
				w := start(t, func(c *node.Config, _ *settings) {
					servicetest.Policies(t, "aggregated: p\ninstances: [{name: p, type: predicted-ttft}]")(c)
				})
				if apart {
					w.put(1, 1, role("prefill"))
				}
				w.put(2, 1, role("decode"))
				for i := range uint32(25) {
					e, p := w.post(chatPath, chat(servicetest.Prompt(1+100*i, 16), tt.more))
					if (p.headers[prefiller] != "") != apart {
						t.Fatalf("answered %+v", p)
					}
					kind := sse
					if strings.HasPrefix(tt.answer[0], "{") {
						kind = "application/json"
					}
					e.response(tt.status, kind, false)
					for n, piece := range tt.answer {
						e.chunk(piece, n == len(tt.answer)-1)
					}
					e.close()
				}
				await(t, func() string {
					if i := strings.Trim(w.loads(), "0123456789/: ;"); i != "" || strings.Contains(w.loads(), " 1") {
						return w.loads()
					}
					return ""
				})
				for _, p := range w.Policies(catalog.ScopeFilter{}) {
					for _, rail := range p.Learned.Rails {
						if rail.Engagements > 0 && rail.Rail != ttft.NothingToLearn {
							t.Errorf("the guard rail %v has engaged", rail.Rail)
						}
					}
				}
				await(t, func() string {
					w.Learning.Sweep()
					if got := w.Policies(catalog.ScopeFilter{})[0].Learned.Samples; tt.teaches && got == 0 {
						return "nothing is learned"
					}
					return ""
				})
			})
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
