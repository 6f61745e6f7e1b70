package main

import (
	"fmt"
	"os"
	"time"
)

// resetPeak resets the kernel's record of a process's peak memory.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// recover fills one server, and starts a second one that recovers from it. The
// clock runs from the start of the second until it says that it is ready and
// every checked row is right, whether it listens before it has recovered or
// after. The peak of the asked
// server's memory is taken over that time alone.
func (r *runner) recover(sp spec, round, port int) error {
	a, err := r.start(sp, port, map[string]string{"ipeers": "", "sync": "", "speers": ""})
	if err != nil {
		return err
	}
	defer a.stop()
	if err := r.ingest(a, round); err != nil {
		return err
	}
	if err := resetPeak(a.pid); err != nil {
		return err
	}
	rssA, _ := procRSS(a.pid)
	cpuA := procCPU(a.pid)
	t0 := time.Now()
	b, err := r.start(sp, port+1, map[string]string{"ipeers": "http://" + a.base, "sync": "", "speers": ""})
	if err != nil {
		return err
	}
	defer b.stop()
	listen := time.Since(t0).Seconds()
	r.pubs.drainSubs()
	if err := register(b, r.w.cfg.Workers, r.w.cfg.BlockSize, r.w.cfg.Capacity, r.pubs.eps); err != nil {
		return err
	}
	_, _, sentinels := waitSentinels(b, r.w, 60*time.Second)
	visible := time.Since(t0).Seconds()
	const limit = 30 * time.Second
	ready := readyAfter(b, t0, limit)
	c := runChecks(b, r.w, *fChecks, false)
	for t1 := time.Now(); c.RowsExact < c.Rows && time.Since(t1) < limit; {
		time.Sleep(50 * time.Millisecond)
		c = runChecks(b, r.w, *fChecks, false)
	}
	exact := time.Since(t0).Seconds()
	cpuB := procCPU(b.pid)
	_, peakA := procRSS(a.pid)
	rssB, peakB := procRSS(b.pid)
	m := map[string]any{
		"kind": "recover", "server": sp.name, "round": round, "resident": r.w.resident,
		"listen_seconds": listen, "visible_seconds": visible, "exact_seconds": exact, "ready_seconds": ready,
		"cpu_s": cpuB, "asked_cpu_s": procCPU(a.pid) - cpuA, "rss_kb": rssB, "peak_kb": peakB,
		"asked_rss_kb": rssA, "asked_growth_kb": peakA - rssA,
		"rows": c.Rows, "rows_exact": c.RowsExact, "first_problem": c.FirstProblem,
	}
	if sentinels != nil {
		m["error"] = sentinels.Error()
	}
	if c.Rows > 0 && c.RowsExact == c.Rows && sentinels == nil {
		r.sum.add("recover.exact_s", sp.name, exact)
		r.sum.add("recover.failed", sp.name, 0)
	} else {
		r.sum.add("recover.failed", sp.name, 1)
	}
	r.sum.add("recover.listen_s", sp.name, listen)
	r.sum.add("recover.cpu_s", sp.name, cpuB)
	r.sum.add("recover.asked_cpu_s", sp.name, m["asked_cpu_s"].(float64))
	r.sum.add("recover.asked_growth_mb", sp.name, float64(peakA-rssA)*1024/1e6)
	if err := r.dump(a, sp, m); err != nil {
		return err
	}
	emit(m)
	return nil
}

// dump reads the dump once more, for its size and time.
func (r *runner) dump(a *server, sp spec, m map[string]any) error {
	t0 := time.Now()
	_, dump, err := simpleHTTP(a.base, "GET", "/dump", nil)
	if err != nil {
		return err
	}
	m["dump_bytes"], m["dump_seconds"] = len(dump), time.Since(t0).Seconds()
	r.sum.add("recover.dump_s", sp.name, time.Since(t0).Seconds())
	r.sum.add("recover.dump_bytes_per_entry", sp.name, float64(len(dump))/float64(r.w.resident))
	return nil
}

// readyAfter is when /ready is 200, in seconds after t0; -1 if it stays away.
func readyAfter(s *server, t0 time.Time, limit time.Duration) float64 {
	for time.Since(t0) < limit {
		if st, _, err := simpleHTTP(s.base, "GET", "/ready", nil); err == nil && st == 200 {
			return time.Since(t0).Seconds()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return -1
}
