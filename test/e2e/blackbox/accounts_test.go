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

	"github.com/select-service/select-service/test/e2e"
)

// accounted is a service whose memory can be read beside its accounts.
type accounted struct {
	*e2e.Service
	debug *e2e.Service
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
// are not below it, and at most half above it. docs/operators.md has the table that it logs.
func TestAccountsAreReal(t *testing.T) {
	if testing.Short() || e2e.Race {
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
		{"of 52,000, which share 50,000", nil, 2_000, []string{"ledger", "remembered"}, fill("/select_and_reserve", "", 50_000, 2000)},
		{"pending selections of 20 tokens", nil, 3_000, []string{"remembered"}, fill("/v1.6/select", `"selection_id":"selection-%d",`, 4, 16)},
		{"pending selections of 8,000", nil, 3_000, []string{"remembered"}, fill("/v1.6/select", `"selection_id":"selection-%d",`, 0, 8000)},
		{"waiting requests of 20 tokens", queue, 800, []string{"waiting"}, waiting(4, 16)},
		{"waiting requests of 8,000", queue, 800, []string{"waiting"}, waiting(0, 8000)},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := strconv.Itoa(e2e.FreePort(t))
			s := &accounted{Service: e2e.Serve(t, nil, append(c.args, "--use-kv-events=false", "--max-memory=4GiB", "--log-level=warn", "--debug-listen=127.0.0.1:"+port)...)}
			n, _ := strconv.Atoi(port)
			s.debug = s.At(n)
			s.Must(t, http.StatusCreated, http.MethodPost, "/workers", object{
				"worker_id": 1, "model_name": "m", "endpoint": "http://127.0.0.1:1", "block_size": 16,
				"data_parallel_start_rank": 0, "data_parallel_size": 1, "max_num_batched_tokens": 1, "total_kv_blocks": 1 << 30,
			}, nil)
			c.play(t, s, 0, c.n/10) // pools and tables
			held, accounted := s.debug.InUse(t), s.account(t, c.accounts...)
			c.play(t, s, c.n/10, c.n)
			held, accounted = s.debug.InUse(t)-held, s.account(t, c.accounts...)-accounted
			t.Logf("%v: %d bytes each, the process %d: %.2f", c.accounts, accounted/c.n, held/c.n, float64(accounted)/float64(held))
			if accounted < held || 2*accounted > 3*held {
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
