package servicetest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/selector"
)

// World is a running service whose engines and clients are the test.
type World struct {
	*node.Service
	*node.UseCases
	T    testing.TB
	Net  *Network
	Log  *Log
	Stop func() // ends the service before the test does
}

// Scope is the usual scope of workers.
var Scope = catalog.Scope{Model: "m", Tenant: "t"}

// BlockSize is that of the workers, in tokens.
const BlockSize = 4

// Start runs a service with KV events until the end of the test.
func Start(t testing.TB, change ...func(*node.Config)) *World {
	t.Helper()
	config := node.Config{Selection: selection.Config{Weights: selector.DefaultWeights()}, KVEvents: true, Threads: 2}
	for _, f := range change {
		f(&config)
	}
	w := &World{T: t, Net: NewNetwork(), Log: new(Log)}
	w.Service = node.New(config, w.Net, zerolog.New(w.Log).Level(zerolog.InfoLevel))
	w.UseCases = &w.Service.UseCases
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	w.Stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		w.Net.Flushes.Wait()
		w.Stop = func() {}
	}
	t.Cleanup(func() {
		w.Stop()
		if _, live := w.Net.Count(); live > 0 {
			t.Errorf("%d sockets are still open", live)
		}
	})
	return w
}

// EventsOff is a change of the configuration: no KV events.
func EventsOff(c *node.Config) { c.KVEvents = false }

