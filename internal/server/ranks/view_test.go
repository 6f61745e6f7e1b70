package ranks_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/internal/server/ranks"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// text is the text of a row in these tests: its name first.
func text(out []byte, r *ranks.Row, scope uint64) []byte {
	return fmt.Appendf(out, "%d/%d/%d %s %s %d %q requests=%d blocks=%d/%d cached=%d stream=%v drained=%v",
		scope, r.Rank.Worker, r.Rank.DP, r.Source, r.State, r.Urgency(), r.Reason, r.Requests, r.ActiveBlocks, r.TotalBlocks, r.CachedBlocks, r.Stream, r.Drained)
}

// follower keeps a view up to date by differences.
type follower struct {
	of      catalog.ScopeFilter
	version string
	rows    map[string]string // by name
	scopes  map[uint64]string
	full    int // how often it got everything
}

func (f *follower) follow(v *ranks.View) {
	v.Since(f.version, f.of, func(p *ranks.Page) {
		if p.Full {
			f.rows, f.scopes = make(map[string]string), make(map[uint64]string)
			f.full++
		}
		for s := range p.Scopes {
			f.scopes[s.Number] = fmt.Sprintf("%+v", *s)
		}
		for row := range p.Rows {
			name, _, _ := strings.Cut(string(row), " ")
			f.rows[name] = string(row)
		}
		for number, rank := range p.Removed { // last: what has come back is not among them
			if rank == nil {
				delete(f.scopes, number)
			} else {
				delete(f.rows, fmt.Sprintf("%d/%d/%d", number, rank.Worker, rank.DP))
			}
		}
		f.version = p.Version
	})
}

// TestDifferences: whatever happens to workers and their load, who follows a view by differences,
// once a second or rarely, sees what a look at everything sees; so does one who may see a single
// tenant.
func TestDifferences(t *testing.T) {
	steps := 2000
	if testing.Short() {
		steps = 200
	}
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		r := rand.New(rand.NewPCG(1, 2))
		v := ranks.New(w.Parts(), text, time.Now)
		own := "t1"
		followers := []*follower{{}, {of: catalog.ScopeFilter{Tenant: &own}}, {}}
		booked := 0
		for step := range steps {
			id := 1 + r.Uint64N(6)
			switch r.IntN(6) {
			case 0:
				rec := servicetest.Record(id, 1+r.Uint32N(3), servicetest.Total(50), func(rec *catalog.Record) {
					rec.Scope.Tenant = "t" + strconv.Itoa(r.IntN(2))
					if r.IntN(4) == 0 {
						rec.Endpoint = nil // incomplete
					}
				})
				_, _ = w.PutWorker(rec)
			case 1:
				_, _ = w.DeleteWorker(id)
			case 2:
				_, _ = w.DrainWorkerIn(catalog.ScopeFilter{}, id, nil)
			case 3:
				_, _ = w.UndrainWorkerIn(catalog.ScopeFilter{}, id)
			case 4:
				req := servicetest.Ask(servicetest.Prompt(r.Uint32N(9), 12))
				req.Scope.Tenant, req.ReservationID = "t"+strconv.Itoa(r.IntN(2)), new("r"+strconv.Itoa(step))
				if _, err := w.Select(t.Context(), req, true); err == nil {
					booked++
				}
			case 5:
				if e := w.Net.At(servicetest.Endpoint(id, 0)); e != nil && r.IntN(2) == 0 {
					e.Connect()
				}
			}
			synctest.Wait()
			if r.IntN(3) > 0 {
				continue
			}
			time.Sleep(time.Second)
			for i, f := range followers {
				if i == 2 && r.IntN(5) > 0 {
					continue
				}
				f.follow(v)
				fresh := &follower{of: f.of}
				fresh.follow(v)
				if !maps.Equal(f.rows, fresh.rows) || !maps.Equal(f.scopes, fresh.scopes) {
					t.Fatalf("step %d, follower %d: has\n%s\n%v\nwant\n%s\n%v", step, i, join(f.rows), f.scopes, join(fresh.rows), fresh.scopes)
				}
			}
		}
		if booked < steps/20 {
			t.Fatalf("only %d reservations", booked)
		}
		for i, f := range followers {
			if f.full != 1 {
				t.Errorf("follower %d got everything %d times", i, f.full)
			}
		}
	})
}

func join(rows map[string]string) string {
	return strings.Join(slices.Sorted(maps.Values(rows)), "\n")
}

