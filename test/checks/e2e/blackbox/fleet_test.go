package blackbox_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// TestFleet proves that streams are cheap: 1,024 ranks on live publishers are
// all heard, in fewer than 64 threads, and when their workers are gone so are
// the threads and descriptors.
func TestFleet(t *testing.T) {
	t.Parallel()
	const (
		workers, ranks = 16, 64 // ranks of each worker
		maxThreads     = 64
	)
	s := start(t, nil)
	publishers := make([]*zmqtest.Publisher, workers*ranks)
	for i := range publishers {
		publishers[i] = zmqtest.NewPublisher(t, "")
		defer publishers[i].Close()
	}
	before := s.warm(t, publishers[0])

	for w := range workers {
		s.putRange(t, w+1, publishers[w*ranks:(w+1)*ranks])
	}
	// A publisher may still count a subscriber of an earlier life, and lose what
	// it sends to it alone: say it again until it is heard.
	prompt := []uint32{5, 6, 7, 8}
	seq := uint64(0)
	e2e.Eventually(t, "every rank's event is visible", func() error {
		for i, p := range publishers {
			p.TrySend(seq, stored(t, uint32(i), uint64(i+1), prompt...))
		}
		seq++
		if got := s.device(t, prompt...); got != ranks {
			return fmt.Errorf("%d of %d ranks have the block", got, ranks)
		}
		return nil
	})
	s.clear(t)
	s.settles(t, before)
}

// warm makes the process open what it keeps from its first stream on, and
// returns what it holds then.
func (s *service) warm(t *testing.T, p *zmqtest.Publisher) use {
	t.Helper()
	s.putRange(t, 1, []*zmqtest.Publisher{p})
	p.Subscribers(1)
	s.clear(t)
	p.Subscribers(0)
	return s.use(t)
}

// putRange registers a worker with one rank per publisher.
func (s *service) putRange(t *testing.T, id int, publishers []*zmqtest.Publisher) {
	t.Helper()
	endpoints := map[string]string{}
	for rank, p := range publishers {
		endpoints[strconv.Itoa(rank)] = p.Endpoint
	}
	var record struct {
		Lifecycle string   `json:"lifecycle"`
		Reasons   []string `json:"not_schedulable_reasons"`
	}
	s.Must(t, http.StatusCreated, "POST", "/workers", object{
		"worker_id": id, "endpoint": fmt.Sprintf("http://w%d:8000", id), "block_size": 4, "max_num_batched_tokens": 1024,
		"data_parallel_size": len(publishers), "kv_events_endpoints": endpoints,
	}, &record)
	if record.Lifecycle != "schedulable" {
		t.Fatalf("worker %d is %s: %q", id, record.Lifecycle, record.Reasons)
	}
}
