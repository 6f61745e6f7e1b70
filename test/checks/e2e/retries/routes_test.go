package retries_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/api"
	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/checks/e2e"
)

const top = uint64(math.MaxUint64)

// must returns a value that came without an error.
func must[A any](a A, err error) func(*testing.T) A {
	return func(t *testing.T) A {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
}

// TestCatalog proves that a patch changes what is set, leaves what is nil and clears
// what is empty, and that ids and ranks come back as they went.
func TestCatalog(t *testing.T) {
	t.Parallel()
	c := start(t).direct
	ctx := t.Context()
	endpoints := map[uint32]string{3: "tcp://127.0.0.1:9", 4: "tcp://127.0.0.1:10"}
	full := client.Worker{
		ID: top, Model: "catalog", RoutingGroup: "g", Endpoint: new("http://e"), BlockSize: new(uint32(16)),
		StartRank: new(uint32(3)), Size: new(uint32(2)), KVEventsEndpoints: endpoints, ReplayEndpoints: endpoints,
		Taints: []string{"a", "b"}, TopologyDomains: map[string]string{"zone": "z"},
	}
	got := must(c.PutWorker(ctx, full))(t)
	if got.ID != top || got.KVEventsEndpoints[4] != endpoints[4] || got.ReplayEndpoints[3] != endpoints[3] || len(got.Taints) != 2 || got.Lifecycle != "schedulable" {
		t.Errorf("registered %+v", got)
	}
	got = must(c.PatchWorker(ctx, client.Worker{ID: top, TotalKVBlocks: new(top), Taints: []string{"c"}}))(t)
	if *got.TotalKVBlocks != top || !slices.Equal(got.Taints, []string{"c"}) || got.TopologyDomains["zone"] != "z" || len(got.KVEventsEndpoints) != 2 {
		t.Errorf("patched %+v", got)
	}
	got = must(c.PatchWorker(ctx, client.Worker{
		ID: top, Taints: []string{}, TopologyDomains: map[string]string{}, KVEventsEndpoints: map[uint32]string{}, ReplayEndpoints: map[uint32]string{},
	}))(t)
	if len(got.Taints)+len(got.TopologyDomains)+len(got.KVEventsEndpoints)+len(got.ReplayEndpoints) != 0 || *got.TotalKVBlocks != top {
		t.Errorf("cleared %+v", got)
	}
	list := must(c.Workers(ctx, client.Scope{Model: new("catalog"), RoutingGroup: new("g")}))(t)
	if len(list) != 1 || list[0].ID != top || len(list[0].Taints) != 0 {
		t.Errorf("listed %+v", list)
	}
	if err := c.DeleteWorker(ctx, 77); !errors.Is(err, client.ErrNotFound) {
		t.Error(err)
	}
}

// TestSelectionTerms proves that the service takes the class of the queue and the
// context of a session, which goes before the session's id.
func TestSelectionTerms(t *testing.T) {
	t.Parallel()
	c := start(t, "--session-affinity-ttl-secs", "60").direct
	ctx := t.Context()
	req := request(100, 1)
	req.PolicyClass = "latency"
	req.Session = "other"
	req.SessionContext = &client.SessionContext{
		ID: "s", Parent: "p", Final: new(false), InputTrigger: "tool_result", AgentHeaders: map[string][]string{"h": {"1", "2"}},
	}
	first, err := c.Lease(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	req.SessionContext, req.Session = nil, "s"
	for range 5 { // the rank of the session, however much it has to do
		next, err := c.Lease(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		if next.Selection().Worker != first.Selection().Worker {
			t.Errorf("the session went to worker %d, then to %d", first.Selection().Worker, next.Selection().Worker)
		}
	}
	req.SessionContext = &client.SessionContext{ID: strings.Repeat("x", 257)}
	if _, err := c.Select(ctx, req); !errors.Is(err, client.ErrBadRequest) {
		t.Errorf("a session id that is too long: %v", err)
	}
}

// TestInspection proves that what the service tells of itself and of prompts can be
// read.
func TestInspection(t *testing.T) {
	t.Parallel()
	s := start(t)
	c, ctx := s.direct, t.Context()
	if text := must(c.Metrics(ctx))(t); !strings.Contains(text, "\nselect_service_") {
		t.Errorf("metrics: %.200s", text)
	}
	if text := must(c.OpenAPI(ctx))(t); text != string(api.Document("1.3")) {
		t.Errorf("description: %.200s", text)
	}
	var diagnosis struct {
		Blocks []json.RawMessage `json:"blocks"`
		Count  int               `json:"num_blocks"`
	}
	answer := must(c.Diagnose(ctx, client.DiagnoseRequest{Model: model, TokenIDs: promptOf(100, 1).TokenIDs, MaxBlocks: 2}))(t)
	if err := json.Unmarshal(answer, &diagnosis); err != nil || diagnosis.Count != 6 || len(diagnosis.Blocks) != 2 {
		t.Errorf("%v: %s", err, answer)
	}
	if scores := must(c.OverlapScores(ctx, client.ProjectRequest{Model: model, Prompt: promptOf(100, 1)}))(t); scores.NumBlocks != 6 || len(scores.Workers) != 3 {
		t.Errorf("scores: %+v", scores)
	}
	dump := must(c.Dump(ctx))(t)
	if text, err := io.ReadAll(dump); err != nil || !json.Valid(text) {
		t.Errorf("%v: %s", err, text)
	}
	_ = dump.Close()
	if ready := must(c.Ready(ctx))(t); !ready.Ready || ready.SchedulableWorkers != 3 {
		t.Errorf("%+v", ready)
	}

	set := must(c.SetBusyThresholds(ctx, client.Thresholds{Model: model, DecodeBlocks: new(0.5), PrefillTokens: new(top)}))(t)
	if *set.PrefillTokens != top || *set.DecodeBlocks != 0.5 {
		t.Errorf("set %+v", set)
	}
	left := must(c.UnsetBusyThreshold(ctx, model, client.PrefillTokensThreshold))(t)
	if left.PrefillTokens != nil || left.DecodeBlocks == nil {
		t.Errorf("left %+v", left)
	}
	for _, name := range []string{client.DecodeBlocksThreshold, client.PrefillFractionThreshold} {
		left = must(c.UnsetBusyThreshold(ctx, model, name))(t)
	}
	if left != (client.Thresholds{Model: model}) {
		t.Errorf("left %+v", left)
	}
	if _, err := c.UnsetBusyThreshold(ctx, model, "none"); !errors.Is(err, client.ErrBadRequest) {
		t.Error(err)
	}
	if err := c.UnsetBusyThresholds(ctx, "nobody's"); !errors.Is(err, client.ErrNotFound) {
		t.Error(err)
	}
}

// TestSlots proves that the slot tracker's routes count a request from its booking
// to its free.
func TestSlots(t *testing.T) {
	t.Parallel()
	slots, ctx := start(t).direct.Slots(), t.Context()
	scope := client.SlotsScope{Model: "slots", RoutingGroup: "g"}
	filter := client.Scope{Model: &scope.Model, RoutingGroup: &scope.RoutingGroup}
	w := client.SlotsWorker{SlotsScope: scope, ID: top, BlockSize: 4, StartRank: 7, Size: 2}
	if err := errors.Join(slots.Health(ctx), slots.Register(ctx, w)); err != nil {
		t.Fatal(err)
	}
	if err := slots.Register(ctx, w); !errors.Is(err, client.ErrConflict) {
		t.Error(err)
	}
	if list := must(slots.Workers(ctx, filter))(t); !slices.Equal(list, []client.SlotsWorker{w}) {
		t.Errorf("workers %+v", list)
	}
	r := client.SlotsRequest{SlotsScope: scope, ID: "r", Worker: top, DPRank: 8, SequenceHashes: []int64{-1, math.MinInt64}, NewISLTokens: 9}
	if err := slots.Add(ctx, r); err != nil {
		t.Fatal(err)
	}
	if err := slots.Add(ctx, r); !errors.Is(err, client.ErrConflict) {
		t.Error(err)
	}
	want := []client.SlotsLoad{{SlotsScope: scope, Worker: top, DPRank: 7}, {SlotsScope: scope, Worker: top, DPRank: 8, PrefillTokens: 9, DecodeBlocks: 2}}
	if list := must(slots.Loads(ctx, filter))(t); !slices.Equal(list, want) {
		t.Errorf("loads %+v", list)
	}
	if err := errors.Join(slots.PrefillComplete(ctx, scope, "r"), slots.PrefillComplete(ctx, scope, "r")); err != nil {
		t.Error(err)
	}
	for _, hashes := range [][]int64{{-1, 5}, nil} {
		list := must(slots.PotentialLoads(ctx, client.SlotsProjection{SlotsScope: scope, SequenceHashes: hashes, NewISLTokens: 3}))(t)
		for _, l := range list {
			carried := uint64(0)
			if l.DPRank == 8 {
				carried = 2
			}
			if l.Worker != top || l.PrefillTokens != 3 || l.DecodeBlocks < carried || l.DecodeBlocks > carried+2 {
				t.Errorf("with %v: %+v", hashes, l)
			}
		}
		if len(list) != 2 {
			t.Errorf("with %v: %+v", hashes, list)
		}
	}
	if err := errors.Join(slots.Free(ctx, scope, "r"), slots.Free(ctx, scope, "r"), slots.Unregister(ctx, scope, top)); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"worker": slots.Unregister(ctx, scope, top), "tracker": slots.Free(ctx, client.SlotsScope{Model: "none"}, "r"),
		"rank": slots.Add(ctx, client.SlotsRequest{SlotsScope: scope, ID: "r"}),
	} {
		if !errors.Is(err, client.ErrNotFound) {
			t.Errorf("no such %s: %v", name, err)
		}
	}
}

// TestConductor proves that a publisher is registered, asked and removed, and that
// errors say what they are about.
func TestConductor(t *testing.T) {
	t.Parallel()
	c, ctx := start(t).direct.Conductor(), t.Context()
	p := client.Publisher{Endpoint: "tcp://127.0.0.1:9", Type: "vLLM", Model: "c", Instance: "i", BlockSize: 4, DPRank: math.MaxUint32, HashSeed: new(top)}
	if err := errors.Join(c.Health(ctx), c.Register(ctx, p), c.Register(ctx, p)); err != nil {
		t.Fatal(err)
	}
	other := p
	other.HashSeed = nil
	if err := c.Register(ctx, other); !errors.Is(err, client.ErrConflict) {
		t.Error(err)
	}
	services := must(c.Services(ctx))(t)
	if len(services.Services) != 1 {
		t.Fatalf("%+v", services)
	}
	got := services.Services[0]
	if got.Instance != "i" || got.DPRank != math.MaxUint32 || *got.HashSeed != top || got.State == "" || got.Hashes != "none" || got.LastSequence != nil || got.Blocks == nil {
		t.Errorf("%+v", got)
	}
	q := client.Question{Model: "c", BlockSize: 4, TokenIDs: []uint32{1, 2, 3, 4}, SeqHashes: []uint64{top}}
	byTokens, byHash := q, q
	byTokens.SeqHashes, byHash.TokenIDs = nil, nil
	for _, answer := range []map[string]map[string]client.Hits{must(c.Query(ctx, byTokens))(t), must(c.QueryByHash(ctx, byHash))(t)} {
		hits, ok := answer["default"]["i"]
		if n, has := hits.DP[math.MaxUint32]; !ok || hits.LongestMatched != 0 || len(hits.Media) < 3 || !has || n != 0 {
			t.Errorf("%+v", answer)
		}
	}
	var diagnosis struct {
		Count int `json:"num_blocks"`
	}
	if err := json.Unmarshal(must(c.Diagnose(ctx, byTokens))(t), &diagnosis); err != nil || diagnosis.Count != 1 {
		t.Errorf("%v, %+v", err, diagnosis)
	}
	_, err := c.Query(ctx, client.Question{Model: "c", TokenIDs: []uint32{1}})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Reason == "" || e.Field != "block_size" || !errors.Is(err, client.ErrBadRequest) {
		t.Errorf("a question without block size: %v", err)
	}
	if removed := must(c.Unregister(ctx, client.Publishers{Instance: "i", LoRA: new(""), BlockSize: new(uint32(4)), HashSeed: new(top)}))(t); len(removed) != 1 ||
		removed[0] != "i|default|4294967295" {
		t.Errorf("removed %q", removed)
	}
	if _, err := c.Unregister(ctx, client.Publishers{Instance: "i"}); !errors.Is(err, client.ErrNotFound) {
		t.Error(err)
	}
}

// TestPeers proves that peers are listed under both of their routes, and that the
// snapshot has every booking, page by page.
func TestPeers(t *testing.T) {
	t.Parallel()
	c := start(t, "--replica-sync-port", strconv.Itoa(e2e.FreePort(t))).direct
	ctx, slots := context.WithoutCancel(t.Context()), c.Slots()
	const a, b = "tcp://127.0.0.1:10", "tcp://127.0.0.1:9"
	if err := errors.Join(c.RegisterPeer(ctx, b), slots.RegisterPeer(ctx, a), c.RegisterPeer(ctx, a)); err != nil {
		t.Error(err)
	}
	for _, list := range [][]string{must(c.Peers(ctx))(t), must(slots.Peers(ctx))(t)} {
		if !slices.Equal(list, []string{a, b}) {
			t.Errorf("peers %q", list)
		}
	}
	if err := errors.Join(c.DeregisterPeer(ctx, a), slots.DeregisterPeer(ctx, b)); err != nil {
		t.Error(err)
	}
	if err := slots.DeregisterPeer(ctx, b); !errors.Is(err, client.ErrNotFound) {
		t.Error(err)
	}
	booked := map[string]client.Selection{}
	for range 5 {
		l, err := c.Lease(ctx, request(100, 1))
		if err != nil {
			t.Fatal(err)
		}
		booked[l.ID()] = l.Selection()
	}
	pages := 0
	for after := ""; pages == 0 || after != ""; pages++ {
		page := must(c.Snapshot(ctx, after, 2))(t)
		for _, row := range page.Reservations {
			want := booked[row.ID]
			if row.Worker != want.Worker || row.Model != model || row.RoutingGroup != "default" || row.OriginProcess != page.Process ||
				row.LeaseMS != uint64(lease.Milliseconds()) || row.BlockSize != 16 || row.PrefillTokens != 100 || len(row.SequenceHashes) != 6 || int64(row.SequenceHashes[0]) != want.SequenceHashes[0] {
				t.Errorf("booked %+v, snapshot %+v", want, row)
			}
			delete(booked, row.ID)
		}
		if after = page.Next; page.Process == 0 || page.Sequence < 5 || len(page.Reservations) > 2 || pages > 10 {
			t.Fatalf("page %d: %+v", pages, page)
		}
	}
	if len(booked) != 0 || pages < 3 {
		t.Errorf("%d pages without %v", pages, booked)
	}
	if _, err := start(t).direct.Snapshot(ctx, "", 0); !errors.Is(err, client.ErrConflict) {
		t.Errorf("without sharing: %v", err)
	}
}
