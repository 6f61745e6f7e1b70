package replicasync

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
	"github.com/select-service/select-service/test/helpers/length"
)

// recordedSnapshot is a sink that keeps everything.
type recordedSnapshot struct {
	process, sequence uint64
	at                string
	renewed           uint64
	ends              map[uint64]history.EndedSet
	freed             []history.Name
	reservations      []reservations.Reservation
	sessions          []Session
}

func (r *recordedSnapshot) onHead(process, sequence uint64, at string) error {
	r.process, r.sequence, r.at = process, sequence, at
	return nil
}

func (r *recordedSnapshot) onRenewals(sequence uint64) { r.renewed = sequence }

func (r *recordedSnapshot) onEnded(process uint64, ended history.EndedSet) {
	if r.ends == nil {
		r.ends = make(map[uint64]history.EndedSet)
	}
	e := r.ends[process]
	if len(ended.Ranges) > 0 {
		e.Assumed = ended.Assumed
	}
	e.Ranges = append(e.Ranges, ended.Ranges...)
	e.Leases = append(e.Leases, ended.Leases...)
	r.ends[process] = e
}

func (r *recordedSnapshot) onFreed(names []history.Name) { r.freed = append(r.freed, names...) }

func (r *recordedSnapshot) onSession(j *sessionJSON) error {
	s, err := j.session(0)
	r.sessions = append(r.sessions, s)
	return err
}

func (r *recordedSnapshot) onReservation(j *reservationJSON) error {
	b, err := j.reservation(0)
	b.Hashes = slices.Clone(b.Hashes)
	r.reservations = append(r.reservations, b)
	return err
}

// remoteReservation is a reservation of another process on the rank that
// snapshotReplica has.
func remoteReservation(i uint64) reservations.Reservation {
	output := uint32(i)
	return reservations.Reservation{
		Origin: reservations.Origin{Process: math.MaxUint64 - i%3, Sequence: i}, // 0: does not count
		Scope:  catalog.Scope{Model: "m \"\u2028\x00<", Tenant: "t"}, ID: fmt.Sprint("r", i),
		Rank: catalog.Rank{Worker: math.MaxUint64, DP: 3}, PerScope: i%2 == 0,
		Hashes: append([]uint64{1, 2, 3}[:i%4:i%4], math.MaxUint64-i, 99), PrefillTokens: i, TrackPrefill: i > 0, PrefillDone: i%4 == 1,
		ExpectedOutput: &output, Age: time.Duration(i) * time.Second,
	}
}

// leased is b with a lease that was renewed, in every third.
func leased(b reservations.Reservation) reservations.Reservation {
	if n := b.Origin.Sequence; n%3 == 1 {
		b.Lease, b.Renewed = time.Duration(n)*time.Minute, b.Age/2/time.Millisecond*time.Millisecond
	}
	return b
}

func snapshotReplica(t testing.TB, count uint64) (*Replica, *reservations.Ledger) {
	t.Helper()
	b := remoteReservation(0)
	r, l := newTestReplica(fixedScopes{b.Scope: 16})
	l.PutRank(b.Scope, 0, b.Rank)
	for i := range count {
		if v := l.MergeReservation(leased(remoteReservation(i))); v != reservations.Applied {
			t.Fatalf("reservation %d: %v", i, v)
		}
	}
	return r, l
}

// TestSnapshotRoundTrip proves that a reader gets everything that the writer
// has, page by page, and that ends are on the first page only.
func TestSnapshotRoundTrip(t *testing.T) {
	const n = 25
	r, l := snapshotReplica(t, n)
	l.MergeEnded(77, history.EndedSet{Ranges: []history.Range{{From: 1, To: 3}, {From: 5, To: maxSequence}}, Assumed: 2})
	r.Renewed(reservations.Event{Scope: remoteReservation(0).Scope})
	r.Renewed(reservations.Event{Scope: remoteReservation(0).Scope})
	r.Booked(reservations.Event{Scope: remoteReservation(0).Scope})
	for i, limit := range []int{1, 7, n, n + 1, 0, 1, 7, n} {
		shared := i > 4
		got := &recordedSnapshot{}
		p := &pageReader{sink: got}
		for p.pages == 0 || p.more {
			var page bytes.Buffer
			if err := r.WriteSnapshot(t.Context(), &page, PageRequest{After: p.next, Limit: limit, Shared: shared}); err != nil {
				t.Fatal(err)
			}
			if !json.Valid(page.Bytes()) {
				t.Fatalf("not JSON: %s", &page)
			}
			if like := strings.Contains(page.String(), `"like_blocks"`); like != (shared && limit > 1 && strings.Contains(page.String(), "request_id")) {
				t.Errorf("limit %d, shared %v: common beginnings once: %v", limit, shared, like)
			}
			if first := p.pages == 0; strings.Contains(page.String(), `"ended"`) != first {
				t.Errorf("page %d: ended is there: %v", p.pages+1, !first)
			}
			if err := p.page(&page); err != nil {
				t.Fatal(err)
			}
		}
		if got.process != 1 || got.sequence != 1 || got.renewed != 2 {
			t.Errorf("process %d, sequence %d, renewals %d; want 1, 1, 2", got.process, got.sequence, got.renewed)
		}
		if diff := cmp.Diff(l.Ended(), got.ends); diff != "" {
			t.Errorf("ended (-want +got):\n%s", diff)
		}
		want, _, _ := l.Reservations(reservations.Cursor{}, n)
		for i := range want { // of which only the complete blocks are told
			want[i].Prompt = 16 * uint64(len(want[i].Hashes))
		}
		if diff := cmp.Diff(want, got.reservations, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("limit %d: reservations (-want +got):\n%s", limit, diff)
		}
	}
}

