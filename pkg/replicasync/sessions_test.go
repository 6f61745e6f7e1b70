package replicasync

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// The messages of a running dynamo.select_service 1.6.1: a binding of its own, and one
// to a worker alone that it was told of and used.
const (
	peersSession  = "87aa6d6f64656c5f6e616d65a16dad726f7574696e675f67726f7570a764656661756c74aa73657373696f6e5f6964a27331a9776f726b65725f696401a764705f72616e6b00a873657175656e6365cf18ea83942940cc4aa97772697465725f6964cfc384a2d5e62399c1"
	peersAnyDP    = "87aa6d6f64656c5f6e616d65a16dad726f7574696e675f67726f7570a764656661756c74aa73657373696f6e5f6964a162a9776f726b65725f696402a764705f72616e6bc0a873657175656e636505a97772697465725f69644d"
	testSequence  = 0x18ea83942940cc4a
	testProcess   = 0xc384a2d5e62399c1
	sessionsLimit = 3
)

func peersMessage(t testing.TB, text string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func sessionOf(id string, change func(*Session)) Session {
	s := Session{
		Scope: catalog.Scope{Model: "m", Tenant: "default"}, ID: id, Rank: catalog.Rank{Worker: 1},
		Sequence: testSequence, Writer: testProcess,
	}
	if change != nil {
		change(&s)
	}
	return s
}

func asEvent(s *Session) *event {
	return &event{kind: sessionBound, sender: s.Writer, sequence: s.Sequence, scope: s.Scope, id: s.ID, rank: s.Rank}
}

// TestSessionGolden: the peer's messages are read, and written byte for byte.
func TestSessionGolden(t *testing.T) {
	got, err := newReader().session(peersMessage(t, peersSession))
	want := sessionOf("s1", nil)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if wrote := hex.EncodeToString(newEncoder().event(asEvent(&want))); wrote != peersSession {
		t.Errorf("wrote %s", wrote)
	}
	got, err = newReader().session(peersMessage(t, peersAnyDP))
	want = sessionOf("b", func(s *Session) { s.Rank.Worker, s.AnyDP, s.Sequence, s.Writer = 2, true, 5, 77 })
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestSessionRefused: messages that say nothing of a session are refused.
func TestSessionRefused(t *testing.T) {
	whole := func(change dict) dict {
		m := dict{
			"model_name": "m", "routing_group": "g", "session_id": "s", "worker_id": 1, "dp_rank": 0,
			"sequence": uint64(5), "writer_id": uint64(6), "more": list{1},
		}
		for k, v := range change {
			if m[k] = v; v == nil {
				delete(m, k)
			}
		}
		return m
	}
	for _, good := range []any{whole(nil), list{"m", "g", "s", 1, nil, 5, 6, 7}, whole(dict{"session_id": strings.Repeat("s", MaxSessionID)})} {
		if _, err := newReader().session(pack(t, good)); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
	bad := map[string]any{
		"id too long": whole(dict{"session_id": strings.Repeat("s", MaxSessionID+1)}),
		"no id":       whole(dict{"session_id": ""}),
		"id a number": whole(dict{"session_id": 5}),
		"negative":    whole(dict{"sequence": -1}),
		"rank text":   whole(dict{"dp_rank": "0"}),
		"rank wide":   whole(dict{"dp_rank": uint64(math.MaxUint32) + 1}),
		"worker nil":  list{"m", "g", "s", nil, 0, 5, 6},
		"long":        whole(dict{"more": strings.Repeat("x", maxAnnouncement)}),
		"text":        "session",
		"home a text": whole(dict{"home": "yes"}),
	}
	for _, name := range sessionFields[:dynamoSessionFields] {
		bad["no "+name] = whole(dict{name: nil})
	}
	for name, m := range bad {
		if s, err := newReader().session(pack(t, m)); err == nil {
			t.Errorf("%s: taken as %+v", name, s)
		}
	}
}

// FuzzSession: no message makes the decoder panic or allocate more than it justifies,
// and what it takes survives a round trip.
func FuzzSession(f *testing.F) {
	f.Add(peersMessage(f, peersSession))
	f.Add(peersMessage(f, peersAnyDP))
	f.Add(pack(f, list{"m", "g", "s", 1, nil, 5, 6}))
	enc := newEncoder()
	f.Fuzz(func(t *testing.T, payload []byte) {
		r := newReader()
		checkAllocation(t, len(payload), func() { _, _ = r.session(payload) })
		s, err := r.session(payload)
		if err != nil {
			return
		}
		s.AnyDP = false
		again, err := r.session(enc.event(asEvent(&s)))
		if diff := cmp.Diff(s, again); diff != "" || err != nil {
			t.Fatalf("%v (-want +got):\n%s", err, diff)
		}
	})
}

// fewSessions is a Sessions that notes what it is told and has pages of its own.
type fewSessions struct {
	bound, unbound []Session
	from           string
	result         reservations.ApplyResult
	own            []Session
}

func (f *fewSessions) ApplyBound(peer string, s Session) reservations.ApplyResult {
	f.from, f.bound = peer, append(f.bound, s)
	return f.result
}

func (f *fewSessions) ApplyUnbound(peer string, s Session) reservations.ApplyResult {
	f.from, f.unbound = peer, append(f.unbound, s)
	return f.result
}

func (f *fewSessions) SessionsAfter(cursor uint64, limit int) (page []Session, next uint64, more bool) {
	end := min(len(f.own), int(cursor)+limit)
	return f.own[cursor:end], uint64(end), end < len(f.own)
}

// TestSessionMessages: what a peer publishes reaches the sessions, unless its version
// is beyond every clock.
func TestSessionMessages(t *testing.T) {
	now := uint64(epoch.UnixNano())
	limit := now + maxAhead
	r, _ := newTestReplica(fixedScopes{})
	in, enc := newReader(), newEncoder()
	say := func(topic string, sequence uint64) {
		s := sessionOf("s", func(s *Session) { s.Sequence = sequence })
		r.applyMessage(in, "tcp://peer:1", topic, enc.event(asEvent(&s)))
	}
	say(TopicSessions, now) // sessions are not shared
	f := &fewSessions{result: reservations.Applied}
	r.AttachSessions(f)
	say(TopicSessions, limit)
	say(TopicSessionEnds, now)
	for _, beyond := range []uint64{limit + 1, math.MaxUint64} {
		say(TopicSessions, beyond)
		say(TopicSessionEnds, beyond)
	}
	r.applyMessage(in, "tcp://peer:1", TopicSessions, []byte{0x80})
	f.result = reservations.UnknownRank
	if say(TopicSessions, now); !r.core.refused {
		t.Error("a binding to a rank that may come is not asked for again")
	}
	if len(f.bound) != 2 || f.bound[0].Sequence != limit || len(f.unbound) != 1 || f.from != "tcp://peer:1" {
		t.Errorf("%+v", f)
	}
	st := r.Stats()
	for name, want := range map[string]uint64{"jump": 4, "malformed": 1, "unknown_rank": 1, "unknown_id": 1, "own": 0} {
		if got := st.Dropped[name]; got != want {
			t.Errorf("dropped as %s: %d, want %d", name, got, want)
		}
	}
	if st.Received["session_bound"] != 4 || st.Received["session_unbound"] != 3 {
		t.Errorf("received %v", st.Received)
	}
}

// TestSessionAfterReservation: a binding leaves after the reservation that made it, and
// does not count among the numbered events.
func TestSessionAfterReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scope := catalog.Scope{Model: "m", Tenant: "default"}
		net := newMemory()
		r := New(Options{Process: 1, URL: "http://a"}, fixedScopes{scope: 16}, end{net, "a"}, nowhere{}, time.Now)
		r.Attach(reservations.New(1, time.Now, r))
		var topics []string
		var last announcement
		net.tap(func(topic string, payload []byte) {
			if topic == TopicAnnounce {
				last, _ = newReader().announcement(payload)
				return
			}
			topics = append(topics, topic)
		})
		s := sessionOf("s", nil)
		r.SessionBound(&s) // waits first: it must not lower the announced number
		r.Booked(reservations.Event{Scope: scope, ID: "r"})
		r.SessionBound(&s)
		r.SessionUnbound(&s)
		if events, renewals := r.outbox.published(); events != 0 || renewals != 0 {
			t.Errorf("published %d, %d", events, renewals)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		time.Sleep(2 * announceEvery)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []string{TopicSessions, TopicEvents, TopicSessions, TopicSessionEnds}
		if diff := cmp.Diff(want, topics); diff != "" || last.sequence != 1 {
			t.Errorf("announced %d, topics (-want +got):\n%s", last.sequence, diff)
		}
		if sent := r.Stats().Sent; sent["session_bound"] != 2 || sent["session_unbound"] != 1 {
			t.Errorf("sent %v", sent)
		}
	})
}

// sessionsPageText is a page of the sessions alone, with a binding to a worker.
const sessionsPageText = `{"process_id":5,"sequence":1,"renewals":0,"seen":{},"bookings":[],"sessions":[` +
	`{"model_name":"m","routing_group":"g","session_id":"s","worker_id":18446744073709551615,"dp_rank":null,` +
	`"sequence":7,"writer_id":8,"idle_ms":1500}],"next":null}`

// TestSessionsInSnapshot: the sessions come page by page after the reservations, those
// of a replica without sessions have none, and a reader without sessions skips them.
func TestSessionsInSnapshot(t *testing.T) {
	const n = 5
	for sessions := range 8 {
		r, _ := snapshotReplica(t, n)
		f := &fewSessions{}
		for i := range sessions {
			f.own = append(f.own, sessionOf(fmt.Sprintf("s%d\u2028\"", i), func(s *Session) {
				s.Idle, s.Rank = time.Duration(i)*time.Second, catalog.Rank{Worker: math.MaxUint64, DP: 3}
			}))
		}
		r.AttachSessions(f)
		got := &recordedSnapshot{}
		p := &pageReader{sink: got}
		for p.pages == 0 || p.more {
			var page bytes.Buffer
			if err := r.WriteSnapshot(t.Context(), &page, PageRequest{After: p.next, Limit: sessionsLimit}); err != nil {
				t.Fatal(err)
			}
			if err := p.page(&page); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(f.own, got.sessions); diff != "" || len(got.reservations) != n {
			t.Errorf("%d sessions, %d reservations (-want +got):\n%s", sessions, len(got.reservations), diff)
		}
	}
	r, _ := snapshotReplica(t, 1)
	var page bytes.Buffer
	if err := r.WriteSnapshot(t.Context(), &page, PageRequest{}); err != nil || strings.Contains(page.String(), "sessions") {
		t.Errorf("%v, %s", err, page.String())
	}
	if err := r.WriteSnapshot(t.Context(), io.Discard, PageRequest{After: "sessions-x"}); err == nil {
		t.Error("a broken cursor is taken")
	}

	// One that is known is merged again in each snapshot, and was in no lost event.
	r, _ = newTestReplica(fixedScopes{})
	r.AttachSessions(&fewSessions{result: reservations.Applied})
	r.fetch = &pagesOf{pages: []string{sessionsPageText}}
	if result := r.fetchSnapshot(t.Context(), fetchRequest{process: 5, url: "http://peer"}); result.err != nil || result.learned {
		t.Errorf("%+v", result)
	}

	told := &fewSessions{result: reservations.UnknownScope}
	for _, f := range []*fewSessions{nil, told} {
		r, _ := newTestReplica(fixedScopes{})
		if f != nil {
			r.AttachSessions(f)
		}
		r.fetch = &pagesOf{pages: []string{sessionsPageText}}
		result := r.fetchSnapshot(t.Context(), fetchRequest{process: 5, peer: "tcp://peer:1", url: "http://peer"})
		if result.err != nil || result.refused != (f != nil) {
			t.Errorf("%+v", result)
		}
	}
	want := Session{
		Scope: catalog.Scope{Model: "m", Tenant: "g"}, ID: "s", Rank: catalog.Rank{Worker: math.MaxUint64}, AnyDP: true,
		Sequence: 7, Writer: 8, Idle: 1500 * time.Millisecond,
	}
	if diff := cmp.Diff([]Session{want}, told.bound); diff != "" || told.from != "tcp://peer:1" {
		t.Errorf("from %s (-want +got):\n%s", told.from, diff)
	}
}
