package kvevents_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/kvevents"
)

// recordedCase is one message that a publisher of test/others/engines sent.
type recordedCase struct {
	Name    string `json:"name"`
	Payload string `json:"payload"` // hex
	Means   struct {
		Batch  map[string]any   `json:"batch"` // nil: the event came without one
		Bad    int              `json:"bad_events"`
		Events []map[string]any `json:"events"`
	} `json:"means"`
}

func recordedCases(t *testing.T) []recordedCase {
	t.Helper()
	raw, err := os.ReadFile("../../testdata/mooncake/payloads.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []recordedCase `json:"cases"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 10 {
		t.Fatalf("only %d messages are recorded", len(file.Cases))
	}
	return file.Cases
}

func (c *recordedCase) bytes(t *testing.T) []byte {
	t.Helper()
	payload, err := hex.DecodeString(c.Payload)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// TestRecordedPayloads proves that the decoder reads what a Mooncake-shaped and
// a standard publisher really send, field by field. One Decoder reads all
// messages, twice, so that nothing of a message is left for the next one.
func TestRecordedPayloads(t *testing.T) {
	cases := recordedCases(t)
	var dec kvevents.Decoder
	var batch kvevents.Batch
	for _, round := range []string{"first", "again"} {
		for _, tc := range cases {
			t.Run(round+"/"+tc.Name, func(t *testing.T) {
				if err := dec.Decode(tc.bytes(t), &batch); err != nil {
					t.Fatal(err)
				}
				got := recordedCase{Name: tc.Name, Payload: tc.Payload}
				if batch.HasRank {
					got.Means.Batch = map[string]any{"ts": batch.Time, "rank": float64(batch.Rank)}
				}
				got.Means.Bad = len(batch.Bad)
				for i := range batch.Events {
					got.Means.Events = append(got.Means.Events, recordedEvent(&batch.Events[i]))
				}
				if diff := cmp.Diff(tc, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestRecordedPayloadsCut proves that a recorded message that ends early is
// refused as a whole.
func TestRecordedPayloadsCut(t *testing.T) {
	var dec kvevents.Decoder
	var batch kvevents.Batch
	for _, tc := range recordedCases(t) {
		payload := tc.bytes(t)
		for end := range payload {
			if err := dec.Decode(payload[:end], &batch); err == nil {
				t.Fatalf("%s: the first %d of %d bytes are taken for a message", tc.Name, end, len(payload))
			}
		}
	}
}

// recordedEvent renders an event in the form of the file.
func recordedEvent(ev *kvevents.Event) map[string]any {
	m := map[string]any{"type": ev.Kind.String()}
	optional(m, "tier", ev.TierKnown, ev.Tier.String())
	optional(m, "medium", ev.Medium != "", ev.Medium)
	optional(m, "names", len(ev.Hashes) > 0, texts(ev.Hashes))
	optional(m, "parent", ev.HasParent, text(ev.Parent))
	optional(m, "tokens", len(ev.Tokens) > 0, numbers(ev.Tokens))
	optional(m, "block_size", ev.BlockSize != 0, float64(ev.BlockSize))
	optional(m, "lora", ev.LoRA != "", ev.LoRA)
	env := ev.Envelope
	if env == nil {
		return m
	}
	name, named := env.EngineHash()
	optional(m, "engine_name", named, text(name))
	optional(m, "event_id", env.HasEventID, float64(env.EventID))
	optional(m, "base", env.HasBase, float64(env.Base))
	optional(m, "dp_rank", env.HasDPRank, float64(env.DPRank))
	optional(m, "model", env.Model != "", env.Model)
	optional(m, "tenant", env.Tenant != "", env.Tenant)
	optional(m, "backend", env.Backend != "", env.Backend)
	optional(m, "salt", env.Salt != "", env.Salt)
	optional(m, "group", env.Group != "", env.Group)
	optional(m, "object_key", env.ObjectKey != "", env.ObjectKey)
	return m
}