// TestSnapshotPages proves the limits of a page and what becomes of a bad
// cursor.
func TestSnapshotPages(t *testing.T) {
	r, _ := snapshotReplica(t, 3)
	var page bytes.Buffer
	if err := r.WriteSnapshot(t.Context(), &page, PageRequest{After: "nonsense", Limit: 5}); !errors.Is(err, ErrCursor) || page.Len() > 0 {
		t.Errorf("%v after %d bytes, want ErrCursor after none", err, page.Len())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.WriteSnapshot(ctx, &page, PageRequest{Limit: 5}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want Canceled", err)
	}
	if err := r.WriteSnapshot(t.Context(), failingWriter{}, PageRequest{Limit: 5}); !errors.Is(err, errWriter) {
		t.Errorf("%v, want the writer's error", err)
	}
}

var errWriter = errors.New("closed")

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errWriter }

// TestSnapshotWithoutScope proves that reservations whose scope is going are left
// out, as their block size is not known any more.
func TestSnapshotWithoutScope(t *testing.T) {
	r, _ := snapshotReplica(t, 3)
	r.scopes = fixedScopes{}
	got := &recordedSnapshot{}
	var page bytes.Buffer
	if err := r.WriteSnapshot(t.Context(), &page, PageRequest{Limit: 5}); err != nil {
		t.Fatal(err)
	}
	if err := (&pageReader{sink: got}).page(&page); err != nil || len(got.reservations) > 0 {
		t.Errorf("%d reservations, %v", len(got.reservations), err)
	}
}

const goodPage = `{"process_id":1,"sequence":2,"renewals":3,"seen":{"3":4},"assumed":{"5":0},"ended":{"5":[[1,2],[4,4]]},"future":[{"a":1}],"bookings":[` +
	`{"origin_process":9,"origin_sequence":8,"model_name":"m","tenant_id":"t","block_size":16,"request_id":"r","worker_id":1,"dp_rank":0,"age_ms":5,"sequence_hashes":[1]}],"next":null}`

// TestAuthenticatedAt proves that a snapshot names the endpoint at which its replica is authenticated, on every page, if
// there is one, and that a reader takes it, if it is no longer than a URL.
func TestAuthenticatedAt(t *testing.T) {
	for _, at := range []string{"", "nats://a"} {
		var text bytes.Buffer
		w := pageWriter{w: bufio.NewWriter(&text)}
		w.head(&snapshotHead{process: 1, sequence: 2, at: at}, false)
		w.text(`,"bookings":[],"next":null}`)
		if err := w.w.Flush(); err != nil {
			t.Fatal(err)
		}
		var got recordedSnapshot
		if err := (&pageReader{sink: &got}).page(&text); err != nil || got.at != at || got.process != 1 || got.sequence != 2 {
			t.Errorf("%q: process %d at %q, %v", at, got.process, got.at, err)
		}
	}
	long := strings.Replace(goodPage, `"sequence"`, `"authenticated_at":"`+strings.Repeat("x", maxURL+1)+`","sequence"`, 1)
	if err := (&pageReader{sink: new(recordedSnapshot)}).page(strings.NewReader(long)); !errors.Is(err, errOversized) {
		t.Errorf("an endpoint of %d characters: %v", maxURL+1, err)
	}
}

