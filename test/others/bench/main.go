// selbench: a neutral load and correctness harness for a KV-aware selection
// service or indexer (HTTP + vLLM ZMQ KV events). One binary, any server: the start
// command is a template. Prints one JSON object per result line.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

var selfPid = os.Getpid()

type spec struct{ name, cmd, env string }

var (
	fTrace    = flag.String("trace", "chats", "trace file (JSON lines with hash_ids), or chats:SEED for conversations made here")
	fA        = flag.String("a", "", "server A start command template, {port} is substituted")
	fB        = flag.String("b", "", "server B start command template (empty: A only)")
	fNames    = flag.String("names", "A,B", "names of the servers")
	fEnvA     = flag.String("env-a", "INDEXER_PEERS={ipeers};SYNC_PORT={sync};SYNC_PEERS={speers}", "environment of A, ';' separated")
	fEnvB     = flag.String("env-b", "INDEXER_PEERS={ipeers};SYNC_PORT={sync};SYNC_PEERS={speers}", "environment of B")
	fBase     = flag.String("base", "", "attach to a running server host:port instead (with -pid)")
	fPid      = flag.Int("pid", 0, "pid of the attached server")
	fMode     = flag.String("mode", "full", "full | paired | tails | ingest | turnover | recover | replica | conductor | http | describe")
	fPort     = flag.Int("port", 24000, "first port to use")
	fWorkers  = flag.Int("workers", 8, "workers")
	fCap      = flag.Int("cap", 100000, "cached blocks per worker")
	fBS       = flag.Int("bs", 16, "block size (divides 512)")
	fChunk    = flag.Int("chunk", 2048, "tokens per BlockStored event (prefill chunk)")
	fDecode   = flag.Bool("decode", true, "also emit single-block decode events")
	fFill     = flag.Float64("fill", 1.3, "stored blocks before measuring, as a multiple of total capacity")
	fRounds   = flag.Int("rounds", 3, "rounds (A and B alternate inside each)")
	fConns    = flag.Int("conns", 8, "client connections")
	fDur      = flag.Duration("dur", 1500*time.Millisecond, "duration of one load phase")
	fRate     = flag.Int("rate", 500, "open-loop rate, requests per second")
	fChurn    = flag.Int("churn", 400, "messages per second while events stream (each 64 blocks)")
	fPrompts  = flag.String("prompts", "1024,8192,65536", "prompt lengths in tokens")
	fMain     = flag.Int("main", 8192, "prompt length of the per-endpoint phases")
	fOps      = flag.String("ops", "select,tokens,lifecycle,overlap,potential,open,stream,query,query_by_hash", "phases to run; and: reads. Mode tails has select, tokens, lifecycle and overlap")
	fChecks   = flag.Int("checks", 60, "prompts of the correctness check (0 = off)")
	fBurst    = flag.Int("burst", 20000, "mode replica: bookings at the full rate of HTTP, all live at once")
	fProbes   = flag.Int("probes", 400, "mode replica: single bookings whose delay is measured")
	fTurns    = flag.Int("turnovers", 10, "mode turnover: how often the caches are filled anew")
	fSlices   = flag.Int("slices", 60, "mode paired: slices of load for each operation and server, of -dur each")
	fMember   = flag.String("member", "", "mode paired: NAME:COUNT, a member of the bodies that has one of so many names in turn")
	fIdle     = flag.Int("idle", 0, "mode full: workers more, without a cache")
	fRanks    = flag.Int("ranks", 1, "mode full: ranks of each of them")
	fSendPar  = flag.Int("send-par", 1, "publisher goroutines")
	fLog      = flag.String("log", "server.log", "server output file")
	fTimeout  = flag.Duration("timeout", 120*time.Second, "limit for ingestion and recovery")
	fExport   = flag.String("export", "", "write the event and query stream to this file and exit")
	fMaxTrace = flag.Int("max-trace", 0, "use only the first N requests of the trace")
	fLimit    = flag.Float64("limit", 0, "exit with 1 if a median ratio B/A of CPU or memory is above this (0: never)")
)

func emit(m map[string]any) {
	b, _ := json.Marshal(m)
	fmt.Println(string(b))
}