// TestTooLarge: a difference of more rows than an answer has is a whole answer, so that no change is lost.
func TestTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff)
		const workers = 5
		for id := range uint64(workers) {
			w.Put(servicetest.Record(id, 4096, servicetest.Total(50), func(r *catalog.Record) { r.KVEventsEndpoints = nil }))
		}
		v := ranks.New(w.Parts(), text, time.Now)
		f, fresh := &follower{}, &follower{}
		f.follow(v)
		for id := range uint64(workers) {
			w.Burden("r"+strconv.FormatUint(id, 10), id, 0, 1, 4)
			if _, err := w.DrainWorkerIn(catalog.ScopeFilter{}, id, nil); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		f.follow(v)
		fresh.follow(v)
		if len(f.rows) != ranks.MaxRows || f.full != 2 || !maps.Equal(f.rows, fresh.rows) {
			t.Errorf("%d rows, %d whole answers, equal: %v", len(f.rows), f.full, maps.Equal(f.rows, fresh.rows))
		}
		w.Burden("one more", 1, 1, 1, 4)
		time.Sleep(time.Second)
		if f.follow(v); f.full != 2 {
			t.Error("a small difference is a whole answer")
		}
	})
}

// TestUnknownVersions: a version of another view, or none at all, gets everything.
func TestUnknownVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		v := ranks.New(w.Parts(), text, time.Now)
		f := &follower{}
		f.follow(v)
		id, _, _ := strings.Cut(f.version, "-")
		for version, full := range map[string]bool{
			"": true, "x": true, "-": true, "other-1": true, id + "-": true, id + "-x": true, id + "-99": true, id + "-1": false,
		} {
			v.Since(version, catalog.ScopeFilter{}, func(p *ranks.Page) {
				if p.Full != full {
					t.Errorf("%q: full=%v", version, p.Full)
				}
			})
		}
	})
}

// TestStates: rows and totals have the state and the reason that rankstate gives, of a rank whose events alone
// are read too, which is no rank of its worker.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 2, servicetest.Total(100)))
		w.Put(servicetest.Record(2, 1, servicetest.Total(100)))
		w.Put(servicetest.Record(3, 1, servicetest.Total(10)))
		_, _ = w.PutWorker(servicetest.Record(4, 1, func(r *catalog.Record) { r.Endpoint = nil }))
		w.Put(servicetest.Record(5, 1, servicetest.Total(100), func(r *catalog.Record) { r.KVEventsEndpoints = servicetest.Endpoints(5, 2) }))
		_, _ = w.DrainWorkerIn(catalog.ScopeFilter{}, 2, nil)
		w.SetBusy(overload.Thresholds{DecodeBlocks: new(0.5)})
		w.Burden("r", 3, 0, 9, 30)
		w.Net.At(servicetest.Endpoint(1, 0)).Connect()
		w.Settle()
		synctest.Wait() // until the messages that the streams begin with are applied
		v := ranks.New(w.Parts(), text, time.Now)
		f := &follower{}
		f.follow(v)
		want := []string{
			`1/1/0 api ready 0 "" requests=0 blocks=0/100 cached=0 stream={true live 0 0} drained=false`,
			`1/1/1 api ready 2 "" requests=0 blocks=0/100 cached=0 stream={true connecting 0 0} drained=false`,
			`1/2/0 api draining 3 "drained over the API" requests=0 blocks=0/100 cached=0 stream={true connecting 0 0} drained=true`,
			`1/3/0 api overloaded 4 "all ranks of the worker are above a busy threshold" requests=1 blocks=9/10 cached=0 stream={true connecting 0 0} drained=false`,
			`1/4/0 api incomplete 7 "endpoint is required" requests=0 blocks=0/0 cached=0 stream={false connecting 0 0} drained=false`,
			`1/5/0 api ready 2 "" requests=0 blocks=0/100 cached=0 stream={true connecting 0 0} drained=false`,
			`1/5/1 api incomplete 3 "the worker's record has another range of ranks: only the KV events of this one are read" requests=0 blocks=0/100 cached=0 stream={true connecting 0 0} drained=false`,
		}
		if got := join(f.rows); got != strings.Join(want, "\n") {
			t.Errorf("rows\n%s", got)
		}
		v.Since("", catalog.ScopeFilter{}, func(p *ranks.Page) {
			if p.Totals.Workers != 5 || p.Totals.Ranks != 7 || p.Totals.States != [rankstate.NumStates]int{3, 1, 1, 0, 0, 2} || p.Totals.ActiveBlocks != 9 {
				t.Errorf("totals %+v", p.Totals)
			}
		})
	})
}

