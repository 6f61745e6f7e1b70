package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/internal/simulation/engine"
)

// tape is a Publisher that counts what it gets.
type tape struct {
	start     int
	published atomic.Int64
	closed    bool
}

func (t *tape) Publish([]byte)   { t.published.Add(1) }
func (t *tape) Events() string   { return fmt.Sprint("events of start ", t.start) }
func (t *tape) Replay() string   { return fmt.Sprint("replay of start ", t.start) }
func (t *tape) Subscribers() int { return 1 }
func (t *tape) Close() error     { t.closed = true; return nil }

type fixture struct {
	*Node
	tapes []*tape
}

// started returns a node at a speedup of 10 whose Run ends with the test.
func started(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{}
	n, err := New(Options{
		Engine:  engine.Config{BlockSize: 4, CacheBlocks: 64, PrefillRate: 100, DecodeRate: 10},
		Speedup: 10,
		NewSeed: func() uint64 { return uint64(len(f.tapes)) },
		Publisher: func() (Publisher, error) {
			f.tapes = append(f.tapes, &tape{start: len(f.tapes) + 1})
			return f.tapes[len(f.tapes)-1], nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.Node = n
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if last := f.tapes[len(f.tapes)-1]; !last.closed {
			t.Error("the publisher is still open after Run")
		}
	})
	return f
}

func request(id string, prompt, output int) simapi.GenerateRequest {
	return simapi.GenerateRequest{RequestID: id, TokenIDs: make([]uint32, prompt), OutputTokenIDs: make([]uint32, output)}
}

// TestSpeedup proves that answers come at the model's times divided by the
// speedup, and that events are published before the caller hears of the step.
func TestSpeedup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := started(t)
		time.Sleep(time.Second) // an idle engine
		begun := time.Now()
		steps, err := f.Generate(request("a", 10, 4))
		if err != nil {
			t.Fatal(err)
		}
		type seen struct {
			At        time.Duration
			Step      simapi.Step
			Published int64
		}
		var got []seen
		for s := range steps {
			got = append(got, seen{time.Since(begun), s, f.tapes[0].published.Load()})
		}
		want := []seen{
			{10 * time.Millisecond, simapi.Step{Event: simapi.EventFirstToken, OutputTokens: 1, TTFTMS: 100}, 1},
			{30 * time.Millisecond, simapi.Step{Event: simapi.EventBlock, OutputTokens: 3}, 2},
			{40 * time.Millisecond, simapi.Step{Event: simapi.EventDone, OutputTokens: 4, EngineMS: 100}, 2},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		st := f.Stats()
		if st.Requests != 1 || st.PromptTokens != 10 || st.PrefillBusyMS != 100 || st.CachedBlocks != 3 || st.ModelSeconds != 10.4 {
			t.Errorf("stats = %+v", st)
		}
	})
}

// TestTransfer proves that what another engine has computed of a prompt comes in the time of its link, in model time.
func TestTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := started(t)
		given := request("a", 101, 1)
		given.Transfer = simapi.Transfer{Tokens: 101, SetupMS: 30, PerTokenUS: 200}
		steps, err := f.Generate(given)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		// 30 ms and 100 × 200 µs for all but the last token, which is computed in 10 ms.
		if s := <-steps; s.TTFTMS != 60 || s.QueueMS != 50 || time.Since(begun) != 6*time.Millisecond {
			t.Errorf("first token after %v: %+v", time.Since(begun), s)
		}
	})
}

// TestSlow proves that a slowed engine takes longer for what it has begun, until it is
// told otherwise or restarted.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := started(t)
		begun := time.Now()
		steps, err := f.Generate(request("a", 100, 1)) // a second of model time
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if err := f.Slow(0.25); err != nil {
			t.Fatal(err)
		}
		if s := <-steps; s.TTFTMS != 2500 || time.Since(begun) != 250*time.Millisecond {
			t.Errorf("first token after %v: %+v", time.Since(begun), s)
		}
		if err := f.Slow(0); !errors.Is(err, ErrFactor) {
			t.Errorf("a standstill: %v", err)
		}
		if _, err := f.Reset(10); err != nil {
			t.Fatal(err)
		}
		if steps, err = f.Generate(request("a", 100, 1)); err != nil {
			t.Fatal(err)
		}
		if s := <-steps; s.TTFTMS != 1000 {
			t.Errorf("after a restart: %+v", s)
		}
	})
}

