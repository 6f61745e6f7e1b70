package replicasync

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// TestCoverage proves the counts of lost, late and repeated numbers, and what is
// complete, against a set of numbers.
func TestCoverage(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		var c coverage
		arrived := map[uint64]bool{}
		var lost, latecomers, twice, base, high, snapshot uint64
		next := 1 + rnd.Uint64N(100)
		for range 120 {
			n := next
			switch rnd.IntN(6) {
			case 0: // some are lost
				n += rnd.Uint64N(4)
			case 1: // or come late
				n -= min(n-1, rnd.Uint64N(8))
			}
			next = max(next, n+1)
			if rnd.IntN(10) == 0 {
				snapshot = max(snapshot, n)
				c.noteSnapshot(n)
				continue
			}
			if base == 0 {
				base = n
				high = n
			}
			if rnd.IntN(10) == 0 {
				lost += c.advanceTo(n)
				high = max(high, n)
				if base == n && len(arrived) == 0 {
					arrived[n] = true // where the counting began
				}
			} else {
				what, gap := c.onNumber(n)
				lost += gap
				high = max(high, n)
				switch what {
				case late:
					latecomers++
				case duplicate:
					twice++
				}
				if (what == duplicate) != (arrived[n] || n < base) {
					t.Fatalf("%d: %v, arrived before: %v", n, what, arrived[n])
				}
				arrived[n] = true
				if what != duplicate && rnd.IntN(8) == 0 { // its prefix is not known
					c.lose(n)
					lost++
					delete(arrived, n)
				}
			}
			missing, seen, incomplete := uint64(0), uint64(0), false
			for n := base; n <= high; n++ {
				if arrived[n] {
					continue
				}
				missing++
				if n > snapshot && !incomplete {
					incomplete, seen = true, n-1
				}
			}
			if !incomplete {
				seen = high
			}
			if lost-latecomers != missing || c.hasGap() != incomplete || c.completeUpTo() != max(seen, snapshot) {
				t.Fatalf("lost %d, late %d, missing %d; incomplete %v, want %v; seen %d, want %d",
					lost, latecomers, missing, c.hasGap(), incomplete, c.completeUpTo(), max(seen, snapshot))
			}
		}
	}
}

// TestCoverageBounded proves that endless gaps take bounded memory, and that the
// newest are the ones remembered.
func TestCoverageBounded(t *testing.T) {
	var c coverage
	for n := uint64(1); n < 100_000; n += 2 {
		c.onNumber(n)
	}
	if len(c.missing) > maxMissing || cap(c.missing) > 2*maxMissing {
		t.Errorf("%d gaps", len(c.missing))
	}
	if what, _ := c.onNumber(99_998); what != late {
		t.Errorf("the newest gap is forgotten: %v", what)
	}
}

// bench is a core with a ledger of one rank and a clock.
type bench struct {
	*core
	now    time.Time
	ledger *reservations.Ledger
	asked  map[uint64]fetchRequest // by process
	at     map[string]string       // what the snapshot of an endpoint has as authenticated_at
}

var (
	benchScope = catalog.Scope{Model: "m", Tenant: "t"}
	benchRank  = catalog.Rank{Worker: 1}
)

func newBench(scopes Scopes) *bench {
	b := &bench{now: epoch, asked: make(map[uint64]fetchRequest)}
	b.ledger = reservations.New(1, func() time.Time { return b.now }, nil)
	b.ledger.PutRank(benchScope, 0, benchRank)
	b.core = newCore(1, b.ledger, scopes, &counters{})
	return b
}

// asks lists the processes whose snapshots are due, after d.
func (b *bench) asks(d time.Duration) []uint64 {
	b.now = b.now.Add(d)
	requests, _ := b.due(b.now)
	var of []uint64
	for _, q := range requests {
		of = append(of, q.process)
		b.asked[q.process] = q
	}
	return of
}

// done ends the fetch from a process, whose snapshot is its own.
func (b *bench) done(process uint64, f fetchResult) {
	q := b.asked[process]
	if f.err == nil {
		f.err = b.confirm(q, f.sequence, b.at[q.peer])
	}
	b.fetchDone(q, f, b.now)
}

func (b *bench) hear(process, sequence, merged uint64) {
	b.onAnnouncement("tcp://p:1", announcement{process: process, url: "http://p:2", sequence: sequence, merged: merged}, b.now)
}

