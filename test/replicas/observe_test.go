package replicas_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/select-service/select-service/test/procs"
)

// agreeIn is how long the replicas have to agree once nothing is faulty.
const agreeIn = 5 * time.Second

// settle waits until all replicas believe what they answered, to the booking,
// and their /loads say the same. Nobody may call them meanwhile. outputs: some
// bookings have output blocks, which no replica tells the others.
func (f *fleet) settle(l *ledger, outputs bool) (took time.Duration) {
	f.t.Helper()
	begin := time.Now()
	procs.Eventually(f.t, agreeIn, "the replicas agree", func() error {
		s, err := f.compare(l, outputs)
		if err == nil {
			l.agreed(s)
		}
		return err
	})
	return time.Since(begin)
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
		procs.Eventually(f.t, startIn, r.name+" has heard of the others", func() error {
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
	var scopes []struct {
		Model string `json:"model_name"`
		Loads []struct {
			rank
			load
		} `json:"loads"`
	}
	if err := r.get("/loads", &scopes); err != nil {
		return nil, err
	}
	all := make(map[place]load)
	for _, sc := range scopes {
		for _, row := range sc.Loads {
			all[place{sc.Model, row.rank}] = row.load
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
func (r *replica) missed() (n uint64) {
	r.t.Helper()
	a, err := r.call(r.t.Context(), "GET", "/metrics", nil)
	if err != nil || a.Status != http.StatusOK {
		r.t.Fatalf("%s: GET /metrics: %v %v", r.name, a, err)
	}
	const family = "select_service_replica_messages_lost_total"
	for line := range strings.Lines(string(a.Body)) {
		if rest, ok := strings.CutPrefix(line, family); ok {
			count, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
			if err != nil {
				r.t.Fatalf("%s: %s: %v", r.name, family, err)
			}
			n += uint64(count)
		}
	}
	return n
}
