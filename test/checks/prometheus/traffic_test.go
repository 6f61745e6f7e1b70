package prometheus

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// traffic is what the replicas are asked for, and what came of it.
type traffic struct {
	t       *testing.T
	engines []engine
	first   *service // of two replicas with thresholds
	second  *service
	queue   *service // alone, with the wait queue
	gateway *gateway // alone
	lossy   *zmqtest.Publisher
	pods    *pods // of the second replica

	round            int
	sequence         uint64 // of the next message of lossy
	issued, rejected map[*service]int
	lost             int // messages of lossy that were never sent
	conflicts        int
	queueFull        int
	unserved         int // selections for a model that nobody registered
}

// thresholds are set one after the other; every one of them is exceeded by the
// bookings that load has made on all workers.
var thresholds = []string{"active_decode_blocks_threshold", "active_prefill_tokens_threshold", "active_prefill_tokens_threshold_frac"}

// prompt n has eight blocks, of which the first four are those of all prompts.
func prompt(n int) []uint32 {
	tokens := make([]uint32, 8*blockSize)
	for i := range tokens {
		tokens[i] = uint32(i)
		if i >= len(tokens)/2 {
			tokens[i] += uint32(1000 * n)
		}
	}
	return tokens
}

// agent is a prompt that is long enough for the cache of prompts' texts.
var agent = sync.OnceValue(func() []uint32 {
	tokens := make([]uint32, 16_000)
	for i := range tokens {
		tokens[i] = 10_000 + uint32(i)
	}
	return tokens
})

// load books something on every worker of the first replica, for good.
func (tr *traffic) load() {
	tr.t.Helper()
	for id := range tr.engines {
		tr.first.must(http.StatusCreated, "POST", "/reservations", object{
			"reservation_id": fmt.Sprintf("standing-%d", id+1), "model_name": model, "worker_id": id + 1, "token_ids": prompt(0),
		})
	}
}

// play runs rounds of every kind of request, ten a second, for so long.
func (tr *traffic) play(d time.Duration) {
	tr.t.Helper()
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); tr.round++ {
		<-pace.C
		for _, e := range tr.engines {
			e.generate(tr.t, fmt.Sprintf("r%d", tr.round), prompt(tr.round))
		}
		if tr.round%8 == 7 {
			tr.engines[0].clear(tr.t)
		}
		tr.lose()
		tr.pods.change(tr.round%2 == 0)
		tr.pods.spoil()
		tr.accepted(tr.first, 4)
		tr.accepted(tr.second, 2)
		tr.selection(tr.second, "/select", object{"token_ids": agent()}, http.StatusOK)
		tr.refused()
		tr.faults()
		tr.wait()
		tr.gateway.chat(prompt(2_000_000+tr.round), 4*blockSize)
		tr.gateway.proxied(prompt(3_000_000 + tr.round))
		tr.issued[tr.gateway.service] += 2
		tr.first.must(http.StatusOK, "POST", "/conductor/query", object{"model": model, "block_size": blockSize, "token_ids": prompt(tr.round)})
	}
}

// lose publishes an event after a gap that nothing can fill, one that names an
// unknown medium, and something that is no event.
func (tr *traffic) lose() {
	tr.t.Helper()
	const gap = 2
	name := uint64(tr.round + 1)
	stored := func(medium string) []any {
		return []any{"BlockStored", []uint64{name}, nil, prompt(tr.round)[:blockSize], blockSize, nil, medium}
	}
	tr.sequence += gap
	tr.lost += gap
	tr.publish(batch(tr.t, []any{stored("GPU"), stored("MOON")}))
	tr.publish([]byte{0xc1})
}

func (tr *traffic) publish(payload []byte) {
	tr.lossy.Publish(tr.sequence, payload)
	tr.sequence++
}

