package gateway_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/extproc"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestStoredPrompt: without a stream the prefill is complete when the chosen rank's events have
// stored the prompt's last complete block, and not before.
func TestStoredPrompt(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	ids := servicetest.Prompt(1, 18)
	e, _ := w.post(chatPath, chat(ids, ""))
	w.wantLoads("1/0: 18 4 1")
	w.cache(1, ids[:12])
	w.cache(1, append(servicetest.Prompt(9, 4), ids[12:16]...)) // the last block behind another prefix
	if got := w.loads(); got != "1/0: 18 4 1" {
		t.Errorf("loads are %s", got)
	}
	w.cache(1, ids[:16])
	w.wantLoads("1/0: 0 4 1")
	e.response(200, "application/json", false)
	e.chunk("{}", true)
	w.wantLoads("1/0: 0 0 0")
	e.close()
	w.wantCount("prefill_completed_total", `by="kv_event"`, 1)
}

// TestStoredUnseen: where answers do not pass through the picker, an event completes the prefill of a
// streamed one too.
func TestStoredUnseen(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	ids := servicetest.Prompt(1, 16)
	e := w.open()
	e.config.ResponseBodyMode = filterv3.ProcessingMode_NONE
	e.request(chatPath, false)
	e.body(chat(ids, `,"stream":true`), true)
	e.placement(true, false)
	e.response(200, sse, false) // engines send the headers before they compute
	w.wantLoads("1/0: 16 4 1")
	w.cache(1, ids)
	w.wantLoads("1/0: 0 4 1")
	w.wantCount("prefill_completed_total", `by="kv_event"`, 1)
	e.close()
	w.wantLoads("1/0: 0 0 0")
}

// TestStoredBeforeWatch: a prompt that is stored after its overlap was looked up and before
// its reservation is booked has its prefill complete at once, as nothing will tell of it again.
func TestStoredBeforeWatch(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) { c.Scopes.Admission = admission.Config{Threshold: new(0.5)} })
	w.put(1, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(16)) })
	first, _ := w.post(chatPath, chat(servicetest.Prompt(1, 16), ""))
	ids := servicetest.Prompt(2, 16)
	e := w.open()
	e.request(chatPath, false)
	e.body(chat(ids, ""), true)
	await(t, func() string {
		if n := w.Loads(nil, nil)[0].PendingCount; n != 1 {
			return fmt.Sprintf("%d requests wait", n)
		}
		return ""
	})
	w.cache(1, ids)
	first.close()
	e.placement(true, false)
	w.wantLoads("1/0: 0 4 1")
	w.wantCount("prefill_completed_total", `by="kv_event"`, 1)
	e.close()
	w.wantLoads("1/0: 0 0 0")
}

// wantCount waits for a count of the gateway's metrics.
func (w *world) wantCount(name, labels string, want float64) {
	w.T.Helper()
	await(w.T, func() string {
		got := w.count(name, labels)
		if got != want {
			return fmt.Sprintf("%s{%s} is %v, want %v", name, labels, got, want)
		}
		return ""
	})
}

// TestUsage: what the engine had cached, told in a usage that comes in pieces, is observed
// once beside the prediction.
func TestUsage(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	ids := servicetest.Prompt(1, 16)
	w.cache(1, ids[:8])
	e, _ := w.post(chatPath, chat(ids, `,"stream":true`))
	e.response(200, sse, false)
	usage := `data: {"choices":[],"usage":{"prompt_tokens":16,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":12}}}` + "\n\n"
	e.chunk(event("a")+usage[:20], false)
	e.chunk(usage[20:70], false)
	e.chunk(usage[70:]+"data: [DONE]\n\n", true)
	e.close()
	w.wantCount("cached_tokens_count", "", 1)
	w.wantCount("cached_tokens_sum", "", 12)
	w.wantCount("cached_tokens_predicted_sum", "", 8)
	w.wantCount("cached_tokens_mispredicted_total", `engine_had="more"`, 4)
}

