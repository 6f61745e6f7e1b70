package kvevents_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
)

// eachSink writes down what Each gives it and takes every event, or refuses all
// of them for a reason.
type eachSink struct {
	calls  []string
	events []kvevents.Event
	refuse kvevents.Reason
}

func (s *eachSink) Event(ev *kvevents.Event, dp uint32, t *kvevents.Tally) kvevents.Reason {
	call := fmt.Sprintf("%v rank=%d size=%d %v", ev.Kind, dp, ev.BlockSize, ev.Hashes)
	if len(ev.Tokens) > 0 {
		call += fmt.Sprintf(" tokens=%d", len(ev.Tokens))
	}
	if ev.Medium != "GPU" {
		call += fmt.Sprintf(" medium=%q", ev.Medium)
	}
	if ev.HasLoRAID {
		call += fmt.Sprintf(" lora_id=%d", ev.LoRAID)
	}
	if ev.Envelope != nil {
		call += fmt.Sprintf(" id=%d", ev.Envelope.EventID)
	}
	s.calls = append(s.calls, call)
	s.events = append(s.events, *ev)
	return s.refuse
}

func (s *eachSink) Skipped(ev *kvevents.Event, dp uint32) {
	s.calls = append(s.calls, fmt.Sprintf("skipped rank=%d size=%d medium=%q id=%d", dp, ev.BlockSize, ev.Medium, ev.Envelope.EventID))
}

// countSink counts its calls.
type countSink struct{ taken, skipped int }

func (s *countSink) Event(*kvevents.Event, uint32, *kvevents.Tally) kvevents.Reason {
	s.taken++
	return kvevents.Applied
}

func (s *countSink) Skipped(*kvevents.Event, uint32) { s.skipped++ }

// each gives messages to a sink, all on one stream of rank 0 with blocks of 4.
func each(t testing.TB, ranks kvevents.Ranks, messages ...any) (*eachSink, *kvevents.Tally) {
	t.Helper()
	sink, tally := &eachSink{}, &kvevents.Tally{}
	conv := kvevents.NewConverter(plain4, 0, ranks)
	for _, m := range messages {
		conv.Each(decode(t, m), sink, tally)
	}
	return sink, tally
}

// TestEachEngineEvents shows what of an engine's events reaches a sink, in both
// layouts, and what is counted.
func TestEachEngineEvents(t *testing.T) {
	ab := []uint64{1, 2}
	tokens := list{1, 2, 3, 4, 5, 6, 7, 8}
	tests := map[string]struct {
		events list
		calls  []string
		counts []string
		blocks []string
	}{
		"maps": {
			list{stored(ab, dict{"lora_id": 7}), dict{"type": "BlockRemoved", "block_hashes": ab, "medium": "npu"}, dict{"type": "AllBlocksCleared"}},
			[]string{"stored rank=0 size=4 [1 2] tokens=8 lora_id=7", `removed rank=0 size=0 [1 2] medium="NPU"`, `cleared rank=0 size=0 [] medium=""`},
			[]string{"stored device applied 1", "removed none applied 1", "cleared none applied 1"},
			nil,
		},
		"arrays": {
			list{
				list{"BlockStored", ab, nil, tokens, 4, 7, "GPU", nil},
				list{"BlockStored", ab, nil, tokens, 4, nil, "GPU", dict{"cache_salt": "s"}},
				list{"BlockStored", ab, nil, tokens, 4},
				list{"BlockRemoved", ab, "GPU"},
				list{"AllBlocksCleared"},
			},
			[]string{
				"stored rank=0 size=4 [1 2] tokens=8 lora_id=7", "stored rank=0 size=4 [1 2] tokens=8",
				`stored rank=0 size=4 [1 2] tokens=8 medium=""`, "removed rank=0 size=0 [1 2]", `cleared rank=0 size=0 [] medium=""`,
			},
			[]string{"stored device applied 3", "removed device applied 1", "cleared none applied 1"},
			nil,
		},
		"an adapter of no known number": {
			list{
				stored(ab, dict{"lora_id": "x"}),
				stored(ab, dict{"lora_id": "x", "lora_name": "ad"}),
				list{"BlockStored", ab, nil, tokens, 4, 1.5},
			},
			[]string{"stored rank=0 size=4 [1 2] tokens=8"},
			[]string{"stored device applied 1", "stored device bad_field 2"},
			nil,
		},
		"no adapter": {
			list{stored(ab, dict{"lora_id": -1}), stored(ab, dict{"lora_id": 0})},
			[]string{"stored rank=0 size=4 [1 2] tokens=8", "stored rank=0 size=4 [1 2] tokens=8"},
			[]string{"stored device applied 2"},
			nil,
		},
		"tail and surplus": {
			list{stored(ab, dict{"token_ids": list{1, 2, 3, 4, 5}}), stored(ab[:1], dict{"token_ids": tokens}), stored(ab, dict{"token_ids": list{1}})},
			[]string{"stored rank=0 size=4 [1] tokens=4", "stored rank=0 size=4 [1] tokens=4"},
			[]string{"stored device applied 2", "stored device incomplete 1"},
			[]string{"device incomplete 1"},
		},
		"without tokens": {
			list{stored(ab, dict{"token_ids": list{}, "block_size": 0})},
			[]string{"stored rank=0 size=0 [1 2]"},
			[]string{"stored device applied 1"},
			nil,
		},
		"not for an index": {
			list{
				stored(ab, dict{"block_size": 8}), stored(ab, dict{"locality": "REMOTE"}), stored(ab, dict{"ownership": "kvcr"}),
				stored(ab, dict{"kv_cache_spec_kind": "mamba"}), stored([]uint64{3, 3}, nil), stored(nil, nil),
				stored(ab, dict{"lora_name": strings.Repeat("x", 5000)}), nil,
			},
			nil,
			[]string{
				"stored device bad_field 1", "stored device remote 1", "stored device foreign_owner 1", "stored device filtered_group 1",
				"stored device block_size_mismatch 1", "stored device repeated_hash 1", "stored none bad_hash 1", "unreadable none not_an_event 1",
			},
			nil,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			sink, tally := each(t, nil, message(tc.events...))
			compareEach(t, sink, tally, tc.calls, tc.counts, tc.blocks)
		})
	}
	t.Run("ranks", func(t *testing.T) {
		clearAll := list{"AllBlocksCleared"}
		sink, tally := each(t, twoRanks, list{1, list{clearAll}, 3}, list{1, list{clearAll}}, list{1, list{clearAll}, 4})
		compareEach(t, sink, tally,
			[]string{`cleared rank=3 size=0 [] medium=""`, `cleared rank=0 size=0 [] medium=""`},
			[]string{"cleared none applied 2", "cleared none unknown_rank 1"}, nil)
	})
}

