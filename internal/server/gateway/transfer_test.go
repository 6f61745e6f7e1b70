package gateway_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestTransfersAreLearned: the time between the event by which the engine that prefills tells the prompt's last block and the first
// byte of a streamed answer is that of the transfer. Of two prefill workers whose transfers take a tenth and a fifth of the prefill,
// which is too little to make one of them a slow worker, the first one is chosen once both are known. Without events both are.
func TestTransfersAreLearned(t *testing.T) {
	for _, events := range []bool{true, false} {
		t.Run(fmt.Sprintf("events %t", events), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playTransfers(t, events) })
		})
	}
}

func playTransfers(t *testing.T, events bool) {
	w := servicetest.Start(t, servicetest.Policy(t, "predicted-ttft", ""), func(c *node.Config) { c.Scopes.WatchStored = true })
	metrics := counts.NewGateway()
	g := gateway.New(gateway.Config{
		Models: map[string]catalog.Scope{model: servicetest.Scope}, Metrics: metrics, Log: zerolog.Nop(),
		MaxStreams: 100, MaxBody: 1 << 20, PickTimeout: time.Minute, Lease: time.Minute,
	}, gateway.Service{Selecting: w.API, Catalog: w.Catalog(), Ready: w.Settled})
	defer run(t, g)()
	engines := make(map[string]*servicetest.Engine)
	transfer := make(map[string]time.Duration) // of a token
	for id, of := range map[uint64]string{1: catalog.RolePrefill, 2: catalog.RolePrefill, 3: catalog.RoleDecode} {
		w.Put(servicetest.Record(id, 1, func(r *catalog.Record) {
			r.Role, r.Endpoint = &of, new("http://"+at(id))
			r.KVTransferDomain, r.KVTransferEnforcement = new("rack"), new("preferred")
			r.TopologyDomains = map[string]string{"rack": string(rune('a' + id%2))} // 1 and 3 are in one
		}))
		engines[at(id)], transfer[at(id)] = w.Engine(id, 0), time.Duration(id)*100*time.Microsecond
	}
	fields := map[string]string{":method": "POST", ":path": completionsPath, "content-type": "application/json"}
	ask := func(n int) (prefill string) {
		t.Helper()
		ids := servicetest.Prompt(uint32(n)<<16, 400+400*(n%3))
		e := g.Open(counts.ExtProc, nil)
		defer e.Close()
		e.Begin(g.ReadHead(maps.All(fields)), tracing.Context{})
		if bad := e.Admit(); bad != nil {
			t.Fatal(bad)
		}
		if bad := e.Add(fmt.Appendf(nil, `{"model":"m","stream":true,"prompt":[%s]}`, strings.ReplaceAll(wordsOf(ids), " ", ","))); bad != nil {
			t.Fatal(bad)
		}
		place, bad := e.Place(t.Context(), 0)
		if bad != nil {
			t.Fatal(bad)
		}
		set, _ := place.Headers(nil)
		for _, h := range set {
			if h.Name == prefiller {
				prefill = h.Value
			}
		}
		time.Sleep(time.Duration(len(ids)) * time.Millisecond)
		if events {
			of := engines[prefill]
			of.Publish(0, of.Stored(ids, servicetest.BlockSize, nil))
			synctest.Wait()
		}
		time.Sleep(time.Duration(len(ids)) * transfer[prefill])
		e.Answered(200, sse, "")
		if err := e.Relay([]byte(event("a")), true, func([]byte, bool) error { return nil }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute) // so that no request is expected during another one, which would be delayed
		return prefill
	}
	for n := range 60 {
		ask(n)
	}
	chosen := make(map[string]int)
	for n := range 20 {
		chosen[ask(60+n)]++
	}
	if (chosen[at(1)] == 20) != events {
		t.Errorf("chosen: %v", chosen)
	}
	synctest.Wait()
	w.WantLoad("1/0: 0 0 0, 2/0: 0 0 0, 3/0: 0 0 0")
}

// run runs a gateway until stop is called.
func run(t *testing.T, g *gateway.Gateway) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = g.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}
