package attacks

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// keepAlive sends a request on a connection and reads its answer.
func keepAlive(conn net.Conn) error {
	if _, err := io.WriteString(conn, keptAlive); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// TestThousandsOfConnections: 4,000 callers that keep their connections are all served,
// again and again.
func TestThousandsOfConnections(t *testing.T) {
	onFronts(t, func(t *testing.T, f *front) {
		var all []net.Conn
		for i := range 4000 {
			conn := dial(t, f.address, "")
			if err := keepAlive(conn); err != nil { // at once: a connection that says nothing is closed after 10 s
				t.Fatalf("connection %d: %v", i, err)
			}
			all = append(all, conn)
		}
		for range 2 {
			for i, conn := range all {
				if err := keepAlive(conn); err != nil {
					t.Fatalf("connection %d: %v", i, err)
				}
			}
		}
		if open := f.Metric(t, "select_service_http_connections"); open < len(all) {
			t.Errorf("%d connections are open", open)
		}
	})
}

// TestConnectionLimit: those who hold all connections that there may be keep nobody
// out, whether theirs are idle or in requests whose bodies do not come; requests that
// wait in a queue do, and that is an answer and a count.
func TestConnectionLimit(t *testing.T) {
	const most = 300
	s := e2e.Serve(t, nil, "--use-kv-events=false", "--max-connections", strconv.Itoa(most), "--router-queue-threshold", "0.01")
	s.Must(t, http.StatusCreated, http.MethodPost, "/workers", e2e.Object{
		"worker_id": 1, "model_name": "m", "endpoint": "http://w", "block_size": 16, "max_num_batched_tokens": 1000,
	}, nil)
	s.Must(t, http.StatusCreated, http.MethodPost, "/reservations", e2e.Object{
		"reservation_id": "r", "model_name": "m", "worker_id": 1, "dp_rank": 0, "sequence_hashes": []int{1}, "isl_tokens": 1000,
	}, nil)
	for range 2 * most {
		if err := keepAlive(dial(t, s.Address(), "")); err != nil {
			t.Fatal(err)
		}
	}
	hammer(t, s, 80)
	if open := s.Metric(t, "select_service_http_connections"); open > most {
		t.Errorf("%d connections are open", open)
	}
	if closed := s.Metric(t, "select_service_http_connections_closed_idle_total"); closed < most {
		t.Errorf("%d connections were closed", closed)
	}
	for range 2 * most {
		dial(t, s.Address(), slowBody)
	}
	e2e.Eventually(t, "a caller among those whose bodies do not come", func() error {
		return keepAlive(dial(t, s.Address(), ""))
	})
	const waits = `{"model_name":"m","token_ids":[1]}`
	queued := "POST /select HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: " +
		strconv.Itoa(len(waits)) + "\r\n\r\n" + waits
	for range 2 * most {
		dial(t, s.Address(), queued)
	}
	e2e.Eventually(t, "the next connection is refused", func() error {
		conn := dial(t, s.Address(), queued)
		_ = conn.SetReadDeadline(soon())
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil { // it holds one more
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" || !strings.Contains(string(text), "too many connections") {
			t.Errorf("%s %v %s %v", answer.Status, answer.Header, text, err)
		}
		return nil
	})
}

// mustCount proves that connections were refused because of a limit.
func mustCount(t *testing.T, s *e2e.Service, limit string) {
	t.Helper()
	a, err := s.Call(t.Context(), http.MethodGet, "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	sample := `select_service_http_connections_refused_total{limit="` + limit + `"} `
	if text := string(a.Body); !strings.Contains(text, sample) || strings.Contains(text, sample+"0\n") {
		t.Errorf("refusals because of %s are not counted", limit)
	}
}

// TestAddressLimit: one address has its share, which it gets back.
func TestAddressLimit(t *testing.T) {
	s := e2e.Serve(t, nil, "--max-connections-per-address", "50")
	var held []net.Conn
	for range 45 {
		conn := dial(t, s.Address(), "")
		if err := keepAlive(conn); err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	e2e.Eventually(t, "a connection is refused", func() error {
		conn := dial(t, s.Address(), "")
		held = append(held, conn)
		if err := keepAlive(conn); err != nil {
			return nil //nolint:nilerr // that is it
		}
		return errors.New("answered")
	})
	if len(held) > 51 {
		t.Errorf("%d connections were taken", len(held)-1)
	}
	for _, conn := range held {
		_ = conn.Close()
	}
	e2e.Eventually(t, "it is served again", func() error { return keepAlive(dial(t, s.Address(), "")) })
	mustCount(t, s, "max_connections_per_address")
}

// TestLongHeads: thousands of connections that stop within a long head do not hold
// what they have sent, and others are answered.
func TestLongHeads(t *testing.T) {
	onFronts(t, func(t *testing.T, f *front) {
		text := f.head() + "X-" + strings.Repeat("Long: "+strings.Repeat("x", 1000)+"\r\nX-", 62)
		for range 4000 {
			dial(t, f.address, text)
		}
	})
}

// TestManyFields: heads of thousands of short fields take many times their length in
// memory. Thousands of connections that stop within one, or behind it within the body, over
// both versions of HTTP, do not hold that, and others are answered.
func TestManyFields(t *testing.T) {
	var lines, packed strings.Builder
	for i := range 12_000 {
		lines.WriteString(strconv.FormatInt(int64(i)+36*36, 36) + ":\r\n")
	}
	for i := range 1500 {
		packed.WriteString("\x00\x03" + strconv.FormatInt(int64(i)+36*36, 36) + "\x00")
	}
	// Settings, then the head of POST http://127.0.0.1PATH without an end of the request.
	const begin = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for name, text := range map[string]func(f *front) string{
		"HTTP/1 within the head": func(f *front) string { return f.head() + "Content-Length: 9\r\n" + lines.String() },
		"HTTP/1 before the body": func(f *front) string { return f.head() + "Content-Length: 9\r\n" + lines.String() + "\r\n" },
		"HTTP/2 within the head": func(f *front) string { return begin + packedHead(f.path, packed.String(), 0) },
		"HTTP/2 before the body": func(f *front) string { return begin + packedHead(f.path, packed.String(), 4) },
	} {
		t.Run(name, func(t *testing.T) {
			onFronts(t, func(t *testing.T, f *front) {
				for range size(4000, 1500) {
					dial(t, f.address, text(f))
				}
			})
		})
	}
}

// packedHead is the frame HEADERS of a POST to a path with further fields.
func packedHead(path, fields string, flags byte) string {
	head := "\x83\x86\x04" + string([]byte{byte(len(path))}) + path + "\x41\x09127.0.0.1" + fields
	return string([]byte{0, byte(len(head) >> 8), byte(len(head)), 1, flags, 0, 0, 0, 1}) + head
}