func (b *bench) booked(process, sequence uint64) {
	b.onEvent("tcp://p:1", &event{
		kind: booked, sender: process, sequence: sequence, origin: reservations.Origin{Process: process, Sequence: sequence},
		scope: benchScope, blockSize: 16, id: "r", rank: benchRank, hashes: []uint64{sequence},
	}, b.now)
}

// TestWhenSnapshotsAreDue proves when a snapshot is asked, how often, and when
// no more.
func TestWhenSnapshotsAreDue(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	step := func(what string, want []uint64, d time.Duration) {
		t.Helper()
		if got := b.asks(d); !slices.Equal(got, want) {
			t.Fatalf("%s: asks %v, want %v", what, got, want)
		}
	}
	step("no sender is known", nil, 0)
	b.booked(2, 5)
	step("an event says no address", nil, 0)
	b.hear(2, 5, 0)
	step("the first announcement", []uint64{2}, 0)
	b.booked(2, 8)
	step("one at a time", nil, time.Minute)
	b.hear(2, 8, 0)
	b.done(2, fetchResult{sequence: 6, learned: true})
	step("7 is missing, beyond what the snapshot has", []uint64{2}, 0)
	b.done(2, fetchResult{sequence: 8, learned: true})
	step("all is covered", nil, time.Second)
	b.hear(2, 9, 0)
	step("an announcement shows a loss", []uint64{2}, 0)
	b.done(2, fetchResult{sequence: 9, learned: true})
	b.hear(2, 10, 0)
	step("too soon", nil, lossSpacing-1)
	step("loss: after 200 ms", []uint64{2}, 1)
	b.done(2, fetchResult{sequence: 10})
	b.hear(2, 10, 1)
	step("no loss: not within a second", nil, fetchSpacing-1)
	step("it has merged something", []uint64{2}, 1)
	b.done(2, fetchResult{err: errors.New("refused")})
	step("after a failure", nil, 399*time.Millisecond)
	step("after a failure, again not within a second", nil, 599*time.Millisecond)
	step("after a failure, then", []uint64{2}, 2*time.Millisecond)
	for range 10 {
		b.done(2, fetchResult{err: errors.New("refused")})
		b.hear(2, 10, 1)
		step("back-off", []uint64{2}, maxBackoff)
	}
	b.done(2, fetchResult{err: errors.New("refused")})
	step("it is silent", nil, silentAfter+1)
	b.hear(2, 10, 1)
	step("heard again", []uint64{2}, 0)
	b.done(2, fetchResult{sequence: 10})
	b.forgetPeer("tcp://p:1")
	b.onRanksAdded(b.now)
	step("deregistered", nil, time.Minute)

	if lost, late := b.counts.lost.Load(), b.counts.late.Load(); lost != 4 || late != 0 {
		t.Errorf("%d lost, %d late; want 4 (6, 7, 9, 10), 0", lost, late)
	}
}

// TestEndlessLosses proves that a peer that shows a loss after each fetch is asked less and
// less often while its snapshots bring nothing, and soon again when one does, but not for
// long if all do.
func TestEndlessLosses(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	sequence := uint64(0)
	b.hear(2, sequence, 0)
	b.asks(0)
	fetchAfterLoss := func(learned bool) (waited time.Duration) {
		t.Helper()
		b.done(2, fetchResult{sequence: sequence, learned: learned})
		sequence++
		b.hear(2, sequence, 0)
		for begun := b.now; len(b.asks(10*time.Millisecond)) == 0; {
			if waited = b.now.Sub(begun); waited > time.Minute {
				t.Fatal("no fetch")
			}
		}
		return waited + 10*time.Millisecond
	}
	want := func(learned bool, d time.Duration) {
		t.Helper()
		if got := fetchAfterLoss(learned); got != d {
			t.Errorf("the next fetch begins after %v, want %v", got, d)
		}
	}
	for range maxQuick - 1 { // the first was one, too
		want(true, lossSpacing)
	}
	for range 100 {
		want(true, fetchSpacing)
	}
	b.done(2, fetchResult{sequence: sequence})
	b.asks(3 * fetchSpacing)
	sequence++
	b.hear(2, sequence, 0)
	b.asks(0)
	for range 2 {
		want(true, lossSpacing)
		want(false, lossSpacing)
		want(false, 2*lossSpacing)
		want(false, 4*lossSpacing)
		for range 100 {
			want(false, maxBackoff)
		}
	}
}