func compareEach(t *testing.T, sink *eachSink, tally *kvevents.Tally, calls, counts, counted []string) {
	t.Helper()
	if diff := cmp.Diff(calls, sink.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(counts, events(tally)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(counted, blocks(tally)); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
}

// TestEachEnvelopes shows what of the standard events reaches a sink: completed
// by what is registered, and, where only the number counts, in its place.
func TestEachEnvelopes(t *testing.T) {
	gpu := func(id uint64, more dict) dict {
		ev := envelope(dict{"event_id": id, "medium": "gpu"})
		for key, value := range more {
			ev[key] = value
		}
		return ev
	}
	tokens := list{1, 2, 3, 4, 5, 6, 7, 8}
	tests := map[string]struct {
		message any
		calls   []string
		counts  []string
		blocks  []string
	}{
		"nil is what is registered": {
			// a store's batch is of rank 0, whatever it holds
			list{1, list{gpu(1, dict{"block_size": nil, "dp_rank": nil}), gpu(2, nil), gpu(3, dict{"block_size": 8})}, 5},
			[]string{"stored rank=0 size=4 [11 12] id=1", "stored rank=3 size=4 [11 12] id=2", "stored rank=3 size=8 [11 12] id=3"},
			[]string{"stored device applied 3"},
			nil,
		},
		"tokens are cut by the event's own size": {
			message(gpu(1, dict{"token_ids": tokens}), gpu(2, dict{"token_ids": tokens, "block_size": 2}), gpu(3, dict{"token_ids": tokens, "block_size": 8})),
			[]string{"stored rank=3 size=4 [11 12] tokens=8 id=1", "stored rank=3 size=2 [11 12] tokens=4 id=2", "stored rank=3 size=8 [11] tokens=8 id=3"},
			[]string{"stored device applied 3"},
			[]string{"device incomplete 1"},
		},
		"no tokens and an empty list": {
			message(gpu(1, dict{"token_ids": nil}), gpu(2, dict{"token_ids": list{}}), without(gpu(3, nil), "token_ids")),
			[]string{"stored rank=3 size=4 [11 12] id=1", "stored rank=3 size=4 [11 12] id=2", "stored rank=3 size=4 [11 12] id=3"},
			[]string{"stored device applied 3"},
			nil,
		},
		"removed and cleared": {
			message(gpu(1, dict{"event_type": "removed"}), gpu(2, dict{"event_type": "cleared", "seq_hashes": nil, "medium": "tape"})),
			[]string{"removed rank=3 size=4 [11 12] id=1", `cleared rank=3 size=4 [] medium="TAPE" id=2`},
			[]string{"removed device applied 1", "cleared none applied 1"},
			nil,
		},
		"bare": {gpu(1, nil), []string{"stored rank=3 size=4 [11 12] id=1"}, []string{"stored device applied 1"}, nil},
		"a map of events": {
			dict{"ts": 1, "events": list{gpu(1, nil)}},
			[]string{"stored rank=3 size=4 [11 12] id=1"},
			[]string{"stored device applied 1"},
			nil,
		},
		"numbers of skipped events come in order": {
			message(
				gpu(1, nil), gpu(2, dict{"seq_hashes": list{"x"}}), gpu(3, dict{"seq_hashes": list{}}), gpu(4, dict{"token_ids": list{1}}),
				gpu(5, nil), gpu(6, dict{"seq_hashes": list{7, 7}}), gpu(7, dict{"parent_hash": 12}), gpu(8, dict{"dp_rank": nil, "event_type": "moved"}),
			),
			[]string{
				"stored rank=3 size=4 [11 12] id=1", `skipped rank=3 size=4 medium="GPU" id=2`, `skipped rank=3 size=4 medium="GPU" id=3`,
				`skipped rank=3 size=4 medium="GPU" id=4`, "stored rank=3 size=4 [11 12] id=5", `skipped rank=3 size=4 medium="GPU" id=6`,
				`skipped rank=3 size=4 medium="GPU" id=7`, `skipped rank=0 size=4 medium="GPU" id=8`,
			},
			[]string{
				"stored device applied 2", "stored device repeated_hash 2", "stored device incomplete 1", "stored device empty 1",
				"stored none bad_hash 1", "unreadable none bad_tag 1",
			},
			nil,
		},
		"no number, or no stream, moves nothing": {
			message(
				gpu(1, dict{"event_id": nil, "seq_hashes": list{}}), gpu(2, dict{"tenant_id": 5}), gpu(3, dict{"event_id": -1}),
				gpu(4, dict{"backend_id": strings.Repeat("x", 5000)}), gpu(5, dict{"additional_salt": strings.Repeat("x", 5000), "seq_hashes": 1}),
			),
			nil,
			[]string{"stored device bad_field 1", "stored device empty 1", "stored none bad_hash 1", "stored none bad_field 2"},
			nil,
		},
		"eagle": {
			message(gpu(1, dict{"token_ids": list{list{1, 2}, list{2, 3}}})),
			[]string{`skipped rank=3 size=4 medium="GPU" id=1`},
			[]string{"stored device eagle_mismatch 1"},
			nil,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			sink, tally := each(t, twoRanks, tc.message)
			compareEach(t, sink, tally, tc.calls, tc.counts, tc.blocks)
		})
	}
	t.Run("the sink's reason is counted", func(t *testing.T) {
		sink, tally := &eachSink{refuse: kvevents.Late}, &kvevents.Tally{}
		kvevents.NewConverter(plain4, 0, nil).Each(decode(t, message(gpu(1, dict{"token_ids": list{1, 2, 3, 4}}), stored([]uint64{1}, nil))), sink, tally)
		if want, got := []string{"stored device late_event_id 2"}, events(tally); !slices.Equal(want, got) {
			t.Errorf("events %v, want %v", got, want)
		}
		if got := blocks(tally); got != nil {
			t.Errorf("blocks %v of refused events are counted", got)
		}
	})
}

// TestEachPayloads proves that a sink is given every recorded message's events
// with the meaning of the table, envelopes and engine events alike.
func TestEachPayloads(t *testing.T) {
	var dec kvevents.Decoder
	var batch kvevents.Batch
	envelopes := 0
	for _, tc := range payloadCases(t) {
		if string(tc.Expect) == `"skip"` {
			continue
		}
		t.Run(tc.Name, func(t *testing.T) {
			if err := dec.Decode(tc.Payload, &batch); err != nil {
				t.Fatal(err)
			}
			want := expectation(t, tc.Expect)["events"].([]any)
			eagle := slices.ContainsFunc(want, func(ev any) bool { return ev.(map[string]any)["eagle"] == true })
			sink, tally := &eachSink{}, &kvevents.Tally{}
			kvevents.NewConverter(hashing.Layout{BlockSize: 4, Eagle: eagle}, 0, nil).Each(&batch, sink, tally)
			got := []any{}
			for _, ev := range sink.events {
				if !ev.TierKnown {
					continue // the table drops them
				}
				if ev.Envelope != nil {
					envelopes++
				}
				got = append(got, normalEvent(&ev))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if envelopes < 3 {
		t.Errorf("only %d envelopes", envelopes)
	}
}

// TestEachAllocations shows that the way from bytes to a sink allocates nothing
// in the steady state.
func TestEachAllocations(t *testing.T) {
	payload := pack(t, message(
		envelope(nil), envelope(dict{"token_ids": list{1, 2, 3, 4, 5, 6, 7, 8}}), envelope(dict{"seq_hashes": list{}}),
		stored([]uint64{1, 2}, dict{"lora_id": 7}), list{"AllBlocksCleared"}))
	var dec kvevents.Decoder
	var b kvevents.Batch
	var tally kvevents.Tally
	conv, sink := kvevents.NewConverter(plain4, 0, nil), &countSink{}
	if n := testing.AllocsPerRun(100, func() {
		if err := dec.Decode(payload, &b); err != nil {
			t.Fatal(err)
		}
		conv.Each(&b, sink, &tally)
	}); n != 0 {
		t.Errorf("%v allocations a message, want 0", n)
	}
	if sink.taken != 4*101 || sink.skipped != 101 {
		t.Errorf("%d taken, %d skipped", sink.taken, sink.skipped)
	}
}
