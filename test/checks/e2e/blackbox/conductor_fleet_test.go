package blackbox_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// TestConductorFleet proves that the Conductor's memory is bounded by what is in
// use: 1,000 streams (with -short 200) that fill 10,000 spaces stay below 512 MiB in all,
// every space answers for itself, and with the registrations spaces, blocks, threads
// and descriptors are gone.
func TestConductorFleet(t *testing.T) {
	t.Parallel()
	const (
		tenants = 10 // of each stream: each is a space of its own
		maxKiB  = 512 << 10
	)
	streams := 1000
	if testing.Short() {
		streams = 200
	}
	port := e2e.FreePort(t)
	main := start(t, nil, "--conductor-port", strconv.Itoa(port))
	s := main.At(port)
	publishers := make([]*zmqtest.Publisher, streams)
	for i := range publishers {
		publishers[i] = zmqtest.NewPublisher(t, "")
		defer publishers[i].Close()
	}
	before := main.warm(t, publishers[0])

	for i, p := range publishers {
		s.Must(t, http.StatusOK, "POST", "/register", object{
			"endpoint": p.Endpoint, "type": "standard", "modelname": "m", "instance_id": fmt.Sprintf("i%d", i), "block_size": 4, "dp_rank": 0,
		}, nil)
	}
	prompt := []uint32{5, 6, 7, 8}
	hash := hashing.Layout{BlockSize: 4}.AppendLocal(nil, prompt, hashing.Seed, nil)[0]
	tenant := func(i, k int) string { return fmt.Sprintf("tenant-%d", i*tenants+k) }
	round := uint64(0)
	e2e.Eventually(t, "every stream's events are visible", func() error {
		for i, p := range publishers {
			events := make([]object, tenants)
			for k := range events {
				events[k] = object{
					"event_id": round, "event_type": "stored", "tenant_id": tenant(i, k), "backend_id": "b", "medium": "cpu",
					"seq_hashes": []uint64{hash}, "base_block_idx": 0,
				}
			}
			payload, err := msgpack.Marshal([]any{1.5, events, 0})
			if err != nil {
				t.Fatal(err)
			}
			p.TrySend(round, payload)
		}
		round++
		// The spaces of the events, and the one that all are registered for.
		if got := main.Metric(t, "select_service_conductor_spaces"); got != streams*tenants+1 {
			return fmt.Errorf("%d spaces", got)
		}
		return nil
	})
	kib, err := main.Status("VmRSS")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB resident", kib>>10)
	if kib > maxKiB && !e2e.Race(t) {
		t.Errorf("%d MiB resident with %d spaces, want at most %d", kib>>10, streams*tenants, maxKiB>>10)
	}
	for i := 0; i < streams; i += 97 {
		var got map[string]map[string]struct {
			Longest int `json:"longest_matched"`
		}
		name := tenant(i, i%tenants)
		s.Must(t, http.StatusOK, "POST", "/query", object{"model": "m", "tenant_id": name, "block_size": 4, "token_ids": prompt}, &got)
		if len(got[name]) != 1 || got[name][fmt.Sprintf("i%d", i)].Longest != 4 {
			t.Errorf("/query of %s: %v", name, got)
		}
	}

	for i := range publishers {
		s.Must(t, http.StatusOK, "POST", "/unregister", object{"instance_id": fmt.Sprintf("i%d", i)}, nil)
	}
	for _, name := range []string{"publishers", "spaces", "namespaces", "owners", "index_bytes"} {
		if got := main.Metric(t, "select_service_conductor_"+name); got != 0 {
			t.Errorf("%s after the last registration: %d", name, got)
		}
	}
	main.settles(t, before)
}