// TestLossesBesideFirstSnapshot proves that the snapshot that confirms a process takes
// nothing out of the count of lost events: those that it was the first to show are
// found missing by what comes next, and those under way still arrive.
func TestLossesBesideFirstSnapshot(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	b.hear(2, 0, 0)
	b.asks(0)
	b.done(2, fetchResult{sequence: 3})
	b.booked(2, 2)
	b.hear(2, 3, 0)
	if lost, late, again := b.counts.lost.Load(), b.counts.late.Load(), b.counts.duplicates.Load(); lost != 2 || late != 0 || again != 0 {
		t.Errorf("%d lost, %d late, %d duplicates; want 2 (1, 3), 0, 0", lost, late, again)
	}
}

// TestWhoIsAskedWhenOneGoes proves that the others are asked when a process
// falls silent or another one is at its endpoint, and that what it sent last is
// passed on.
func TestWhoIsAskedWhenOneGoes(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	at := func(peer string, process uint64) {
		b.onAnnouncement(peer, announcement{process: process, url: strings.Replace(peer, "tcp", "http", 1)}, b.now)
	}
	settle := func() {
		for _, process := range b.asks(2 * time.Second) {
			b.done(process, fetchResult{})
		}
	}
	at("tcp://a:1", 2)
	at("tcp://b:1", 3)
	settle()
	at("tcp://b:1", 3)
	at("tcp://a:1", 4)
	if got := b.asks(2 * time.Second); !slices.Equal(got, []uint64{3, 4}) {
		t.Errorf("2 was replaced by 4: asks %v, want 3 and 4", got)
	}
	b.done(3, fetchResult{})
	b.done(4, fetchResult{})
	if b.counts.merged.Load() != 1 || !b.counts.unannounced.Load() {
		t.Error("the others are not asked to ask")
	}
	b.booked(2, 1)
	if b.counts.merged.Load() != 2 {
		t.Error("what a process sent last is not passed on")
	}
	b.booked(3, 1)
	if b.counts.merged.Load() != 2 {
		t.Error("what a live process sends is passed on")
	}
	b.now = b.now.Add(silentAfter + 1)
	at("tcp://a:1", 4)
	if got := b.asks(0); !slices.Equal(got, []uint64{4}) {
		t.Errorf("3 is silent: asks %v, want 4", got)
	}
	b.asks(forgetAfter)
	if len(b.identities) != 1 { // 4, which is being asked
		t.Errorf("%d processes are remembered, want 1", len(b.identities))
	}
}

// TestURLOfAnother proves that a replica is not asked more often because others
// announce its URL, however it is written, and that it is still asked.
func TestURLOfAnother(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	asked, honest, merged := 0, 0, uint64(0)
	for range 100 {
		merged++
		b.onAnnouncement("tcp://h:1", announcement{process: 2, url: "http://h:80", sequence: 1, merged: merged}, b.now)
		for i := range uint64(9) {
			peer := fmt.Sprintf("tcp://h:%d", 10+i)
			for n, url := range []string{"http://H:080", "http://h:80/"} {
				b.onAnnouncement(peer, announcement{process: 2 + uint64(n)*(8+i), url: url, sequence: 1, merged: merged}, b.now)
			}
		}
		b.now = b.now.Add(100 * time.Millisecond)
		requests, _ := b.due(b.now)
		for _, q := range requests {
			f := fetchResult{sequence: 1}
			if asked++; q.process == 2 {
				honest++
				f.err = b.confirm(q, 1, "")
			} else {
				f.err = errors.New("another process")
			}
			b.fetchDone(q, f, b.now)
		}
	}
	if asked > 30 || honest < 9 {
		t.Errorf("in 10 s asked %d times, %d of them for the process itself; want 30 at most, 9 at least", asked, honest)
	}
	if s := b.identities[2].at("tcp://h:1"); !s.confirmed {
		t.Error("the replica itself is not confirmed")
	}
}

