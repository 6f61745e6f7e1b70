package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

type object = map[string]any

// stub answers for a fleet that no test could start: any size, every kind of trouble, peers that
// differ. The page's files, and what it does not know, come from a running service.
type stub struct {
	workers int // with 8 ranks each
	polls   atomic.Int64
	start   time.Time
}

// newStub returns the address of a stub in front of the service at base.
func newStub(t *testing.T, base string, workers int) string {
	t.Helper()
	at, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	s := &stub{workers: workers, start: time.Now()}
	mux := http.NewServeMux()
	mux.Handle("/", httputil.NewSingleHostReverseProxy(at))
	for path, answer := range map[string]func(*http.Request) any{
		"/fleet": s.fleet, "/decisions": s.decisions, "/history": s.history, "/index/prefixes": s.prefixes, "/doctor": s.doctor,
		"/replicas": s.replicas, "/explain": func(*http.Request) any { return s.explanation(7) },
	} {
		mux.HandleFunc("/v1.6"+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer(r))
		})
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// noise is a number from 0 to 1 that depends on i alone.
func noise(i int) float64 {
	x := math.Sin(float64(i)*12.9898) * 43758.5453
	return x - math.Floor(x)
}

func (s *stub) row(i, poll int) object {
	load := 0.15 + 0.6*noise(i)*(0.8+0.2*math.Sin(float64(poll+i)/9))
	r := object{
		"worker_id": 1 + i/8, "dp_rank": i % 8, "scope": 1 + (i/8)%3, "source": "kubernetes", "state": "ready", "stream": "live",
		"requests": int(load * 40), "active_blocks": int(load * 9000), "prefill_tokens": int(load * 9000 * noise(i+poll)),
		"cached_blocks": 4000 + int(noise(i)*5000), "total_blocks": 9000, "max_batched_tokens": 8192, "hit_rate": 0.3 + 0.6*noise(3*i),
		"reported": object{"source": "push", "running": int(load * 42), "waiting": int(load * 3), "kv_blocks_used": int(load * 9300), "kv_blocks_total": 9000},
	}
	switch {
	case i == 11:
		r["state"], r["reason"] = "silent", "no sign of life for 14 s"
		r["causes"], r["urgency"] = []string{"engine_silent"}, 9
	case i == 20 || i == 21:
		r["state"], r["reason"] = "stalled", "busy, and no progress for 31 s"
		r["causes"], r["urgency"] = []string{"engine_stalled"}, 8
	case i/8 == 4:
		r["state"], r["reason"], r["drain"] = "draining", "drained by an operator", object{}
		r["causes"], r["urgency"] = []string{"worker_draining"}, 3
	case i == 44:
		r["state"], r["reason"], r["active_blocks"] = "overloaded", "96 % of its blocks are booked, the threshold is 90 %", 8700
		r["causes"], r["urgency"] = []string{"worker_overloaded"}, 4
	case i == 50:
		r["stream"], r["lost"] = "stale", 12
		r["causes"], r["urgency"] = []string{"stream_stale", "stream_lost"}, 5
	case i == 51:
		r["lag"] = 340
		r["causes"], r["urgency"] = []string{"stream_behind"}, 1
	case i/8 == 7:
		r = object{"worker_id": 8, "dp_rank": i % 8, "scope": 1, "source": "api", "state": "incomplete", "reason": "block_size is missing", "causes": []string{"worker_incomplete"}, "urgency": 7}
	}
	return r
}

