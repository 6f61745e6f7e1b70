package main

import "time"

// turnover fills the caches and then replaces their whole content again and
// again: what grows here grows for ever in production.
func (r *runner) turnover(s *server, round int, w *workload) error {
	former := r.w
	r.w = w
	defer func() { r.w = former }()
	if err := r.ingest(s, round); err != nil {
		return err
	}
	time.Sleep(time.Second)
	first, _ := procRSS(s.pid)
	last := first
	for turn := 1; turn <= *fTurns; turn++ {
		out := make([][]message, w.cfg.Workers)
		w.advance(w.cfg.Workers*w.cfg.Capacity, out)
		r.pubs.sendAll(out, *fSendPar)
		if _, _, err := waitSentinels(s, w, *fTimeout); err != nil {
			return err
		}
		time.Sleep(time.Second)
		last, _ = procRSS(s.pid)
		emit(map[string]any{"kind": "turnover", "server": s.name, "round": round, "turn": turn, "rss_kb": last, "over_first_fill": float64(last) / float64(first)})
	}
	c := runChecks(s, w, *fChecks, true)
	m := toMap(c)
	m["kind"], m["server"], m["round"] = "check", s.name, round
	emit(m)
	r.sum.add("check.rows_wrong", s.name, float64(c.RowsUnder+c.RowsOver))
	r.sum.add("turnover.rss_over_first_fill", s.name, float64(last)/float64(first))
	return nil
}
