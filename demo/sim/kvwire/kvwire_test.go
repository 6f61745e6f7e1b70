package kvwire_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/demo/sim/kvwire"
	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/pkg/kvevents"
)

// A BlockStored of one attention group and a BlockRemoved, as the publisher of
// vLLM 0.33.0 wrote them.
const (
	vllmStored = "a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573920b0cb1706172656e745f626c6f636b5f68617368c0" +
		"a9746f6b656e5f696473980102030405060708aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055" +
		"a96c6f72615f6e616d65c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e"
	vllmRemoved = "84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573910ca66d656469756da3475055a967726f75705f69647800"
)

// TestAsVLLM compares bytes. vLLM's encoder reserves a 16-bit map header for
// stores, ours takes the short one; that is the only difference.
func TestAsVLLM(t *testing.T) {
	got, err := kvwire.Batch(1739145600.5, []engine.Event{
		{Kind: engine.BlockStored, Hashes: []uint64{11, 12}, Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}},
		{Kind: engine.BlockRemoved, Hashes: []uint64{12}},
		{Kind: engine.AllBlocksCleared},
	}, 4, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"93cb41d9ea506020000093", "8a" + vllmStored, vllmRemoved,
		"81a474797065b0416c6c426c6f636b73436c6561726564", "00",
	}, "")
	if diff := cmp.Diff(want, hex.EncodeToString(got)); diff != "" {
		t.Errorf("batch (-vLLM +ours):\n%s", diff)
	}
}

// TestKeys proves that the service reads the adapter and the salt of a prompt, and that
// blocks in the middle of one have the adapter alone.
func TestKeys(t *testing.T) {
	first := engine.Event{
		Kind: engine.BlockStored, Hashes: []uint64{1, 2}, Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}, Keys: engine.Keys{LoRA: "poet", Salt: "tenant"},
	}
	next := engine.Event{Kind: engine.BlockStored, Hashes: []uint64{3}, Parent: 2, HasParent: true, Tokens: []uint32{9, 10, 11, 12}, Keys: first.Keys}
	payload, err := kvwire.Batch(1, []engine.Event{first, next}, 4, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b kvevents.Batch
	if err := new(kvevents.Decoder).Decode(payload, &b); err != nil || len(b.Events) != 2 || len(b.Bad) > 0 {
		t.Fatalf("%v: %+v", err, b)
	}
	for i, salt := range []string{"tenant", ""} {
		if ev := b.Events[i]; ev.LoRA != "poet" || ev.Salt != salt || ev.Opaque != nil {
			t.Errorf("event %d: adapter %q, salt %q, opaque %v", i, ev.LoRA, ev.Salt, ev.Opaque)
		}
	}
}

// TestServiceReads proves that the service's decoder reads large values back
// unchanged.
func TestServiceReads(t *testing.T) {
	ev := engine.Event{
		Kind: engine.BlockStored, Hashes: []uint64{1 << 63, 7}, Parent: ^uint64(0), HasParent: true,
		Tokens: []uint32{0, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1},
	}
	payload, err := kvwire.Batch(1, []engine.Event{ev}, 4, 3)
	if err != nil {
		t.Fatal(err)
	}
	var b kvevents.Batch
	if err := new(kvevents.Decoder).Decode(payload, &b); err != nil {
		t.Fatal(err)
	}
	if !b.HasRank || b.Rank != 3 || len(b.Bad) > 0 || len(b.Events) != 1 {
		t.Fatalf("batch = %+v", b)
	}
	got := b.Events[0]
	if diff := cmp.Diff(ev, engine.Event{
		Kind: engine.BlockStored, Hashes: got.Hashes, Parent: got.Parent, HasParent: got.HasParent, Tokens: got.Tokens,
	}); got.Kind != kvevents.Stored || diff != "" {
		t.Errorf("kind %v, (-sent +read):\n%s", got.Kind, diff)
	}
	if got.BlockSize != 4 || got.Medium != "GPU" || got.Group != 0 {
		t.Errorf("block size %d, medium %q, group %d", got.BlockSize, got.Medium, got.Group)
	}
}
