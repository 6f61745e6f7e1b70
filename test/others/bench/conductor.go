package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// indexerAPI is what the two contracts of a KV cache indexer ask differently:
// Mooncake's Conductor, and Dynamo's standalone indexer. Each is asked in its own
// units: by hash that is rolling hashes there, local ones here.
type indexerAPI struct {
	name     string
	register func(instance, blockSize int, endpoint string) []byte
	tokens   func(ids []byte, blockSize int) []byte // body of POST /query
	hashes   func(p *prompt, blockSize int) []byte  // body of POST /query_by_hash
	matched  func(answer []byte) (map[int]int, error)
}

var conductorAPI = &indexerAPI{
	name: "conductor",
	register: func(instance, blockSize int, endpoint string) []byte {
		return fmt.Appendf(nil, `{"type":"vLLM","modelname":"m","instance_id":"%d","block_size":%d,"dp_rank":0,"endpoint":%q}`, instance, blockSize, endpoint)
	},
	tokens: func(ids []byte, blockSize int) []byte {
		return fmt.Appendf(nil, `{"model":"m","block_size":%d,"token_ids":%s}`, blockSize, ids)
	},
	hashes: func(p *prompt, blockSize int) []byte {
		return fmt.Appendf(nil, `{"model":"m","block_size":%d,"seq_hashes":%s}`, blockSize, jsonHashes(nil, p.seq))
	},
	matched: func(answer []byte) (map[int]int, error) {
		var tenants map[string]map[int]longest
		if err := json.Unmarshal(answer, &tenants); err != nil {
			return nil, err
		}
		return tokensOfAll(tenants["default"]), nil
	},
}

var standaloneAPI = &indexerAPI{
	name: "standalone",
	register: func(instance, blockSize int, endpoint string) []byte {
		return fmt.Appendf(nil, `{"model_name":"m","instance_id":%d,"block_size":%d,"dp_rank":0,"endpoint":%q}`, instance, blockSize, endpoint)
	},
	tokens: func(ids []byte, _ int) []byte {
		return fmt.Appendf(nil, `{"model_name":"m","token_ids":%s}`, ids)
	},
	hashes: func(p *prompt, _ int) []byte {
		return fmt.Appendf(nil, `{"model_name":"m","block_hashes":%s}`, jsonHashes(nil, p.local))
	},
	matched: func(answer []byte) (map[int]int, error) {
		var r struct {
			Instances map[int]longest `json:"instances"`
		}
		if err := json.Unmarshal(answer, &r); err != nil {
			return nil, err
		}
		return tokensOfAll(r.Instances), nil
	},
}

// longest is the figure that both contracts answer for an instance.
type longest struct {
	Tokens int `json:"longest_matched"`
}

func tokensOfAll(rows map[int]longest) map[int]int {
	m := make(map[int]int, len(rows))
	for id, row := range rows {
		m[id] = row.Tokens
	}
	return m
}

// apiOf finds out which contract a server has: only a Conductor lists services.
func apiOf(s *server) (*indexerAPI, error) {
	h := &hconn{addr: s.base}
	defer h.close()
	switch status, _, err := h.do(rawReq(s.base, "GET", "/services", nil)); {
	case err != nil:
		return nil, err
	case status == 200:
		return conductorAPI, nil
	default:
		return standaloneAPI, nil
	}
}

func (a *indexerAPI) byTokens(s *server, w *workload, p *prompt) []byte {
	ids := []byte{'['}
	for i, t := range w.ex.tokenIDs(p) {
		if i > 0 {
			ids = append(ids, ',')
		}
		ids = strconv.AppendUint(ids, uint64(t), 10)
	}
	return rawReq(s.base, "POST", "/query", a.tokens(append(ids, ']'), w.cfg.BlockSize))
}

func (a *indexerAPI) byHash(s *server, w *workload, p *prompt) []byte {
	return rawReq(s.base, "POST", "/query_by_hash", a.hashes(p, w.cfg.BlockSize))
}

// ask sends a request and returns the matched tokens of every instance that the
// answer names.
func (a *indexerAPI) ask(h *hconn, req []byte) (map[int]int, error) {
	status, body, err := h.do(req)
	if err != nil {
		return nil, err
	}
	if status != 200 {
		return nil, fmt.Errorf("%s: %d %s", a.name, status, trunc(body, 200))
	}
	return a.matched(body)
}

