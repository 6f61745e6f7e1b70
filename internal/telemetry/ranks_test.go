package telemetry_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestRankMetrics: after random traffic the series of ranks say what /loads and
// the index say, those of the slot tracker included, and workers are overloaded
// as the thresholds say.
func TestRankMetrics(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 2, servicetest.Total(8)))
	w.Put(servicetest.Record(2, 1))
	odd := catalog.Scope{Model: "m\"o\\d\nd", Tenant: "{é}"}
	w.Put(servicetest.Record(3, 1, func(r *catalog.Record) { r.Scope = odd }))
	if err := w.SlotsRegister(node.SlotsWorker{Worker: 5, Scope: servicetest.Scope, BlockSize: servicetest.BlockSize, DPStart: 3, DPSize: 1}); err != nil {
		t.Fatal(err)
	}
	blocks := map[catalog.Rank]int{{Worker: 1}: 3, {Worker: 1, DP: 1}: 7, {Worker: 2}: 1, {Worker: 3}: 2}
	for r, n := range blocks {
		e := w.Engine(r.Worker, r.DP)
		e.Publish(r.DP, e.Stored(servicetest.Prompt(uint32(r.Worker), n*servicetest.BlockSize), servicetest.BlockSize, nil), e.Stored(servicetest.Prompt(90, servicetest.BlockSize), servicetest.BlockSize, servicetest.Dict{"medium": "CPU"}))
	}
	w.Settle()
	rnd := rand.New(rand.NewPCG(6, 6))
	for i := range 20 {
		id := fmt.Sprint("r", i)
		w.Book(id, servicetest.Prompt(uint32(100+i%7), 4*rnd.IntN(6)))
		if rnd.IntN(3) == 0 {
			_ = w.PrefillComplete(id)
		}
	}
	if err := w.SlotsAdd(&node.SlotsReservation{Scope: servicetest.Scope, ID: "s", Rank: catalog.Rank{Worker: 5, DP: 3}, SequenceHashes: []uint64{1, 2}, NewISLTokens: 9}); err != nil {
		t.Fatal(err)
	}
	w.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(20)), DecodeBlocks: new(.5)})

	want := []string{"ranks_unlisted 0", `rank_total_kv_blocks{dp_rank="1",model_name="m",tenant_id="t",worker_id="1"} 8`}
	free := map[uint64]bool{}
	for _, sc := range w.Loads(nil, nil) {
		model := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(sc.Scope.Model)
		for _, l := range sc.Loads {
			labels := fmt.Sprintf(`{dp_rank="%d",model_name="%s",tenant_id="%s",worker_id="%d"}`, l.Rank.DP, model, sc.Scope.Tenant, l.Rank.Worker)
			want = append(want,
				fmt.Sprintf("rank_active_kv_blocks%s %d", labels, l.DecodeBlocks),
				fmt.Sprintf("rank_active_prefill_tokens%s %d", labels, l.PrefillTokens),
				fmt.Sprintf("rank_active_requests%s %d", labels, l.Requests),
				fmt.Sprintf("rank_used_kv_blocks%s %d", labels, blocks[l.Rank]),
			)
			if l.Rank.Worker != 5 {
				want = append(want,
					fmt.Sprintf(`dynamo_frontend_worker_active_decode_blocks{dp_rank="%d",worker_id="%d",worker_type="select"} %d`, l.Rank.DP, l.Rank.Worker, l.DecodeBlocks),
					fmt.Sprintf(`dynamo_frontend_worker_active_prefill_tokens{dp_rank="%d",worker_id="%d",worker_type="select"} %d`, l.Rank.DP, l.Rank.Worker, l.PrefillTokens),
				)
			}
			if busy := l.PrefillTokens > 20 || l.Rank.Worker == 1 && l.DecodeBlocks > 4; !busy {
				free[l.Rank.Worker] = true
			}
		}
	}
	for worker := range uint64(2) {
		n := 1
		if free[worker+1] {
			n = 0
		}
		want = append(want, fmt.Sprintf(`worker_overloaded{model_name="m",tenant_id="t",worker_id="%d"} %d`, worker+1, n))
	}
	if len(want) != 2+4*5+2*4+2 {
		t.Errorf("%d series are compared", len(want))
	}
	w.WantSeries(want...)
	w.WantNoSeries(`worker_overloaded{.*worker_id="[35]"`)
	w.WantNoSeries(`dynamo_frontend_worker.*worker_id="5"`)
}

