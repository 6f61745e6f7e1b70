package httpapi

import (
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/node"
)

// TestLoadBody: every member of a report, what leaving it out means, and what is refused.
func TestLoadBody(t *testing.T) {
	f := new(fake)
	h := newHandler(f)
	told := func(change func(*load.Report)) load.Report {
		r := load.Report{Source: load.Told}
		change(&r)
		return r
	}
	for body, want := range map[string][]node.RankReport{
		`{"ranks":{}}`:       nil,
		`{"ranks":{"0":{}}}`: {{DP: 0, Report: told(func(*load.Report) {})}},
		`{"ranks":{"3":{"running":1,"waiting":2,"kv_tokens_used":3,"kv_tokens_total":4,"waiting_uncached_tokens":5,"max_running":6},"1":{"running":0}}}`: {
			{DP: 3, Report: told(func(r *load.Report) {
				r.Running, r.Waiting, r.KVTokensUsed, r.KVTokensTotal = load.Known(1), load.Known(2), load.Known(3), load.Known(4)
				r.WaitingUncachedTokens, r.MaxRunning = load.Known(5), load.Known(6)
			})},
			{DP: 1, Report: told(func(r *load.Report) { r.Running = load.Known(0) })},
		},
		`{"ranks":{"0":{"running":null,"kv_tokens_total":0,"max_running":0,"waiting":281474976710656}}}`: {
			{DP: 0, Report: told(func(r *load.Report) { r.Waiting = load.Known(1 << 48) })},
		},
	} {
		f.reports = nil
		if w := call(t, h, "PUT", "/workers/18446744073709551615/load", body, nil); w.Code != 200 || strings.TrimSpace(w.Body.String()) != `{"status":"ok"}` || f.workerID != 1<<64-1 {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
		if !slices.Equal(f.reports, want) {
			t.Errorf("%s: %+v, want %+v", body, f.reports, want)
		}
	}
	f.reports = nil
	for body, want := range map[string]struct {
		status int
		text   string
	}{
		`{}`:                                                        {422, "missing field `ranks`"},
		`{"ranks":{"0":{"running":-1}}}`:                            {422, "expected an unsigned 64-bit integer"},
		`{"ranks":{"0":{"running":1.5}}}`:                           {422, "expected an unsigned 64-bit integer"},
		`{"ranks":{"0":{"running":"1"}}}`:                           {422, "expected an unsigned 64-bit integer"},
		`{"ranks":{"0":{"running":1e30}}}`:                          {422, "running: "},
		`{"ranks":{"0":{"running":281474976710657}}}`:               {422, "is 281474976710657, the maximum is 281474976710656"},
		`{"ranks":{"0":{"runs":1}}}`:                                {400, "unknown field, expected `running`, `waiting`, `kv_tokens_used`, `kv_tokens_total`, `waiting_uncached_tokens` or `max_running`"},
		`{"ranks":{},"interval":1}`:                                 {400, "unknown field, expected `ranks`"},
		`{"ranks":{"0":{"running":1,"running":2}}}`:                 {422, "duplicate field `running`"},
		`{"ranks":{"x":{}}}`:                                        {400, "member name is not a number"},
		`{"ranks":{"4294967296":{}}}`:                               {422, "not an unsigned 32-bit integer"},
		`{"ranks":[]}`:                                              {422, ""},
		`{"ranks":{"0":null}}`:                                      {422, ""},
		`{"ranks":{"0":{"running":NaN}}}`:                           {400, ""},
		`{"ranks":{` + strings.Repeat(`"0":{},`, 4096) + `"0":{}}}`: {422, "more than 4096 ranks"},
	} {
		if w := call(t, h, "PUT", "/workers/1/load", body, nil); w.Code != want.status || !strings.Contains(w.Body.String(), want.text) {
			t.Errorf("%.80s: %d %s, want %d %s", body, w.Code, w.Body, want.status, want.text)
		}
	}
	if f.reports != nil {
		t.Errorf("taken: %+v", f.reports)
	}
}
