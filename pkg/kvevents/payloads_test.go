package kvevents_test

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
)

// payloadCase is one recorded message with the meaning that it has.
type payloadCase struct {
	Name    string          `json:"name"`
	Kind    string          `json:"kind"` // ok, bad_event or malformed
	Hex     string          `json:"payload_hex"`
	Expect  json.RawMessage `json:"expect"`
	Peer161 [][]any         `json:"peer_1_6_1"` // [tier, rank, parent, engine hash, local hash]
	Decided []string        `json:"decided"`
	Payload []byte          `json:"-"`
}

func payloadCases(t testing.TB) []payloadCase {
	t.Helper()
	raw, err := os.ReadFile("../../testdata/kv_event_payloads.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []payloadCase `json:"cases"`
		Count int           `json:"count"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) != file.Count || file.Count != 98 {
		t.Fatalf("%d cases, the file says %d", len(file.Cases), file.Count)
	}
	for i := range file.Cases {
		c := &file.Cases[i]
		if c.Payload, err = hex.DecodeString(c.Hex); err != nil {
			t.Fatal(err)
		}
	}
	return file.Cases
}

// anyRank gives every rank a slot of its own.
func anyRank(dp uint32) (uint32, bool) { return dp, true }

// TestPayloads proves every layout of the contract decoded, filtered and
// normalised as the table says: block size 4, rank 0 registered.
func TestPayloads(t *testing.T) {
	var dec kvevents.Decoder
	var batch kvevents.Batch
	for _, tc := range payloadCases(t) {
		t.Run(tc.Name, func(t *testing.T) {
			err := dec.Decode(tc.Payload, &batch)
			if string(tc.Expect) == `"skip"` {
				if err == nil {
					t.Fatalf("decoded %+v, want an error", batch.Events)
				}
				return
			}
			if err != nil {
				t.Fatalf("Decode: %v", err)
			}
			want := expectation(t, tc.Expect)
			if got := normal(&batch, want); !cmp.Equal(want, got) {
				t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
			}
		})
	}
}

// expectation reads a case's expectation. The session is informational and not
// kept (the file itself has it once and leaves it out once).
func expectation(t *testing.T, raw json.RawMessage) map[string]any {
	t.Helper()
	var want map[string]any
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	for _, ev := range want["events"].([]any) {
		delete(ev.(map[string]any), "session_id")
	}
	return want
}

// normal renders what an eagle or plain pool (as the expected events are) takes
// from a batch, in the form of the table.
func normal(b *kvevents.Batch, want map[string]any) map[string]any {
	eagle := slices.ContainsFunc(want["events"].([]any), func(ev any) bool {
		return ev.(map[string]any)["eagle"] == true
	})
	conv := kvevents.NewConverter(hashing.Layout{BlockSize: 4, Eagle: eagle}, 0, anyRank)
	out := map[string]any{"dp_rank": nil, "events": []any{}}
	if b.HasRank {
		out["dp_rank"] = float64(b.Rank)
	}
	if len(b.Bad) > 0 {
		out["bad_events"] = float64(len(b.Bad))
	}
	for _, ev := range conv.Normalize(b) {
		out["events"] = append(out["events"].([]any), normalEvent(&ev))
	}
	return out
}

func normalEvent(ev *kvevents.Event) map[string]any {
	m := map[string]any{"type": ev.Kind.String()}
	names := "block_hashes"
	if ev.Envelope != nil {
		names = "seq_hashes"
		maps.Copy(m, map[string]any{"event_id": float64(ev.Envelope.EventID), "tier": ev.Tier.String()})
		if ev.Envelope.HasBase {
			m["base_block_idx"] = float64(ev.Envelope.Base)
		}
	}
	if ev.Kind == kvevents.Cleared {
		return m
	}
	m[names], m["tier"] = texts(ev.Hashes), ev.Tier.String()
	if ev.Kind == kvevents.Stored {
		m["parent"] = nil
		if ev.HasParent {
			m["parent"] = text(ev.Parent)
		}
		if ev.Envelope == nil {
			m["block_size"] = float64(ev.BlockSize)
		}
		if ev.Envelope == nil || ev.Envelope.HasTokens {
			m["token_ids"] = numbers(ev.Tokens)
		}
	}
	optional(m, "eagle", ev.Eagle, true)
	optional(m, "lora_name", ev.LoRA != "", ev.LoRA)
	optional(m, "cache_salt", ev.Salt != "" && !ev.SaltSeen, ev.Salt)
	optional(m, "salt_seen", ev.SaltSeen, ev.Salt)
	optional(m, "group_idx", ev.Group != kvevents.NoGroup, float64(ev.Group))
	optional(m, "kind", ev.SpecKind != "", ev.SpecKind)
	if ev.MM != nil {
		var mm []any
		for _, hashes := range ev.MM {
			if hashes == nil {
				mm = append(mm, nil)
			} else {
				mm = append(mm, texts(hashes))
			}
		}
		m["mm_hashes"] = mm
	}
	return m
}

func optional(m map[string]any, key string, present bool, value any) {
	if present {
		m[key] = value
	}
}

func text(v uint64) string { return strconv.FormatUint(v, 10) }

func texts(in []uint64) []any {
	out := []any{}
	for _, v := range in {
		out = append(out, text(v))
	}
	return out
}

func numbers(in []uint32) []any {
	out := []any{}
	for _, v := range in {
		out = append(out, float64(v))
	}
	return out
}