// TestAuthenticatedSpeaker proves that a process that is heard at an endpoint where the transport authenticates it, and
// at one that says so in its snapshot, speaks for itself at the former, whichever was first; and that all others
// that are confirmed leave it without a speaker, also one that the transport authenticates as another replica: it
// vouches for an endpoint, not for the process id that is announced there.
func TestAuthenticatedSpeaker(t *testing.T) {
	const own, impostor, mesh, other = "nats://a", "nats://c", "tcp://p:1", "tcp://q:1"
	for _, tt := range []struct {
		order []string
		at    map[string]string
		want  string
	}{
		{[]string{own, mesh}, map[string]string{mesh: own}, own},
		{[]string{mesh, own}, map[string]string{mesh: own}, own},
		{[]string{mesh, own}, map[string]string{mesh: own, own: own}, own},
		{[]string{mesh, own, other}, map[string]string{mesh: own, other: own}, own},
		{[]string{mesh}, map[string]string{mesh: own}, mesh},
		{[]string{other, mesh}, nil, ""},
		{[]string{other, mesh}, map[string]string{other: mesh, mesh: other}, ""},
		{[]string{mesh, impostor}, nil, ""},
		{[]string{impostor, mesh}, nil, ""},
		{[]string{mesh, impostor}, map[string]string{impostor: mesh}, ""},
		{[]string{mesh, impostor}, map[string]string{mesh: own}, ""},
		{[]string{mesh, own, impostor}, map[string]string{mesh: own, impostor: own}, ""},
	} {
		b := newBench(fixedScopes{benchScope: 16})
		b.at = tt.at
		b.speaker = func(announced, peer string) (Speaker, error) {
			if strings.HasPrefix(peer, "nats://") {
				return Speaker{Base: peer, Authenticated: true}, nil
			}
			return EndpointSpeaker(announced, peer)
		}
		for _, peer := range tt.order {
			b.onAnnouncement(peer, announcement{process: 2, url: "http://0.0.0.0:2", sequence: 1}, b.now)
			b.asks(time.Minute / 60)
			b.done(2, fetchResult{sequence: 1})
		}
		if got := b.identities[2].speaker; got != tt.want {
			t.Errorf("announced at %v: %q speaks, want %q", tt.order, got, tt.want)
		}
	}
}

// TestCutOff proves that nobody becomes absent by being silent while this process is cut off from
// its endpoint, and that the silence counts from the return on.
func TestCutOff(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	b.hear(2, 0, 0)
	absent := func() bool { return b.identities[2].at("tcp://p:1").absent }
	for range 30 {
		b.excuse(func(string) bool { return false }, b.now)
		b.asks(silentAfter)
	}
	if absent() {
		t.Error("absent, although nothing could be heard")
	}
	b.excuse(func(string) bool { return true }, b.now)
	b.asks(silentAfter + time.Second)
	if !absent() {
		t.Error("present, although silent since the return")
	}
}

// TestManyURLsOfOne proves that an endpoint has no more snapshots read because it tells of
// many processes, each at a URL of its own.
func TestManyURLsOfOne(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	asked := map[uint64]int{}
	sum := 0
	for merged := range uint64(100) {
		for process := uint64(2); process < 2+maxSendersAt; process++ {
			url := fmt.Sprintf("http://h:80/%d/%d", process, merged)
			b.onAnnouncement("tcp://h:1", announcement{process: process, url: url, sequence: 1, merged: merged}, b.now)
		}
		b.now = b.now.Add(100 * time.Millisecond)
		requests, _ := b.due(b.now)
		for _, q := range requests {
			sum++
			asked[q.process]++
			b.fetchDone(q, fetchResult{sequence: 1, err: b.confirm(q, 1, "")}, b.now)
		}
	}
	if sum > 30 || sum < 20 {
		t.Errorf("in 10 s asked %d times, %v; want 20 to 30", sum, asked)
	}
}

// TestRanksAdded proves that new ranks ask again for what was refused for want
// of them, and only then.
func TestRanksAdded(t *testing.T) {
	scopes := fixedScopes{benchScope: 16}
	b := newBench(scopes)
	b.hear(2, 0, 0)
	b.asks(0)
	b.done(2, fetchResult{})
	b.onRanksAdded(b.now)
	if got := b.asks(time.Second); got != nil {
		t.Errorf("nothing was refused: asks %v", got)
	}
	delete(scopes, benchScope)
	b.booked(2, 1)
	scopes[benchScope] = 16
	b.onRanksAdded(b.now)
	if got := b.asks(ranksDelay - 1); got != nil {
		t.Errorf("more ranks may come: asks %v", got)
	}
	if got := b.asks(1); !slices.Equal(got, []uint64{2}) {
		t.Errorf("asks %v, want 2", got)
	}
	b.onRanksAdded(b.now) // while it is asked
	b.asks(time.Second)
	b.done(2, fetchResult{refused: true})
	if got := b.asks(time.Second); !slices.Equal(got, []uint64{2}) {
		t.Errorf("ranks came during the fetch: asks %v, want 2", got)
	}
}

