package zmqsock_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// threads and descriptors of this process.
func usage(t testing.TB) (threads, descriptors int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if n, ok := strings.CutPrefix(line, "Threads:"); ok {
			threads, _ = strconv.Atoi(strings.TrimSpace(n))
		}
	}
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	return threads, len(open)
}

// 1,024 live publishers, a message through each, fewer than 64 threads; closed,
// the descriptors are back.
func TestManySubscribersShareFewThreads(t *testing.T) {
	const ranks = 1024
	h := start(t, zmqsock.DefaultOptions())
	pubs := make([]*zmqtest.Publisher, ranks)
	for i := range pubs {
		pubs[i] = zmqtest.NewPublisher(t, "")
		defer pubs[i].Close()
	}
	_, before := usage(t)

	logs, ids := make([]*zmqtest.Log, ranks), make([]uint64, ranks)
	for i := range logs {
		logs[i] = zmqtest.NewLog()
		ids[i] = subscribe(t, h, pubs[i].Endpoint, logs[i])
	}
	for i, p := range pubs {
		p.Subscribers(1)
		p.Publish(1, []byte("one"))
		logs[i].Await(t, "message", zmqtest.Has(zmqtest.First))
	}
	threads, during := usage(t)
	if threads >= 64 {
		t.Errorf("%d threads for %d subscribers, want fewer than 64", threads, ranks)
	}
	t.Logf("%d threads, %.1f descriptors a subscriber (both ends)", threads, float64(during-before)/ranks)

	for _, id := range ids {
		h.Close(id)
	}
	for _, p := range pubs {
		p.Subscribers(0)
	}
	deadline := time.Now().Add(zmqtest.Patience)
	for {
		_, after := usage(t)
		if after <= before+8 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors before, %d after", before, after)
		}
		<-time.After(20 * time.Millisecond)
	}
}