// TestReadPrompts proves how prompts that are like others on the page are put together, and what
// is refused of them.
func TestReadPrompts(t *testing.T) {
	page := func(prompts ...string) string {
		var list []string
		for _, p := range prompts {
			list = append(list, `{"origin_process":9,"origin_sequence":8,"block_size":16,`+p+`}`)
		}
		return `{"process_id":1,"sequence":2,"shared":true,"bookings":[` + strings.Join(list, ",") + `],"next":null}`
	}
	const first = `"sequence_hashes":[1,2,3]`
	for _, tt := range []struct {
		page string
		want [][]uint64 // nil: refused
	}{
		{page(first, `"like_blocks":2,"sequence_hashes":[4]`, `"like":1,"like_blocks":1,"sequence_hashes":[5]`, `"like":2,"like_blocks":2,"sequence_hashes":[]`,
			`"like":1,"like_blocks":3,"sequence_hashes":[6]`), [][]uint64{{1, 2, 3}, {1, 2, 4}, {1, 5}, {1, 5}, {1, 2, 4, 6}}},
		{page(first, `"like_blocks":4,"sequence_hashes":[4]`), nil},
		{page(first, `"like_blocks":-1,"sequence_hashes":[4]`), nil},
		{page(first, `"like":1,"like_blocks":1,"sequence_hashes":[4]`), nil},
		{page(first, `"like":-1,"like_blocks":1,"sequence_hashes":[4]`), nil},
	} {
		got := &recordedSnapshot{}
		account := memory.NewAccount("x", 1<<20)
		err := (&pageReader{sink: got, account: account}).page(strings.NewReader(tt.page))
		if (err == nil) != (tt.want != nil) || account.Used() != 0 {
			t.Errorf("%s: %v, %d on the account", tt.page, err, account.Used())
		}
		for i := range tt.want {
			if !slices.Equal(got.reservations[i].Hashes, tt.want[i]) {
				t.Errorf("%d: %v, want %v", i, got.reservations[i].Hashes, tt.want[i])
			}
		}
	}
	small := memory.NewAccount("x", 100)
	if err := (&pageReader{sink: &recordedSnapshot{}, account: small}).page(strings.NewReader(page(first, first))); !errors.Is(err, errNoMemory) {
		t.Errorf("without memory: %v", err)
	}
	length.Sequential(t)
	many := make([]string, 25_000) // each is like the one before
	for i := range many {
		many[i] = fmt.Sprintf(`"like":%d,"like_blocks":1,"sequence_hashes":[]`, i-1)
	}
	many[0] = `"sequence_hashes":[1]`
	if err := (&pageReader{sink: &recordedSnapshot{}}).page(strings.NewReader(page(many...))); !errors.Is(err, errOversized) {
		t.Errorf("much work: %v", err)
	}
}

