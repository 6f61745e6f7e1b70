package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/test/helpers/length"
)

// picky answers selections by what they ask for, and refuses some.
type picky struct{ Service }

func (picky) Select(_ context.Context, req *selection.SelectRequest, reserve bool) (selection.Selection, error) {
	switch n := len(req.Prompt.TokenIDs); {
	case n%5 == 4:
		return selection.Selection{}, contract.LimitErrorf(contract.Exhausted, contract.LimitReservations, "%d is too many", n)
	case n%7 == 6:
		return selection.Selection{}, contract.Errorf(contract.Conflict, "%d is taken", n)
	case n%11 == 10:
		return selection.Selection{}, &contract.Error{Kind: contract.Overloaded, Text: "busy", Message: "all busy"}
	default:
		return selection.Selection{
			SelectionID: req.SelectionID, ReservationID: req.ReservationID, Scope: req.Scope, Rank: catalog.Rank{Worker: uint64(n)},
			SequenceHashes: req.Prompt.SequenceHashes, Lease: req.Lease, TrackPrefill: reserve,
		}, nil
	}
}

// batchResult is one of the results of a batch.
type batchResult struct {
	Status     int             `json:"status"`
	Body       json.RawMessage `json:"body"`
	RetryAfter string          `json:"retry_after"`
}

