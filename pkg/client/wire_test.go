package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/client"
)

// TestBodies proves what travels: unset fields do not, ids above 2^63 do exactly,
// and empty is not the same as absent where the service tells them apart.
func TestBodies(t *testing.T) {
	ctx := t.Context()
	for _, tc := range []struct {
		name, want string
		call       func(c *client.Client) error
	}{
		{"select", `{"token_ids":[1]}`, func(c *client.Client) error {
			_, err := c.Select(ctx, client.SelectRequest{Prompt: client.Prompt{TokenIDs: []uint32{1}}})
			return err
		}},
		{"empty prompt, nobody allowed", `{"token_ids":[],"allowed_worker_ids":[],"advisory":true}`, func(c *client.Client) error {
			_, err := c.Select(ctx, client.SelectRequest{Prompt: client.Prompt{TokenIDs: []uint32{}}, AllowedWorkers: []uint64{}, Advisory: true})
			return err
		}},
		{"all of a selection", `{"model_name":"m","routing_group":"g","selection_id":"i",
			"block_hashes":[-1],"sequence_hashes":[9223372036854775807],"isl_tokens":0,"lora_name":"l","cache_salt":"s","is_eagle":false,
			"block_mm_infos":[null],"mm_routing_info":{},
			"router_config_override":{"overlap_score_credit":0,"prefill_load_scale":1,"router_temperature":0.5,"track_prefill_tokens":false},
			"expected_output_tokens":0,"priority_jump":1.5,"strict_priority":4294967295,
			"fairness_id":"f","ttft_target_ms":500,"deadline_ms":60000,"on_miss":"refuse",
			"pinned_worker":{"worker_id":18446744073709551615,"dp_rank":0},
			"affinity_target":{"worker_id":18446744073709551614,"dp_rank":3},"allowed_worker_ids":[18446744073709551615,9223372036854775809],
			"routing_constraints":{"required_taints":["a"],"preferred_taints":{"b":2}},"session_id":"z",
			"session_context":{"session_id":"y","parent_session_id":"p","session_final":false,"input_trigger":"tool_result","agent_headers":{"h":["1"]}},
			"if_exists":"return"}`, func(c *client.Client) error {
			_, err := c.SelectAndReserve(ctx, client.SelectRequest{
				Model: "m", RoutingGroup: "g", ID: "i",
				Prompt: client.Prompt{
					BlockHashes: []int64{-1}, SequenceHashes: []int64{math.MaxInt64}, ISLTokens: new(uint64(0)), LoRA: "l", CacheSalt: "s", Eagle: new(false),
					BlockMM: json.RawMessage(`[null]`), RoutingInfo: json.RawMessage(`{}`),
				},
				Override:             &client.Override{OverlapCredit: new(0.0), PrefillScale: new(1.0), Temperature: new(0.5), TrackPrefill: new(false)},
				ExpectedOutputTokens: new(uint32(0)), PriorityJump: 1.5, StrictPriority: math.MaxUint32,
				FairnessID: "f", TTFTTargetMS: 500, DeadlineMS: 60_000, OnMiss: "refuse",
				Pinned: &client.Rank{Worker: math.MaxUint64}, Target: &client.AffinityTarget{Worker: math.MaxUint64 - 1, DP: new(uint32(3))}, AllowedWorkers: []uint64{math.MaxUint64, 1<<63 + 1},
				Constraints: &client.Constraints{Required: []string{"a"}, Preferred: map[string]float32{"b": 2}}, Session: "z", PolicyClass: "latency",
				SessionContext: &client.SessionContext{ID: "y", Parent: "p", Final: new(false), InputTrigger: "tool_result", AgentHeaders: map[string][]string{"h": {"1"}}},
			})
			return err
		}},
		{"all of a pair", `{"model_name":"m","routing_group":"g","selection_id":"i","token_ids":[1],"router_config_override":{"track_prefill_tokens":false},
			"prefill":{"pinned_worker":{"worker_id":1,"dp_rank":2}},"decode":{"allowed_worker_ids":[],"routing_constraints":{"required_taints":["a"]}},
			"conditional":{"max_uncached_tokens":2048,"max_uncached_share":0},"expected_output_tokens":0,"priority_jump":1.5,"strict_priority":1,
			"session_id":"z","explain":true,"lease_seconds":2,"if_exists":"return"}`, func(c *client.Client) error {
			_, err := c.SelectPair(ctx, client.PairRequest{
				Model: "m", RoutingGroup: "g", ID: "i", Prompt: client.Prompt{TokenIDs: []uint32{1}}, Override: &client.Override{TrackPrefill: new(false)},
				Prefill:              client.PairSide{Pinned: &client.Rank{Worker: 1, DPRank: 2}},
				Decode:               client.PairSide{AllowedWorkers: []uint64{}, Constraints: &client.Constraints{Required: []string{"a"}}},
				Conditional:          &client.Conditional{MaxUncachedTokens: new(uint64(2048)), MaxUncachedShare: new(0.0)},
				ExpectedOutputTokens: new(uint32(0)), PriorityJump: 1.5, StrictPriority: 1, Session: "z", PolicyClass: "latency", Explain: true, LeaseSeconds: 2,
			})
			return err
		}},
		{"lease", `{"selection_id":"i","token_ids":[1],"if_exists":"return","lease_seconds":30}`, func(c *client.Client) error {
			_, err := c.Lease(ctx, client.SelectRequest{ID: "i", Prompt: client.Prompt{TokenIDs: []uint32{1}}})
			return err
		}},
		{"lease of a kept selection", `{"selection_id":"i","if_exists":"return","lease_seconds":30}`, func(c *client.Client) error {
			_, err := c.LeaseOn(ctx, client.ReserveRequest{ID: "i"})
			return err
		}},
		{"reserve", `{"selection_id":"i","worker_id":0,"dp_rank":3,"token_ids":[1],"effective_prefill_tokens":0,"track_prefill_tokens":false,"if_exists":"return"}`, func(c *client.Client) error {
			_, err := c.Reserve(ctx, client.ReserveRequest{
				ID: "i", Worker: new(uint64(0)), DPRank: 3, Prompt: client.Prompt{TokenIDs: []uint32{1}},
				EffectivePrefillTokens: new(uint64(0)), TrackPrefill: new(false),
			})
			return err
		}},
		{"output block", `{}`, func(c *client.Client) error { return c.OutputBlock(ctx, "old", nil) }},
		{"output block that decays", `{"decay_fraction":0}`, func(c *client.Client) error { return c.OutputBlock(ctx, "old", new(0.0)) }},
		{"patch", `{"worker_id":18446744073709551615,"taints":["a"]}`, func(c *client.Client) error {
			_, _ = c.PatchWorker(ctx, client.Worker{ID: math.MaxUint64, Taints: []string{"a"}}) // the fake answers a list
			return nil
		}},
		{"load", `{"ranks":{"0":{"running":0,"kv_tokens_total":281474976710656},"7":{}}}`, func(c *client.Client) error {
			return c.ReportLoad(ctx, math.MaxUint64, map[uint32]client.LoadReport{0: {Running: new(uint64(0)), KVTokensTotal: new(uint64(1 << 48))}, 7: {}})
		}},
		{"where the load is", `{"worker_id":1,"load_endpoint":"","load_endpoints":{"0":"e"},"load_metrics":{"interval_seconds":0.5}}`, func(c *client.Client) error {
			_, _ = c.PatchWorker(ctx, client.Worker{
				ID: 1, LoadEndpoint: new(""), LoadEndpoints: map[uint32]string{0: "e"}, LoadMetrics: &client.LoadMetrics{IntervalSeconds: new(0.5)},
			})
			return nil
		}},
		{"patch that clears", `{"worker_id":1,"taints":[],"topology_domains":{},"kv_events_endpoints":{},"replay_endpoints":{}}`, func(c *client.Client) error {
			_, _ = c.PatchWorker(ctx, client.Worker{
				ID: 1, Taints: []string{}, TopologyDomains: map[string]string{}, KVEventsEndpoints: map[uint32]string{}, ReplayEndpoints: map[uint32]string{},
			})
			return nil
		}},
		{"slots: a request without blocks", `{"model_name":"m","request_id":"r","worker_id":18446744073709551615,"dp_rank":4294967295,"sequence_hashes":[]}`, func(c *client.Client) error {
			return c.Slots().Add(ctx, client.SlotsRequest{SlotsScope: client.SlotsScope{Model: "m"}, ID: "r", Worker: math.MaxUint64, DPRank: math.MaxUint32})
		}},
		{"slots: empty model", `{"model_name":"","routing_group":"g","request_id":""}`, func(c *client.Client) error {
			return c.Slots().Free(ctx, client.SlotsScope{RoutingGroup: "g"}, "")
		}},
		{"conductor: a publisher", `{"endpoint":"e","type":"vLLM","modelname":"m","instance_id":"i","block_size":16,"dp_rank":0,"hash_seed":18446744073709551615}`, func(c *client.Client) error {
			return c.Conductor().Register(ctx, client.Publisher{Endpoint: "e", Type: "vLLM", Model: "m", Instance: "i", BlockSize: 16, HashSeed: new(uint64(math.MaxUint64))})
		}},
		{"conductor: the base model's publishers", `{"instance_id":"i","lora_name":"","dp_rank":0}`, func(c *client.Client) error {
			_, _ = c.Conductor().Unregister(ctx, client.Publishers{Instance: "i", LoRA: new(""), DPRank: new(uint32(0))})
			return nil
		}},
		{"conductor: hashes", `{"model":"m","block_size":16,"seq_hashes":[18446744073709551615]}`, func(c *client.Client) error {
			_, _ = c.Conductor().QueryByHash(ctx, client.Question{Model: "m", BlockSize: 16, SeqHashes: []uint64{math.MaxUint64}})
			return nil
		}},
		{"clear the catalog", `{"workers":[]}`, func(c *client.Client) error {
			_, _ = c.ReplaceWorkers(ctx, client.Scope{}, nil) // the fake answers a list
			return nil
		}},
		{"one scope's workers", `{"model_name":"","routing_group":"g","workers":[{"worker_id":18446744073709551615,"kv_events_endpoints":{"1":"e"}}]}`, func(c *client.Client) error {
			_, _ = c.ReplaceWorkers(ctx, client.Scope{Model: new(""), RoutingGroup: new("g")}, []client.Worker{{ID: math.MaxUint64, KVEventsEndpoints: map[uint32]string{1: "e"}}})
			return nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t)
			s.live["old"] = "{}"
			if err := tc.call(s.client(t)); err != nil {
				t.Fatal(err)
			}
			if got := s.bodies[0]; compact(t, got) != compact(t, tc.want) {
				t.Errorf("sent %s\nwant %s", got, tc.want)
			}
		})
	}
}