func toMap(v any) map[string]any {
	b, _ := json.Marshal(v)
	m := map[string]any{}
	json.Unmarshal(b, &m)
	return m
}

func die(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "selbench:", err)
		os.Exit(1)
	}
}

func logf(f string, a ...any) {
	fmt.Fprintf(os.Stderr, "%s "+f+"\n", append([]any{time.Now().Format("15:04:05")}, a...)...)
}

func register(s *server, w int, bs, cap int, eps []string) error {
	for k := 0; k < w; k++ {
		b := fmt.Sprintf(`{"worker_id":%d,"model_name":"m","endpoint":"http://127.0.0.1:1","block_size":%d,`+
			`"data_parallel_start_rank":0,"data_parallel_size":1,"kv_events_endpoints":{"0":%q},`+
			`"max_num_batched_tokens":1000000000,"total_kv_blocks":%d}`, k, bs, eps[k], cap)
		if _, _, err := simpleHTTP(s.base, "POST", "/workers", []byte(b)); err != nil {
			return err
		}
	}
	return nil
}

// waitSentinels polls until each worker's last stored chain is visible.
func waitSentinels(s *server, w *workload, limit time.Duration) (time.Duration, int, error) {
	t0 := time.Now()
	h := &hconn{addr: s.base}
	polls := 0
	for k, p := range w.sentinel {
		req := overlapReq(s, w.ex, p)
		for {
			polls++
			got, err := queryOverlap(h, req)
			if err != nil {
				return time.Since(t0), polls, err
			}
			if got[k] == len(p.seq) {
				break
			}
			if time.Since(t0) > limit {
				return time.Since(t0), polls, fmt.Errorf("worker %d: sentinel shows %d of %d blocks after %v", k, got[k], len(p.seq), limit)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return time.Since(t0), polls, nil
}

type summary map[string]map[string][]float64 // metric -> server -> values

func (s summary) add(metric, srv string, v float64) {
	if s[metric] == nil {
		s[metric] = map[string][]float64{}
	}
	s[metric][srv] = append(s[metric][srv], v)
}

type runner struct {
	w    *workload
	pubs *publishers
	sum  summary
	// capacity, of mode tails: the closed-loop rate of the slower server, by op.
	capacity map[string]float64
}

func (r *runner) start(sp spec, port int, vars map[string]string) (*server, error) {
	s, err := startServer(sp.name, sp.cmd, strings.Split(sp.env, ";"), vars, port, *fLog)
	if err != nil {
		return nil, err
	}
	if err := s.waitUp(*fTimeout); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// ingest registers the workers and publishes the fill; the publisher must be
// fresh (sequence numbers start at 0).
func (r *runner) ingest(s *server, round int) error {
	w := r.w
	return r.ingestWith(s, round,
		func() error { return register(s, w.cfg.Workers, w.cfg.BlockSize, w.cfg.Capacity, r.pubs.eps) },
		func() (int, error) {
			_, polls, err := waitSentinels(s, w, *fTimeout)
			return polls, err
		},
	)
}

// ingestWith is ingest for any contract: register registers the workers, wait
// returns when all that was sent is visible, and how often it had to ask.
func (r *runner) ingestWith(s *server, round int, register func() error, wait func() (polls int, err error)) error {
	w := r.w
	r.pubs.drainSubs()
	r.pubs.resetSeq()
	if err := register(); err != nil {
		return err
	}
	if err := r.pubs.waitSubs(1, 30*time.Second); err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond)
	rss0, _ := procRSS(s.pid)
	cpu0 := procCPU(s.pid)
	t0 := time.Now()
	r.pubs.sendAll(w.fill, *fSendPar)
	tSend := time.Since(t0)
	polls, err := wait()
	t := time.Since(t0).Seconds()
	cpu := procCPU(s.pid) - cpu0
	if err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond)
	rss1, peak := procRSS(s.pid)
	blocks := float64(w.stored + w.removed)
	perM := float64(rss1-rss0) / 1024 / (float64(w.resident) / 1e6)
	m := map[string]any{
		"kind": "ingest", "server": s.name, "round": round, "workers": w.cfg.Workers, "cap": w.cfg.Capacity, "bs": w.cfg.BlockSize,
		"seconds": t, "send_seconds": tSend.Seconds(), "events_per_s": float64(w.events) / t, "msgs_per_s": float64(w.msgs) / t,
		"blocks_per_s": blocks / t, "cpu_s": cpu, "cpu_ns_per_block": cpu * 1e9 / blocks, "cpu_us_per_event": cpu * 1e6 / float64(w.events),
		"rss_before_kb": rss0, "rss_after_kb": rss1, "peak_kb": peak, "resident": w.resident, "unique": w.unique,
		"rss_mib_per_m_entries": perM, "rss_mib_per_m_unique": float64(rss1-rss0) / 1024 / (float64(w.unique) / 1e6), "polls": polls,
	}
	emit(m)
	for _, k := range []string{"events_per_s", "blocks_per_s", "cpu_ns_per_block", "cpu_us_per_event", "rss_mib_per_m_entries", "rss_mib_per_m_unique"} {
		r.sum.add("ingest."+k, s.name, m[k].(float64))
	}
	return nil
}

func (r *runner) record(s *server, round int, lr loadResult) {
	m := toMap(lr)
	m["kind"], m["server"], m["round"] = "load", s.name, round
	emit(m)
	r.sum.add(lr.Op+".rps", s.name, lr.RPS)
	r.sum.add(lr.Op+".p50_us", s.name, lr.P50us)
	r.sum.add(lr.Op+".p99_us", s.name, lr.P99us)
	r.sum.add(lr.Op+".p999_us", s.name, lr.P999us)
	r.sum.add(lr.Op+".cpu_us", s.name, lr.CPUms)
	if lr.Errors > 0 {
		r.sum.add(lr.Op+".errors", s.name, float64(lr.Errors))
	}
}

func has(list, x string) bool {
	for _, v := range strings.Split(list, ",") {
		if v == x {
			return true
		}
	}
	return false
}

// promptCount is how many different prompts of a length a load phase sends.
func promptCount(tokens int) int {
	if tokens > 32768 {
		return 40
	}
	return 300
}

func kname(n int) string { return fmt.Sprintf("%dk", n/1024) }

func (r *runner) full(s *server, round int) error {
	w := r.w
	if err := r.ingest(s, round); err != nil {
		return err
	}
	if *fChecks > 0 {
		c := runChecks(s, w, *fChecks, true)
		m := toMap(c)
		m["kind"], m["server"], m["round"] = "check", s.name, round
		emit(m)
		r.sum.add("check.rows_wrong", s.name, float64(c.RowsUnder+c.RowsOver))
		r.sum.add("check.select_wrong", s.name, float64(c.IdleSelects-c.IdleArgmin+c.LoadSelects-c.LoadArgmin))
	}
	if err := registerIdle(s, w.cfg); err != nil {
		return err
	}
	do := func(name string, rate int, f op, body int) {
		r.record(s, round, runLoad(name, s, *fConns, rate, *fDur, f, body))
	}
	if has(*fOps, "select") {
		for _, x := range splitList(*fPrompts) {
			var n int
			fmt.Sscan(x, &n)
			ps := w.promptsOf(n, promptCount(n))
			if len(ps) == 0 {
				continue
			}
			f, b := simpleOp(s.base, "/select", w.ex, ps, "hashes", "")
			do("select."+kname(n), 0, f, b)
		}
	}
	ps := w.promptsOf(*fMain, promptCount(*fMain))
	mk := kname(*fMain)
	if has(*fOps, "tokens") {
		f, b := simpleOp(s.base, "/select", w.ex, ps, "tokens", "")
		do("select_tokens."+mk, 0, f, b)
	}
	if has(*fOps, "lifecycle") {
		f, b := lifecycleOp(s.base, "", w.ex, ps, "hashes", nil)
		do("lifecycle."+mk, 0, f, b)
	}
	if has(*fOps, "overlap") {
		f, b := simpleOp(s.base, "/overlap_scores", w.ex, ps, "hashes", "")
		do("overlap_scores."+mk, 0, f, b)
	}
	if has(*fOps, "potential") {
		f, b := simpleOp(s.base, "/potential_loads", w.ex, ps, "hashes", "")
		do("potential_loads."+mk, 0, f, b)
	}
	if has(*fOps, "reads") {
		if err := r.reads(s, round); err != nil {
			return err
		}
	}
	f, b := simpleOp(s.base, "/select", w.ex, ps, "hashes", "")
	if has(*fOps, "open") {
		do("select_open."+mk, *fRate, f, b)
	}
	if has(*fOps, "stream") {
		stop, done := make(chan struct{}), make(chan int)
		ms := make([][]message, len(w.churn))
		copy(ms, w.churn)
		go func() {
			n, _ := r.pubs.stream(ms, *fChurn, stop)
			done <- n
		}()
		do("select_open_stream."+mk, *fRate, f, b)
		close(stop)
		n := <-done
		emit(map[string]any{"kind": "stream", "server": s.name, "round": round, "msgs_sent": n, "blocks_per_s": float64(n) * 64 / fDur.Seconds()})
	}
	sum, err := getLoads(s)
	zero := err == nil && sum == loadSum{}
	emit(map[string]any{"kind": "end", "server": s.name, "round": round, "loads_zero": zero, "loads": fmt.Sprintf("%+v", sum)})
	return nil
}

// tails measures latencies where both servers get the same work: the first round finds
// the closed-loop rate of each, the others offer 25, 50 and 75 % of the lower one.
func (r *runner) tails(s *server, round int) error {
	w := r.w
	if err := r.ingest(s, round); err != nil {
		return err
	}
	do := func(name string, f op, body int) {
		if round == 0 {
			lr := runLoad(name, s, *fConns, 0, *fDur, f, body)
			r.record(s, round, lr)
			if c := r.capacity[name]; c == 0 || lr.RPS < c {
				r.capacity[name] = lr.RPS
			}
			return
		}
		for _, percent := range []int{25, 50, 75} {
			rate := int(r.capacity[name] * float64(percent) / 100)
			r.record(s, round, runLoad(fmt.Sprintf("%s.at%d", name, percent), s, *fConns, rate, *fDur, f, body))
		}
	}
	for _, x := range splitList(*fPrompts) {
		var n int
		fmt.Sscan(x, &n)
		ps := w.promptsOf(n, promptCount(n))
		if len(ps) == 0 {
			continue
		}
		for _, of := range []struct {
			op, name, path, form string
		}{{"select", "select", "/select", "hashes"}, {"tokens", "select_tokens", "/select", "tokens"}, {"overlap", "overlap_scores", "/overlap_scores", "hashes"}} {
			if has(*fOps, of.op) {
				f, b := simpleOp(s.base, of.path, w.ex, ps, of.form, "")
				do(of.name+"."+kname(n), f, b)
			}
		}
		if has(*fOps, "lifecycle") {
			f, b := lifecycleOp(s.base, "", w.ex, ps, "hashes", nil)
			do("lifecycle."+kname(n), f, b)
		}
	}
	return nil
}

// httpOnly drives /select alone: no workers, no events (for floor servers).
func (r *runner) httpOnly(s *server, round int) error {
	for _, x := range splitList(*fPrompts) {
		var n int
		fmt.Sscan(x, &n)
		ps := r.w.promptsOf(n, promptCount(n))
		f, b := simpleOp(s.base, "/select", r.w.ex, ps, "hashes", "")
		r.record(s, round, runLoad("select."+kname(n), s, *fConns, 0, *fDur, f, b))
	}
	return nil
}

func main() {
	flag.Parse()
	trace, err := openTrace(*fTrace, *fMaxTrace)
	die(err)
	cfg := workloadCfg{Workers: *fWorkers, Capacity: *fCap, BlockSize: *fBS, ChunkToks: *fChunk, Decode: *fDecode, FillFactor: *fFill}
	t0 := time.Now()
	closeExport := func(*workload) {}
	if *fExport != "" {
		closeExport = startExport(*fExport)
	}
	w := buildWorkload(trace, cfg)
	closeExport(w)
	logf("workload built in %v: %s", time.Since(t0).Round(time.Millisecond), w.describe())
	emit(map[string]any{
		"kind": "workload", "cfg": cfg, "resident": w.resident, "unique": w.unique, "msgs": w.msgs, "events": w.events,
		"stored": w.stored, "removed": w.removed, "payload_bytes": w.bytes,
	})
	if *fMode == "describe" || *fExport != "" {
		return
	}
	if has(*fOps, "stream") && *fMode == "full" {
		per := int(fDur.Seconds()*float64(*fChurn))/(2*cfg.Workers) + 8
		w.addChurn(per)
	}
	pubs, err := newPublishers(cfg.Workers, *fPort+200)
	die(err)
	r := &runner{w: w, pubs: pubs, sum: summary{}, capacity: map[string]float64{}}
	names := strings.Split(*fNames, ",")
	var specs []spec
	if *fA != "" {
		specs = append(specs, spec{names[0], *fA, *fEnvA})
	}
	if *fB != "" {
		specs = append(specs, spec{names[1], *fB, *fEnvB})
	}
	if *fBase != "" {
		s := &server{name: "attached", base: *fBase, pid: *fPid}
		die(r.full(s, 0))
		return
	}
	if *fMode == "paired" {
		die(r.paired(specs))
		*fRounds = 0
	}
	for round := 0; round < *fRounds; round++ {
		order := append([]spec(nil), specs...)
		if round%2 == 1 && len(order) == 2 {
			order[0], order[1] = order[1], order[0]
		}
		for _, sp := range order {
			logf("round %d %s %s", round, *fMode, sp.name)
			var err error
			switch *fMode {
			case "recover":
				err = r.recover(sp, round, *fPort)
			case "replica":
				err = r.replica(sp, round, *fPort)
			default:
				var s *server
				s, err = r.start(sp, *fPort, map[string]string{"ipeers": "", "sync": "", "speers": ""})
				if err == nil {
					switch *fMode {
					case "http":
						err = r.httpOnly(s, round)
					case "ingest":
						err = r.ingest(s, round)
					case "trickle":
						err = r.trickle(s, round)
					case "turnover":
						err = r.turnover(s, round, buildWorkload(w.trace, cfg))
					case "conductor":
						err = r.conductor(s, round)
					case "tails":
						err = r.tails(s, round)
					default:
						err = r.full(s, round)
					}
					s.stop()
				}
			}
			if err != nil {
				emit(map[string]any{"kind": "error", "server": sp.name, "round": round, "error": err.Error()})
				logf("error: %v", err)
			}
			time.Sleep(300 * time.Millisecond)
		}
	}
	if dearer := r.sum.print(specs); len(dearer) > 0 {
		logf("dearer than %g times %s: %s", *fLimit, specs[0].name, strings.Join(dearer, ", "))
		os.Exit(1)
	}
}

// print writes a summary line a metric, with min, median and max of each server and of
// the rounds' ratios. With a limit it also logs the ratios of all costs, and returns those
// whose median is above it.
func (s summary) print(specs []spec) (dearer []string) {
	for _, k := range slices.Sorted(maps.Keys(s)) {
		m := map[string]any{"kind": "summary", "metric": k}
		for _, sp := range specs {
			if v := s[k][sp.name]; len(v) > 0 {
				m[sp.name] = spread(v)
			}
		}
		if len(specs) == 2 {
			va, vb := s[k][specs[0].name], s[k][specs[1].name]
			var q []float64
			for i := range min(len(va), len(vb)) {
				if va[i] != 0 {
					q = append(q, vb[i]/va[i])
				}
			}
			if len(q) > 0 {
				ratio := spread(q)
				m["ratio_b_over_a"] = ratio
				if isCost(k) && *fLimit > 0 {
					logf("%-32s %5.2f (%.2f-%.2f)", k, ratio["median"], ratio["min"], ratio["max"])
					if ratio["median"] > *fLimit {
						dearer = append(dearer, k)
					}
				}
			}
		}
		emit(m)
	}
	return dearer
}

// isCost reports whether a metric is CPU or memory for a unit of work: what a busy
// machine disturbs least.
func isCost(metric string) bool {
	return strings.HasSuffix(metric, ".cpu_us") || metric == "ingest.cpu_ns_per_block" || metric == "ingest.rss_mib_per_m_entries"
}

func spread(v []float64) map[string]float64 {
	v = slices.Sorted(slices.Values(v))
	return map[string]float64{"min": v[0], "median": v[len(v)/2], "max": v[len(v)-1]}
}