// TestHistory: a scope has a point each five seconds and its ranks one each minute, hit rates are
// those of the choices, and a series ends an hour after its scope.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1, servicetest.Total(100)))
		v := ranks.New(w.Parts(), text, time.Now)
		h := ranks.NewHistory(v, ranks.MaxHistory)
		done := make(chan error, 1)
		ctx, stop := contextOf(t)
		go func() { done <- h.Run(ctx) }()
		defer func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		tokens := servicetest.Prompt(1, 16)
		time.Sleep(ranks.ScopeEvery + time.Second)
		w.Book("a", tokens)
		time.Sleep(ranks.ScopeEvery)
		w.Engine(1, 0).Publish(0, w.Engine(1, 0).Stored(tokens, servicetest.BlockSize, nil))
		w.Settle()
		w.Book("b", tokens)
		time.Sleep(ranks.ScopeEvery)
		past := h.Scopes(catalog.ScopeFilter{}, ranks.Kept)
		if len(past.Series) != 1 || past.Truncated {
			t.Fatalf("%+v", past)
		}
		for c, want := range map[ranks.Column]string{
			ranks.Requests: "[0 1 2]", ranks.Selections: "[0 1 1]", ranks.HitRate: "[NaN 0 1]", ranks.DeviceBlocks: "[0 0 4]", ranks.Ranks: "[1 1 1]",
		} {
			if got := fmt.Sprint(past.Series[0].Columns[c]); got != want {
				t.Errorf("%v = %s, want %s", c, got, want)
			}
		}
		time.Sleep(2 * time.Minute)
		pastRanks := h.Ranks(catalog.ScopeFilter{}, 1, ranks.Kept)
		if len(pastRanks.Series) != 1 || len(pastRanks.Series[0].Columns[ranks.Requests]) != 3 || len(h.Ranks(catalog.ScopeFilter{}, 2, ranks.Kept).Series) != 0 {
			t.Errorf("ranks %+v", pastRanks)
		}
		if got := len(h.Scopes(catalog.ScopeFilter{}, 10*time.Second).Series[0].Columns[0]); got != 2 {
			t.Errorf("ten seconds have %d points", got)
		}
		w.Remove(1)
		time.Sleep(ranks.Kept - time.Minute)
		if len(h.Scopes(catalog.ScopeFilter{}, ranks.Kept).Series) != 1 {
			t.Error("the history ends too early")
		}
		time.Sleep(2 * time.Minute)
		if n := len(h.Scopes(catalog.ScopeFilter{}, ranks.Kept).Series) + len(h.Ranks(catalog.ScopeFilter{}, 1, ranks.Kept).Series); n != 0 {
			t.Errorf("%d series are left", n)
		}
	})
}

// TestHistoryBounds: beyond its memory, further ranks and scopes are left out, and told.
func TestHistoryBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		for id := range uint64(9) {
			w.Put(servicetest.Record(id, 1))
		}
		h := ranks.NewHistory(ranks.New(w.Parts(), text, time.Now), 48<<10)
		ctx, stop := contextOf(t)
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		time.Sleep(2 * ranks.ScopeEvery)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		n := 0
		for id := range uint64(9) {
			past := h.Ranks(catalog.ScopeFilter{}, id, ranks.Kept)
			n += len(past.Series)
			if !past.Truncated {
				t.Error("nothing tells that ranks are left out")
			}
		}
		if past := h.Scopes(catalog.ScopeFilter{}, ranks.Kept); n == 0 || n == 9 || len(past.Series) != 1 || past.Truncated {
			t.Errorf("%d ranks, %d scopes, truncated %v", n, len(past.Series), past.Truncated)
		}
	})
}

// TestHistoryAndCaller: a history takes its point of a view that a caller has just had renewed, and
// renews one that nobody has asked for.
func TestHistoryAndCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1))
		v := ranks.New(w.Parts(), text, time.Now)
		h := ranks.NewHistory(v, ranks.MaxHistory)
		ctx, cancel := contextOf(t)
		defer cancel()
		go func() { _ = h.Run(ctx) }()
		version := func() (at string) {
			v.Since("", catalog.ScopeFilter{}, func(p *ranks.Page) { at = p.Version })
			return at
		}
		time.Sleep(ranks.ScopeEvery - ranks.Interval/2)
		before := version()
		time.Sleep(ranks.Interval/2 + ranks.Interval/5) // a point was taken, and the view is younger than an Interval
		synctest.Wait()
		if after := version(); after != before {
			t.Errorf("version %s became %s: it was renewed twice within an interval", before, after)
		}
		if p := h.Scopes(catalog.ScopeFilter{}, time.Minute); len(p.Series) != 1 || p.End.IsZero() {
			t.Errorf("%+v", p)
		}
		ended := h.Scopes(catalog.ScopeFilter{}, time.Minute).End
		time.Sleep(ranks.ScopeEvery)
		synctest.Wait()
		if again := h.Scopes(catalog.ScopeFilter{}, time.Minute).End; again.Sub(ended) < ranks.ScopeEvery-ranks.Interval {
			t.Errorf("the next point is of %v, the last of %v", again, ended)
		}
	})
}
