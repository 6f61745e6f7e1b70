package replicasync

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// sink keeps what others have served.
type sink struct {
	known bool
	got   []Served
}

func (s *sink) ApplyServed(_, _ uint64, served *Served) bool {
	s.got = append(s.got, *served)
	return s.known
}

func servedExample() Served {
	return Served{Scope: catalog.Scope{Model: "m", Tenant: "g"}, Class: "c", Accounts: []ServedAccount{
		{Tenant: "a", Seconds: 1.5}, {Tenant: "a", Program: "", OfProgram: true, Seconds: 1e30}, {Tenant: "b", Program: "p", OfProgram: true},
	}}
}

// TestServedMessage: a message is read as it was written, but for the bound of what was served.
func TestServedMessage(t *testing.T) {
	want := servedExample()
	payload := newEncoder().served(7, 9, &want)
	process, version, got, err := newReader().served(payload)
	want.Accounts[1].Seconds = float64(uint64(1)<<40) / 1000
	if d := cmp.Diff(want, got); d != "" || process != 7 || version != 9 || err != nil {
		t.Errorf("%d %d %v: -want +got\n%s", process, version, err, d)
	}
	for i := range payload { // cut off anywhere
		if _, _, _, err := newReader().served(payload[:i]); err == nil {
			t.Errorf("the first %d bytes are read without an error", i)
		}
	}
}

// TestServedHostile: messages that no replica sends have no effect but a count.
func TestServedHostile(t *testing.T) {
	r := New(Options{Process: 1}, nil, nil, nil, time.Now)
	r.Attach(reservations.New(1, time.Now, r))
	s := &sink{known: true}
	r.AttachServed(s)
	say := func(process uint64, change func(*Served)) {
		served := servedExample()
		change(&served)
		r.applyMessage(newReader(), "tcp://peer:1", TopicServed, newEncoder().served(process, 1, &served))
	}
	say(1, func(*Served) {}) // its own
	say(0, func(*Served) {})
	say(2, func(x *Served) { x.Accounts = make([]ServedAccount, MaxServed+1) })
	say(2, func(x *Served) { x.Accounts[0].Tenant = strings.Repeat("x", 257) })
	say(2, func(x *Served) { x.Class = strings.Repeat("x", 1<<20) })
	r.applyMessage(newReader(), "tcp://peer:1", TopicServed, []byte{0x80})
	r.applyMessage(newReader(), "tcp://peer:1", TopicServed, bytes.Repeat([]byte{0xff}, 100))
	if len(s.got) != 0 {
		t.Errorf("%+v have an effect", s.got)
	}
	s.known = false
	say(2, func(*Served) {})
	st := r.Stats()
	if d := st.Dropped; d["own"] != 1 || d["malformed"] != 3 || d["oversized"] != 3 || d["unknown_scope"] != 1 || st.Received["served"] != 1 {
		t.Errorf("counted %+v", st)
	}
}

// TestServedIsSent: what is shared comes to followers, on its own topic.
func TestServedIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := event{kind: servedState, payload: []byte("x")}
		if e.kind.topic() != TopicServed || weight(&e) != 1 {
			t.Errorf("topic %s, weight %d", e.kind.topic(), weight(&e))
		}
		r := New(Options{Process: 1}, nil, nil, nil, time.Now)
		s := servedExample()
		r.ShareServed(&s)
		r.ShareServed(&s)
		buf := r.outbox.take(make([]event, 0, 4))
		if len(buf) != 2 {
			t.Fatalf("%d are sent", len(buf))
		}
		for i, e := range buf {
			if _, version, got, err := newReader().served(e.payload); err != nil || version != uint64(i+1) || got.Class != "c" {
				t.Errorf("%d: version %d of %+v, %v", i, version, got, err)
			}
		}
	})
}
