package attacks

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// The memory of a service that was given 512 MiB, in KiB: at any time, and once the
// attackers have left.
const (
	peakMemory  = 700 << 10
	afterMemory = 560 << 10
	afterTime   = 15 * time.Second
)

// goodShare is the least share of the other callers' requests that is served, and
// goodTime the 99th percentile of their times.
const (
	goodShare = 0.9
	goodTime  = 250 * time.Millisecond
)

// limited starts the service with 512 MiB and one worker with blocks of blockSize
// tokens.
func limited(t *testing.T, blockSize int, args ...string) *e2e.Service {
	t.Helper()
	// By the environment: the program before this option ignores that.
	s := e2e.Serve(t, map[string]string{"SELECT_SERVICE_MAX_MEMORY": "512MiB"}, append([]string{"--use-kv-events=false"}, args...)...)
	s.Must(t, http.StatusCreated, http.MethodPost, "/workers", e2e.Object{
		"worker_id": 1, "endpoint": "http://w", "block_size": blockSize, "max_num_batched_tokens": 8192,
	}, nil)
	return s
}

// TestMemory plays attackers against the memory of the service: it keeps its budget,
// serves others meanwhile, and gives back what the attack took.
func TestMemory(t *testing.T) {
	large := prompt(8<<20 - 100)
	for _, tc := range []struct {
		name      string
		blockSize int
		args      []string
		attack    func(t *testing.T, s *e2e.Service, stop <-chan struct{})
	}{
		{"40 large bodies", 16, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			flood(t, s, 40, stop, "/select", large)
		}},
		{"40 large bodies of blocks of one token", 1, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			flood(t, s, 40, stop, "/v1.6/select_and_reserve", large)
		}},
		{"large bodies on all routes", 16, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			flood(t, s, 3, stop, "/v1.6/select", hashBody(8<<20-100))
			flood(t, s, 3, stop, "/reservations", hashBody(8<<20-100))
			flood(t, s, 3, stop, "/overlap_scores", large)
			flood(t, s, 3, stop, "/potential_loads", large)
			flood(t, s, 3, stop, "/diagnose", large)
			flood(t, s, 3, stop, "/slots/add", hashBody(2<<20-100))
			flood(t, s, 3, stop, "/conductor/query", append([]byte(`{"model":"m","block_size":16,`), large[1:]...))
			flood(t, s, 3, stop, "/conductor/query_by_hash", append([]byte(`{"model":"m","block_size":16,`), hashBody(8<<20 - 100)[1:]...))
		}},
		{"lists that grow", 16, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			const n = 8<<20 - 200
			flood(t, s, 5, stop, "/select", repeatIn(`{"token_ids":[1],"routing_constraints":{"required_taints":[`, `"",`, `""]}}`, n))
			flood(t, s, 5, stop, "/select", repeatIn(`{"token_ids":[1],"block_mm_infos":[`, `null,`, `null]}`, n))
			flood(t, s, 5, stop, "/select", repeatIn(`{"token_ids":[1],"block_mm_infos":[{"mm_objects":[`, `{"mm_hash":1,"offsets":[]},`, `{"mm_hash":1,"offsets":[]}]}]}`, n))
			flood(t, s, 5, stop, "/select", repeatIn(`{"token_ids":[1],"allowed_worker_ids":[`, `1,`, `1]}`, n))
			flood(t, s, 5, stop, "/select", numbered(`{"token_ids":[1],"routing_constraints":{"preferred_taints":{`, `"%x":1,`, `"z":1}}}`, n))
			flood(t, s, 5, stop, "/workers", numbered(`{"workers":[`, `{"worker_id":%d,"block_size":16},`, `{"worker_id":0}]}`, n))
		}},
		{"PUT of many workers", 16, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			sendAll(t, s, 8, stop, http.MethodPut, "/workers?dry_run=true", numbered(`{"workers":[`, `{"worker_id":%d,"block_size":16},`, `{"worker_id":0,"block_size":16}]}`, 8<<20-200))
		}},
		{"900 medium bodies", 16, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			flood(t, s, 300, stop, "/select", prompt(900<<10))
		}},
		{"200 bodies that never end", 16, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			hold(t, s, 200, stop, large, len(large)-1)
		}},
		{"2,000 small bodies that never end", 16, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			hold(t, s, 2000, stop, prompt(64<<10), 64<<10-2)
		}},
		{"5,000 small bodies that stop half-way", 16, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			hold(t, s, 5000, stop, prompt(64<<10), 33<<10)
		}},
		{"bodies of all sizes that stop half-way, also chunked", 16, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			for _, n := range []int{1 << 10, 8 << 10, 33 << 10, 64 << 10, 200 << 10, 900 << 10, 8<<20 - 100} {
				body := prompt(n)
				hold(t, s, 100, stop, body, n/2)
				holdAfter(t, s, 100, stop, fmt.Appendf(nil, "%s: chunked\r\n\r\n%x\r\n", holdHead+"Transfer-Encoding", len(body)), body[:n/2])
			}
		}},
		{"medium bodies that never end", 16, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			hold(t, s, 500, stop, prompt(300<<10), 299<<10)
		}},
		{"answers that nobody reads", 1, nil, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
			deaf(t, s, 60, stop, "/v1.6/select_and_reserve", prompt(2<<20))
		}},
		{
			"60 large bodies that wait", 16, []string{"--router-queue-threshold", "0.01"}, func(t *testing.T, s *e2e.Service, stop <-chan struct{}) {
				s.Must(t, http.StatusOK, http.MethodPost, "/select_and_reserve", prompt(40<<10), nil) // the worker is busy
				s.Must(t, http.StatusCreated, http.MethodPost, "/workers", e2e.Object{
					"worker_id": 2, "model_name": "free", "endpoint": "http://w", "block_size": 16, "max_num_batched_tokens": 1 << 40,
				}, nil)
				flood(t, s, 60, stop, "/select_and_reserve", large)
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := limited(t, tc.blockSize, tc.args...)
			stop := make(chan struct{})
			good := make(chan others)
			model := "default"
			if len(tc.args) > 0 {
				model = "free" // the workers of the default one are busy
			}
			tc.attack(t, s, stop)
			go func() { good <- callBeside(s, model, stop) }()
			time.Sleep(attackTime())
			close(stop)
			(<-good).check(t)
			checkMemory(t, s)
		})
	}
}

