package replicasync

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// recorded is one entry of testdata/replica_sync_messages.json: what a peer
// published after an HTTP call, or what was sent to a peer and its effect.
type recorded struct {
	ID         string            `json:"id"`
	Version    string            `json:"peer_version"`
	Mode       string            `json:"mode"`
	Direction  string            `json:"direction"`
	What       string            `json:"what"`
	FramesHex  []string          `json:"frames_hex"`
	Decoded    json.RawMessage   `json:"decoded"`
	HTTP       []json.RawMessage `json:"http"`
	HTTPStatus int               `json:"http_status"`
	Effect     []struct {
		DP       uint32 `json:"dp_rank"`
		Prefill  uint64 `json:"prefill_tokens"`
		Blocks   uint64 `json:"decode_blocks"`
		Requests *uint32
	} `json:"effect"`
	Note string `json:"note"`
}

func recordings(t testing.TB) []recorded {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "testdata", "replica_sync_messages.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Topic    string
		Messages []recorded
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if file.Topic != TopicEvents {
		t.Fatalf("topic %q, want %q", file.Topic, TopicEvents)
	}
	if len(file.Messages) != 66 {
		t.Fatalf("%d recordings, want 66", len(file.Messages))
	}
	return file.Messages
}

func (r *recorded) payload(t testing.TB) []byte {
	t.Helper()
	raw, err := hex.DecodeString(r.FramesHex[1])
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// asPeer is the view of a decoded event that a peer of that version sends.
func asPeer(e *event, version string) map[string]any {
	add := func() any {
		hashes := make([]any, len(e.hashes))
		for i, h := range e.hashes {
			hashes[i] = h
		}
		m := map[string]any{
			"token_sequence": hashes, "track_prefill_tokens": e.track,
			"expected_output_tokens": nil, "prefill_load_hint": nil,
		}
		if e.expectedOutput != nil {
			m["expected_output_tokens"] = uint64(*e.expectedOutput)
		}
		if e.hinted {
			m["prefill_load_hint"] = map[string]any{
				"initial_effective_prefill_tokens": e.prefillTokens, "expected_prefill_duration": nil,
			}
		}
		return map[string]any{"AddRequest": m}
	}
	var data any = variants[e.kind]
	if e.kind == booked {
		data = add()
	}
	group := "tenant_id"
	if version == "1.6.1" {
		group = "routing_group"
	}
	return map[string]any{
		"model_name": e.scope.Model, group: e.scope.Tenant, "block_size": uint64(e.blockSize),
		"event": map[string]any{
			"request_id": e.id,
			"worker":     map[string]any{"worker_id": e.rank.Worker, "dp_rank": uint64(e.rank.DP)},
			"data":       data, "router_id": e.sender, "lora_name": nil,
		},
	}
}

// numbers decodes JSON with all numbers as uint64.
func numbers(t testing.TB, raw []byte) map[string]any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return unsigned(t, v).(map[string]any)
}

// unsigned turns every number in v into uint64.
func unsigned(t testing.TB, v any) any {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = unsigned(t, v[k])
		}
	case []any:
		for i := range v {
			v[i] = unsigned(t, v[i])
		}
	case json.Number:
		var n uint64
		if err := json.Unmarshal([]byte(v), &n); err != nil {
			t.Fatal(err)
		}
		return n
	case int8, int16, int32, int64, uint8, uint16, uint32:
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return unsigned(t, json.Number(raw))
	}
	return v
}

// TestRecordedFromPeers proves that what the peers publish is understood, and
// that the same call here publishes the same, byte order aside, with both names
// of the group and our own keys.
func TestRecordedFromPeers(t *testing.T) {
	for _, m := range recordings(t) {
		if m.Direction != "from_peer" {
			continue
		}
		t.Run(m.ID, func(t *testing.T) {
			if len(m.FramesHex) == 0 {
				if !strings.Contains(m.Note, "nothing published") {
					t.Fatalf("no frames, but note %q", m.Note)
				}
				return // the ledger does not call its observer: see its tests
			}
			want := numbers(t, m.Decoded)
			e, err := newReader().event(m.payload(t))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, asPeer(&e, m.Version)); diff != "" {
				t.Errorf("decoded (-want +got):\n%s", diff)
			}

			local := sameCall(t, &m, &e)
			local.sequence = 7
			var got map[string]any
			if err := msgpack.Unmarshal(newEncoder().event(&local), &got); err != nil {
				t.Fatal(err)
			}
			want = numbers(t, m.Decoded)
			want["tenant_id"], want["routing_group"] = e.scope.Tenant, e.scope.Tenant
			want["sequence"], want["per_scope"] = uint64(7), local.perScope
			if e.kind != booked {
				want["origin_process"], want["origin_sequence"] = e.sender, uint64(5)
			}
			if diff := cmp.Diff(want, unsigned(t, got)); diff != "" {
				t.Errorf("encoded (-want +got):\n%s", diff)
			}
		})
	}
}

