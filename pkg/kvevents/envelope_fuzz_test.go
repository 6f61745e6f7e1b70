package kvevents_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/test/helpers/length"
)

// field is one key of a map with the value that goes there.
type field struct {
	key   string
	value any
}

var envelopeFields = []string{
	"event_type", "event_id", "seq_hashes", "parent_hash", "base_block_idx", "token_ids", "block_size", "medium",
	"model_name", "tenant_id", "backend_id", "additional_salt", "lora_name", "dp_rank", "timestamp",
	"type", "block_hashes", "parent_block_hash", "group_id", "object_key", "connector_block_hash", "next",
}

// good has values that a standard event may have; the others come anywhere.
var good = map[string]list{
	"event_type": {"stored", "removed", "cleared"}, "type": {"BlockStored", "stored"},
	"event_id": {0, 7, uint64(1) << 63, uint64(math.MaxUint64)}, "dp_rank": {0, nil, uint32(math.MaxUint32)},
	"seq_hashes": {list{1, 2}, list{-1, uint64(math.MaxUint64)}, list{[]byte("12345678")}}, "block_hashes": {list{1, 2}},
	"parent_hash": {nil, 9}, "parent_block_hash": {nil, 9}, "base_block_idx": {nil, 0, 3},
	"token_ids": {nil, list{}, list{1, 2, 3, 4, 5, 6, 7, 8}}, "block_size": {nil, 1, 4},
	"connector_block_hash": {"00112233445566778899"},
}

var anything = list{
	nil, 0, 1, -1, 1.5, true, "", "gpu", "tape", "1", "x", []byte("1234567"),
	list{},
	list{1, 2},
	list{1, 1},
	list{"1"},
	list{nil},
	list{list{1, 2}},
	list{1.5},
	dict{"a": list{}},
	uint64(math.MaxUint64), int64(math.MinInt64), 1 << 32,
}

// draft makes the events of a batch out of a program: every two bytes are a key,
// at most once an event, and a value.
func draft(program []byte) [][]field {
	out := [][]field{nil}
	for i := 0; i+1 < len(program); i += 2 {
		key, pick := int(program[i])%(len(envelopeFields)+1), int(program[i+1])
		ev := &out[len(out)-1]
		if key == len(envelopeFields) || slices.ContainsFunc(*ev, func(f field) bool { return f.key == envelopeFields[key] }) {
			out = append(out, nil)
			continue
		}
		name := envelopeFields[key]
		values := anything
		if fine := good[name]; fine != nil && pick < 192 {
			values = fine
		} else if pick < 192 {
			values = list{nil, "x", "gpu"}
		}
		*ev = append(*ev, field{name, values[pick%len(values)]})
	}
	return out
}

// encode writes drafted events as a batch, the keys in the order of the draft.
func encode(t testing.TB, events [][]field) []byte {
	t.Helper()
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.UseCompactInts(true)
	buf.Write([]byte{0x92, 0x00, 0xdd})
	buf.Write(binary.BigEndian.AppendUint32(nil, uint32(len(events))))
	for _, ev := range events {
		if err := enc.EncodeMapLen(len(ev)); err != nil {
			t.Fatal(err)
		}
		for _, f := range ev {
			if err := enc.EncodeString(f.key); err != nil {
				t.Fatal(err)
			}
			if err := enc.Encode(f.value); err != nil {
				t.Fatal(err)
			}
		}
	}
	return buf.Bytes()
}

// number is an integer value within [low, high].
func number(v any, low, high uint64) (n uint64, ok bool) {
	switch v := v.(type) {
	case int:
		n, ok = uint64(v), v >= 0
	case uint32:
		n, ok = uint64(v), true
	case uint64:
		n, ok = v, true
	}
	return n, ok && low <= n && n <= high
}

