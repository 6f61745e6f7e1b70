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
	"testing"

	"github.com/select-service/select-service/test/e2e"
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
