package blackbox_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// accounted is a service whose memory can be read beside its accounts.
type accounted struct {
	*e2e.Service
	debug  *e2e.Service
	engine *zmqtest.Publisher // of its worker's KV events
	sync   int                // port of its replicas' socket
}

func (a *accounted) account(t *testing.T, names ...string) (sum int) {
	t.Helper()
	called := time.Now()
	e2e.Eventually(t, "accounts have been measured, as each second", func() error {
		if time.Since(called) < 2*time.Second {
			return errors.New("not yet")
		}
		return nil
	})
	for _, name := range names {
		sum += a.Metric(t, fmt.Sprintf("select_service_memory_account_bytes{account=%q}", name))
	}
	return sum
}

// promptText is a body with a prompt of shared tokens and then own ones.
func promptText(head string, shared, own, n int) []byte {
	b := fmt.Appendf(nil, `{"model_name":"m",%s"token_ids":[7`, head)
	for i := 1; i < shared+own; i++ {
		token := i % 50_000
		if i >= shared {
			token = 50_000 + (i*31+n*104729)%70_000
		}
		b = strconv.AppendInt(append(b, ','), int64(token), 10)
	}
	return append(b, ']', '}')
}

// post sends a request on a connection of its own, and does not await the answer.
func (a *accounted) post(t *testing.T, path string, body []byte) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", a.Address())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body); err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *accounted) mustPost(t *testing.T, path string, body []byte) {
	t.Helper()
	res, err := a.HTTP.Post(a.URL()+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if answer, _ := io.ReadAll(res.Body); res.StatusCode >= 300 {
		t.Fatalf("%s: %d %s", path, res.StatusCode, answer)
	}
}

// TestAccountsAreReal compares accounts with what the process holds, over plays of requests: they
// are not below it, and at most half above it. docs/run/sizing.md has the table that it logs.
func TestAccountsAreReal(t *testing.T) {
	if testing.Short() || e2e.Race(t) {
		t.Skip("measures a whole program")
	}
	fill := func(path, head string, shared, own int) func(t *testing.T, s *accounted, from, n int) {
		return func(t *testing.T, s *accounted, from, n int) {
			for i := from; i < from+n; i++ {
				named := head
				if head != "" {
					named = fmt.Sprintf(head, i)
				}
				s.mustPost(t, path, promptText(named, shared, own, i))
			}
		}
	}
	waiting := func(shared, own int) func(t *testing.T, s *accounted, from, n int) {
		return func(t *testing.T, s *accounted, from, n int) { waitAll(t, s, from, n, shared, own) }
	}
	queue := []string{"--router-queue-threshold=0"}
	for _, c := range []struct {
		name     string
		args     []string
		n        int
		accounts []string
		play     func(t *testing.T, s *accounted, from, n int)
	}{
		{"reservations of 20 tokens", nil, 8_000, []string{"ledger", "remembered"}, fill("/select_and_reserve", "", 4, 16)},
		{"the same with names", nil, 8_000, []string{"ledger", "remembered"}, fill("/select_and_reserve", `"reservation_id":"reservation-%d",`, 4, 16)},
		{"reservations of 8,000 new tokens", nil, 2_000, []string{"ledger", "remembered"}, fill("/select_and_reserve", "", 0, 8000)},
		{"of 52,000, which share 50,000", nil, 2_000, []string{"ledger", "remembered", "scanned"}, fill("/select_and_reserve", "", 50_000, 2000)},
		{"the same without a scan cache", []string{"--scan-cache=0"}, 2_000, []string{"ledger", "remembered"}, fill("/select_and_reserve", "", 50_000, 2000)},
		{"prompts of 52,000, looked up", nil, 800, []string{"scanned", "remembered"}, fill("/select", "", 0, 52_000)},
		{"pending selections of 20 tokens", nil, 3_000, []string{"remembered"}, fill("/v1.6/select", `"selection_id":"selection-%d",`, 4, 16)},
		{"pending selections of 8,000", nil, 3_000, []string{"remembered"}, fill("/v1.6/select", `"selection_id":"selection-%d",`, 0, 8000)},
		{"sessions", []string{"--session-affinity-ttl-secs=600"}, 8_000, []string{"ledger", "remembered"}, fill("/v1.6/select_and_reserve", `"session_id":"session-%d",`, 4, 16)},
		{"waiting requests of 20 tokens", queue, 800, []string{"waiting"}, waiting(4, 16)},
		{"waiting requests of 8,000", queue, 800, []string{"waiting"}, waiting(0, 8000)},
		{"cached blocks", nil, 600_000, []string{"index"}, cacheBlocks},
		{"messages that a replica does not read", nil, 2_500, []string{"ledger", "remembered", "replication"}, replicateUnread},
	} {
		t.Run(c.name, func(t *testing.T) {
			debugPort := e2e.FreePort(t)
			s := &accounted{engine: zmqtest.NewPublisher(t, ""), sync: e2e.FreePort(t)}
			s.Service = e2e.Serve(t, nil, append(c.args, "--max-memory=4GiB", "--log-level=warn",
				fmt.Sprintf("--debug-listen=127.0.0.1:%d", debugPort), fmt.Sprintf("--replica-sync-port=%d", s.sync))...)
			s.debug = s.At(debugPort)
			s.Must(t, http.StatusCreated, http.MethodPost, "/workers", object{
				"worker_id": 1, "model_name": "m", "endpoint": "http://127.0.0.1:1", "block_size": 16,
				"data_parallel_start_rank": 0, "data_parallel_size": 1, "max_num_batched_tokens": 1, "total_kv_blocks": 1 << 30,
				"kv_events_endpoints": object{"0": s.engine.Endpoint},
			}, nil)
			s.engine.Subscribers(1)
			c.play(t, s, 0, c.n/10) // pools and tables
			held, accounted := s.debug.InUse(t), s.account(t, c.accounts...)
			c.play(t, s, c.n/10, c.n)
			held, accounted = s.debug.InUse(t)-held, s.account(t, c.accounts...)-accounted
			t.Logf("%v: %d bytes each, the process %d: %.2f", c.accounts, accounted/c.n, held/c.n, float64(accounted)/float64(held))
			const beside = 128 << 10 // bytes of a process of 50 MB that have to do with other things
			if accounted < held-beside || 2*accounted > 3*held {
				t.Errorf("%d bytes on accounts, %d in use", accounted, held)
			}
		})
	}
}