// compact writes JSON with sorted members; numbers stay as they are.
func compact(t *testing.T, text string) string {
	t.Helper()
	var members map[string]any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&members); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestAnswers proves that ids above 2^63 and signed hashes arrive exactly.
func TestAnswers(t *testing.T) {
	s := serve(t)
	s.next(answers(200, `{"selection_id":"i","worker_id":18446744073709551615,"dp_rank":4294967295,"sequence_hashes":[-9223372036854775808],
		"overlap":{"gpu":1,"dp":{"0":16,"7":1}},"decode_busy":false,"unknown":{}}`))
	got, err := s.client(t).Select(t.Context(), client.SelectRequest{Prompt: tokens})
	if err != nil || got.Worker != math.MaxUint64 || got.DPRank != math.MaxUint32 || got.SequenceHashes[0] != math.MinInt64 ||
		got.Overlap.DP[7] != 1 || got.DecodeBusy == nil || *got.DecodeBusy {
		t.Errorf("%+v, %v", got, err)
	}
	s.next(answers(503, `{"ready":false,"schedulable_workers":0,"workers":[{"worker_id":9223372036854775809}]}`))
	ready, err := s.client(t).Ready(t.Context())
	if err != nil || ready.Ready || ready.Workers[0].ID != 1<<63+1 {
		t.Errorf("%+v, %v", ready, err)
	}
	s.next(answers(200, `{"default":{"18446744073709551615":{"longest_matched":18446744073709551615,"GPU":1,"DP":{"4294967295":9007199254740993},"NVME":3}}}`))
	hits, err := s.client(t).Conductor().Query(t.Context(), client.Question{})
	want := client.Hits{LongestMatched: math.MaxUint64, Media: map[string]uint64{"GPU": 1, "NVME": 3}, DP: map[uint32]uint64{math.MaxUint32: 1<<53 + 1}}
	if got := hits["default"]["18446744073709551615"]; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	s.next(answers(200, `{"process_id":18446744073709551615,"sequence":2,"renewals":0,"seen":{"9223372036854775809":18446744073709551615},
		"ended":{"18446744073709551615":[[1,40],[43,18446744073709551615]]},"bookings":[{"origin_process":1,"worker_id":18446744073709551615,
		"expected_output_tokens":null,"sequence_hashes":[18446744073709551615]}],"next":null}`))
	page, err := s.client(t).Snapshot(t.Context(), "", 0)
	if err != nil || page.Process != math.MaxUint64 || page.Seen[1<<63+1] != math.MaxUint64 || page.Ended[math.MaxUint64][1] != [2]uint64{43, math.MaxUint64} ||
		page.Next != "" || page.Reservations[0].SequenceHashes[0] != math.MaxUint64 || page.Reservations[0].RenewedMS != nil {
		t.Errorf("%+v, %v", page, err)
	}
}

