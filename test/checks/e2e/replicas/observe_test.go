package replicas_test

import (
	"fmt"
	"net/url"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// agreeIn is how long the replicas have to agree once nothing is faulty, on a
// machine that has nothing else to do.
const agreeIn = 5 * time.Second

// settle waits until all replicas believe what they answered, to the booking,
// and their /loads say the same. Nobody may call them meanwhile. outputs: some
// bookings have output blocks, which no replica tells the others.
func (f *fleet) settle(l *ledger, outputs bool) (took time.Duration) {
	f.t.Helper()
	begin := time.Now()
	e2e.Eventually(f.t, "the replicas agree", func() error {
		s, err := f.compare(l, outputs)
		if err == nil {
			l.agreed(s)
		}
		return err
	})
	if took = time.Since(begin); took > agreeIn && e2e.Alone() {
		f.t.Errorf("the replicas agree after %v, want at most %v", took, agreeIn)
	}
	return took
}

func (f *fleet) compare(l *ledger, outputs bool) (state, error) {
	var states []state
	for i, r := range f.replicas {
		s, err := r.state()
		if err != nil {
			return nil, err
		}
		states = append(states, s)
		if d := states[0].differs(s); d != "" {
			return nil, fmt.Errorf("replicas 0 and %d differ: %s", i, d)
		}
	}
	want, difference := l.compare(states[0])
	if difference != "" {
		return nil, fmt.Errorf("the replicas agree, but not with their answers: %s", difference)
	}
	for _, r := range f.replicas {
		if err := r.checkLoads(want, outputs); err != nil {
			return nil, err
		}
	}
	return states[0], nil
}

// acquaint waits until every replica has heard of every other.
func (f *fleet) acquaint() {
	f.t.Helper()
	for _, r := range f.replicas {
		e2e.Eventually(f.t, r.name+" has heard of the others", func() error {
			var p page
			if err := r.get("/replica_sync/snapshot", &p); err != nil {
				return err
			}
			delete(p.Seen, p.Process)
			if len(p.Seen) != fleetSize-1 {
				return fmt.Errorf("heard of %v", p.Seen)
			}
			return nil
		})
	}
}

// checkLoads compares /loads with what the bookings add up to.
func (r *replica) checkLoads(want map[place]load, outputs bool) error {
	got, err := r.loads()
	if err != nil {
		return err
	}
	for p, l := range got {
		w := want[p]
		if outputs {
			w.Blocks = l.Blocks
		}
		if l != w {
			return fmt.Errorf("%s: load of %v is %+v, its bookings are %+v", r.name, p, l, w)
		}
	}
	for p := range want {
		if _, ok := got[p]; !ok {
			return fmt.Errorf("%s: no load of %v", r.name, p)
		}
	}
	return nil
}

func (r *replica) loads() (map[place]load, error) {
	scopes, err := r.Loads(r.t.Context())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	all := make(map[place]load)
	for _, sc := range scopes {
		for _, l := range sc.Loads {
			all[place{sc.Model, rank{l.WorkerID, l.DPRank}}] = load{l.Prefill, l.Decode, l.Requests}
		}
	}
	return all, nil
}

// page is one of /replica_sync/snapshot.
type page struct {
	Process  uint64            `json:"process_id"`
	Seen     map[uint64]uint64 `json:"seen"` // the last number of each sender
	Bookings []struct {
		Process  uint64 `json:"origin_process"`
		Sequence uint64 `json:"origin_sequence"`
		Model    string `json:"model_name"`
		ID       string `json:"request_id"`
		rank
		Hashes  []uint64 `json:"sequence_hashes"`
		Prefill uint64   `json:"prefill_tokens"`
		Track   bool     `json:"track_prefill_tokens"`
		Done    bool     `json:"prefill_completed"`
	} `json:"bookings"`
	Next string `json:"next"`
}

// state reads all pages of a replica's snapshot, small ones.
func (r *replica) state() (state, error) {
	s := make(state)
	for after := ""; ; {
		var p page
		if err := r.get("/replica_sync/snapshot?limit=50&after="+url.QueryEscape(after), &p); err != nil {
			return nil, err
		}
		for _, b := range p.Bookings {
			k := known{model: b.Model, id: b.ID, rank: b.rank, blocks: len(b.Hashes)}
			if b.Track && !b.Done {
				k.waiting = b.Prefill
			}
			s[fmt.Sprintf("%d/%d", b.Process, b.Sequence)] = k
		}
		if after = p.Next; after == "" {
			return s, nil
		}
	}
}

// missed is how many lost messages the replica has found out about.
func (r *replica) missed() (float64, error) {
	return r.Sum(r.t.Context(), "select_service_replica_messages_lost_total")
}