// TestManyRanks: 4,096 ranks have series, in order of model, tenant, worker and
// rank; the others are counted.
func TestManyRanks(t *testing.T) {
	length.Sequential(t)
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(9))}))
	w.Put(servicetest.Record(2, 4090))
	w.Put(servicetest.Record(1, 10, servicetest.OfModel("n")))
	w.Put(servicetest.Record(3, 10, servicetest.OfModel("a")))
	m := w.Metrics()
	if a, f, o := len(m["rank_active_kv_blocks"]), len(m["dynamo_frontend_worker_active_decode_blocks"]), len(m["worker_overloaded"]); a != 4096 || f != 4096 || o != 3 {
		t.Errorf("%d and %d series of ranks, %d of workers; want 4,096 and 3", a, f, o)
	}
	last := func(m servicetest.Scraped, model, worker string, dp int) {
		t.Helper()
		listed := func(dp int) bool {
			want := []string{strconv.Itoa(dp), model, "t", worker}
			return slices.ContainsFunc(m["rank_active_kv_blocks"], func(s servicetest.Sample) bool { return slices.Equal(s.Labels, want) })
		}
		if !listed(dp) || listed(dp+1) {
			t.Errorf("rank %d of worker %s of model %s is listed: %t, the next one: %t; want it to be the last", dp, worker, model, listed(dp), listed(dp+1))
		}
	}
	last(m, "m", "2", 4085)
	if n := servicetest.Sum(m["ranks_unlisted"]); n != 14 {
		t.Errorf("%v ranks are not listed, want 14", n)
	}
	w.Remove(3)
	m = w.Metrics()
	last(m, "n", "1", 5)
	if n := servicetest.Sum(m["ranks_unlisted"]); n != 4 {
		t.Errorf("%v ranks are not listed, want 4", n)
	}
}

// TestLagMetric: the age of live messages, by the clock of the engine.
func TestLagMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t)
		w.Put(servicetest.Record(1, 1))
		e := w.Engine(1, 0)
		sent := float64(time.Now().UnixNano()) / 1e9
		for _, age := range []float64{0, .25, 3, 100, -5} { // the last one is from the future
			e.Deliver(servicetest.BatchAt(sent-age, 0, e.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil)))
		}
		w.Settle()
		w.WantSeries(
			`kv_event_lag_seconds_bucket{le="0.0005"} 2`,
			`kv_event_lag_seconds_bucket{le="0.128"} 2`,
			`kv_event_lag_seconds_bucket{le="0.256"} 3`,
			`kv_event_lag_seconds_bucket{le="4.096"} 4`,
			`kv_event_lag_seconds_bucket{le="65.536"} 4`,
			`kv_event_lag_seconds_count 5`,
		)
	})
}

// TestLateFrees: a free that comes after the reservation has expired is counted
// apart; one of an unknown reservation is not.
func TestLateFrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff)
		w.Put(servicetest.Record(1, 1))
		w.Book("late", servicetest.Prompt(1, 8))
		w.Book("intime", servicetest.Prompt(2, 8))
		_ = w.Free("intime")
		time.Sleep(400 * time.Second)
		synctest.Wait()
		for _, id := range []string{"late", "intime", "never"} {
			if err := w.Free(id); err == nil {
				t.Errorf("%s was there", id)
			}
		}
		w.WantSeries(
			`reservation_events_total{event="booked"} 2`,
			`reservation_events_total{event="freed"} 1`,
			`reservation_events_total{event="expired"} 1`,
			`reservation_events_total{event="freed_late"} 1`,
			`reservations_live 0`,
			`ready 1`,
		)
		w.Close()
		w.WantSeries("ready 0")
	})
}

// TestScrapesDuringTraffic: scrapes succeed (no series is there twice, no label
// is missing) and counters never fall while workers come, go and move, models
// change and requests are answered.
func TestScrapesDuringTraffic(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(30))}))
	w.Put(servicetest.Record(1, 2))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	loop := func(f func(i int)) {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					f(i)
				}
			}
		})
	}
	for c := range 2 {
		loop(func(i int) {
			id := fmt.Sprintf("%d/%d", c, i)
			req := servicetest.Ask(servicetest.Prompt(uint32(i), 12))
			req.ReservationID = &id
			if i%5 == 0 {
				req.Scope.Model = "other"
			}
			if _, err := w.Select(context.Background(), req, true); err == nil && i%3 > 0 {
				_ = w.Free(id)
			}
		})
	}
	loop(func(i int) { // one worker moves between models, tenants and sizes
		r := servicetest.Record(2, uint32(1+i%3))
		if i%2 == 0 {
			r.Scope = catalog.Scope{Model: "other", Tenant: fmt.Sprint(i % 3)}
		}
		_, _ = w.PutWorker(r)
		if i%4 == 3 {
			_, _ = w.DeleteWorker(2)
		}
	})
	loop(func(i int) {
		_, _ = w.SetBusyThreshold("m", overload.Thresholds{PrefillTokens: new(uint64(i % 60))})
	})
	counter := regexp.MustCompile(`(?m)^(\S+_(?:total|count|bucket)(?:\{.*\})?) (\d+)$`)
	last := map[string]uint64{}
	for range 15 {
		for _, found := range counter.FindAllStringSubmatch(w.Scrape(), -1) {
			var n uint64
			_, _ = fmt.Sscan(found[2], &n)
			if n < last[found[1]] {
				t.Errorf("%s fell from %d to %d", found[1], last[found[1]], n)
			}
			last[found[1]] = n
		}
	}
	close(stop)
	wg.Wait()
	w.Put(servicetest.Record(9, 1, servicetest.OfModel("other"))) // or its counts are not shown
	m := w.Metrics()
	if all, issued := servicetest.Sum(m["selections_total"]), servicetest.Sum(m["dynamo_tasks_issued_total"]); all != issued {
		t.Errorf("%v selections, none malformed, but %v issued", all, issued)
	}
}