// TestServedByConnection: what a gateway can do is known by its connection. Another one from the same address,
// as behind a translator of addresses or after a pod that had it before, gets one destination: Envoy's
// ORIGINAL_DST cluster takes a list for none. So does a gateway whose answers stop to name their endpoint.
func TestServedByConnection(t *testing.T) {
	w := start(t)
	for id := range uint64(4) {
		w.put(id+1, 1)
	}
	answer := func(of extprocv3.ExternalProcessorClient, served bool) int {
		t.Helper()
		e := w.openOn(of)
		e.request("/v1/models", true)
		p := e.placement(false, false)
		list := strings.Split(p.destination, ",")
		if served {
			e.served = list[0]
		}
		e.response(200, "application/json", true)
		e.close()
		return len(list)
	}
	other := extprocv3.NewExternalProcessorClient(w.dial())
	for step, tt := range []struct {
		of     extprocv3.ExternalProcessorClient
		served bool
		want   int // destinations
	}{
		{w.client, true, 1},
		{w.client, true, 3},
		{other, false, 1},
		{other, false, 1},
		{w.client, false, 3},
		{w.client, true, 1},
		{w.client, true, 3},
		{extprocv3.NewExternalProcessorClient(w.dial()), true, 1}, // its connection is new
		{other, true, 1},
		{other, true, 3},
	} {
		if got := answer(tt.of, tt.served); got != tt.want {
			t.Errorf("step %d: %d destinations, want %d", step, got, tt.want)
		}
	}
}

// TestServed: a gateway that tells where requests went gets further destinations, and the
// bookings follow it.
func TestServed(t *testing.T) {
	w := start(t)
	for id := range uint64(4) {
		w.put(id+1, 1)
	}
	ids := servicetest.Prompt(1, 16)
	w.cache(1, ids)
	first, p := w.post(chatPath, chat(ids, ""))
	if p.destination != at(1) {
		t.Fatalf("the first request has destinations %q", p.destination)
	}
	first.served = at(1)
	first.response(200, sse, false)
	first.close()
	w.wantCount("served_total", `endpoint="chosen"`, 1)

	second, p := w.post(chatPath, chat(ids, `,"stream":true`))
	list := strings.Split(p.destination, ",")
	if len(list) != 3 || list[0] != at(1) {
		t.Fatalf("the second request has destinations %q", p.destination)
	}
	second.served = list[1]
	second.response(200, sse, false)
	moved := list[1][len("10.0.0.") : len("10.0.0.")+1]
	await(t, func() string {
		if got := w.loads(); !strings.Contains(got, moved+"/0: 16 4 1") || strings.Count(got, ": 0 0 0") != 3 {
			return "loads are " + got
		}
		return ""
	})
	second.chunk(event("a"), false)
	await(t, func() string {
		if got := w.loads(); !strings.Contains(got, moved+"/0: 0 4 1") {
			return "loads are " + got
		}
		return ""
	})
	second.close()

	third, _ := w.post(chatPath, chat(ids, ""))
	third.served = "10.9.9.9:1"
	third.response(200, sse, false)
	w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0; 3/0: 0 0 0; 4/0: 0 0 0")
	third.chunk(event("a")+`data: {"choices":[],"usage":{"prompt_tokens":16,"prompt_tokens_details":{"cached_tokens":0}}}`+"\n\n", true)
	third.close()
	w.wantCount("served_total", `endpoint="unknown"`, 1)
	w.wantCount("cached_tokens_count", "", 0) // whatever the index had for the chosen rank
}

// TestLease: bookings live as long as their streams, however long that is.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{World: servicetest.Start(t), metrics: counts.NewGateway(), log: new(servicetest.Log)}
		placing := gateway.New(gateway.Config{
			Models: map[string]catalog.Scope{model: servicetest.Scope}, Metrics: w.metrics, Log: zerolog.New(w.log),
			MaxStreams: 1, MaxBody: 1 << 20, PickTimeout: time.Minute, Lease: 10 * time.Second,
		}, gateway.Service{Selecting: w.API, Catalog: w.Catalog(), Ready: w.Settled})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		running.Go(func() { _ = placing.Run(ctx) })
		server := extproc.New(extproc.Config{MaxStreams: 1, Log: zerolog.New(w.log)}, placing)
		w.put(1, 1)
		s := newScript([]step{{message: steps[0]}, {message: steps[4]}})
		s.hold = make(chan struct{})
		running.Go(func() {
			if err := server.Process(s); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(10 * time.Minute)
		if got := w.loads(); got != "1/0: 9 2 1" {
			t.Errorf("loads are %q", got)
		}
		close(s.hold)
		synctest.Wait()
		if got := w.loads(); got != "1/0: 0 0 0" {
			t.Errorf("loads are %q", got)
		}
	})
}

