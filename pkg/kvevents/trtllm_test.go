package kvevents_test

import (
	"testing"

	"github.com/select-service/select-service/pkg/kvevents"
)

// TestTensorRTLLM: events in the form of TensorRT-LLM's publisher are read, as its source has it and
// without an engine that was run: _torch/pyexecutor/kv_cache_events.py has KVEventBatch as an array and
// BlockStored, BlockRemoved and AllBlocksCleared as maps with a type, without the members that are unset;
// hashes are unsigned, and mm_keys stand where multimodal keys are on.
func TestTensorRTLLM(t *testing.T) {
	const first, second = uint64(1<<64 - 1), uint64(7)
	payload := pack(t, []any{1.5, []any{
		map[string]any{
			"type": "BlockStored", "block_hashes": []any{first, second}, "parent_block_hash": nil,
			"token_ids": []any{1, 2, 3, 4, 5, 6, 7, 8}, "block_size": 4, "lora_id": nil, "medium": "GPU", "lora_name": nil,
			"mm_keys": []any{[]any{map[string]any{"type": "mm_key", "hash": "00ff", "start_offset": 0}}, []any{}},
		},
		map[string]any{"type": "BlockRemoved", "block_hashes": []any{second}, "medium": "GPU"},
		map[string]any{"type": "AllBlocksCleared"},
	}, 3})
	var dec kvevents.Decoder
	var batch kvevents.Batch
	if err := dec.Decode(payload, &batch); err != nil {
		t.Fatal(err)
	}
	want := []kvevents.Kind{kvevents.Stored, kvevents.Removed, kvevents.Cleared}
	if len(batch.Events) != len(want) {
		t.Fatalf("%d events: %+v", len(batch.Events), batch.Events)
	}
	for i, ev := range batch.Events {
		if ev.Kind != want[i] {
			t.Errorf("event %d is %v, want %v", i, ev.Kind, want[i])
		}
	}
	if stored := batch.Events[0]; len(stored.Hashes) != 2 || stored.Hashes[0] != first || stored.BlockSize != 4 || len(stored.Tokens) != 8 {
		t.Errorf("%+v", stored)
	}
}