// TestBadAnswers proves that an answer of another shape is an error, of whatever
// call.
func TestBadAnswers(t *testing.T) {
	for name, body := range map[string]string{
		"no tenants": `[]`, "no hits": `{"t":{"i":1}}`, "a medium": `{"t":{"i":{"GPU":-1}}}`, "a rank": `{"t":{"i":{"DP":{"-1":1}}}}`, "a length": `{"t":{"i":{"longest_matched":"1"}}}`,
	} {
		s := serve(t)
		s.next(slices.Repeat([]fault{answers(200, body)}, 3)...)
		if hits, err := s.client(t).Conductor().Query(t.Context(), client.Question{}); !errors.Is(err, client.ErrMaybeDone) {
			t.Errorf("%s: %v, %v", name, hits, err)
		}
	}
}

// TestConductorError proves that an error says what it is about.
func TestConductorError(t *testing.T) {
	s := serve(t)
	s.next(answers(400, `{"error":"missing field","reason":"missing_field","field":"model"}`))
	_, err := s.client(t).Conductor().Query(t.Context(), client.Question{})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Reason != "missing_field" || e.Field != "model" || !errors.Is(err, client.ErrBadRequest) {
		t.Errorf("%+v", err)
	}
}

// TestPolicyClass proves that the class of the wait queue travels as a header, and
// that one that cannot is refused before anything is sent.
func TestPolicyClass(t *testing.T) {
	for _, class := range []string{"", "latency", "a\nb", "\x7f"} {
		f := newFake()
		var got []string
		h := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			got = append(got, fmt.Sprint(r.Header["X-Dynamo-Meta-Policy-Class"]))
			return f.RoundTrip(r)
		})}
		c, err := client.New("http://h", client.Options{HTTP: h})
		if err != nil {
			t.Fatal(err)
		}
		req := client.SelectRequest{Prompt: tokens, PolicyClass: class}
		_, selected := c.Select(t.Context(), req)
		_, booked := c.SelectAndReserve(t.Context(), req)
		_, leased := c.Lease(t.Context(), req)
		want := []string{"[" + class + "]", "[" + class + "]", "[" + class + "]"}
		for _, err := range []error{selected, booked, leased} {
			if class == "" || class == "latency" {
				if err != nil {
					t.Error(err)
				}
			} else if want = nil; !errors.Is(err, client.ErrBadRequest) || errors.Is(err, client.ErrMaybeDone) {
				t.Errorf("class %q: %v", class, err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("class %q: sent %q", class, got)
		}
		if class != "latency" {
			_ = c.Close()
			continue
		}
		if err := c.Close(); err != nil || len(got) != 4 || got[3] != "[]" {
			t.Errorf("%v, the free has %q", err, got)
		}
	}
}