// batch is the payload of a message, as vLLM writes it.
func batch(t *testing.T, events []any) []byte {
	t.Helper()
	payload, err := msgpack.Marshal([]any{float64(time.Now().UnixMicro()) / 1e6, events, 0})
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

func (tr *traffic) selection(s *service, path string, body object, status int) {
	tr.t.Helper()
	body["model_name"] = model
	if body["token_ids"] == nil {
		body["token_ids"] = prompt(tr.round)
	}
	s.must(status, "POST", path, body)
	tr.issued[s]++
}

// accepted makes n selections of either kind, the bookings of which are freed.
func (tr *traffic) accepted(s *service, n int) {
	tr.t.Helper()
	for i := range n {
		id := fmt.Sprintf("%s-%d-%d", s.name, tr.round, i)
		tr.selection(s, "/select", object{}, http.StatusOK)
		tr.selection(s, "/select_and_reserve", object{"reservation_id": id}, http.StatusOK)
		s.must(http.StatusOK, "POST", "/reservations/"+id+"/prefill_complete", nil)
		s.must(http.StatusOK, "DELETE", "/reservations/"+id, nil)
	}
}

// refused sets each threshold to zero and asks while every worker is above it.
func (tr *traffic) refused() {
	tr.t.Helper()
	for _, name := range thresholds {
		tr.first.must(http.StatusOK, "POST", "/busy_threshold", object{"model": model, name: 0})
		for i, path := range []string{"/select", "/select_and_reserve"} {
			tr.selection(tr.first, path, object{"reservation_id": fmt.Sprintf("refused-%d-%d", tr.round, i)}, http.StatusServiceUnavailable)
			tr.rejected[tr.first]++
		}
		tr.first.must(http.StatusOK, "DELETE", "/busy_threshold?model="+model+"&threshold="+name, nil)
	}
}

// faults are requests that callers get wrong.
func (tr *traffic) faults() {
	tr.t.Helper()
	tr.selection(tr.first, "/select_and_reserve", object{"reservation_id": "standing-1"}, http.StatusConflict)
	tr.conflicts++
	tr.first.must(http.StatusBadRequest, "POST", "/select", object{"model_name": model}) // no prompt: not issued
	tr.first.must(http.StatusServiceUnavailable, "POST", "/select", object{"model_name": "nobody's", "token_ids": prompt(0)})
	tr.issued[tr.first]++
	tr.unserved++
	tr.first.must(http.StatusNotFound, "DELETE", "/reservations/nobody", nil)
	tr.first.must(http.StatusNotFound, "GET", "/nowhere", nil)
}

// wait makes one request wait until the only worker is free, and another one
// find the queue full meanwhile.
func (tr *traffic) wait() {
	tr.t.Helper()
	booking := func(name string) string { return fmt.Sprintf("%s-%d", name, tr.round) }
	uncached := prompt(1_000_000 + tr.round) // what is cached makes no rank busy
	tr.selection(tr.queue, "/select_and_reserve", object{"reservation_id": booking("runs"), "token_ids": uncached}, http.StatusOK)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		body := object{"model_name": model, "reservation_id": booking("waits"), "token_ids": uncached}
		if a, err := tr.queue.call("POST", "/select_and_reserve", body); err != nil || a.Status != http.StatusOK {
			tr.t.Errorf("the request that waits: %v (%v)", a, err)
		}
	})
	tr.issued[tr.queue]++
	gauge := fmt.Appendf(nil, "dynamo_queued_requests{endpoint=%q,model=%q} 1\n", "select_and_reserve", model)
	e2e.Eventually(tr.t, "a request waits", func() error {
		if !bytes.Contains(tr.queue.metrics(), gauge) {
			return fmt.Errorf("no %s", gauge)
		}
		return nil
	})
	tr.selection(tr.queue, "/select", object{"token_ids": uncached}, http.StatusServiceUnavailable)
	tr.queueFull++
	tr.queue.must(http.StatusOK, "DELETE", "/reservations/"+booking("runs"), nil)
	waiting.Wait()
	tr.queue.must(http.StatusOK, "DELETE", "/reservations/"+booking("waits"), nil)
}

// total adds up a count over all services.
func total(counts map[*service]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// services in the order in which Prometheus is told of them.
func (tr *traffic) services() []*service {
	return slices.Clone([]*service{tr.first, tr.second, tr.queue, tr.gateway.service})
}
