package main

import (
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// probeModel has one worker of its own, so that a probe's arrival shows in a
// small answer whatever else is booked.
const (
	probeModel  = "probe"
	probeWorker = 1_000_000
)

// replica cross-links two servers and measures how long a booking on the first
// takes to be seen on the second (from its answer to the first GET /loads that
// has it), alone and beside bookings at the full rate of HTTP; then books a
// burst and compares the sums of both, before and after all is freed.
func (r *runner) replica(sp spec, round, port int) error {
	ep := func(p int) string { return fmt.Sprintf("tcp://127.0.0.1:%d", p) }
	vars := func(own, other int) map[string]string {
		return map[string]string{"ipeers": "", "sync": fmt.Sprint(own), "speers": ep(other)}
	}
	a, err := r.start(sp, port, vars(port+10, port+11))
	if err != nil {
		return err
	}
	defer a.stop()
	b, err := r.start(sp, port+1, vars(port+11, port+10))
	if err != nil {
		return err
	}
	defer b.stop()
	for _, s := range []*server{a, b} {
		if err := register(s, r.w.cfg.Workers, r.w.cfg.BlockSize, r.w.cfg.Capacity, r.pubs.eps); err != nil {
			return err
		}
		if err := r.registerProbe(s); err != nil {
			return err
		}
	}
	time.Sleep(6 * time.Second) // reconnects back off to 5 s
	m := map[string]any{"kind": "replica", "server": sp.name, "round": round}

	tag := fmt.Sprintf("%s-%s-%d", runTag, sp.name, round)
	quiet, err := probes(a, b, tag+"-quiet", *fProbes)
	if err != nil {
		return err
	}
	r.delays(m, sp, "quiet", quiet)

	// Beside lifecycles at the rate that HTTP reaches.
	f, _ := lifecycleOp(a.base, "", r.w.ex, r.w.promptsOf(1024, 200), "hashes", nil)
	var stop atomic.Bool
	var load sync.WaitGroup
	var done, failed atomic.Int64
	for c := range *fConns {
		load.Add(1)
		go func() {
			defer load.Done()
			h := &hconn{addr: a.base}
			for i := c; !stop.Load(); i += *fConns {
				if f(h, i) != nil {
					failed.Add(1)
				}
				done.Add(1)
			}
		}()
	}
	t0 := time.Now()
	busy, err := probes(a, b, tag+"-busy", *fProbes)
	stop.Store(true)
	load.Wait()
	if err != nil {
		return err
	}
	rate := 3 * float64(done.Load()) / time.Since(t0).Seconds()
	m["busy_events_per_s"], m["busy_failed"] = rate, failed.Load()
	r.sum.add("replica.busy_events_per_s", sp.name, rate)
	r.delays(m, sp, "busy", busy)
	if err := r.burst(m, sp, a, b, tag); err != nil {
		return err
	}
	emit(m)
	return nil
}

func (r *runner) registerProbe(s *server) error {
	b := fmt.Sprintf(`{"worker_id":%d,"model_name":%q,"endpoint":"http://127.0.0.1:1","block_size":%d,`+
		`"kv_events_endpoints":{"0":%q},"max_num_batched_tokens":1000000000}`, probeWorker, probeModel, *fBS, r.pubs.eps[0])
	_, _, err := simpleHTTP(s.base, "POST", "/workers", []byte(b))
	return err
}

type delayed struct {
	micros []float64 // sorted
	lost   int
}

// probes books on a, one at a time, and waits until b has it.
func probes(a, b *server, tag string, n int) (d delayed, err error) {
	ha, hb := &hconn{addr: a.base}, &hconn{addr: b.base}
	look := rawReq(b.base, "GET", "/loads?model_name="+probeModel, nil)
	await := func(want float64) (time.Duration, error) {
		t0 := time.Now()
		for {
			_, body, err := hb.do(look)
			if err != nil {
				return 0, err
			}
			sum, err := sumLoads(body)
			if err != nil || sum.Requests == want || time.Since(t0) > 2*time.Second {
				return time.Since(t0), err
			}
		}
	}
	for i := range n {
		id := fmt.Sprintf("%s-%d", tag, i)
		book := fmt.Sprintf(`{"model_name":%q,"reservation_id":%q,"selection_id":%q,"worker_id":%d,"dp_rank":0,`+
			`"block_hashes":[1],"sequence_hashes":[%d],"isl_tokens":16,"effective_prefill_tokens":16}`, probeModel, id, id, probeWorker, i+1)
		if st, body, err := ha.do(rawReq(a.base, "POST", "/reservations", []byte(book))); err != nil || st >= 300 {
			return d, fmt.Errorf("probe: %d %v %s", st, err, trunc(body, 200))
		}
		took, err := await(1)
		if err != nil {
			return d, err
		}
		if took > 2*time.Second {
			d.lost++
		} else {
			d.micros = append(d.micros, float64(took.Microseconds()))
		}
		if _, _, err := ha.do(rawReq(a.base, "DELETE", "/reservations/"+id, nil)); err != nil {
			return d, err
		}
		if _, err := await(0); err != nil {
			return d, err
		}
	}
	sort.Float64s(d.micros)
	return d, nil
}

func (r *runner) delays(m map[string]any, sp spec, name string, d delayed) {
	for _, q := range []struct {
		name string
		q    float64
	}{{"p50", .5}, {"p99", .99}} {
		v := -1.0
		if n := len(d.micros); n > 0 {
			v = d.micros[min(n-1, int(q.q*float64(n)))]
		}
		m[name+"_delay_"+q.name+"_us"] = v
		r.sum.add("replica."+name+"_delay_"+q.name+"_us", sp.name, v)
	}
	m[name+"_lost"] = d.lost
	r.sum.add("replica."+name+"_lost", sp.name, float64(d.lost))
}

// burst books at full speed over all connections, compares the sums, frees, and
// compares again.
func (r *runner) burst(m map[string]any, sp spec, a, b *server, tag string) error {
	n := *fBurst
	small := r.w.promptsOf(1024, 200)
	var refused atomic.Int64
	fan := func(request func(i int) []byte) float64 {
		t0 := time.Now()
		var all sync.WaitGroup
		for c := range *fConns {
			all.Add(1)
			go func() {
				defer all.Done()
				h := &hconn{addr: a.base}
				for i := c; i < n; i += *fConns {
					if st, _, err := h.do(request(i)); err != nil || st >= 300 {
						refused.Add(1)
					}
				}
			}()
		}
		all.Wait()
		return time.Since(t0).Seconds()
	}
	settle := func() (la, lb loadSum) {
		for t0 := time.Now(); time.Since(t0) < 5*time.Second; time.Sleep(20 * time.Millisecond) {
			la, _ = getLoads(a)
			if lb, _ = getLoads(b); lb == la {
				break
			}
		}
		return la, lb
	}
	id := func(i int) string { return fmt.Sprintf("%s-burst-%d", tag, i) }
	booked := fan(func(i int) []byte {
		return rawReq(a.base, "POST", "/select_and_reserve", selectBody(r.w.ex, small[i%len(small)], id(i)))
	})
	la, lb := settle()
	freed := fan(func(i int) []byte { return rawReq(a.base, "DELETE", "/reservations/"+id(i), nil) })
	fa, fb := settle()
	for k, v := range map[string]any{
		"burst": n, "burst_refused": refused.Load(), "burst_per_s": float64(n) / booked, "free_per_s": float64(n) / freed,
		"a_after_burst": la, "b_after_burst": lb, "a_after_free": fa, "b_after_free": fb,
	} {
		m[k] = v
	}
	r.sum.add("replica.burst_per_s", sp.name, float64(n)/booked)
	r.sum.add("replica.burst_lost", sp.name, la.Requests-lb.Requests)
	r.sum.add("replica.burst_diff_blocks", sp.name, la.Blocks-lb.Blocks)
	r.sum.add("replica.burst_diff_prefill", sp.name, la.Prefill-lb.Prefill)
	r.sum.add("replica.free_left_requests", sp.name, fb.Requests-fa.Requests)
	return nil
}