// TestReuse proves that connections are used again, after errors too: a hundred
// calls one after the other make one, and callers at once one each.
func TestReuse(t *testing.T) {
	s := serve(t)
	c := s.client(t)
	for range 20 {
		s.next(nil, answers(503, overloaded), nil, answers(422, `{"error":"x"}`), answers(502, "<html>"))
		for range 4 {
			_, _ = c.Select(t.Context(), client.SelectRequest{Prompt: tokens})
		}
		_ = c.PrefillComplete(t.Context(), "unknown")
	}
	if n := s.connections.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	const callers = 100
	for range 5 {
		var g, all sync.WaitGroup
		all.Add(callers)
		s.hook("POST select", func() {
			all.Done()
			all.Wait()
		})
		for range callers {
			g.Go(func() { _, _ = c.Select(t.Context(), client.SelectRequest{Prompt: tokens}) })
		}
		g.Wait()
	}
	if n := s.connections.Load(); n > callers+callers/10 { // net/http dials while one comes back
		t.Errorf("%d connections for %d callers", n, callers)
	}
}

// TestPaths proves that any id is one segment of a path.
func TestPaths(t *testing.T) {
	for id, want := range map[string]string{"a/b": "a%2Fb", "ä ?#%": "%C3%A4%20%3F%23%25", "..": "..", "+": "+"} {
		f := newFake()
		_ = f.direct(t).Renew(t.Context(), id)
		if got := f.requests()[0]; got != "POST /reservations/"+want+"/renew" {
			t.Errorf("%q: %s", id, got)
		}
	}
}