// numbered says plainly whether a drafted event is an envelope whose stream and
// number can be read: then its number counts, whatever else is wrong.
func numbered(ev []field) (id uint64, ok bool) {
	envelope := false
	for _, f := range ev {
		_, isText := f.value.(string)
		fine := true
		switch f.key {
		case "event_type":
			envelope = true
		case "event_id":
			if id, ok = number(f.value, 0, math.MaxUint64); !ok && f.value != nil {
				return 0, false
			}
		case "model_name", "tenant_id", "backend_id", "additional_salt", "lora_name", "medium":
			fine = isText || f.value == nil
		case "block_size":
			_, fine = number(f.value, 1, math.MaxInt32)
			fine = fine || f.value == nil
		case "dp_rank":
			_, fine = number(f.value, 0, math.MaxUint32)
			fine = fine || f.value == nil
		}
		if !fine {
			return 0, false
		}
	}
	return id, ok && envelope
}

// idSink collects the numbers of the envelopes that it sees.
type idSink struct{ ids []uint64 }

func (s *idSink) see(ev *kvevents.Event) {
	if ev.Envelope != nil && ev.Envelope.HasEventID {
		s.ids = append(s.ids, ev.Envelope.EventID)
	}
}

func (s *idSink) Event(ev *kvevents.Event, _ uint32, _ *kvevents.Tally) kvevents.Reason {
	s.see(ev)
	return kvevents.Applied
}

func (s *idSink) Skipped(ev *kvevents.Event, _ uint32) { s.see(ev) }

// total is how many events a tally has counted.
func total(tally *kvevents.Tally) (n uint64) {
	for _, tiers := range tally.Events {
		for _, reasons := range tiers {
			for _, count := range reasons {
				n += count
			}
		}
	}
	return n
}

// checkEnvelopes proves of a drafted batch, and of the same batch damaged, that
// every event is counted exactly once, and that the sink sees every number that
// can be read exactly once and in order.
func checkEnvelopes(t *testing.T, program []byte, damage uint16) {
	events := draft(program)
	payload := encode(t, events)
	checkAllocation(t, payload)
	var dec kvevents.Decoder
	var b kvevents.Batch
	apply := func() *idSink {
		s, tally := &idSink{}, &kvevents.Tally{}
		kvevents.NewConverter(plain4, 0, nil).Each(&b, s, tally)
		if got, want := total(tally), uint64(len(b.Events)+len(b.Bad)); got != want {
			t.Fatalf("%d events counted, want %d", got, want)
		}
		return s
	}
	if err := dec.Decode(payload, &b); err != nil {
		t.Fatalf("%v: %v", events, err)
	}
	if len(b.Events)+len(b.Bad) != len(events) {
		t.Fatalf("%d events and %d bad ones out of %d", len(b.Events), len(b.Bad), len(events))
	}
	var want []uint64
	for _, ev := range events {
		if id, ok := numbered(ev); ok {
			want = append(want, id)
		}
	}
	if got := apply().ids; !slices.Equal(got, want) {
		t.Fatalf("numbers %v, want %v, of %v", got, want, events)
	}

	payload[7+int(damage)%(len(payload)-7)] ^= byte(1 << (damage >> 13))
	checkAllocation(t, payload)
	if dec.Decode(payload, &b) == nil {
		apply()
	}
}

// FuzzEnvelope draws standard events that get past the head of the map.
func FuzzEnvelope(f *testing.F) {
	whole := []byte{}
	for key := range envelopeFields {
		whole = append(whole, byte(key), 0)
	}
	f.Add(whole, uint16(0))
	f.Add(append(slices.Clone(whole), whole...), uint16(1<<13+40))
	f.Add([]byte{0, 0, 1, 1, 2, 200}, uint16(9))
	f.Fuzz(func(t *testing.T, program []byte, damage uint16) {
		if len(program) < 1<<12 {
			checkEnvelopes(t, program, damage)
		}
	})
}

// TestDraftedEnvelopes runs a share of what FuzzEnvelope looks for every time.
func TestDraftedEnvelopes(t *testing.T) {
	drafts := length.Of(3000, 1000, 200)
	rnd := rand.New(rand.NewPCG(5, 6))
	for range drafts {
		program := make([]byte, rnd.IntN(120))
		for i := range program {
			program[i] = byte(rnd.Uint32())
		}
		checkEnvelopes(t, program, uint16(rnd.Uint32()))
	}
}
