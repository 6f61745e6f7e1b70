package traffic

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// engine answers every request with two tokens, and remembers the requests.
type engine struct {
	*httptest.Server
	mu       sync.Mutex // guards the fields below
	sessions map[string]int
	longest  int // messages of one request
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{sessions: make(map[string]int)}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Messages []message }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		words := 0
		for _, m := range body.Messages {
			words += len(strings.Fields(m.Content))
		}
		e.mu.Lock()
		e.sessions[r.Header.Get("X-Session")]++
		e.longest = max(e.longest, len(body.Messages))
		e.mu.Unlock()
		for _, word := range []string{"one", "two"} {
			fmt.Fprintf(w, "data: {\"choices\": [{\"delta\": {\"content\": \" %s\"}}]}\n\n", word)
		}
		fmt.Fprintf(w, "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": %d, \"completion_tokens\": 2, \"prompt_tokens_details\": {\"cached_tokens\": 5}}}\n\n", words)
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(e.Close)
	return e
}

// TestInTurn proves that requests go to the gateways in turn, and that the chats are those of a play
// through one of them.
func TestInTurn(t *testing.T) {
	tr := Traffic{
		Model: "m", Duration: 20 * time.Millisecond, Rate: 1000, Turns: 3, Think: time.Microsecond,
		Prefixes: 2, Prefix: 10, Question: 5, Answer: 2, InTurn: true, Session: "X-Session", Seed: 1,
	}
	requests := func(e *engine) (n int) {
		for _, of := range e.sessions {
			n += of
		}
		return n
	}
	alone, first, second := newEngine(t), newEngine(t), newEngine(t)
	one, err := tr.Play(t.Context(), alone.URL)
	if err != nil {
		t.Fatal(err)
	}
	two, err := tr.Play(t.Context(), first.URL, second.URL)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := requests(first), requests(second); a+b != requests(alone) || a-b < 0 || a-b > 1 {
		t.Errorf("%d and %d requests, %d of one gateway", a, b, requests(alone))
	}
	if two.Prompt != one.Prompt {
		t.Errorf("prompts of %d tokens, of %d through one gateway", two.Prompt, one.Prompt)
	}
}

// TestPlay proves what a play asks and counts: every turn repeats the chat and has its id, a chat
// ends at its longest, sub-agents add requests, chats around the gateways are not measured, and a
// request that is refused, or whose answer breaks off, ends its chat.
func TestPlay(t *testing.T) {
	base := Traffic{
		Model: "m", Duration: 20 * time.Millisecond, Rate: 1000, Turns: 3, Think: time.Microsecond,
		Prefixes: 2, Prefix: 10, Question: 5, Answer: 2, Session: "X-Session", Seed: 1,
	}
	for name, tc := range map[string]struct {
		change func(*Traffic, *engine)
		check  func(r Result, gateway, around *engine) bool
	}{
		"chats": {nil, func(r Result, gateway, _ *engine) bool {
			n := len(r.Requests)
			return n == 3*len(gateway.sessions) && gateway.longest == 6 && r.Cached == 5*n && r.HitRate() > 0 && len(r.TTFT()) == n && r.Failed == 0
		}},
		"longest": {func(tr *Traffic, _ *engine) { tr.Longest = 1 }, func(r Result, gateway, _ *engine) bool {
			return len(r.Requests) == len(gateway.sessions)
		}},
		"sub-agents": {func(tr *Traffic, _ *engine) { tr.Branch = 1 }, func(r Result, gateway, _ *engine) bool {
			return len(r.Requests) >= (3+3*2*subTurns)*len(gateway.sessions)
		}},
		"around": {func(tr *Traffic, e *engine) { tr.Around, tr.Engines = 0.5, []string{e.URL} }, func(r Result, gateway, around *engine) bool {
			return len(around.sessions) > 0 && len(gateway.sessions) > 0 && len(r.Requests) == 3*len(gateway.sessions)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			gateway, around, tr := newEngine(t), newEngine(t), base
			if tc.change != nil {
				tc.change(&tr, around)
			}
			r, err := tr.Play(t.Context(), gateway.URL)
			if err != nil || !tc.check(r, gateway, around) {
				t.Errorf("%v; %d requests, %d failed (%v), %d of %d cached; sessions %v, around %v", err, len(r.Requests), r.Failed, r.Failure, r.Cached, r.Prompt, gateway.sessions, around.sessions)
			}
		})
	}
	breaking := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "data: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}\n\ndata: {\"error\": {\"message\": \"gone\"}}\n\ndata: [DONE]\n\n")
	}))
	defer breaking.Close()
	if r, err := base.Play(t.Context(), breaking.URL); err != nil || r.Failed == 0 || len(r.Requests) > 0 {
		t.Errorf("broken off with a word: %v, %+v", err, r)
	}
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	if r, err := base.Play(t.Context(), refusing.URL); err != nil || r.Failed == 0 || r.Failure == nil || len(r.Requests) > 0 {
		t.Errorf("refused: %v, %+v", err, r)
	}
}