// TestReset proves that a restart ends running requests, empties the engine,
// opens new sockets and takes the new speedup.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := started(t)
		lost, err := f.Generate(request("a", 10, 100))
		if err != nil {
			t.Fatal(err)
		}
		<-lost // the first token
		info, err := f.Reset(100)
		if err != nil {
			t.Fatal(err)
		}
		if info.KVEventsEndpoint != "events of start 2" || info.Speedup != 100 || !f.tapes[0].closed {
			t.Errorf("after the restart: %+v, closed %v", info, f.tapes[0].closed)
		}
		var last simapi.Step
		for last = range lost {
		}
		if last.Event != simapi.EventError {
			t.Errorf("the running request ends with %+v", last)
		}
		begun := time.Now()
		again, err := f.Generate(request("a", 10, 1))
		if err != nil {
			t.Fatal(err)
		}
		if s := <-again; s.CachedTokens != 0 || time.Since(begun) != time.Millisecond {
			t.Errorf("first token after %v: %+v", time.Since(begun), s)
		}
		if _, err := f.Reset(0); err == nil {
			t.Error("a speedup of 0 is accepted")
		}
	})
}

// TestRefusals proves which calls are refused with which error.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := started(t)
		if _, err := f.Generate(request("a", 10, 50)); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Generate(request("a", 10, 50)); !errors.Is(err, ErrBusy) {
			t.Errorf("a second request a: %v", err)
		}
		if _, err := f.Generate(request("b", 1000, 1)); !errors.Is(err, engine.ErrTooLong) {
			t.Errorf("a prompt larger than the cache: %v", err)
		}
		if err := f.ClearCache(); !errors.Is(err, ErrBusy) {
			t.Errorf("clearing under a running request: %v", err)
		}
		time.Sleep(time.Minute)
		if err := f.ClearCache(); err != nil || f.Stats().CachedBlocks != 0 {
			t.Errorf("clearing: %v, %d blocks left", err, f.Stats().CachedBlocks)
		}
	})
}

// TestHTTP proves the wire: streamed lines, descriptions and statuses.
func TestHTTP(t *testing.T) {
	f := started(t)
	srv := httptest.NewServer(f.Handler())
	defer srv.Close()
	post := func(path, body string) (int, string) {
		t.Helper()
		resp, err := http.Post(srv.URL+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	var info simapi.Info
	_, text := post(simapi.PathReset, `{"speedup":1000}`)
	if err := json.Unmarshal([]byte(text), &info); err != nil || info.Speedup != 1000 {
		t.Fatalf("reset: %+v, %v", info, err)
	}
	_, text = post(simapi.PathGenerate, `{"request_id":"r","token_ids":[1,2,3,4,5],"output_token_ids":[6]}`)
	lines := json.NewDecoder(strings.NewReader(text))
	var events []string
	for lines.More() {
		var s simapi.Step
		if err := lines.Decode(&s); err != nil {
			t.Fatal(err)
		}
		events = append(events, s.Event)
	}
	if diff := cmp.Diff([]string{simapi.EventFirstToken, simapi.EventDone}, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	for _, tc := range []struct {
		path, body string
		want       int
	}{
		{simapi.PathGenerate, `{`, 400},
		{simapi.PathGenerate, `{"request_id":"r","token_ids":[],"output_token_ids":[6]}`, 400},
		{simapi.PathReset, `{`, 400},
		{simapi.PathReset, `{"speedup":-1}`, 400},
		{simapi.PathSlow, `{"factor":0}`, 400},
		{simapi.PathSlow, `{`, 400},
		{simapi.PathSlow, `{"factor":0.3}`, 200},
		{simapi.PathClear, ``, 200},
		{simapi.PathInfo, ``, 405},
	} {
		if got, _ := post(tc.path, tc.body); got != tc.want {
			t.Errorf("POST %s %s: %d, want %d", tc.path, tc.body, got, tc.want)
		}
	}
}