func resultsOf(t *testing.T, answer []byte) []batchResult {
	t.Helper()
	var a struct {
		Results []batchResult `json:"results"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		t.Fatalf("%s: %v", answer, err)
	}
	return a.Results
}

// TestBatch is differential: each request of a batch is answered as its own call is, in
// both dialects and both formats.
func TestBatch(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	h := New(picky{}, nil, Options{Log: zerolog.Nop(), RetryAfter: 7 * time.Second})
	for range length.Of(200, 200, 30) {
		prefix := []string{"", "/v1.3", "/v1.6"}[rnd.IntN(3)]
		var names, bodies, elements []string
		for range rnd.IntN(20) {
			name, body := []string{"select", "select_and_reserve"}[rnd.IntN(2)], randomBody(rnd)
			names, bodies = append(names, name), append(bodies, body)
			elements = append(elements, ` { "`+name+`" : `+body+` } `)
		}
		text := `{"requests":[` + strings.Join(elements, ",") + `]}`
		for _, packed := range []bool{false, true} {
			sent, header := text, http.Header{"Content-Type": {"application/json"}}
			if packed {
				sent, header = string(bodyscan.AppendMsgpack(nil, []byte(text))), http.Header{"Content-Type": {"application/msgpack"}}
			}
			w := call(t, h, http.MethodPost, prefix+"/select_batch", sent, header)
			answer := w.Body.Bytes()
			if packed {
				answer = fromMsgpack(t, answer)
			}
			if w.Code != http.StatusOK {
				t.Fatalf("%s: %d %s", text, w.Code, answer)
			}
			results := resultsOf(t, answer)
			if len(results) != len(bodies) {
				t.Fatalf("%d results for %d requests", len(results), len(bodies))
			}
			for i, got := range results {
				alone := bodies[i]
				if packed {
					alone = string(bodyscan.AppendMsgpack(nil, []byte(alone)))
				}
				want := call(t, h, http.MethodPost, prefix+"/"+names[i], alone, header)
				body := want.Body.Bytes()
				if packed {
					body = fromMsgpack(t, body)
				}
				if got.Status != want.Code || got.RetryAfter != want.Header().Get("Retry-After") || !sameJSON(t, got.Body, body) {
					t.Fatalf("%s %s: %+v %s, alone %d %s %v", names[i], bodies[i], got, got.Body, want.Code, body, want.Header())
				}
			}
		}
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		t.Fatalf("%s or %s is no JSON", a, b)
	}
	return cmp.Equal(x, y)
}

// TestBatchRefused: what is no batch is refused as a whole, before anything is served.
func TestBatchRefused(t *testing.T) {
	f := &fake{call: func() { t.Error("served") }}
	h := newHandler(f)
	one := `{"select":{}}`
	for body, want := range map[string]int{
		`{}`: 422, `{"requests":null}`: 422, `{"requests":[{}]}`: 422, `{"requests":[7]}`: 422, `{"requests":[{"free":{}}]}`: 422,
		`{"requests":[{"select":{},"select_and_reserve":{}}]}`:           422,
		`{"requests":[` + one + `,{"select":{]}]}`:                       400,
		`{"requests":[` + strings.Repeat(one+",", maxBatch) + one + `]}`: 422,
	} {
		if w := call(t, h, http.MethodPost, "/select_batch", body, nil); w.Code != want {
			t.Errorf("%.80s: %d %s, want %d", body, w.Code, w.Body, want)
		}
	}
}

// TestBatchScopes: a caller's scope holds for each request.
func TestBatchScopes(t *testing.T) {
	h := New(picky{}, nil, Options{Log: zerolog.Nop(), Access: guardOf(t)})
	w := ask(h, http.MethodPost, "/select_batch", "own-operate", `{"requests":[{"select":{"tenant_id":"own"}},{"select":{"tenant_id":"foreign"}},{"select":{}}]}`)
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	var got []int
	for _, r := range resultsOf(t, w.Body.Bytes()) {
		got = append(got, r.Status)
	}
	if !cmp.Equal(got, []int{200, 403, 403}) {
		t.Errorf("answered %v", got)
	}
}

// TestFurtherNames: a caller's scope is that of the model itself, whatever name of it a request has: an engine that calls
// its model gpt-4, too, is not reached with a token for a model gpt-4, and is with a token for its own.
func TestFurtherNames(t *testing.T) {
	var file strings.Builder
	for _, model := range []string{"real", "further"} {
		entry, err := access.Grant{Name: model, Roles: []access.Role{access.Operate}, Model: model}.Entry(model)
		if err != nil {
			t.Fatal(err)
		}
		file.WriteString(entry)
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte("tokens:\n"+file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	guard, err := access.New(path)
	if err != nil {
		t.Fatal(err)
	}
	h := New(new(fake), nil, Options{Log: zerolog.Nop(), Access: guard, Named: func(sc catalog.Scope) catalog.Scope {
		if sc.Model == "further" {
			sc.Model = "real"
		}
		return sc
	}})
	prompt := `"token_ids":[1,2,3,4]}`
	for route, body := range map[string]string{
		"/select": prompt, "/select_and_reserve": prompt, "/overlap_scores": prompt, "/potential_loads": prompt,
		"/reservations": `"reservation_id":"r","worker_id":1,"dp_rank":0,` + prompt,
	} {
		for _, model := range []string{"real", "further"} {
			for _, token := range []string{"real", "further"} {
				w := ask(h, http.MethodPost, route, token, `{"model_name":"`+model+`",`+body)
				if denied := w.Code == http.StatusForbidden; denied != (token == "further") {
					t.Errorf("%s of %s with a token for %s: %d %s", route, model, token, w.Code, w.Body)
				}
			}
		}
	}
	for token, want := range map[string]int{"real": 200, "further": 403} {
		w := ask(h, http.MethodPost, "/select_batch", token, `{"requests":[{"select":{"model_name":"further",`+prompt+`}]}`)
		if got := resultsOf(t, w.Body.Bytes())[0].Status; got != want {
			t.Errorf("in a batch with a token for %s: %d", token, got)
		}
	}
	for _, token := range []string{"real", "further"} { // a worker's model is no further name
		w := ask(h, http.MethodPost, "/workers", token, `{"worker_id":1,"model_name":"further","endpoint":"http://a:1","block_size":4}`)
		if denied := w.Code == http.StatusForbidden; denied != (token == "real") {
			t.Errorf("a worker with a token for %s: %d %s", token, w.Code, w.Body)
		}
	}
}

// waiting waits in every selection, which ends the turn of a large body and what it holds
// of the bodies.
type waiting struct {
	Service
	memory *Memory
	t      *testing.T
}

func (w waiting) Select(_ context.Context, req *selection.SelectRequest, _ bool) (selection.Selection, error) {
	req.Text.ReleaseText()
	for _, a := range []*memory.Account{w.memory.serving, w.memory.bodies.Account(), w.memory.requests.Account()} {
		if n := a.Used(); n != 0 {
			w.t.Errorf("%d bytes of account %s are held while it waits", n, a.Name())
		}
	}
	return selection.Selection{Rank: catalog.Rank{Worker: uint64(len(req.Prompt.TokenIDs))}}, nil
}

// TestBatchWaits: while a request of a batch waits, others have the memory for bodies and
// their turn; those behind it are all there, and nothing is left in the accounts.
func TestBatchWaits(t *testing.T) {
	p := newTestMemory()
	h := New(waiting{memory: p.Memory, t: t}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
	var elements []string
	for i := range 20 {
		elements = append(elements, `{"select_and_reserve":{"token_ids":[`+strings.Repeat("1,", 10_000*(i%3)+i)+`1]}}`)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/select_batch", strings.NewReader(`{"requests":[`+strings.Join(elements, ",")+`]}`))
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, r)
	for i, got := range resultsOf(t, w.Body.Bytes()) {
		if want := `"worker_id":` + strconv.Itoa(10_000*(i%3)+i+1) + ","; got.Status != 200 || !strings.Contains(string(got.Body), want) {
			t.Errorf("%d: %+v %s, want %s", i, got, got.Body, want)
		}
	}
	p.empty(t)
}

// TestBatchWaitsTooLong: where what is behind a request that waits does not fit into what may
// wait, it is refused.
func TestBatchWaitsTooLong(t *testing.T) {
	p := newTestMemory()
	all := p.waiting.Limit()
	if !p.waiting.Reserve(all - 1000) {
		t.Fatal("not empty")
	}
	h := New(waiting{memory: p.Memory, t: t}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
	element := `{"select":{"token_ids":[` + strings.Repeat("1,", 1000) + `1]}}`
	w := call(t, h, http.MethodPost, "/select_batch", `{"requests":[`+strings.Repeat(element+",", 9)+element+`]}`, nil)
	for i, got := range resultsOf(t, w.Body.Bytes()) {
		if served := i == 0; served != (got.Status == 200) || !served && (got.Status != 503 || got.RetryAfter == "" || !strings.Contains(string(got.Body), "account waiting")) {
			t.Errorf("%d: %+v %s", i, got, got.Body)
		}
	}
	p.waiting.Release(all - 1000)
	p.empty(t)
}

// crowded waits in the first selection, while others take all turns and keep them.
type crowded struct {
	Service
	memory *Memory
}

func (c crowded) Select(_ context.Context, req *selection.SelectRequest, _ bool) (selection.Selection, error) {
	req.Text.ReleaseText()
	c.memory.gate.TryAcquire(c.memory.width)
	return selection.Selection{}, nil
}

// TestBatchPatience: a batch that waits for its turn in vain does so once, and not for each
// of its requests.
func TestBatchPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestMemory()
		h := New(crowded{memory: p.Memory}, nil, Options{Log: zerolog.Nop(), Memory: p.Memory})
		element := `{"select":{"token_ids":[` + strings.Repeat("1,", 10_000) + `1]}}`
		begin := time.Now()
		w := call(t, h, http.MethodPost, "/select_batch", `{"requests":[`+strings.Repeat(element+",", 19)+element+`]}`, nil)
		for i, got := range resultsOf(t, w.Body.Bytes()) {
			if want := map[bool]int{true: 200, false: 503}[i == 0]; got.Status != want {
				t.Errorf("%d: %+v %s, want %d", i, got, got.Body, want)
			}
		}
		if took := time.Since(begin); took != servingPatience {
			t.Errorf("refused after %v", took)
		}
		p.gate.Release(p.width)
		p.empty(t)
	})
}

// explaining answers with a long explanation.
type explaining struct{ Service }

func (explaining) Select(context.Context, *selection.SelectRequest, bool) (selection.Selection, error) {
	return selection.Selection{Explanation: &selection.Explanation{Candidates: make([]selection.ExplainedRank, 5000)}}, nil
}

// TestBatchAnswer: an answer that becomes too long ends with refusals.
func TestBatchAnswer(t *testing.T) {
	h := New(explaining{}, nil, Options{Log: zerolog.Nop()})
	w := call(t, h, http.MethodPost, "/select_batch", `{"requests":[`+strings.Repeat(`{"select":{}},`, 99)+`{"select":{}}]}`, nil)
	results := resultsOf(t, w.Body.Bytes())
	if n := w.Body.Len(); n > 2*maxBatchAnswer || len(results) != 100 || results[0].Status != 200 || results[99].Status != 503 || results[99].RetryAfter != "1" {
		t.Errorf("%d bytes, %d results: %+v", n, len(results), fmt.Sprint(results[99]))
	}
}
