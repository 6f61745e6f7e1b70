package replicas_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/natstest"
)

// TestFleetMeets proves on a real server, in short, that replicas which are told of nothing but NATS have
// each other's workers, policies, reservations and states; that a replica that joins after another one was
// killed has what that one booked; and that selections go on without the server, while changes are refused.
func TestFleetMeets(t *testing.T) {
	server := natstest.Start(t)
	f := newFleet(t, options{direct: true, nats: server.URL, last: 1, args: func([]string, int) []string {
		return []string{"--use-kv-events=false"}
	}})
	first, second, late := f.replicas[0], f.replicas[1], f.replicas[2]
	f.registerOnce(first, second)
	for _, r := range []*replica{first, second} {
		e2e.Eventually(t, r.name+" hears the other", func() error { return r.hears(1) })
		e2e.Eventually(t, r.name+" has read the other's state", r.agrees)
	}

	var set struct {
		Behind []string `json:"replicas_behind"`
	}
	section := e2e.Object{"aggregated": "few", "instances": []e2e.Object{{"name": "few", "type": "least-loaded"}}}
	first.Must(t, http.StatusOK, http.MethodPut, "/policies", e2e.Object{"worker_selection": section}, &set)
	if len(set.Behind) == 0 { // on a busy machine one may be late
		if err := second.chooses("few"); err != nil {
			t.Errorf("acknowledged: %v", err)
		}
	}
	e2e.Eventually(t, "the policy is the other's", func() error { return second.chooses("few") })

	for n := range 5 {
		first.reserve(fmt.Sprint("r", n))
	}
	e2e.Eventually(t, "the other has the reservations", func() error { return reserved(second, 5) })
	first.Kill()
	late.Run()
	e2e.Eventually(t, "the late replica is ready", late.ready)
	if err := late.chooses("few"); err != nil {
		t.Errorf("ready: %v", err)
	}
	e2e.Eventually(t, "it has the reservations", func() error { return reserved(late, 5) })
	late.must(http.StatusOK, http.MethodDelete, "/reservations/r0", nil)
	e2e.Eventually(t, "the end is known", func() error { return reserved(second, 4) })

	server.Kill(t)
	e2e.Eventually(t, "a change is refused", func() error {
		a, err := second.Call(t.Context(), http.MethodDelete, "/policies", nil)
		if err == nil && a.Status != http.StatusServiceUnavailable {
			err = fmt.Errorf("status %d", a.Status)
		}
		return err
	})
	second.reserve("away")
	server.Restart(t)
	e2e.Eventually(t, "what was booked without the server is known", func() error { return reserved(late, 5) })
}

// reserve selects a worker under an id.
func (r *replica) reserve(id string) {
	r.t.Helper()
	if err := r.Do(r.t.Context(), http.MethodPost, "/select_and_reserve", e2e.Object{
		"model_name": workers[0].model, "reservation_id": id, "token_ids": []int{1, 2, 3, 4, 5, 6, 7, 8},
	}, nil); err != nil {
		r.t.Fatal(err)
	}
}

// agrees returns an error unless a replica has read the states of all others that it follows, and the
// doctor has nothing to say of them.
func (r *replica) agrees() error {
	var seen struct {
		Peers []struct {
			Processes []struct{ Read, Error string }
		}
	}
	if err := r.get("/replicas", &seen); err != nil {
		return err
	}
	for _, p := range seen.Peers {
		for _, x := range p.Processes {
			if x.Read == "" || x.Error != "" {
				return fmt.Errorf("read at %q: %s", x.Read, x.Error)
			}
		}
	}
	if len(seen.Peers) == 0 || len(seen.Peers[0].Processes) == 0 {
		return errors.New("no peer")
	}
	var doctor struct {
		Findings []struct{ Check, Sentence string }
	}
	if err := r.get("/doctor", &doctor); err != nil {
		return err
	}
	for _, x := range doctor.Findings {
		if strings.HasPrefix(x.Check, "peer_") {
			return errors.New(x.Sentence)
		}
	}
	return nil
}

// chooses returns an error unless a replica chooses by a policy in every scope.
func (r *replica) chooses(policy string) error {
	var list []struct {
		Policy string `json:"policy"`
	}
	if err := r.get("/policies", &list); err != nil {
		return err
	}
	for _, x := range list {
		if x.Policy != policy {
			return fmt.Errorf("%s chooses by %s", r.name, x.Policy)
		}
	}
	return nil
}

// reserved returns an error if a replica has not that many reservations.
func reserved(r *replica, want int) error {
	s, err := r.state()
	if err == nil && len(s) != want {
		err = fmt.Errorf("%s has %d reservations, want %d", r.name, len(s), want)
	}
	return err
}
