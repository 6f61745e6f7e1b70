package kvevents_test

import (
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/test/helpers/length"
)

// A fresh decoder and converter may allocate this much for a message of n
// bytes: a bare event of 18 bytes is a struct of some 300, an envelope of 20 one
// of 500 whose slab may grow in steps.
const (
	allocPerByte = 128
	allocFixed   = 64 << 10
)

// checkAllocation fails if a fresh decoder allocates more than it may. The
// runtime allocates beside it now and then, so one try of three is enough.
func checkAllocation(t *testing.T, payload []byte) {
	t.Helper()
	limit := uint64(len(payload))*allocPerByte + allocFixed
	var used uint64
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		decodeFresh(payload)
		runtime.ReadMemStats(&after)
		if used = after.TotalAlloc - before.TotalAlloc; used <= limit {
			return
		}
	}
	t.Errorf("%d bytes allocated for a message of %d", used, len(payload))
}

// decodeFresh decodes and applies a payload with nothing reused.
func decodeFresh(payload []byte) {
	var dec kvevents.Decoder
	var b kvevents.Batch
	if dec.Decode(payload, &b) == nil {
		conv := kvevents.NewConverter(plain4, 0, anyRank)
		conv.Apply(&b, &sink{}, &kvevents.Tally{})
		conv.Each(&b, &countSink{}, &kvevents.Tally{})
	}
}

// FuzzDecode proves that no message makes the decoder or the converter panic or
// allocate more than the message justifies.
func FuzzDecode(f *testing.F) {
	for _, tc := range payloadCases(f) {
		f.Add(tc.Payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		checkAllocation(t, payload)
	})
}

// TestAllocationIsBounded holds the worst messages that we know against the
// bound: lengths that are not there, and the most memory per byte that is.
func TestAllocationIsBounded(t *testing.T) {
	length.Sequential(t)
	const many = 1 << 16
	header := func(n int) []byte {
		return []byte{0x92, 0x00, 0xdd, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
	}
	repeat := func(event []byte) []byte { return append(header(many), slices.Repeat(event, many)...) }
	tests := map[string][]byte{
		"hashes of 2^31": append(append(header(1), 0x95), "\xabBlockStored\xdd\x80\x00\x00\x00\x01\x02"...),
		"tokens of 2^32": append(append(header(1), 0x95), "\xabBlockStored\x91\x01\xc0\xdd\xff\xff\xff\xff\x01"...),
		"text of 2^32":   append(header(1), "\x91\xdb\xff\xff\xff\xffx"...),
		"map of 2^32":    append(header(1), "\xdf\xff\xff\xff\xff\xa1x"...),
		"nils":           repeat([]byte{0xc0}),
		"clears":         repeat(pack(t, list{"AllBlocksCleared"})),
		"envelopes":      repeat(pack(t, dict{"event_type": "cleared"})),
		"bad envelopes":  repeat(pack(t, dict{"event_id": 1, "event_type": 1})),
		"lists in lists": repeat(pack(t, list{"BlockStored", list{1, 2, 3}, nil, list{}, 0, nil, nil, nil, list{list{1}, list{1}}})),
		"strings":        repeat(pack(t, list{"BlockRemoved", list{}, "x"})),
		"one huge event": pack(t, message(stored(make([]uint64, many), dict{"token_ids": make([]uint32, 16*many)}))),
	}
	for name, payload := range tests {
		t.Run(name, func(t *testing.T) {
			checkAllocation(t, payload)
		})
	}
}

// TestMutations damages every valid message in many ways: nothing panics, a batch
// counts what was not used of it as the tally does, and the same decoder reads
// the undamaged message right afterwards as before.
func TestMutations(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	warm := pack(t, message(stored([]uint64{1}, dict{"extra_keys": list{list{1}}}))) // slabs that are not nil
	var dec kvevents.Decoder
	var b kvevents.Batch
	if err := dec.Decode(warm, &b); err != nil {
		t.Fatal(err)
	}
	mutations := 0
	for _, tc := range payloadCases(t) {
		if tc.Kind == "malformed" {
			continue
		}
		var fresh kvevents.Decoder
		var want kvevents.Batch
		for _, payload := range [][]byte{warm, tc.Payload} {
			if err := fresh.Decode(payload, &want); err != nil {
				t.Fatalf("%s: %v", tc.Name, err)
			}
		}
		for _, damaged := range damage(rnd, tc.Payload) {
			if mutations++; mutations%length.Of(1, 3, 9) > 0 {
				continue
			}
			if dec.Decode(damaged, &b) == nil {
				conv := kvevents.NewConverter(hashing.Layout{BlockSize: 4, Eagle: rnd.IntN(2) == 0}, 0, anyRank)
				var applied, each kvevents.Tally
				conv.Apply(&b, newRecorder(), &applied)
				checkUnused(t, &b, &applied)
				conv.Each(&b, &countSink{}, &each)
				checkUnused(t, &b, &each)
			}
			if err := dec.Decode(tc.Payload, &b); err != nil {
				t.Fatalf("%s after %x: %v", tc.Name, damaged, err)
			}
			if !reflect.DeepEqual(want.Events, b.Events) || !slices.EqualFunc(want.Bad, b.Bad, sameBad) {
				t.Fatalf("%s after %x: %+v, want %+v", tc.Name, damaged, b.Events, want.Events)
			}
		}
	}
	if mutations < 10_000 {
		t.Errorf("only %d mutations", mutations)
	}
}

// checkUnused fails unless the batch says of its events what t counted of them.
func checkUnused(t *testing.T, b *kvevents.Batch, tally *kvevents.Tally) {
	t.Helper()
	want := tally.ByReason()
	want[kvevents.Applied] = 0
	var got [kvevents.NumReasons]uint64
	if unused := b.Unused(); unused != nil {
		got = *unused
	}
	if got != want || (b.Unused() == nil) != (want == [kvevents.NumReasons]uint64{}) {
		t.Fatalf("unused %v, counted %v", got, want)
	}
}

func sameBad(a, b kvevents.BadEvent) bool { return reflect.DeepEqual(a, b) }

// damage cuts a message at every byte, replaces every byte (so lengths and
// types, too) by random ones and by headers, and drops and doubles stretches.
func damage(rnd *rand.Rand, payload []byte) [][]byte {
	headers := []byte{0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc4, 0xc6, 0xcb, 0xcf, 0xd3, 0xdb, 0xdc, 0xdd, 0xdf, 0xff}
	var out [][]byte
	for i := range payload {
		out = append(out, payload[:i])
		for range 2 {
			for _, c := range []byte{byte(rnd.Uint32()), payload[i] ^ 1<<rnd.IntN(8), headers[rnd.IntN(len(headers))]} {
				flipped := slices.Clone(payload)
				flipped[i] = c
				out = append(out, flipped)
			}
		}
		end := i + rnd.IntN(len(payload)-i+1)
		out = append(out, slices.Concat(payload[:i], payload[end:]), slices.Concat(payload[:end], payload[i:]))
	}
	return out
}