// TestNew proves which addresses and options are refused.
func TestNew(t *testing.T) {
	short := client.DefaultRetry()
	short.Connection.Max = 0
	none := client.DefaultRetry()
	none.Overload.Attempts = 0
	for _, tc := range []struct {
		base string
		opt  client.Options
		ok   bool
	}{
		{base: "http://h:1", ok: true},
		{base: "https://h/prefix/", ok: true},
		{base: "h:1"},
		{base: ""},
		{base: "ftp://h"},
		{base: "http://"},
		{base: "http://h?"},
		{base: "http://h?a=b"},
		{base: "http://h#x"},
		{base: "http://h\x00"},
		{base: "http://h", opt: client.Options{Lease: time.Millisecond}},
		{base: "http://h", opt: client.Options{Lease: 25 * time.Hour}},
		{base: "http://h", opt: client.Options{Lease: -1}},
		{base: "http://h", opt: client.Options{Retry: &client.Retry{}}},
		{base: "http://h", opt: client.Options{Retry: &short}},
		{base: "http://h", opt: client.Options{Retry: &none}},
		{base: "http://h", opt: client.Options{Lease: 24 * time.Hour, HTTP: &http.Client{}}, ok: true},
	} {
		c, err := client.New(tc.base, tc.opt)
		if (err == nil) != tc.ok {
			t.Errorf("%q %+v: %v", tc.base, tc.opt, err)
		}
		if c != nil {
			_ = c.Close()
		}
	}
	given := &http.Client{}
	c, err := client.New("http://h", client.Options{HTTP: given})
	if err != nil || given.CheckRedirect != nil {
		t.Error("the caller's HTTP client was changed")
	}
	_ = c.Close()
}