// TestFull proves that a reservation for which there was no room is asked for until
// there is.
func TestFull(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	b.ledger.SetLimits(reservations.Limits{Reservations: 4}) // 3 of others
	b.hear(2, 0, 0)
	b.asks(0)
	b.done(2, fetchResult{})
	for n := range uint64(4) {
		b.booked(2, 1+n)
	}
	if live := b.ledger.Stats().Live; live != 3 || b.counts.dropped[dropFull].Load() != 1 {
		t.Fatalf("%d are live, want 3", live)
	}
	for _, full := range []bool{true, false} {
		if got := b.asks(fullDelay / 2); got != nil {
			t.Errorf("too soon: asks %v", got)
		}
		b.hear(2, 4, 0) // it is not silent
		if got := b.asks(fullDelay / 2); !slices.Equal(got, []uint64{2}) {
			t.Errorf("asks %v, want 2", got)
		}
		b.done(2, fetchResult{sequence: 4, full: full})
		b.hear(2, 4, 0)
	}
	if got := b.asks(fullDelay); got != nil {
		t.Errorf("there was room: asks %v", got)
	}
}

// TestUnknownPrefix proves that a reservation with a prefix that is not known here is a lost message:
// its process's snapshot is asked for, as often as after other losses, and it may come again.
func TestUnknownPrefix(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	b.hear(2, 0, 0)
	b.asks(0)
	b.done(2, fetchResult{})
	b.booked(2, 1)
	e := &event{
		kind: booked, sender: 2, sequence: 3, origin: reservations.Origin{Process: 2, Sequence: 3}, scope: benchScope,
		blockSize: 16, id: "b", rank: benchRank, hashes: []uint64{7}, prefix: reservations.Prefix{
			Origin: reservations.Origin{Process: 2, Sequence: 2}, ID: "a", Blocks: 1, Digest: reservations.DigestOf([]uint64{5}),
		},
	}
	b.onEvent("tcp://p:1", e, b.now)
	if lost, dropped := b.counts.lost.Load(), b.counts.dropped[dropUnknownPrefix].Load(); lost != 2 || dropped != 1 {
		t.Errorf("%d lost, %d with an unknown prefix; want 2, 1", lost, dropped)
	}
	a := *e
	a.sequence, a.origin.Sequence, a.id, a.hashes, a.prefix = 2, 2, "a", []uint64{5, 6}, reservations.Prefix{}
	b.onEvent("tcp://p:1", &a, b.now)
	if got := b.asks(fetchSpacing); !slices.Equal(got, []uint64{2}) {
		t.Errorf("asks %v, want 2", got)
	}
	b.onEvent("tcp://p:1", e, b.now) // late
	if h, ok := b.ledger.Find("b"); !ok || !slices.Equal(h.Hashes, []uint64{5, 7}) || b.counts.late.Load() != 2 {
		t.Errorf("%+v, %d late", h, b.counts.late.Load())
	}
}

// TestDropReasons proves under which reason an event without effect counts.
func TestDropReasons(t *testing.T) {
	other := catalog.Scope{Model: "other", Tenant: "t"}
	base := event{
		kind: booked, sender: 2, origin: reservations.Origin{Process: 2},
		scope: benchScope, blockSize: 16, id: "r", rank: benchRank,
	}
	tests := map[reason]func(b *bench, e *event){
		dropOwn:          func(_ *bench, e *event) { e.sender = 1 },
		dropUnknownScope: func(_ *bench, e *event) { e.scope = other },
		dropBlockSize:    func(_ *bench, e *event) { e.blockSize = 32 },
		dropUnknownRank:  func(_ *bench, e *event) { e.rank.DP = 5 },
		dropKnown:        func(b *bench, e *event) { b.onEvent("p", e, b.now) },
		dropUnknownID:    func(_ *bench, e *event) { e.kind = prefillCompleted },
		dropWrongRank: func(b *bench, e *event) {
			b.onEvent("p", e, b.now)
			e.kind, e.rank.DP = freed, 5
		},
		dropEnded: func(b *bench, e *event) {
			e.origin.Sequence, e.sequence = 3, 3
			b.onEvent("p", e, b.now)
			e.kind, e.sequence = freed, 4
			b.onEvent("p", e, b.now)
			e.kind, e.sequence = booked, 3
		},
	}
	for why, change := range tests {
		b, e := newBench(fixedScopes{benchScope: 16}), base
		change(b, &e)
		b.onEvent("p", &e, b.now)
		for got := range numReasons {
			want := uint64(0)
			if reason(got) == why {
				want = 1
			}
			if n := b.counts.dropped[got].Load(); n != want {
				t.Errorf("%v: %d times %v", why, n, reason(got))
			}
		}
	}
}

