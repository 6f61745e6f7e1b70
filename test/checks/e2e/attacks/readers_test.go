package attacks

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// TestStalledReaders: 1,500 callers ask for the dump, or for the snapshot, and read no
// more than the first line of the answer. Those beyond the limit are refused by name,
// memory stays in its budget, and once the first ones are cut off an honest reader gets
// the whole.
func TestStalledReaders(t *testing.T) {
	const readers, messages, blocks = 1500, 100, 2000
	for name, tc := range map[string]struct{ limit, path string }{
		"dump":     {"dump_readers", "/dump"},
		"snapshot": {"memory", "/replica_sync/snapshot?limit=10000"}, // 40 fit into the account, 64 may read
	} {
		t.Run(name, func(t *testing.T) {
			e := serveEngines(t, "--replica-sync-port", strconv.Itoa(e2e.FreePort(t)))
			for i := range uint32(messages) {
				e.honest.Publish(e.events, stored(t, blocks, 1<<40+uint64(i)*blocks, i, i, i, i))
				e.events++
				hashes := make([]uint64, blocks)
				for j := range hashes {
					hashes[j] = rand.Uint64()
				}
				e.Must(t, http.StatusCreated, "POST", "/slots/add", e2e.Object{
					"model_name": "m1", "request_id": fmt.Sprint(i), "worker_id": 1, "dp_rank": 0, "sequence_hashes": hashes,
				}, nil)
			}
			e.hears(t)
			answered, refused := 0, 0
			for i := range readers {
				conn := dial(t, e.Address(), "GET "+tc.path+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
				_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
				line, err := bufio.NewReaderSize(conn, 64).ReadString('\n')
				switch {
				case err == nil && strings.Contains(line, " 200 "):
					answered++
				case err == nil && strings.Contains(line, " 503 "):
					refused++
				default:
					t.Fatalf("reader %d: %q, %v", i, line, err)
				}
			}
			if n := limitRefused(t, e.Service, tc.limit); n < refused || refused < readers/2 || answered < 8 {
				t.Errorf("%d answered, %d refused, %d counted", answered, refused, n)
			}
			if peak, err := e.Status("VmHWM"); err != nil || peak > peakMemory {
				t.Errorf("peak %d KiB, want at most %d; %v", peak, peakMemory, err)
			} else {
				t.Logf("peak %d MiB, %d answered, %d refused", peak>>10, answered, refused)
			}
			e2e.Eventually(t, "an honest reader gets all", func() error {
				answer, err := http.Get(e.URL() + tc.path) //nolint:noctx // it is awaited
				if err != nil {
					return err
				}
				defer func() { _ = answer.Body.Close() }()
				body, err := io.ReadAll(answer.Body)
				if err != nil || answer.StatusCode != http.StatusOK || len(body) < messages*blocks || !json.Valid(body) {
					return fmt.Errorf("%s with %d bytes, %w", answer.Status, len(body), err)
				}
				return nil
			})
		})
	}
}

// TestLongLists: 12,000 workers make lists of 26 MiB, and 60 callers at a time read them, four times on each route,
// after one has read a short one: the next ones are expected to be as short. Memory stays in its budget, somebody
// gets each list, and other routes answer meanwhile.
func TestLongLists(t *testing.T) {
	const models, workers, readers = 6, 2000, 60
	rounds := size(4, 2)
	s := e2e.Serve(t, map[string]string{"SELECT_SERVICE_MAX_MEMORY": "512MiB"}, "--use-kv-events=false")
	for m := range models {
		set := make([]e2e.Object, workers)
		for i := range set {
			id := m*workers + i
			set[i] = e2e.Object{
				"worker_id": id, "endpoint": fmt.Sprintf("http://w%d:8000", id), "block_size": 16,
				"taints": []string{strings.Repeat("a", 800), strings.Repeat("b", 800)},
			}
		}
		s.Must(t, http.StatusOK, http.MethodPut, "/workers", e2e.Object{"model_name": fmt.Sprint("m", m), "workers": set}, nil)
	}
	var client http.Client
	client.Transport = &http.Transport{MaxIdleConnsPerHost: readers}
	get := func(path string) (status, n int) {
		answer, err := client.Get(s.URL() + path) //nolint:noctx // it is awaited
		if err != nil {
			t.Error(err)
			return 0, 0
		}
		defer func() { _ = answer.Body.Close() }()
		read, err := io.Copy(io.Discard, answer.Body)
		if err != nil { // it was cut off
			return 0, 0
		}
		return answer.StatusCode, int(read)
	}
	for _, route := range []string{"/workers", "/ready"} {
		if status, n := get(route + "?model_name=nobody"); status >= 500 && route != "/ready" {
			t.Fatalf("%s: %d, %d bytes", route, status, n)
		}
		var whole, refused, others atomic.Int64
		var all sync.WaitGroup
		for range readers {
			all.Go(func() {
				for range rounds {
					switch status, n := get(route); {
					case status == http.StatusOK && n > 1<<20:
						whole.Add(1)
					case status == http.StatusServiceUnavailable:
						refused.Add(1)
					default:
						others.Add(1)
					}
				}
			})
		}
		if status, _ := get("/health"); status != http.StatusOK {
			t.Errorf("/health answers %d meanwhile", status)
		}
		all.Wait()
		if whole.Load() == 0 {
			t.Errorf("nobody got %s: %d were refused, %d got something else", route, refused.Load(), others.Load())
		}
		peak, err := s.Status("VmHWM")
		if err != nil || peak > peakMemory {
			t.Errorf("%s: peak %d KiB, want at most %d; %v", route, peak, peakMemory, err)
		}
		t.Logf("%s: peak %d MiB, %d got all, %d were refused, %d got something else", route, peak>>10, whole.Load(), refused.Load(), others.Load())
	}
}