// Record is a complete worker of size ranks, each with an event endpoint of its
// own; see Endpoint.
func Record(id uint64, size uint32, change ...func(*catalog.Record)) catalog.Record {
	r := catalog.Record{
		ID: id, Scope: Scope,
		Endpoint:            new(Address(id)),
		BlockSize:           new(uint32(BlockSize)),
		Size:                new(size),
		MaxNumBatchedTokens: new(uint64(100)),
		KVEventsEndpoints:   Endpoints(id, size),
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

// Address is where the worker of a Record serves requests.
func Address(id uint64) string { return fmt.Sprintf("http://worker-%d", id) }

// Endpoint is where a rank of a Record publishes its events.
func Endpoint(id uint64, dp uint32) string { return fmt.Sprintf("tcp://worker-%d:%d", id, 5000+dp) }

// Endpoints are those of size ranks.
func Endpoints(id uint64, size uint32) map[uint32]string {
	m := make(map[uint32]string)
	for dp := range size {
		m[dp] = Endpoint(id, dp)
	}
	return m
}

// Put registers a worker that has to become schedulable.
func (w *World) Put(r catalog.Record) {
	w.T.Helper()
	wk, err := w.PutWorker(r)
	w.schedulable(wk, err)
}

// Patch changes a worker that has to stay schedulable.
func (w *World) Patch(id uint64, p catalog.Patch) {
	w.T.Helper()
	wk, err := w.PatchWorker(id, p)
	w.schedulable(wk, err)
}

func (w *World) schedulable(wk *catalog.Worker, err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
	if wk.Lifecycle != catalog.Schedulable {
		w.T.Fatalf("worker %d is %s: %v", wk.ID, wk.Lifecycle, wk.Explain())
	}
}

// Remove takes a worker away.
func (w *World) Remove(id uint64) {
	w.T.Helper()
	if _, err := w.DeleteWorker(id); err != nil {
		w.T.Fatal(err)
	}
}

// Settle waits until all events of workers that were sent so far are applied.
func (w *World) Settle() {
	w.T.Helper()
	if err := w.Dump(context.Background(), io.Discard, contract.V13); err != nil {
		w.T.Fatal(err)
	}
}

// Engine returns the publisher of a rank of a worker made by Record.
func (w *World) Engine(id uint64, dp uint32) *Engine {
	return w.Net.Engine(Endpoint(id, dp), id*7919)
}

// WantLog checks all that was logged since the last look.
func (w *World) WantLog(want ...string) {
	w.T.Helper()
	if got := w.Log.Take(w.T); !slices.Equal(got, want) {
		w.T.Errorf("log is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Identity is the one that publishers and queries of the Conductor API have unless
// a test says otherwise: the usual scope's.
var Identity = conductor.Identity{Tenant: Scope.Tenant, Model: Scope.Model, BlockSize: BlockSize}

// Registration is a vLLM publisher of one rank with an endpoint of its own.
func Registration(instance string, rank uint32, change ...func(*conductor.Registration)) conductor.Registration {
	r := conductor.Registration{
		Type: conductor.VLLM, Identity: Identity, Instance: instance, Rank: rank,
		Endpoint: fmt.Sprintf("tcp://%s:%d", instance, 5000+rank), HashSeed: hashing.Seed,
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

// Register registers a publisher.
func (w *World) Register(r conductor.Registration) {
	w.T.Helper()
	if err := w.Conductor().Register(r); err != nil {
		w.T.Fatal(err)
	}
}

// Unregister ends publishers and checks which.
func (w *World) Unregister(f conductor.Filter, want ...string) {
	w.T.Helper()
	removed, err := w.Conductor().Unregister(f)
	if err != nil {
		w.T.Fatal(err)
	}
	if got := strings.Join(removed, " "); got != strings.Join(want, " ") {
		w.T.Errorf("removed %s, want %v", got, want)
	}
}

// Instance matches every publisher of an instance.
func Instance(name string) conductor.Filter {
	return conductor.Filter{Instance: name, Tenant: Scope.Tenant}
}

// Publisher returns the engine behind a registration.
func (w *World) Publisher(r conductor.Registration) *Engine {
	h := fnv.New64a()
	h.Write([]byte(r.Endpoint)) // never fails
	return w.Net.Engine(r.Endpoint, h.Sum64())
}

// Envelope is an event in the standard envelope, of the usual scope's cache
// backend; more sets or replaces fields.
func Envelope(id uint64, kind string, hashes []uint64, more Dict) Dict {
	ev := Dict{
		"event_id": id, "timestamp": 1, "event_type": kind, "model_name": Scope.Model, "block_size": BlockSize,
		"additional_salt": nil, "lora_name": nil, "tenant_id": Scope.Tenant, "backend_id": "store", "medium": "gpu", "dp_rank": 0,
		"seq_hashes": hashes,
	}
	maps.Copy(ev, more)
	return ev
}

// Slots registers a worker of the slot tracker.
func (w *World) Slots(id uint64, start, size uint32) {
	w.T.Helper()
	if err := w.SlotsRegister(node.SlotsWorker{Worker: id, Scope: Scope, BlockSize: BlockSize, DPStart: start, DPSize: size}); err != nil {
		w.T.Fatal(err)
	}
}

// Ask is a selection of a prompt in the usual scope.
func Ask(tokens []uint32) *selection.SelectRequest {
	return &selection.SelectRequest{Scope: Scope, Prompt: selection.Prompt{TokenIDs: tokens, HasTokenIDs: true}}
}

// WantError checks kind and text of an error of the service.
func WantError(t testing.TB, err error, kind contract.Kind, text string) {
	t.Helper()
	var e *contract.Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %v, want %q", err, text)
	}
	if e.Kind != kind || e.Error() != text {
		t.Errorf("error is (%d) %q, want (%d) %q", e.Kind, e.Error(), kind, text)
	}
}

// Book selects with a reservation of that id.
func (w *World) Book(id string, tokens []uint32) selection.Selection {
	w.T.Helper()
	req := Ask(tokens)
	req.ReservationID = &id
	sel, err := w.Select(context.Background(), req, true)
	if err != nil {
		w.T.Fatalf("select_and_reserve %s: %v", id, err)
	}
	return sel
}

// Serve reports the end of a reservation's prefill after so long, and frees it a second later. It sleeps, so it is for bubbles of
// testing/synctest.
func (w *World) Serve(id string, prefill time.Duration) {
	w.T.Helper()
	time.Sleep(prefill)
	if err := w.PrefillComplete(id); err != nil {
		w.T.Errorf("prefill_complete %s: %v", id, err)
	}
	time.Sleep(time.Second)
	if err := w.Free(id); err != nil {
		w.T.Errorf("free %s: %v", id, err)
	}
}

// Queueing is a change of the configuration: prefill of more than threshold times
// max_num_batched_tokens makes requests wait.
func Queueing(threshold float64) func(*node.Config) {
	return func(c *node.Config) { c.Scopes.Admission = admission.Config{Threshold: &threshold} }
}

// Limits is a change of the configuration: the busy thresholds.
func Limits(t overload.Thresholds) func(*node.Config) {
	return func(c *node.Config) { c.Selection.Overload = t }
}

// Total is a worker's total_kv_blocks.
func Total(blocks uint64) func(*catalog.Record) {
	return func(r *catalog.Record) { r.TotalKVBlocks = &blocks }
}

// OfModel puts a worker into another model.
func OfModel(model string) func(*catalog.Record) {
	return func(r *catalog.Record) { r.Scope.Model = model }
}

// SetBusy sets busy thresholds of the usual scope's model.
func (w *World) SetBusy(t overload.Thresholds) {
	w.T.Helper()
	if _, err := w.SetBusyThreshold(Scope.Model, t); err != nil {
		w.T.Fatal(err)
	}
}

// ClearBusy unsets them.
func (w *World) ClearBusy() {
	w.T.Helper()
	if _, err := w.ClearBusyThreshold(Scope.Model, nil); err != nil {
		w.T.Fatal(err)
	}
}

// Burden books so many blocks and prefill tokens on a rank, by /reservations.
func (w *World) Burden(id string, worker uint64, dp uint32, blocks, prefill uint64) {
	w.T.Helper()
	p := selection.Prompt{HasSequenceHashes: true, HasISLTokens: true, ISLTokens: prefill}
	first := fnv.New64a()
	_, _ = first.Write([]byte(id))
	for i := range blocks {
		p.SequenceHashes = append(p.SequenceHashes, first.Sum64()+i) // of this reservation alone
	}
	_, err := w.Reserve(&selection.ReserveRequest{
		Scope: Scope, ID: id, Rank: catalog.Rank{Worker: worker, DP: dp}, Prompt: p, EffectivePrefillTokens: &prefill,
	})
	if err != nil {
		w.T.Fatal(err)
	}
}

// Hashes is a prompt in the form of hashes of the workers' blocks.
func Hashes(tokens []uint32) selection.Prompt {
	return selection.Prompt{
		BlockHashes: Local(tokens, BlockSize), HasBlockHashes: true,
		SequenceHashes: Sequence(tokens, BlockSize), HasSequenceHashes: true,
		ISLTokens: uint64(len(tokens)), HasISLTokens: true,
	}
}

// SlotsReservation is a reservation of the slot tracker in the usual scope.
func SlotsReservation(id string, worker uint64, dp uint32, tokens uint64, hashes ...uint64) *node.SlotsReservation {
	return &node.SlotsReservation{
		Scope: Scope, ID: id, Rank: catalog.Rank{Worker: worker, DP: dp}, SequenceHashes: hashes, NewISLTokens: tokens,
	}
}

// DeviceText returns the device blocks of a prompt by rank, "1/0:4 2/0:0", of all
// ranks that /overlap_scores shows.
func (w *World) DeviceText(tokens []uint32) string {
	w.T.Helper()
	w.Settle()
	s, err := w.OverlapScores(&selection.ProjectRequest{Scope: Scope, Prompt: Ask(tokens).Prompt})
	if err != nil {
		w.T.Fatal(err)
	}
	var rows []string
	for _, r := range s.Rows {
		rows = append(rows, fmt.Sprintf("%d/%d:%d", r.Rank.Worker, r.Rank.DP, r.Device))
	}
	return strings.Join(rows, " ")
}

// WantDevice checks the DeviceText of a prompt.
func (w *World) WantDevice(tokens []uint32, want string) {
	w.T.Helper()
	if got := w.DeviceText(tokens); got != want {
		w.T.Errorf("device blocks are %q, want %q", got, want)
	}
}

// LoadText returns the loads of all scopes as "1/0: prefill blocks requests", preceded by the
// scope if it is not the usual one, and followed by the queued requests.
func (w *World) LoadText() string {
	var out []string
	for _, sc := range w.Loads(nil, nil) {
		if sc.Scope != Scope {
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

// WantLoad checks the LoadText.
func (w *World) WantLoad(want string) {
	w.T.Helper()
	if got := w.LoadText(); got != want {
		w.T.Errorf("loads are %q, want %q", got, want)
	}
}

// Look lets the time of one look of the log watcher pass, on a fake clock.
func (w *World) Look() {
	synctest.Wait()
	time.Sleep(10 * time.Second)
	synctest.Wait()
}