// sameCall is the event that our ledger gives for the recorded HTTP call.
func sameCall(t testing.TB, m *recorded, e *event) event {
	t.Helper()
	var body struct {
		Tokens   *uint64 `json:"new_isl_tokens"`
		Given    *uint64 `json:"effective_prefill_tokens"`
		Prompt   uint64  `json:"isl_tokens"`
		Expected *uint32 `json:"expected_output_tokens"`
		Hashes   []int64 `json:"sequence_hashes"`
	}
	var path string
	if err := json.Unmarshal(m.HTTP[1], &path); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(m.HTTP[2], &body); err != nil {
		t.Fatal(err)
	}
	step := reservations.Event{Scope: e.scope, ID: e.id, Rank: e.rank}
	if e.kind != booked {
		step.Origin = reservations.Origin{Process: e.sender, Sequence: 5}
		return localEvent(e.kind, e.sender, step, e.blockSize)
	}
	step.Origin = reservations.Origin{Process: e.sender}
	for _, h := range body.Hashes {
		step.Hashes = append(step.Hashes, uint64(h))
	}
	step.ExpectedOutput = body.Expected
	switch {
	case m.Mode == "slots":
		step.PerScope = true
		if body.Tokens != nil {
			step.PrefillTokens = *body.Tokens
		}
		step.TrackPrefill = step.PrefillTokens > 0
	case path == "/select_and_reserve":
		step.TrackPrefill, step.PrefillTokens = true, body.Prompt
	case body.Given != nil:
		step.TrackPrefill, step.PrefillTokens = true, *body.Given
	}
	return localEvent(booked, e.sender, step, e.blockSize)
}

// TestRecordedToPeers proves that what was sent to the peers has the effect here
// that it had there, by the stricter rules of 1.6.1; only that both names of the
// group are read.
func TestRecordedToPeers(t *testing.T) {
	scopes := fixedScopes{{Model: "m", Tenant: "default"}: 16}
	scope := catalog.Scope{Model: "m", Tenant: "default"}
	var (
		r       *Replica
		l       *reservations.Ledger
		service string
	)
	for _, m := range recordings(t) {
		if m.Direction != "to_peer" {
			continue
		}
		t.Run(m.ID, func(t *testing.T) {
			if key := m.Version + m.Mode; key != service { // each peer was fresh
				service = key
				r, l = newTestReplica(scopes)
				for dp := range uint32(2) {
					l.PutRank(scope, dp, catalog.Rank{Worker: 7, DP: dp})
				}
			}
			before := l.Loads(scope)
			if len(m.FramesHex) == 2 { // else it is dropped below us: a message is a topic and a payload
				r.applyMessage(newReader(), "tcp://peer:1", TopicEvents, m.payload(t))
			} else if !strings.Contains(m.What, "three frames") {
				t.Fatalf("%d frames", len(m.FramesHex))
			}
			got := l.Loads(scope)
			switch {
			case strings.Contains(m.What, "other version's key"):
				// Decision S2: either name is read. The peer drops it.
				if cmp.Equal(before, got) {
					t.Error("no effect")
				}
				freeAll(t, l)
				return
			case strings.Contains(m.What, "the Free (1.3.1 ignores") && m.Version == "1.3.1":
				// The worker must fit, as in 1.6.1.
				if !cmp.Equal(before, got) {
					t.Errorf("loads %+v, want %+v", got, before)
				}
				freeAll(t, l)
				return
			}
			for i, want := range m.Effect {
				if got[i].Rank.DP != want.DP || got[i].PrefillTokens != want.Prefill || got[i].Blocks != want.Blocks {
					t.Errorf("rank %d: %+v, want %+v", i, got[i], want)
				}
				if want.Requests != nil && got[i].Requests != *want.Requests {
					t.Errorf("rank %d: %d requests, want %d", i, got[i].Requests, *want.Requests)
				}
			}
		})
	}
}

// freeAll ends everything.
func freeAll(t testing.TB, l *reservations.Ledger) {
	t.Helper()
	page, _, _ := l.Reservations(reservations.Cursor{}, 100)
	for _, b := range page {
		if err := l.Free(b.ID); err != nil {
			t.Fatal(err)
		}
	}
}