func (s *stub) fleet(r *http.Request) any {
	poll := int(s.polls.Add(1))
	full := r.URL.Query().Get("since") == ""
	rows := []object{}
	// all, and the scopes by their numbers
	of := [4]struct {
		ranks, requests, blocks int
		states                  map[string]int
	}{}
	for i := range of {
		of[i].states = map[string]int{}
	}
	for i := range s.workers * 8 {
		row := s.row(i, poll)
		for _, n := range []int{0, row["scope"].(int)} {
			of[n].ranks++
			of[n].states[row["state"].(string)]++
			if requests, ok := row["requests"].(int); ok {
				of[n].requests += requests
				of[n].blocks += row["active_blocks"].(int)
			}
		}
		if full || i%8 == poll%8 {
			rows = append(rows, row)
		}
	}
	totals := func(n int) object {
		sum, share := of[n], max(1, s.workers*8/max(1, of[n].ranks))
		return object{
			"workers": sum.ranks / 8, "ranks": sum.ranks, "states": sum.states, "running": sum.requests, "waiting": (18 + poll%7) / share, "queued": poll % 3 / share,
			"active_blocks": sum.blocks, "total_blocks": sum.ranks * 9000, "prefill_tokens": 100000 / share, "requests": sum.requests,
			"selections": poll * 400 / share, "refused": 0, "prompt_blocks": poll * 40000 / share, "cached_blocks": poll * 26000 / share,
		}
	}
	scope := func(n int, model, group string, hits float64) object {
		o := totals(n)
		maps.Copy(o, object{
			"scope": n, "model_name": model, "routing_group": group, "block_size": 64, "queued_tokens": 0, "hit_rate": hits, "unique_blocks": 90000,
		})
		return o
	}
	return object{
		"version": fmt.Sprintf("stub-%d", poll), "full": full, "time": time.Now().UTC(), "interval_seconds": 1, "roles": []string{"read", "call", "operate"},
		"totals": totals(0),
		"scopes": []object{scope(1, "llama-3.3-70b", "default", 0.6), scope(2, "qwen3-235b", "default", 0.07), scope(3, "llama-3.3-70b", "research", 0.66)},
		// The silent rank was away for a moment: it is removed, and there again.
		"rows": append(rows, s.row(11, poll)), "removed": []object{{"worker_id": 2, "dp_rank": 3, "scope": s.row(11, poll)["scope"]}}, "truncated": false,
	}
}

// targets are what targets have done to choices, in turn.
var targets = []object{
	{"predictable": false, "why_not": "the guard rail late_scope is engaged"},
	{"predictable": true, "holding": 3, "predicted_ttft_seconds": 0.12, "within_seconds": 0.5, "margin": 1.25},
	{"predictable": true, "holding": 0, "predicted_ttft_seconds": 0.61, "within_seconds": 0.5, "margin": 1.25, "would_refuse": true},
	{"predictable": true, "holding": 0, "predicted_ttft_seconds": 0.61, "within_seconds": 0.5, "margin": 1.25, "probe": true},
	{"predictable": true, "holding": 0, "predicted_ttft_seconds": 0.61, "within_seconds": -0.1, "margin": 1.25},
}

func (s *stub) explanation(n int) object {
	candidates := []object{}
	for i := range 16 {
		hit, load := noise(n*31+i), noise(n*17+i)
		device := int(hit * hit * 6000)
		host := int((1 - hit) * 900)
		uncached := 7400 - device - host
		wait, prefill, decode := load*20, float64(uncached)/64, load*60
		candidates = append(candidates, object{
			"worker_id": 1 + i/2, "dp_rank": i % 2, "cost": wait + prefill + decode, "unit": "blocks",
			"terms":         object{"wait": wait, "prefill": prefill, "delay": 0, "decode": decode, "answer": 0, "taint": 1},
			"cached_tokens": object{"device": device, "host": host, "disk": 0}, "uncached_tokens": uncached, "active_requests": int(load * 30),
			"predicted_wait_seconds": load * 0.2, "predicted_prefill_seconds": float64(uncached) / 20000, "predicted_delay_seconds": 0, "speed_factor": 1, "source": "learned",
		})
	}
	best := candidates[0]
	for _, c := range candidates {
		if c["cost"].(float64) < best["cost"].(float64) {
			best = c
		}
	}
	return object{
		"model_name": "llama-3.3-70b", "routing_group": "default", "policy": "default", "isl_tokens": 7400, "block_size": 64, "temperature": 0,
		"chosen": object{"worker_id": best["worker_id"], "dp_rank": best["dp_rank"]}, "candidates": candidates,
		"session": "claude-7c1d2f0e-subagent-of-a-session-with-a-long-name", "group": "claude-7c1d2f0e", "home": object{"worker_id": 3, "dp_rank": 1}, "moved_because": "overloaded",
		"target":   targets[n%len(targets)],
		"excluded": []object{{"worker_id": 4, "dp_rank": 1, "reason": "draining"}, {"worker_id": 9, "dp_rank": 0, "reason": "stalled"}, {"worker_id": 9, "dp_rank": 1, "reason": "stalled"}},
		"shadows": []object{
			{"policy": "predicted-ttft", "worker_id": best["worker_id"], "dp_rank": best["dp_rank"], "same": true, "cost_foregone": 0, "ttft_foregone_seconds": 0},
			{"policy": "least-loaded", "worker_id": 3, "dp_rank": 1, "same": false, "cost_foregone": 11, "ttft_foregone_seconds": -0.21},
		},
	}
}