// TestReadRefuses proves that a page is taken as a whole or not at all.
func TestReadRefuses(t *testing.T) {
	if err := (&pageReader{sink: &recordedSnapshot{}}).page(strings.NewReader(goodPage)); err != nil {
		t.Fatal(err)
	}
	swap := func(old, replacement string) string {
		if !strings.Contains(goodPage, old) {
			t.Fatalf("%s is not in the page", old)
		}
		return strings.Replace(goodPage, old, replacement, 1)
	}
	for name, page := range map[string]string{
		"empty":                    "",
		"array":                    "[]",
		"cut":                      goodPage[:len(goodPage)-3],
		"no process":               swap(`"process_id":1,`, ``),
		"process 0":                swap(`"process_id":1`, `"process_id":0`),
		"process null":             swap(`"process_id":1`, `"process_id":null`),
		"negative":                 swap(`"process_id":1`, `"process_id":-1`),
		"float":                    swap(`"sequence":2`, `"sequence":2.5`),
		"text":                     swap(`"sequence":2`, `"sequence":"2"`),
		"too high":                 swap(`"sequence":2`, `"sequence":18446744073709551615`),
		"above u64":                swap(`"sequence":2`, `"sequence":18446744073709551616`),
		"twice":                    swap(`"sequence":2`, `"sequence":2,"sequence":2`),
		"seen of no id":            swap(`{"3":4}`, `{"x":4}`),
		"range of one":             swap(`[1,2]`, `[1]`),
		"range of three":           swap(`[1,2]`, `[1,2,3]`),
		"range from 0":             swap(`[1,2]`, `[0,2]`),
		"range backwards":          swap(`[1,2]`, `[2,1]`),
		"range too high":           swap(`[1,2]`, `[1,18446744073709551615]`),
		"assumed of no id":         swap(`"assumed":{"5"`, `"assumed":{"x"`),
		"assumed too high":         swap(`"assumed":{"5":0`, `"assumed":{"5":18446744073709551615`),
		"assumed after ended":      swap(`"bookings":[`, `"assumed":{},"bookings":[`),
		"renewals of text":         swap(`"renewals":3`, `"renewals":"3"`),
		"a lease for ever":         swap(`"age_ms":5`, `"age_ms":5,"lease_ms":18446744073709551615`),
		"leases ended, a number":   swap(`"bookings":[`, `"leases_ended":{"5":[5]},"bookings":[`),
		"ended of 0":               swap(`{"5":[[1,2]`, `{"0":[[1,2]`),
		"ended before the process": swap(`{"process_id":1`, `{"ended":{},"process_id":1`),
		"reservation of process 0": swap(`"origin_process":9`, `"origin_process":0`),
		"reservation null":         swap(`"bookings":[{`, `"bookings":[null,{`),
		"rank above u32":           swap(`"dp_rank":0`, `"dp_rank":4294967296`),
		"negative hash":            swap(`"sequence_hashes":[1]`, `"sequence_hashes":[-1]`),
		"no reservations":          swap(`"bookings"`, `"no_bookings"`),
		"no next":                  swap(`,"next":null`, ``),
		"next empty":               swap(`"next":null`, `"next":""`),
		"next number":              swap(`"next":null`, `"next":5`),
	} {
		if err := (&pageReader{sink: &recordedSnapshot{}}).page(strings.NewReader(page)); !errors.Is(err, errSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReadBounds proves that a peer cannot make the reader go on for ever or
// hold much.
func TestReadBounds(t *testing.T) {
	next := strings.Replace(goodPage, `"next":null`, `"next":"a"`, 1)
	p := &pageReader{sink: &recordedSnapshot{}}
	if err := p.page(strings.NewReader(next)); err != nil {
		t.Fatal(err)
	}
	if err := p.page(strings.NewReader(next)); err == nil {
		t.Error("a cursor may stand still")
	}
	for name, p := range map[string]*pageReader{
		"pages":    {pages: maxPages},
		"bookings": {reservations: maxReservations},
		"ranges":   {ranges: maxEnded - 1},
	} {
		p.sink = &recordedSnapshot{}
		if err := p.page(strings.NewReader(goodPage)); err == nil {
			t.Errorf("no end of %s", name)
		}
	}
	for name, list := range map[string]string{"ended": `[1,2]`, "leases_ended": `[1,2]`, "freed": `[1,2]`} {
		page := `{"process_id":1,"sequence":2,"` + name + `":{"1":[` + strings.Repeat(list+",", longList) + list + `]},"bookings":[],"next":null}`
		for limit, want := range map[int64]error{1 << 20: errNoMemory, 2 << 20: nil} {
			account := memory.NewAccount("snapshots", limit)
			err := (&pageReader{sink: &recordedSnapshot{}, account: account}).page(strings.NewReader(page))
			if !errors.Is(err, want) || account.Used() != 0 {
				t.Errorf("a long list %s with %d bytes of memory: %v, %d are charged", name, limit, err, account.Used())
			}
		}
	}
	p = &pageReader{sink: &recordedSnapshot{}}
	if err := p.page(&endless{text: `{"process_id":1,"sequence":2,"bookings":[{"request_id":"`}); !errors.Is(err, errOversized) {
		t.Errorf("an endless value: %v", err)
	}
}

// endless is text and then the same letter.
type endless struct{ text string }

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.text)
	e.text = e.text[n:]
	for ; n < len(p); n++ {
		p[n] = 'a'
	}
	return n, nil
}

// TestMergeFetchesPages proves which page is asked for, that the first page's
// number counts, and that another process's answer is refused.
func TestMergeFetchesPages(t *testing.T) {
	r, l := snapshotReplica(t, 0)
	pages := []string{
		strings.Replace(goodPage, `"next":null`, `"next":"a b"`, 1),
		strings.Replace(strings.Replace(goodPage, `"sequence":2`, `"sequence":9`, 1), `"ended":{"5":[[1,2],[4,4]]},`, ``, 1),
	}
	web := &pagesOf{pages: pages}
	r.fetch = web
	f := r.fetchSnapshot(t.Context(), fetchRequest{process: 1, url: "http://p:1"})
	if f.err != nil || f.sequence != 2 || f.renewals != 3 || !f.refused {
		t.Errorf("%+v; want numbers 2 and 3, and a refused reservation", f)
	}
	want := []string{"http://p:1/replica_sync/snapshot?shared=true&limit=1000", "http://p:1/replica_sync/snapshot?shared=true&limit=1000&after=a+b"}
	if diff := cmp.Diff(want, web.asked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := l.Ended()[5].Ranges; got != nil {
		t.Errorf("process 1 is believed about the numbers of 5: %v", got)
	}
	if web.open != 0 {
		t.Errorf("%d bodies left open", web.open)
	}
	r.fetch = &pagesOf{pages: pages}
	if f := r.fetchSnapshot(t.Context(), fetchRequest{process: 2, url: "http://p:1"}); f.err == nil {
		t.Error("another process answered, and that was taken")
	}
}

// tellers is a ledger that notes how it was told of reservations, by process.
type tellers struct {
	ledger
	ofOthers map[uint64]bool
}

func (t *tellers) MergeReservation(b reservations.Reservation) reservations.ApplyResult {
	t.ofOthers[b.Origin.Process] = b.OfOthers
	return t.ledger.MergeReservation(b)
}

// TestMergeTellsWhose: a snapshot's reservations of its own process count as the peer's
// own, even while no endpoint speaks for that process; those of others do not.
func TestMergeTellsWhose(t *testing.T) {
	r, _ := newTestReplica(fixedScopes{{Model: "m", Tenant: "t"}: 16})
	l := &tellers{r.core.ledger, make(map[uint64]bool)}
	r.core.ledger = l
	own := goodPage[strings.Index(goodPage, `{"origin_process"`):strings.Index(goodPage, `],"next"`)]
	own = strings.Replace(own, `"origin_process":9`, `"origin_process":2`, 1)
	page := strings.Replace(goodPage, `"process_id":1`, `"process_id":2`, 1)
	r.fetch = &pagesOf{pages: []string{strings.Replace(page, `"bookings":[`, `"bookings":[`+own+`,`, 1)}}
	if f := r.fetchSnapshot(t.Context(), fetchRequest{process: 2, url: "http://p:1"}); f.err != nil {
		t.Fatal(f.err)
	}
	if diff := cmp.Diff(map[uint64]bool{2: false, 9: true}, l.ofOthers); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestMergeAges proves that a page that takes long to arrive makes nothing
// younger.
func TestMergeAges(t *testing.T) {
	scope := catalog.Scope{Model: "m", Tenant: "t"}
	now := epoch
	clock := func() time.Time { return now }
	r := New(Options{Process: 1}, fixedScopes{scope: 16}, nowhere{}, nowhere{}, clock)
	l := reservations.New(1, clock, r)
	r.Attach(l)
	l.PutRank(scope, 0, catalog.Rank{Worker: 1})
	m := r.newMerge(fetchRequest{process: 1})
	i := strings.Index(goodPage, `"bookings"`)
	err := m.pages.page(&steps{{goodPage[:i], nil}, {goodPage[i:], func() { now = now.Add(7 * time.Second) }}})
	if err != nil {
		t.Fatal(err)
	}
	page, _, _ := l.Reservations(reservations.Cursor{}, 1)
	if want := 7*time.Second + 5*time.Millisecond; len(page) != 1 || page[0].Age != want {
		t.Errorf("%+v, want age %v", page, want)
	}
}

// steps is a body whose parts come with side effects.
type steps []struct {
	text   string
	before func()
}

func (s *steps) Read(p []byte) (int, error) {
	if len(*s) == 0 {
		return 0, errors.New("nothing more")
	}
	step := (*s)[0]
	if step.before != nil {
		step.before()
	}
	*s = (*s)[1:]
	return copy(p, step.text), nil
}

// FuzzReadSnapshot proves that no page makes the reader panic, or allocate out
// of proportion.
func FuzzReadSnapshot(f *testing.F) {
	r, _ := snapshotReplica(f, 5)
	var page bytes.Buffer
	if err := r.WriteSnapshot(f.Context(), &page, PageRequest{Limit: 3}); err != nil {
		f.Fatal(err)
	}
	f.Add(page.Bytes())
	f.Add([]byte(goodPage))
	f.Add([]byte(sessionsPageText))
	f.Fuzz(func(t *testing.T, page []byte) {
		// A number of two bytes takes eight, twice that while a list grows; a
		// reservation of two bytes ("{}") is a struct.
		checkAllocation(t, 8*len(page), func() {
			_ = (&pageReader{sink: &nothing{}}).page(bytes.NewReader(page))
		})
	})
}

// nothing is a sink that keeps nothing.
type nothing struct{}

func (*nothing) onHead(uint64, uint64, string) error { return nil }
func (*nothing) onRenewals(uint64)                   {}
func (*nothing) onEnded(uint64, history.EndedSet)    {}
func (*nothing) onFreed([]history.Name)              {}
func (*nothing) onSession(j *sessionJSON) error {
	_, err := j.session(0)
	return err
}

func (*nothing) onReservation(j *reservationJSON) error {
	_, err := j.reservation(0)
	return err
}