// TestFreeWithoutScope proves that the end of a reservation with a number is noted
// even where the reservation could not be taken: it must not be taken later.
func TestFreeWithoutScope(t *testing.T) {
	scopes := fixedScopes{}
	b := newBench(scopes)
	b.onEvent("p", &event{
		kind: freed, sender: 2, sequence: 2, origin: reservations.Origin{Process: 2, Sequence: 1},
		scope: benchScope, blockSize: 16, id: "r", rank: benchRank,
	}, b.now)
	scopes[benchScope] = 16
	b.booked(2, 1)
	if n := b.ledger.Stats().Live; n != 0 {
		t.Errorf("%d reservations live, want 0", n)
	}
}

// TestSendersBounded proves that made-up process ids take bounded memory and bring
// few snapshots about, and that the one unheard for longest makes room.
func TestSendersBounded(t *testing.T) {
	b := newBench(fixedScopes{benchScope: 16})
	asks := 0
	for i := range uint64(10_000) {
		b.hear(100+i, 1, i)
		b.hear(2, 0, 0)
		b.booked(100+i, 2)
		asks += len(b.asks(time.Millisecond))
		for process := range b.asked {
			b.done(process, fetchResult{sequence: 2})
			delete(b.asked, process)
		}
	}
	if len(b.identities) > maxSendersAt {
		t.Errorf("%d processes of one endpoint", len(b.identities))
	}
	if asks > 30 { // 10 s
		t.Errorf("%d snapshots in 10 s", asks)
	}
	if n := b.counts.dropped[dropProcesses].Load(); n == 0 {
		t.Error("nothing is refused")
	}
}

// TestOutbox proves that numbers are given in the order of the queue, that what
// does not fit uses a number up, and what is settled.
func TestOutbox(t *testing.T) {
	o := newOutbox(3, nil)
	for i := range 5 {
		number, ok := o.put(&event{id: string(rune('a' + i))})
		if number != uint64(i+1) || ok != (i < 3) {
			t.Errorf("event %d: number %d, %v", i, number, ok)
		}
	}
	want := func(what string, wantLast, wantSettled [2]uint64) {
		t.Helper()
		var last, settled [2]uint64
		last[0], last[1] = o.last()
		settled[0], settled[1] = o.published()
		if last != wantLast || settled != wantSettled {
			t.Errorf("%s: last %d, settled %d; want %d, %d", what, last, settled, wantLast, wantSettled)
		}
	}
	want("three wait", [2]uint64{5, 0}, [2]uint64{0, 0})
	if buf := o.take(make([]event, 0, 2)); len(buf) != 2 || buf[1].sequence != 2 {
		t.Errorf("took %+v, want two", buf)
	}
	want("one waits", [2]uint64{5, 0}, [2]uint64{2, 0})
	if number, ok := o.put(&event{kind: renewed}); number != 1 || !ok {
		t.Errorf("a renewal: number %d, %v", number, ok)
	}
	o.put(&event{kind: renewed})
	o.put(&event{kind: renewed}) // does not fit
	want("two renewals more", [2]uint64{5, 3}, [2]uint64{2, 0})
	o.take(make([]event, 0, 2))
	want("a renewal waits; 4 and 5 were dropped", [2]uint64{5, 3}, [2]uint64{5, 1})
	o.take(make([]event, 0, 2))
	want("nothing waits", [2]uint64{5, 3}, [2]uint64{5, 3})
}

// TestQueue proves order and bounds against a slice.
func TestQueue(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	q := newQueue[int](500, 4_000, nil)
	var want []int
	bytes, next := 0, 0
	size := func(i *int) int { return *i % 20 }
	for range 20_000 {
		if rnd.IntN(100) < 60 {
			fits := len(want) < 500 && bytes+size(&next) <= 4_000
			if q.put(next, size(&next)) != fits {
				t.Fatalf("%d of %d bytes: put says %v", len(want), bytes, !fits)
			}
			if fits {
				want, bytes = append(want, next), bytes+size(&next)
			}
			next++
			continue
		}
		for _, got := range q.take(make([]int, 0, 1+rnd.IntN(30)), size) {
			if got != want[0] {
				t.Fatalf("took %d, want %d", got, want[0])
			}
			want, bytes = want[1:], bytes-size(&got)
		}
		if q.len() != len(want) {
			t.Fatalf("%d wait, want %d", q.len(), len(want))
		}
	}
}