func (s *stub) decisions(r *http.Request) any {
	limit, err := strconv.Atoi(r.FormValue("limit"))
	if err != nil {
		limit = 1000
	}
	list := []object{}
	for n := range min(limit, 300) {
		x := s.explanation(n)
		predicted := 0.02 * math.Exp(4*noise(n))
		outcome := object{"ttft_seconds": predicted * math.Exp(0.7*(noise(n*7)-0.5)), "freed_after_seconds": nil, "state": "decoding"}
		if n < 8 {
			outcome = object{"ttft_seconds": nil, "freed_after_seconds": nil, "state": "prefilling"}
		}
		if n == 8 { // the least: an axis that began at it by 1.3, below 0.01, would never end
			predicted, outcome = 0.01296, object{"ttft_seconds": 0.013, "freed_after_seconds": nil, "state": "decoding"}
		}
		for k, v := range (object{
			"time": s.start.Add(-time.Duration(n) * 700 * time.Millisecond).UTC().Format(time.RFC3339Nano), "selection_id": fmt.Sprintf("req-%05d", 40000-n), "reserved": true,
			"cached_blocks": int(noise(n*5) * 110), "cached_blocks_foregone": max(0, int(noise(n*11)*60)-30), "predicted_ttft_seconds": predicted, "outcome": outcome,
		}) {
			x[k] = v
		}
		if r.FormValue("reasons") == "false" {
			x["candidates"], x["excluded"], x["shadows"] = []object{}, []object{}, []object{}
		}
		if at := r.FormValue("time"); at == "" || at == x["time"] {
			list = append(list, x)
		}
	}
	return list
}

func (s *stub) history(r *http.Request) any {
	series := object{"model_name": "llama-3.3-70b", "routing_group": "default"}
	if id := r.URL.Query().Get("worker_id"); id != "" {
		series["worker_id"], series["dp_rank"] = json.Number(id), 3
	}
	for m, size := range map[string]float64{"requests": 20, "device_blocks": 40000, "host_blocks": 16000, "disk_blocks": 5000} {
		values := make([]any, 240)
		for i := range values {
			values[i] = int(size * (0.6 + 0.3*math.Sin(float64(i)/30) + 0.1*noise(i)))
			if i < 20 {
				values[i] = nil
			}
		}
		series[m] = values
	}
	return object{"interval_seconds": 15, "end": s.start.UTC(), "series": []object{series}, "truncated": false}
}

func (s *stub) prefixes(*http.Request) any {
	nodes := []object{}
	var grow func(parent any, depth, blocks, holders, level int) int
	grow = func(parent any, depth, blocks, holders, level int) int {
		id := len(nodes)
		ranks := []object{}
		for i := range min(holders, 16) {
			ranks = append(ranks, object{"worker_id": 1 + i, "dp_rank": 0})
		}
		node := object{
			"id": id, "parent": parent, "depth": depth, "blocks": blocks, "holders": holders, "held": blocks * holders, "block_hash": int64(0x9e3779b97f4a7c15 * uint64(id+1)),
			"tiers": object{"device": holders, "host_pinned": holders / 3}, "ranks": ranks, "hottest": id + 1,
		}
		nodes = append(nodes, node)
		held := blocks * holders
		if level < 4 {
			for i := range 1 + int(noise(id)*5) {
				held += grow(id, depth+blocks, 2+int(noise(id*5+i)*40), max(1, int(float64(holders)*noise(id*3+i))), level+1)
			}
		}
		node["subtree_blocks"], node["subtree_held"] = blocks+40*(4-level), held
		return held
	}
	for i := range 4 {
		grow(nil, 0, 30-6*i, 16-3*i, 0)
	}
	return object{
		"model_name": "llama-3.3-70b", "routing_group": "default", "block_size": 64, "unique_blocks": 90210, "held_blocks": 412000, "nodes": nodes[:min(200, len(nodes))],
		"walked": 2000, "truncated": false, "time": s.start.UTC(),
	}
}

