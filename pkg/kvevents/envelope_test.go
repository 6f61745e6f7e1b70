package kvevents_test

import (
	"math"
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
		Hashes: []uint64{11, 12}, Parent: 10, HasParent: true, BlockSize: 4, LoRA: "ad", Group: kvevents.NoGroup,
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
	master := mooncake // states neither depth nor parent: the connector's hash has to do
	master.Envelope = &kvevents.Envelope{EventID: 42, HasEventID: true, Backend: "w-0", ConnectorHash: "00ff00ff00ff00ff"}
	master.Parent, master.HasParent = 0, false
	wide := full
	wide.Hashes, wide.Parent = []uint64{math.MaxUint64, 1 << 63, 0x3132333435363738}, 1<<64-2
	wide.Envelope = &kvevents.Envelope{EventID: math.MaxUint64, HasEventID: true, Model: "m", Tenant: "t", Backend: "w-0", Salt: "w8a8"}
	wide.Tokens, wide.Envelope.HasTokens = []uint32{math.MaxUint32}, true
	noTokens := full
	noTokens.Envelope = new(*full.Envelope)
	noTokens.Envelope.HasTokens, noTokens.Tokens = true, nil
	tests := map[string]struct {
		message any
		want    kvevents.Event
	}{
		"widest numbers": {message(envelope(dict{
			"event_id": uint64(math.MaxUint64), "seq_hashes": list{-1, math.MinInt64, []byte("0012345678")}, "parent_hash": -2,
			"base_block_idx": nil, "dp_rank": nil, "token_ids": list{uint32(math.MaxUint32)},
		})), wide},
		"no tokens":                        {message(envelope(dict{"token_ids": list{}})), noTokens},
		"in a map":                         {dict{"events": list{envelope(nil)}}, full},
		"in two elements":                  {list{1, list{envelope(nil)}}, full},
		"in four":                          {list{1, list{envelope(nil)}, nil, "more"}, full},
		"nothing but the connector's hash": {message(without(envelope(nils), "base_block_idx", "parent_hash", "object_key", "group_id")), master},
		"in a batch":                       {message(envelope(nil)), full},
		"bare":                             {envelope(nil), full},
		"legacy fields":                    {message(envelope(dict{"type": "BlockStored", "block_hashes": list{11, 12}, "parent_block_hash": 10})), full},
		"mooncake master":                  {message(envelope(nils)), mooncake},
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
		"hash is a float":   {envelope(dict{"seq_hashes": list{1.0}}), kvevents.BadHash},
		"hash of 7 bytes":   {envelope(dict{"seq_hashes": list{[]byte("1234567")}}), kvevents.BadHash},
		"hashes in a map":   {envelope(dict{"seq_hashes": dict{}}), kvevents.BadHash},
		"parent is text":    {envelope(dict{"parent_hash": "10"}), kvevents.BadHash},
		"id is a float":     {envelope(dict{"event_id": 1.0}), kvevents.BadField},
		"id is text":        {envelope(dict{"event_id": "1"}), kvevents.BadField},
		"id below zero":     {envelope(dict{"event_id": -1}), kvevents.BadField},
		"rank is text":      {envelope(dict{"dp_rank": "0"}), kvevents.BadField},
		"base beyond u32":   {envelope(dict{"base_block_idx": 1 << 32}), kvevents.BadField},
		"token is text":     {envelope(dict{"token_ids": list{"1"}}), kvevents.BadToken},
		"token below zero":  {envelope(dict{"token_ids": list{-1}}), kvevents.BadToken},
		"tokens are text":   {envelope(dict{"token_ids": "1"}), kvevents.BadToken},
		"size 0":            {envelope(dict{"block_size": 0}), kvevents.BadBlockSize},
		"size is a float":   {envelope(dict{"block_size": 4.0}), kvevents.BadBlockSize},
		"medium is 1":       {envelope(dict{"medium": 1}), kvevents.BadMedium},
		"no useful hash":    {envelope(dict{"base_block_idx": nil, "parent_hash": nil, "connector_block_hash": "xy"}), kvevents.NoAnchor},
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

// TestSkippedEnvelopes shows that a bad envelope's stream, number and place among the
// good ones are known all the same, whatever the order of its fields, unless a field
// that states the stream or the number is itself bad or absent.
func TestSkippedEnvelopes(t *testing.T) {
	numbered := kvevents.Event{
		Kind: kvevents.Stored, Medium: "CPU", Tier: indexer.Host, TierKnown: true, BlockSize: 4, LoRA: "ad", Group: kvevents.NoGroup,
		Envelope: &kvevents.Envelope{
			EventID: 42, HasEventID: true, Model: "m", Tenant: "t", Backend: "w-0",
			Salt: "w8a8", DPRank: 3, HasDPRank: true, Base: 5, HasBase: true,
		},
	}
	tests := map[string]struct {
		event any
		known bool
	}{
		"bad hashes":    {envelope(dict{"seq_hashes": list{"x"}}), true},
		"bad tokens":    {envelope(dict{"token_ids": 5}), true},
		"aliases":       {envelope(dict{"type": "AllBlocksCleared"}), true},
		"a list as key": {envelope(dict{"timestamp": list{dict{}}, "a": dict{"b": list{}}, "block_hashes": nil}), true},
		"bad tenant":    {envelope(dict{"tenant_id": 1}), false},
		"bad medium":    {envelope(dict{"medium": 1}), false},
		"bad rank":      {envelope(dict{"dp_rank": 1.5}), false},
		"bad size":      {envelope(dict{"block_size": -1}), false},
		"bad id":        {envelope(dict{"event_id": 1.5}), false},
		"no id":         {envelope(dict{"event_id": nil, "seq_hashes": nil}), false},
		"an engine's":   {stored([]uint64{1}, dict{"medium": 1}), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := decode(t, message(envelope(nil), tc.event, envelope(nil)))
			if len(b.Bad) != 1 || len(b.Events) != 2 || b.Bad[0].Before != 1 {
				t.Fatalf("events %v, bad %v", b.Events, b.Bad)
			}
			if !tc.known {
				if b.Bad[0].Numbered != nil {
					t.Errorf("Numbered = %+v, want none", b.Bad[0].Numbered)
				}
				return
			}
			if diff := cmp.Diff(&numbered, b.Bad[0].Numbered, cmpopts.IgnoreUnexported(kvevents.Event{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestEngineName shows which connector hashes are names.
func TestEngineName(t *testing.T) {
	tests := map[string]struct {
		want uint64
		ok   bool
	}{
		"":                                   {},
		"0123456789abcdef":                   {0x0123456789abcdef, true},
		"0X0123456789ABCDEF":                 {0x0123456789abcdef, true},
		"ffffffffffffffff000000000000002a":   {42, true},
		"0xffffffffffffffff000000000000002a": {42, true},
		"0123456789abcde":                    {},
		"123456789abcdef01":                  {},
		"0x0123456789abcd":                   {},
		"0123456789abcdeg":                   {},
		"zz0123456789abcdef":                 {},
	}
	for text, tc := range tests {
		if got, ok := (&kvevents.Envelope{ConnectorHash: text}).EngineHash(); ok != tc.ok || ok && got != tc.want {
			t.Errorf("%q is %x, %v; want %x, %v", text, got, ok, tc.want, tc.ok)
		}
	}
}
