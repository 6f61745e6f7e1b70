package load

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// pack returns the payload of an array.
func pack(t testing.TB, values ...any) []byte {
	t.Helper()
	payload, err := msgpack.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

func push(change func(*Report)) Report {
	r := Report{Source: Push, Interval: time.Second}
	change(&r)
	return r
}

// TestDecode: every length of the array that a release of the engine sends or may send, and what
// is dropped.
func TestDecode(t *testing.T) {
	full := []any{"LoadStat", 3, 2, 1000, 4000, 1, 77, 1200, 64, 123456, 789}
	all := push(func(r *Report) {
		r.Running, r.Waiting, r.KVTokensUsed, r.KVTokensTotal = Known(3), Known(2), Known(1000), Known(4000)
		r.WaitingUncachedTokens, r.TokensUsedAndQueued, r.MaxRunning = Known(77), Known(1200), Known(64)
		r.PrefillTokens, r.PrefillBusyMicros = Known(123456), Known(789)
	})
	older := push(func(r *Report) {
		r.Running, r.Waiting, r.KVTokensUsed, r.KVTokensTotal = Known(3), Known(2), Known(1000), Known(4000)
	})
	with := func(i int, v any) []any {
		changed := append([]any(nil), full...)
		changed[i] = v
		return changed
	}
	for name, tc := range map[string]struct {
		payload []byte
		want    Report
		why     Reason
	}{
		"whole":                {pack(t, full...), all, Good},
		"older":                {pack(t, full[:6]...), older, Good},
		"newer":                {pack(t, append(full, "more", map[string]any{"x": 1})...), all, Good},
		"shortest":             {pack(t, full[:2]...), push(func(r *Report) { r.Running = Known(3) }), Good},
		"bytes behind":         {append(pack(t, full...), 0xc1), all, Good},
		"the rank is not read": {pack(t, with(5, "nine")...), all, Good},
		"no rank":              {pack(t, with(5, nil)...), all, Good},
		"nil is unknown":       {pack(t, "LoadStat", nil, 2), push(func(r *Report) { r.Waiting = Known(2) }), Good},
		"no capacities": {pack(t, "LoadStat", 0, 0, 0, 0, 0, 0, 0, 0), push(func(r *Report) {
			r.Running, r.Waiting, r.KVTokensUsed, r.WaitingUncachedTokens, r.TokensUsedAndQueued = Known(0), Known(0), Known(0), Known(0), Known(0)
		}), Good},
		"floats":              {pack(t, "LoadStat", 3.0, float32(2)), push(func(r *Report) { r.Running, r.Waiting = Known(3), Known(2) }), Good},
		"the greatest number": {pack(t, "LoadStat", uint64(1<<48)), push(func(r *Report) { r.Running = Known(1 << 48) }), Good},
		"too great":           {pack(t, "LoadStat", uint64(1<<48+1)), Report{}, BadNumber},
		"far too great":       {pack(t, with(10, uint64(math.MaxUint64))...), Report{}, BadNumber},
		"negative":            {pack(t, with(1, -1)...), Report{}, BadNumber},
		"NaN":                 {pack(t, with(2, math.NaN())...), Report{}, BadNumber},
		"infinite":            {pack(t, with(2, math.Inf(1))...), Report{}, BadNumber},
		"1e30":                {pack(t, with(3, 1e30)...), Report{}, BadNumber},
		"a text for a number": {pack(t, with(3, "4")...), Report{}, Malformed},
		"another tag":         {pack(t, with(0, "BlockStored")...), Report{}, Malformed},
		"no tag":              {pack(t, full[1:]...), Report{}, Malformed},
		"the tag alone":       {pack(t, "LoadStat"), Report{}, Malformed},
		"empty":               {nil, Report{}, Malformed},
		"a map":               {[]byte{0x81, 0xa4, 't', 'y', 'p', 'e', 0xa8, 'L', 'o', 'a', 'd', 'S', 't', 'a', 't'}, Report{}, Malformed},
		"cut":                 {pack(t, full...)[:20], Report{}, Malformed},
		"longer than it is":   {append([]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, pack(t, full...)[1:]...), Report{}, Malformed},
		"nested without end":  {append(append([]byte{0x9b}, pack(t, full[:5]...)[1:]...), bytes.Repeat([]byte{0x91}, 5000)...), Report{}, Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := decode(tc.payload)
			if why != tc.why || got != tc.want {
				t.Errorf("%+v, %v; want %+v, %v", got, why, tc.want, tc.why)
			}
		})
	}
}

// TestDecodeAllocatesNothing: thousands of streams report several times a second.
func TestDecodeAllocatesNothing(t *testing.T) {
	payload := pack(t, "LoadStat", 3, 2, 1000, 4000, 1, 77, 1200, 64, 123456, 789)
	if n := testing.AllocsPerRun(100, func() { decode(payload) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzDecode: whatever comes, a report has no number above MaxAmount.
func FuzzDecode(f *testing.F) {
	f.Add(pack(f, "LoadStat", 3, 2, 1000, 4000, 1, 77, 1200, 64, 123456, 789))
	f.Add(pack(f, "LoadStat", 3.5, nil, -1, "x"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, why := decode(payload)
		if why != Good && r != (Report{}) {
			t.Errorf("%v with %+v", why, r)
		}
		for _, a := range []Amount{
			r.Running, r.Waiting, r.KVTokensUsed, r.KVTokensTotal, r.WaitingUncachedTokens, r.TokensUsedAndQueued,
			r.MaxRunning, r.PrefillTokens, r.PrefillBusyMicros,
		} {
			if n, known := a.Get(); n > MaxAmount || n > 0 && !known {
				t.Errorf("%d, %t", n, known)
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	payload := pack(b, "LoadStat", 3, 2, 1000, 4000, 1, 77, 1200, 64, 123456, 789)
	b.ReportAllocs()
	for b.Loop() {
		decode(payload)
	}
}