// TestWorkerLeaves: a worker that leaves takes its bookings along, and its request ends well.
func TestWorkerLeaves(t *testing.T) {
	w := start(t)
	w.put(1, 1)
	w.put(2, 1)
	ids := servicetest.Prompt(1, 16)
	w.cache(1, ids)
	e, p := w.post(chatPath, chat(ids, `,"stream":true`))
	if p.destination != at(1) {
		t.Fatal(p)
	}
	w.Remove(1)
	e.response(200, sse, false)
	e.chunk(event("a"), true)
	e.close()
	w.wantLoads("2/0: 0 0 0")
	_, p = w.post(chatPath, chat(ids, ""))
	if p.destination != at(2) {
		t.Errorf("went to %q", p.destination)
	}
}

// TestWorkerFlaps: an answer under way counts again after its worker was removed and registered
// again, without its prefill if that was complete, with its output, once for each registration,
// and only at the same endpoint.
func TestWorkerFlaps(t *testing.T) {
	w := start(t, func(_ *node.Config, c *settings) { c.Lease = 6 * time.Second }) // a busy machine renews one of three times at least
	w.put(1, 1)
	e, _ := w.post(chatPath, chat(servicetest.Prompt(1, 16), `,"stream":true`))
	e.response(200, sse, false)
	for range 9 {
		e.chunk(event("a"), false)
	}
	light, _ := w.post("/v1/embeddings", "{}")
	w.wantLoads("1/0: 0 6 2")
	for range 2 {
		w.Remove(1)
		w.put(1, 1)
		w.wantLoads("1/0: 0 6 2")
	}
	w.wantCount("rebooked_total", "", 4)
	light.close()
	w.Remove(1)
	w.put(2, 1)
	w.put(1, 1, func(r *catalog.Record) { r.Endpoint = new("http://10.9.9.9:8000") })
	w.put(1, 1)
	w.wantLoads("1/0: 0 6 1; 2/0: 0 0 0")
	e.close()
	w.wantLoads("1/0: 0 0 0; 2/0: 0 0 0")
}

// TestAwaited: a rank of which the first byte of a streamed answer is awaited for too long gets no new
// requests until it comes. One that answers in one piece is not meant, nor one whose answer the picker
// does not see.
func TestAwaited(t *testing.T) {
	w := start(t, func(c *node.Config, _ *settings) { c.Reports.StalledAfter = 200 * time.Millisecond })
	w.put(1, 1)
	w.put(2, 1)
	ids, others := servicetest.Prompt(1, 16), servicetest.Prompt(2, 16)
	w.cache(1, ids)
	w.cache(2, others)
	stalled := func() (workers []uint64) {
		x, err := w.Explain(t.Context(), &selection.SelectRequest{Scope: servicetest.Scope, Prompt: servicetest.Hashes(ids)})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range x.Excluded {
			if e.Why == selection.Stalled {
				workers = append(workers, e.Rank.Worker)
			}
		}
		return workers
	}
	wantExcluded := func(want ...uint64) {
		t.Helper()
		await(t, func() string {
			if got := stalled(); !slices.Equal(got, want) {
				return fmt.Sprintf("%v are stalled, want %v", got, want)
			}
			return ""
		})
	}
	whole, p := w.post(chatPath, chat(others, ""))
	if p.destination != at(2) {
		t.Fatalf("the first request has destinations %q", p.destination)
	}
	streamed, p := w.post(chatPath, chat(ids, `,"stream":true`))
	if p.destination != at(1) {
		t.Fatalf("the second request has destinations %q", p.destination)
	}
	wantExcluded(1)
	third, p := w.post(chatPath, chat(ids, `,"stream":true`))
	if p.destination != at(2) {
		t.Errorf("the third request has destinations %q", p.destination)
	}
	third.close()
	streamed.response(200, sse, false)
	streamed.chunk(event("a"), false)
	wantExcluded()
	streamed.close()

	// Where the bodies of responses do not pass through the picker, and perhaps not even the headers, no
	// byte is awaited: the rank is not stalled when the one is that was asked later.
	bodiless := w.open()
	bodiless.config.ResponseBodyMode = filterv3.ProcessingMode_NONE
	bodiless.request(chatPath, false)
	bodiless.body(chat(ids, `,"stream":true`), true)
	if p := bodiless.placement(true, false); p.destination != at(1) {
		t.Fatalf("the bodiless request has destinations %q", p.destination)
	}
	later, _ := w.post(chatPath, chat(others, `,"stream":true`))
	await(t, func() string {
		if !slices.Contains(stalled(), 2) {
			return "the later one is not stalled yet"
		}
		return ""
	})
	if slices.Contains(stalled(), 1) {
		t.Error("a rank whose answer is not seen is stalled")
	}
	later.close()
	bodiless.close()
	whole.close()
}