// TestPrefix proves that a path in the address goes before all others.
func TestPrefix(t *testing.T) {
	var path string
	f := newFake()
	h := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		path = r.URL.Path
		return f.RoundTrip(r)
	})}
	c, err := client.New("http://h/selector/", client.Options{HTTP: h})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Health(context.Background()); err != nil || path != "/selector/v1.6/health" {
		t.Error(fmt.Sprint(path), err)
	}
	_ = c.Close()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// TestSelectBatch: each request has its answer, in both formats, and the prompts stay the
// caller's.
func TestSelectBatch(t *testing.T) {
	f := serve(t)
	c := f.client(t)
	reqs := []client.SelectRequest{{Model: "m", Prompt: client.Prompt{TokenIDs: []uint32{1, 2}}}, {Prompt: client.Prompt{BlockHashes: []int64{-1}}}}
	for _, f.onlyJSON = range []bool{false, true} {
		got, err := c.SelectBatch(t.Context(), reqs)
		if err != nil || len(got) != 2 || got[0].Selection.Worker != 1 || got[0].Err != nil || !errors.Is(got[1].Err, client.ErrOverloaded) {
			t.Fatalf("%+v, %v", got, err)
		}
		if e, ok := errors.AsType[*client.Error](got[1].Err); !ok || e.RetryAfter != 2*time.Second {
			t.Errorf("%+v", got[1].Err)
		}
		want := `{"requests":[{"select":{"model_name":"m","token_ids":[1,2]}},{"select":{"block_hashes":[-1]}}]}`
		if sent := f.bodies[len(f.bodies)-1]; compact(t, sent) != compact(t, want) {
			t.Errorf("sent %s", sent)
		}
	}
	if len(reqs[0].TokenIDs) != 2 {
		t.Error("the prompt is gone")
	}
	if _, err := c.SelectBatch(t.Context(), []client.SelectRequest{{PolicyClass: "a"}, {}}); !errors.Is(err, client.ErrBadRequest) {
		t.Error(err)
	}
}

// TestOnlyJSON: a service that refuses msgpack is asked once, and has done what was asked
// in JSON at once.
func TestOnlyJSON(t *testing.T) {
	f := serve(t)
	f.onlyJSON = true
	c := f.client(t)
	for range 2 {
		s, err := c.SelectAndReserve(t.Context(), client.SelectRequest{Prompt: client.Prompt{TokenIDs: []uint32{1, 2}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Free(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"msgpack", "application/json", "", "application/json", ""}; !slices.Equal(f.types, want) {
		t.Errorf("bodies came as %q, want %q", f.types, want)
	}
}

// TestRedirectsWithoutToken proves that where the caller's HTTP client follows redirects, the token goes to
// no other scheme, host or port; net/http sends it to another port, to plain HTTP and to names below.
func TestRedirectsWithoutToken(t *testing.T) {
	for to, want := range map[string]string{
		"https://h:8443/elsewhere":  "Bearer secret",
		"https://h:8444/health":     "",
		"https://h/health":          "",
		"http://h:8443/health":      "",
		"https://sub.h:8443/health": "",
		"https://other/health":      "",
	} {
		var got []string
		h := &http.Client{
			Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				got = append(got, r.URL.String()+" "+r.Header.Get("Authorization"))
				if len(got) > 1 {
					return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
				}
				return &http.Response{StatusCode: http.StatusTemporaryRedirect, Header: http.Header{"Location": {to}}, Body: http.NoBody, Request: r}, nil
			}),
			CheckRedirect: func(*http.Request, []*http.Request) error { return nil },
		}
		c, err := client.New("https://h:8443", client.Options{HTTP: h, Credentials: client.Credentials{Token: "secret"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Health(t.Context()); err != nil {
			t.Error(err)
		}
		if len(got) != 2 || got[1] != to+" "+want {
			t.Errorf("sent %q, want %q to %s", got, want, to)
		}
		_ = c.Close()
	}
}