func (s *stub) doctor(*http.Request) any {
	checks := []object{}
	for i, title := range strings.Split("Block sizes agree|Models agree|Hash seeds agree|Streams can be replayed|No events are dropped|Events are understood|Event streams are complete|Streams are connected|"+
		"Engines make progress|Engines show signs of life|The tokenizer answers|Peers can be reached|Thresholds of the replicas agree|Policies of the replicas agree|Clocks agree|Loads agree|Memory has room|Hit rates are as predicted|Workers are complete", "|") {
		checks = append(checks, object{"check": fmt.Sprint("c", i), "title": title, "result": []string{"ok", "ok", "ok", "ok", "ok", "ok", "finding", "ok", "finding", "ok", "not_applicable"}[i%11]})
	}
	return object{"time": s.start.UTC(), "healthy": false, "truncated": false, "checks": checks, "findings": []object{
		{"check": "engine_stalled", "severity": "error", "sentence": "The engine of worker 3 rank 4 is busy and has made no progress for 31 s.", "remedy": "Look at its log; drain the worker, and restart the engine if it does not go on.", "runbook": "docs/run/runbook.md#an-engine-is-stalled", "worker_id": 3, "dp_rank": 4},
		{"check": "stream_stale", "severity": "warning", "sentence": "The KV event stream of worker 7 rank 2 has lost 12 messages and nothing has repaired it: its cached blocks may be wrong.", "remedy": "Give the worker a replay_endpoint, or restart the engine's publisher.", "runbook": "docs/run/runbook.md#kv-events-are-lost", "worker_id": 7, "dp_rank": 2, "count": 12},
		{"check": "peer_thresholds", "severity": "warning", "sentence": "The replica at http://10.0.0.2:8092 has another threshold for llama-3.3-70b.", "remedy": "Set it on both: selectctl thresholds.", "runbook": "docs/run/runbook.md", "peer": "tcp://10.0.0.2:5600"},
	}}
}

func (s *stub) replicas(*http.Request) any {
	load := object{"requests": 120, "blocks": 44000, "prefill_tokens": 9000}
	process := func(id, at string, agree bool) object {
		return object{
			"process": id, "url": at, "absent": false, "snapshot_wanted": false, "read": s.start.UTC(), "version": "1.4.0", "clock_ahead_seconds": 0.0012, "clocks_agree": true,
			"thresholds_differ": map[bool][]string{true: {}, false: {"llama-3.3-70b"}}[agree], "policies_agree": true, "loads": []object{{"model_name": "llama-3.3-70b", "routing_group": "default", "agree": agree, "own": load, "peer": object{"requests": 96, "blocks": 38000, "prefill_tokens": 12000}}},
		}
	}
	return object{
		"enabled": true, "process": "81234567890123456789",
		"stats": object{"sequence": 81234, "lost": 0, "late": 3, "duplicates": 0, "snapshots": 2, "snapshots_failed": 0, "send_queue": 0, "receive_queue": 1},
		"peers": []object{
			{"endpoint": "tcp://10.0.0.2:5600", "connected": true, "processes": []object{process("1", "http://10.0.0.2:8092", false)}},
			{"endpoint": "tcp://10.0.0.3:5600", "connected": true, "processes": []object{process("2", "http://10.0.0.3:8092", true)}},
			{"endpoint": "tcp://10.0.0.4:5600", "connected": false, "processes": []object{}},
		},
	}
}