// attackTime is how long an attack lasts.
func attackTime() time.Duration { return time.Duration(size(4, 2)) * time.Second }

// checkMemory checks the peak of an attack that is over, and that its memory comes
// back.
func checkMemory(t *testing.T, s *e2e.Service) {
	t.Helper()
	begin := time.Now()
	for _, account := range []string{"requests", "bodies", "serving", "answers", "waiting"} {
		e2e.Eventually(t, "account "+account+" is empty", func() error {
			used, err := s.Sum(t.Context(), `select_service_memory_account_bytes{account="`+account+`"}`)
			if err == nil && used != 0 {
				return fmt.Errorf("%v bytes are left", used)
			}
			return err
		})
	}
	peak, err := s.Status("VmHWM")
	if err != nil {
		t.Fatal(err)
	}
	if peak > peakMemory {
		t.Fatalf("it took %d MiB, want at most %d", peak>>10, peakMemory>>10)
	}
	var rss int
	e2e.Eventually(t, "the memory comes back", func() error {
		if rss, err = s.Status("VmRSS"); err == nil && rss > afterMemory {
			return fmt.Errorf("%d MiB are left", rss>>10)
		}
		return err
	})
	took := time.Since(begin)
	if e2e.Alone() && took > afterTime {
		t.Errorf("the memory came back after %v", took)
	}
	t.Logf("peak %d MiB, %d MiB after %v", peak>>10, rss>>10, took.Round(time.Millisecond))
}

// others are the requests of callers who do no harm.
type others struct {
	sent, served int
	took         []time.Duration // of those that were served
	last         string          // that was not
}

func (o others) check(t *testing.T) {
	t.Helper()
	slices.Sort(o.took)
	var p99 time.Duration
	if n := len(o.took); n > 0 {
		p99 = o.took[n*99/100]
	}
	// A few requests make no share: then the machine is busy with the attack itself.
	const enough = 20
	if (e2e.Alone() || o.sent >= enough) && float64(o.served) < goodShare*float64(o.sent) {
		t.Errorf("%d of %d other requests were served, the last one not: %s", o.served, o.sent, o.last)
	}
	if e2e.Alone() && p99 > goodTime {
		t.Errorf("99 %% of them within %v", p99)
	}
	t.Logf("%d of %d others served, p99 %v", o.served, o.sent, p99)
}