// waitAll has n requests wait.
func waitAll(t *testing.T, s *accounted, from, n, shared, own int) {
	t.Helper()
	if from == 0 { // which makes the worker busy
		s.mustPost(t, "/select_and_reserve", promptText("", 0, 64, 1<<20))
	}
	for i := from; i < from+n; i++ {
		c := s.post(t, "/select_and_reserve", promptText("", shared, own, i))
		t.Cleanup(func() { _ = c.Close() })
	}
	e2e.Eventually(t, "all wait", func() error {
		got, err := s.Sum(t.Context(), "select_service_queued_requests")
		if err == nil && int(got) < from+n {
			err = fmt.Errorf("%v wait", got)
		}
		return err
	})
}

// cacheBlocks has the engine cache n blocks, in chains of 60.
func cacheBlocks(t *testing.T, s *accounted, from, n int) {
	const chain = 60
	for i := from; i < from+n; i += chain {
		names, tokens := make([]uint64, chain), make([]uint32, 16*chain)
		for k := range names {
			names[k] = uint64(i + k + 1)
		}
		for k := range tokens {
			tokens[k] = uint32(16*i + k)
		}
		payload, err := msgpack.Marshal([]any{1.5, []any{[]any{"BlockStored", names, nil, tokens, 16, nil}}, 0})
		if err != nil {
			t.Fatal(err)
		}
		s.engine.Publish(uint64(i/chain), payload)
	}
	e2e.Eventually(t, "all blocks are in the index", func() error {
		got, err := s.Sum(t.Context(), "select_service_index_blocks")
		if err == nil && int(got) < from+n {
			err = fmt.Errorf("%v are", got)
		}
		return err
	})
}

// replicateUnread books n prompts beside a replica that subscribes to everything and reads nothing.
func replicateUnread(t *testing.T, s *accounted, from, n int) {
	if from == 0 {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.sync)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		const ready = "\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
		hello := append([]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL"), make([]byte, 48)...) // ZMTP 3.0
		hello = append(append(hello, 4, byte(len(ready))), ready...)
		if _, err := c.Write(append(hello, 0, 1, 1)); err != nil { // subscribe to ""
			t.Fatal(err)
		}
	}
	for i := from; i < from+n; i++ {
		s.mustPost(t, "/select_and_reserve", promptText("", 0, 8000, i))
	}
}
