package kvevents_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// envelope is a standard stored event; more sets or replaces fields.
func envelope(more dict) dict {
	ev := dict{
		"event_id": 42, "timestamp": 1739145600000, "event_type": "stored", "model_name": "m",
		"block_size": 4, "additional_salt": "w8a8", "lora_name": "ad", "tenant_id": "t", "backend_id": "w-0",
		"medium": "cpu", "dp_rank": 3, "seq_hashes": list{11, 12}, "base_block_idx": 5, "parent_hash": 10,
		"token_ids": nil,
	}
	for key, value := range more {
		ev[key] = value
	}
	return ev
}

// TestEnvelope shows every field of a standard event read, inside a batch and
// as a bare map, and that nil leaves fields to the registration.
func TestEnvelope(t *testing.T) {
	full := kvevents.Event{
		Kind: kvevents.Stored, Medium: "CPU", Tier: indexer.Host, TierKnown: true,
		Names: []uint64{11, 12}, Parent: 10, HasParent: true, BlockSize: 4, LoRA: "ad", Group: kvevents.NoGroup,
		Envelope: &kvevents.Envelope{
			EventID: 42, HasEventID: true, Model: "m", Tenant: "t", Backend: "w-0",
			Salt: "w8a8", DPRank: 3, HasDPRank: true, Base: 5, HasBase: true,
		},
	}
	mooncake := full
	mooncake.Envelope = &kvevents.Envelope{
		EventID: 42, HasEventID: true, Backend: "w-0", Base: 5, HasBase: true,
		Group: "\x07", ObjectKey: "obj", ConnectorHash: "00ff00ff00ff00ff",
	}
	mooncake.LoRA, mooncake.BlockSize = "", 0
	nils := dict{
		"model_name": nil, "block_size": nil, "lora_name": nil, "additional_salt": nil,
		"tenant_id": nil, "dp_rank": nil, "group_id": 7, "object_key": "obj", "connector_block_hash": "00ff00ff00ff00ff",
	}
	tests := map[string]struct {
		message any
		want    kvevents.Event
	}{
		"in a batch":      {message(envelope(nil)), full},
		"bare":            {envelope(nil), full},
		"legacy fields":   {message(envelope(dict{"type": "BlockStored", "block_hashes": list{11, 12}, "parent_block_hash": 10})), full},
		"mooncake master": {message(envelope(nils)), mooncake},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := decode(t, tc.message)
			if len(b.Events) != 1 {
				t.Fatalf("%d events, bad %v", len(b.Events), b.Bad)
			}
			if diff := cmp.Diff(tc.want, b.Events[0], cmpopts.IgnoreUnexported(kvevents.Event{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestBadEnvelopes shows envelopes that are skipped alone.
func TestBadEnvelopes(t *testing.T) {
	tests := map[string]struct {
		event any
		want  kvevents.Reason
	}{
		"unknown type":      {envelope(dict{"event_type": "moved"}), kvevents.BadTag},
		"type is a number":  {envelope(dict{"event_type": 1}), kvevents.BadTag},
		"no hashes":         {envelope(dict{"seq_hashes": nil}), kvevents.MissingField},
		"hash is text":      {envelope(dict{"seq_hashes": list{"1"}}), kvevents.BadHash},
		"no anchor":         {envelope(dict{"base_block_idx": nil, "parent_hash": nil}), kvevents.NoAnchor},
		"base below zero":   {envelope(dict{"base_block_idx": -1}), kvevents.BadField},
		"rank beyond u32":   {envelope(dict{"dp_rank": 1 << 32}), kvevents.BadField},
		"tenant is a list":  {envelope(dict{"tenant_id": list{}}), kvevents.BadField},
		"object key":        {envelope(dict{"object_key": list{}}), kvevents.BadField},
		"key is a number":   {map[any]any{"event_type": "cleared", 1: 2}, kvevents.BadField},
		"legacy no text":    {envelope(dict{"type": 1}), kvevents.BadField},
		"legacy removed":    {envelope(dict{"event_type": "removed", "type": "AllBlocksCleared"}), kvevents.AliasMismatch},
		"legacy bad hash":   {envelope(dict{"block_hashes": list{"x"}}), kvevents.AliasMismatch},
		"legacy nil hashes": {envelope(dict{"block_hashes": nil}), kvevents.AliasMismatch},
		"other legacy type": {envelope(dict{"type": "BlockRemoved"}), kvevents.AliasMismatch},
		"other hashes":      {envelope(dict{"block_hashes": list{11}}), kvevents.AliasMismatch},
		"other parent":      {envelope(dict{"parent_block_hash": nil}), kvevents.AliasMismatch},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := decode(t, message(tc.event, envelope(nil)))
			if len(b.Bad) != 1 || b.Bad[0].Reason != tc.want {
				t.Errorf("Bad = %v, want %v", b.Bad, tc.want)
			}
			if len(b.Events) != 1 {
				t.Errorf("%d events, want the next one alone", len(b.Events))
			}
		})
	}
}
