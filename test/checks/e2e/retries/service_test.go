package retries_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/checks/e2e"
)

const (
	model = "m"
	// lease is short enough to wait for its end, and so long that a busy machine
	// renews it in time.
	lease = 12 * time.Second
)

// workerIDs are beyond what a double or a signed number can have.
var workerIDs = []uint64{1, 1<<63 + 1, 1<<64 - 1}

// service is one real process, or one after the other on the same port.
type service struct {
	*e2e.Service
	t *testing.T
	// direct is a client that nothing disturbs.
	direct *client.Client
}

// start starts a service with workers.
func start(t *testing.T, args ...string) *service {
	t.Helper()
	s := &service{Service: e2e.Serve(t, nil, append([]string{"--listen", "127.0.0.1", "--use-kv-events=false"}, args...)...), t: t}
	s.direct = newClient(t, s.URL(), nil)
	s.register()
	return s
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
	s.Run()
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

// event is how many reservations had an event.
func (s *service) event(name string) uint64 {
	s.t.Helper()
	return uint64(s.Metric(s.t, `select_service_reservation_events_total{event="`+name+`"}`))
}

// balance fails unless every booking that was made has ended in one way.
func (s *service) balance() error {
	s.t.Helper()
	live := uint64(s.Metric(s.t, "select_service_reservations_live"))
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
	c, err := client.New(url, client.Options{HTTP: h, Lease: lease, Retry: &client.Retry{Overload: soon, Connection: soon}})
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