// conductor fills an indexer over ZMQ, checks its answers against the model,
// and measures queries by tokens and by hash for each of the prompt lengths.
func (r *runner) conductor(s *server, round int) error {
	api, err := apiOf(s)
	if err != nil {
		return err
	}
	w := r.w
	err = r.ingestWith(s, round,
		func() error {
			for k := range w.cfg.Workers {
				if _, _, err := simpleHTTP(s.base, "POST", "/register", api.register(k, w.cfg.BlockSize, r.pubs.eps[k])); err != nil {
					return err
				}
			}
			return nil
		},
		func() (int, error) { return api.waitSentinels(s, w, *fTimeout) },
	)
	if err != nil {
		return err
	}
	if *fChecks > 0 {
		c := api.check(s, w, *fChecks)
		m := toMap(c)
		m["kind"], m["server"], m["round"], m["api"] = "check", s.name, round, api.name
		emit(m)
		r.sum.add("check.rows_wrong", s.name, float64(c.RowsUnder+c.RowsOver))
		r.sum.add("check.failed", s.name, float64(c.Failed))
	}
	for _, x := range splitList(*fPrompts) {
		var n int
		fmt.Sscan(x, &n)
		ps := w.promptsOf(n, promptCount(n))
		if len(ps) == 0 {
			logf("no prompts of %d tokens in the trace", n)
			continue
		}
		if has(*fOps, "query") {
			f, body := requestsOp(ps, func(p *prompt) []byte { return api.byTokens(s, w, p) })
			r.record(s, round, runLoad("query."+kname(n), s, *fConns, 0, *fDur, f, body))
		}
		if has(*fOps, "query_by_hash") {
			f, body := requestsOp(ps, func(p *prompt) []byte { return api.byHash(s, w, p) })
			name := fmt.Sprintf("query_by_hash.%d", n/w.cfg.BlockSize)
			r.record(s, round, runLoad(name, s, *fConns, 0, *fDur, f, body))
		}
	}
	return nil
}

// requestsOp sends prebuilt requests in turn; body is the mean size of one.
func requestsOp(ps []*prompt, build func(*prompt) []byte) (f op, body int) {
	reqs := make([][]byte, len(ps))
	for i, p := range ps {
		reqs[i] = build(p)
		body += len(reqs[i])
	}
	return func(h *hconn, i int) error {
		status, answer, err := h.do(reqs[i%len(reqs)])
		if err == nil && status != 200 {
			err = fmt.Errorf("status %d %s", status, trunc(answer, 160))
		}
		return err
	}, body / len(reqs)
}

// waitSentinels polls until each instance's last stored chain is visible.
func (a *indexerAPI) waitSentinels(s *server, w *workload, limit time.Duration) (polls int, err error) {
	h := &hconn{addr: s.base}
	defer h.close()
	t0 := time.Now()
	for k, p := range w.sentinel {
		for req := a.byHash(s, w, p); ; time.Sleep(5 * time.Millisecond) {
			polls++
			got, err := a.ask(h, req)
			if err != nil {
				return polls, err
			}
			if got[k] == p.tokens {
				break
			}
			if time.Since(t0) > limit {
				return polls, fmt.Errorf("instance %d: sentinel shows %d of %d tokens after %v", k, got[k], p.tokens, limit)
			}
		}
	}
	return polls, nil
}

// queryCheck compares answers with the model. An instance that an answer leaves
// out counts as one with 0 tokens.
type queryCheck struct {
	Queries      int     `json:"queries"`
	Failed       int     `json:"failed"`
	Rows         int     `json:"rows"`
	RowsExact    int     `json:"rows_exact"`
	RowsUnder    int     `json:"rows_under"`
	RowsOver     int     `json:"rows_over"`
	HitFraction  float64 `json:"mean_best_hit_fraction"`
	FirstProblem string  `json:"first_problem,omitempty"`
}

func (c *queryCheck) note(f string, a ...any) {
	if c.FirstProblem == "" {
		c.FirstProblem = fmt.Sprintf(f, a...)
	}
}

// check asks for n prompts, by tokens and by hash.
func (a *indexerAPI) check(s *server, w *workload, n int) (c queryCheck) {
	h := &hconn{addr: s.base}
	defer h.close()
	ps := append(w.promptsOf(0, n/2), w.promptsOf(*fMain, n-n/2)...)
	for i, p := range ps {
		want := make([]int, len(w.caches))
		best := 0
		for k, cache := range w.caches {
			want[k] = cache.prefix(p.seq) * w.cfg.BlockSize
			best = max(best, want[k])
		}
		c.HitFraction += float64(best) / float64(p.tokens) / float64(len(ps))
		for form, req := range map[string][]byte{"tokens": a.byTokens(s, w, p), "hashes": a.byHash(s, w, p)} {
			c.Queries++
			got, err := a.ask(h, req)
			if err != nil {
				c.Failed++
				c.note("prompt %d by %s: %v", i, form, err)
				continue
			}
			c.compare(fmt.Sprintf("prompt %d by %s", i, form), got, want)
		}
	}
	return c
}

func (c *queryCheck) compare(what string, got map[int]int, want []int) {
	for k, tokens := range want {
		c.Rows++
		switch {
		case got[k] == tokens:
			c.RowsExact++
			continue
		case got[k] < tokens:
			c.RowsUnder++
		default:
			c.RowsOver++
		}
		c.note("%s, instance %d: got %d tokens, want %d", what, k, got[k], tokens)
	}
}
