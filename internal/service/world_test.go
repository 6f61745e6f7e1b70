package service_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/selecting"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a running service between engines and clients that are the test.
type world struct {
	*service.Service
	t    testing.TB
	net  *network
	log  *logLines
	stop func()
}

var scope = catalog.Scope{Model: "m", Tenant: "t"}

const blockSize = 4

// start runs a service until the end of the test. Prefill of more than
// threshold times max_num_batched_tokens makes requests wait; nil: none ever.
func start(t testing.TB, change ...func(*service.Config)) *world {
	t.Helper()
	config := service.Config{Weights: selector.DefaultWeights(), KVEvents: true, Threads: 2}
	for _, f := range change {
		f(&config)
	}
	w := &world{t: t, net: newNetwork(), log: new(logLines)}
	w.Service = service.New(config, w.net, zerolog.New(w.log).Level(zerolog.InfoLevel))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		w.net.flushes.Wait()
		w.stop = func() {}
	}
	t.Cleanup(func() {
		w.stop()
		if _, live := w.net.count(); live > 0 {
			t.Errorf("%d sockets are still open", live)
		}
	})
	return w
}

func eventsOff(c *service.Config) { c.KVEvents = false }

func queueing(threshold float64) func(*service.Config) {
	return func(c *service.Config) { c.Admission = admission.Config{Threshold: &threshold} }
}

// record is a complete worker of size ranks, each with an event endpoint of its
// own; see endpoint.
func record(id uint64, size uint32, change ...func(*catalog.Record)) catalog.Record {
	r := catalog.Record{
		ID: id, Scope: scope,
		Endpoint:            new(address(id)),
		BlockSize:           new(uint32(blockSize)),
		Size:                new(size),
		MaxNumBatchedTokens: new(uint64(100)),
		KVEventsEndpoints:   endpoints(id, size),
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

func endpoints(id uint64, size uint32) map[uint32]string {
	m := make(map[uint32]string)
	for dp := range size {
		m[dp] = endpoint(id, dp)
	}
	return m
}

func address(id uint64) string { return fmt.Sprintf("http://worker-%d", id) }

func endpoint(id uint64, dp uint32) string { return fmt.Sprintf("tcp://worker-%d:%d", id, 5000+dp) }

// put registers a worker that has to become schedulable.
func (w *world) put(r catalog.Record) {
	w.t.Helper()
	wk, err := w.PutWorker(r)
	w.schedulable(wk, err)
}

// patch changes a worker that has to stay schedulable.
func (w *world) patch(id uint64, p catalog.Patch) {
	w.t.Helper()
	wk, err := w.PatchWorker(id, p)
	w.schedulable(wk, err)
}

func (w *world) schedulable(wk *catalog.Worker, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	if wk.Lifecycle != catalog.Schedulable {
		w.t.Fatalf("worker %d is %s: %v", wk.ID, wk.Lifecycle, wk.Reasons)
	}
}

func (w *world) remove(id uint64) {
	w.t.Helper()
	if _, err := w.DeleteWorker(id); err != nil {
		w.t.Fatal(err)
	}
}

// settle waits until all events sent so far are applied.
func (w *world) settle() {
	w.t.Helper()
	if err := w.Dump(context.Background(), io.Discard, contract.V13); err != nil {
		w.t.Fatal(err)
	}
}

// engine returns the publisher of a rank of a worker made by record.
func (w *world) engine(id uint64, dp uint32) *engine {
	return w.net.engine(endpoint(id, dp), id*7919)
}

func ask(tokens []uint32) *selecting.SelectRequest {
	return &selecting.SelectRequest{Scope: scope, Prompt: selecting.Prompt{TokenIDs: tokens, HasTokenIDs: true}}
}

// book selects with a reservation of that id.
func (w *world) book(id string, tokens []uint32) selecting.Selection {
	w.t.Helper()
	req := ask(tokens)
	req.ReservationID = &id
	sel, err := w.Select(context.Background(), req, true)
	if err != nil {
		w.t.Fatalf("select_and_reserve %s: %v", id, err)
	}
	return sel
}

// device returns the device blocks of a prompt by rank, "1/0:4 2/0:0", of all
// ranks that /overlap_scores shows.
func (w *world) device(tokens []uint32) string {
	w.t.Helper()
	w.settle()
	s, err := w.OverlapScores(&selecting.ProjectRequest{Scope: scope, Prompt: ask(tokens).Prompt})
	if err != nil {
		w.t.Fatal(err)
	}
	var rows []string
	for _, r := range s.Rows {
		rows = append(rows, fmt.Sprintf("%d/%d:%d", r.Rank.Worker, r.Rank.DP, r.Device))
	}
	return strings.Join(rows, " ")
}

// load returns the loads of all scopes as "1/0: prefill blocks requests", with
// the scope in front where it is not the usual one, and what waits behind.
func (w *world) load() string {
	var out []string
	for _, sc := range w.Loads(nil, nil) {
		if sc.Scope != scope {
			out = append(out, fmt.Sprintf("%s/%s", sc.Scope.Model, sc.Scope.Tenant))
		}
		for _, l := range sc.Loads {
			out = append(out, fmt.Sprintf("%d/%d: %d %d %d", l.Rank.Worker, l.Rank.DP, l.PrefillTokens, l.DecodeBlocks, l.Requests))
		}
		if sc.PendingCount > 0 {
			out = append(out, fmt.Sprintf("waiting: %d with %d", sc.PendingCount, sc.PendingISLTokens))
		}
	}
	return strings.Join(out, ", ")
}

func (w *world) wantLoad(want string) {
	w.t.Helper()
	if got := w.load(); got != want {
		w.t.Errorf("loads are %q, want %q", got, want)
	}
}

func (w *world) wantDevice(tokens []uint32, want string) {
	w.t.Helper()
	if got := w.device(tokens); got != want {
		w.t.Errorf("device blocks are %q, want %q", got, want)
	}
}

// wantError checks kind and text of an error of the service.
func wantError(t testing.TB, err error, kind contract.Kind, text string) {
	t.Helper()
	var e *contract.Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %v, want %q", err, text)
	}
	if e.Kind != kind || e.Error() != text {
		t.Errorf("error is (%d) %q, want (%d) %q", e.Kind, e.Error(), kind, text)
	}
}
