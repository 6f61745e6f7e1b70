package retries_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/procs"
)

const (
	model   = "m"
	startIn = 60 * time.Second
	endIn   = 30 * time.Second // of a lease of a second, on a loaded machine
)

// workerIDs are beyond what a double or a signed number can have.
var workerIDs = []uint64{1, 1<<63 + 1, 1<<64 - 1}

// service is one real process, or one after the other on the same port.
type service struct {
	*procs.Process
	t    *testing.T
	port int
	args []string
	// direct is a client that nothing disturbs.
	direct *client.Client
}

func start(t *testing.T, args ...string) *service {
	t.Helper()
	s := &service{t: t, port: procs.FreePort(t), args: args}
	s.run()
	s.direct = newClient(t, s.url(), nil)
	s.register()
	return s
}

func (s *service) url() string { return "http://127.0.0.1:" + strconv.Itoa(s.port) }

// run starts a process and waits until it answers.
func (s *service) run() {
	s.t.Helper()
	command := append([]string{procs.Binary(s.t), "--listen", "127.0.0.1", "--port", strconv.Itoa(s.port), "--use-kv-events=false"}, s.args...)
	s.Process = procs.Start(s.t, procs.Options{Command: command, Address: "127.0.0.1:" + strconv.Itoa(s.port)})
	h := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	s.Answers(s.t, startIn, h)
}

// register gives it the workers in one step.
func (s *service) register() {
	s.t.Helper()
	var workers []client.Worker
	for _, id := range workerIDs {
		workers = append(workers, client.Worker{ID: id, Model: model, Endpoint: new(fmt.Sprintf("http://gpu-%d", id)), BlockSize: new(uint32(16))})
	}
	if _, err := s.direct.ReplaceWorkers(s.t.Context(), client.Scope{}, workers); err != nil {
		s.t.Fatal(err)
	}
}

// restart kills the process and starts another one with the same workers.
func (s *service) restart() {
	s.t.Helper()
	s.Kill()
	s.run()
	s.register()
}

// carried is what the ranks carry together.
func (s *service) carried() (sum client.RankLoad, err error) {
	scopes, err := s.direct.Loads(context.Background(), client.Scope{})
	for _, sc := range scopes {
		for _, l := range sc.Loads {
			sum.ActiveRequests += l.ActiveRequests
			sum.PrefillTokens += l.PrefillTokens
			sum.DecodeBlocks += l.DecodeBlocks
		}
	}
	return sum, err
}

// carries fails unless the service carries so many requests.
func (s *service) carries(want uint64) error {
	sum, err := s.carried()
	if err == nil && (sum.ActiveRequests != want || want == 0 && sum != (client.RankLoad{})) {
		err = fmt.Errorf("carries %+v, want %d requests", sum, want)
	}
	return err
}

// metric is one sample of /metrics.
func (s *service) metric(sample string) (uint64, error) {
	answer, err := procs.Call(context.Background(), http.DefaultClient, http.MethodGet, s.url()+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(answer.Body)) {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("no sample %s", sample)
}

// event is how many reservations had an event.
func (s *service) event(name string) uint64 {
	s.t.Helper()
	n, err := s.metric(`select_service_reservation_events_total{event="` + name + `"}`)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// balance fails unless every booking that was made has ended in one way.
func (s *service) balance() error {
	live, err := s.metric("select_service_reservations_live")
	if err != nil {
		return err
	}
	booked, ended := s.event("booked"), s.event("freed")+s.event("expired")+s.event("dropped")
	if booked != ended+live || live != 0 {
		return fmt.Errorf("%d booked, %d ended, %d live", booked, ended, live)
	}
	return nil
}

// newClient returns one that repeats soon; it is closed at the end of the test.
func newClient(t *testing.T, url string, h *http.Client) *client.Client {
	t.Helper()
	soon := client.Backoff{Attempts: 6, Base: 5 * time.Millisecond, Jitter: 5 * time.Millisecond, Max: time.Second}
	c, err := client.New(url, client.Options{HTTP: h, Lease: time.Second, Retry: &client.Retry{Overload: soon, Connection: soon}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // whatever happened to its service
	return c
}

// promptOf has n tokens; which makes it differ from others.
func promptOf(n int, which uint32) client.Prompt {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = which
	}
	return client.Prompt{TokenIDs: tokens}
}

func request(n int, which uint32) client.SelectRequest {
	return client.SelectRequest{Model: model, Prompt: promptOf(n, which)}
}