// callBeside sends selections of 1,000 and 8,000 tokens until the attack stops.
func callBeside(s *e2e.Service, model string, stop <-chan struct{}) (o others) {
	bodies := [][]byte{prompt(6 << 10), prompt(48 << 10)}
	for i := range bodies {
		bodies[i] = append([]byte(`{"model_name":"`+model+`",`), bodies[i][1:]...)
	}
	for i := 0; ; i++ {
		select {
		case <-stop:
			return o
		case <-time.After(10 * time.Millisecond):
		}
		begin := time.Now()
		a, err := s.Call(context.Background(), http.MethodPost, "/select", bodies[i%len(bodies)])
		o.sent++
		if err == nil && a.Status == http.StatusOK {
			o.served++
			o.took = append(o.took, time.Since(begin))
		} else {
			o.last = fmt.Sprint(a, err)
		}
	}
}

// flood posts a body again and again on n connections until stop.
func flood(t *testing.T, s *e2e.Service, n int, stop <-chan struct{}, path string, body []byte) {
	t.Helper()
	sendAll(t, s, n, stop, http.MethodPost, path, body)
}

func sendAll(t *testing.T, s *e2e.Service, n int, stop <-chan struct{}, method, path string, body []byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	var wg sync.WaitGroup
	var served, refused, cut atomic.Int64
	for range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, method, s.URL()+path, bytes.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Content-Type", "application/json")
				resp, err := client.Do(req)
				if err != nil {
					cut.Add(1)
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				switch resp.StatusCode {
				case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusRequestEntityTooLarge:
					refused.Add(1)
				default:
					served.Add(1)
				}
			}
		})
	}
	t.Cleanup(client.CloseIdleConnections)
	done := make(chan struct{})
	go func() {
		<-stop
		cancel()
		wg.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		<-done
		t.Logf("%s: %d served, %d refused, %d cut off", path, served.Load(), refused.Load(), cut.Load())
	})
}

// hold sends the first part of a body on n connections, and again when it is cut off.
func hold(t *testing.T, s *e2e.Service, n int, stop <-chan struct{}, body []byte, part int) {
	t.Helper()
	holdAfter(t, s, n, stop, fmt.Appendf(nil, "%s: %d\r\n\r\n", holdHead+"Content-Length", len(body)), body[:part])
}

const holdHead = "POST /select HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"

// holdAfter is hold with the head that comes before the part.
func holdAfter(t *testing.T, s *e2e.Service, n int, stop <-chan struct{}, head, part []byte) {
	t.Helper()
	connections(t, s.Address(), n, stop, func(conn net.Conn) {
		_, _ = conn.Write(head)
		if _, err := conn.Write(part); err == nil {
			_, _ = io.Copy(io.Discard, conn)
		}
	})
}

// deaf posts a body on n connections and reads no answer.
func deaf(t *testing.T, s *e2e.Service, n int, stop <-chan struct{}, path string, body []byte) {
	t.Helper()
	head := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, len(body))
	connections(t, s.Address(), n, stop, func(conn net.Conn) {
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		for {
			_, _ = conn.Write(head)
			if _, err := conn.Write(body); err != nil {
				return
			}
		}
	})
}

// connections runs use on n connections, each again with a new one, until stop.
func connections(t *testing.T, address string, n int, stop <-chan struct{}, use func(net.Conn)) {
	t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				ended := make(chan struct{})
				go func() {
					select {
					case <-stop:
					case <-ended:
					}
					_ = conn.Close()
				}()
				use(conn)
				close(ended)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	t.Cleanup(wg.Wait)
}

// prompt is a selection of about n bytes whose tokens have one digit.
func prompt(n int) []byte { return repeatIn(`{"token_ids":[`, "1,", "1]}", n) }

// hashBody is a body of about n bytes with the hashes of a prompt, for all routes that
// take them.
func hashBody(n int) []byte {
	const head = `{"worker_id":1,"dp_rank":0,"model_name":"default","reservation_id":"r","request_id":"r","isl_tokens":100,`
	list := func(name string) []byte { return repeatIn(`"`+name+`":[`, "1,", "1]", (n-len(head))/4) }
	lists := [][]byte{list("block_hashes"), list("sequence_hashes"), list("seq_hashes"), list("token_sequence")}
	return slices.Concat([]byte(head), bytes.Join(lists, []byte(",")), []byte("}"))
}

func repeatIn(head, element, tail string, n int) []byte {
	return []byte(head + strings.Repeat(element, (n-len(head)-len(tail))/len(element)) + tail)
}

// numbered is repeat with the number of the element in it.
func numbered(head, element, tail string, n int) []byte {
	text := []byte(head)
	for i := 1; len(text)+len(element)+len(strconv.Itoa(i))+len(tail) < n; i++ {
		text = fmt.Appendf(text, element, i)
	}
	return append(text, tail...)
}
