package main

import "time"

// trickle registers the workers and has few messages come, -churn a second over all of them: what a
// message costs that nobody else keeps the server awake for.
func (r *runner) trickle(s *server, round int) error {
	w := r.w
	r.pubs.drainSubs()
	r.pubs.resetSeq()
	if err := register(s, w.cfg.Workers, w.cfg.BlockSize, w.cfg.Capacity, r.pubs.eps); err != nil {
		return err
	}
	if err := r.pubs.waitSubs(1, 30*time.Second); err != nil {
		return err
	}
	time.Sleep(time.Second)
	messages := make([][]message, len(w.fill))
	copy(messages, w.fill)
	cpu0, stop := procCPU(s.pid), make(chan struct{})
	time.AfterFunc(*fDur, func() { close(stop) })
	sent, _ := r.pubs.stream(messages, *fChurn, stop)
	time.Sleep(200 * time.Millisecond)
	us := (procCPU(s.pid) - cpu0) * 1e6 / float64(sent)
	emit(map[string]any{"kind": "trickle", "server": s.name, "round": round, "messages": sent, "cpu_us_per_message": us})
	r.sum.add("trickle.cpu_us_per_message", s.name, us)
	return nil
}
