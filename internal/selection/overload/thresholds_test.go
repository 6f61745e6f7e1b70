package overload_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/test/helpers/length"
)

func blocks(share float64) overload.Thresholds {
	return overload.Thresholds{DecodeBlocks: &share}
}
func tokens(n uint64) overload.Thresholds { return overload.Thresholds{PrefillTokens: &n} }
func fraction(share float64) overload.Thresholds {
	return overload.Thresholds{PrefillFraction: &share}
}

func set(causes ...overload.Threshold) (c overload.Causes) {
	for _, t := range causes {
		c |= 1 << t
	}
	return c
}

// TestExceeded proves each comparison at its boundary, and that what is unset or
// unknown is not judged.
func TestExceeded(t *testing.T) {
	const huge = math.MaxUint64
	tests := []struct {
		name   string
		limits overload.Thresholds
		load   overload.Load
		cap    overload.Capacity
		want   overload.Causes
	}{
		{"nothing set", overload.Thresholds{}, overload.Load{huge, huge}, overload.Capacity{1, 1}, 0},

		{"blocks: equal is free", blocks(.85), overload.Load{Blocks: 85}, overload.Capacity{KVBlocks: 100}, 0},
		{"blocks: one above", blocks(.85), overload.Load{Blocks: 86}, overload.Capacity{KVBlocks: 100}, set(overload.DecodeBlocks)},
		{"blocks: the product is not rounded", blocks(.855), overload.Load{Blocks: 86}, overload.Capacity{KVBlocks: 100}, set(overload.DecodeBlocks)},
		{"blocks: all is free at 1", blocks(1), overload.Load{Blocks: 100}, overload.Capacity{KVBlocks: 100}, 0},
		{"blocks: more than all at 1", blocks(1), overload.Load{Blocks: 101}, overload.Capacity{KVBlocks: 100}, set(overload.DecodeBlocks)},
		{"blocks: idle at 0", blocks(0), overload.Load{}, overload.Capacity{KVBlocks: 100}, 0},
		{"blocks: one at 0", blocks(0), overload.Load{Blocks: 1}, overload.Capacity{KVBlocks: 100}, set(overload.DecodeBlocks)},
		{"blocks: total unknown", blocks(0), overload.Load{Blocks: huge}, overload.Capacity{BatchedTokens: 1}, 0},
		{"blocks: total huge", blocks(.5), overload.Load{Blocks: huge}, overload.Capacity{KVBlocks: huge}, set(overload.DecodeBlocks)},
		{"blocks: prefill does not matter", blocks(0), overload.Load{Prefill: huge}, overload.Capacity{1, 1}, 0},

		{"tokens: equal is free", tokens(10000), overload.Load{Prefill: 10000}, overload.Capacity{}, 0},
		{"tokens: one above", tokens(10000), overload.Load{Prefill: 10001}, overload.Capacity{}, set(overload.PrefillTokens)},
		{"tokens: idle at 0", tokens(0), overload.Load{Blocks: huge}, overload.Capacity{}, 0},
		{"tokens: one at 0", tokens(0), overload.Load{Prefill: 1}, overload.Capacity{}, set(overload.PrefillTokens)},
		{"tokens: the largest limit", tokens(huge), overload.Load{Prefill: huge}, overload.Capacity{}, 0},

		{"fraction: floor", fraction(.8), overload.Load{Prefill: 6552}, overload.Capacity{BatchedTokens: 8191}, 0},
		{"fraction: above the floor", fraction(.8), overload.Load{Prefill: 6553}, overload.Capacity{BatchedTokens: 8191}, set(overload.PrefillFraction)},
		{"fraction: above 1", fraction(2), overload.Load{Prefill: 16384}, overload.Capacity{BatchedTokens: 8192}, 0},
		{"fraction: above that", fraction(2), overload.Load{Prefill: 16385}, overload.Capacity{BatchedTokens: 8192}, set(overload.PrefillFraction)},
		{"fraction: idle at 0", fraction(0), overload.Load{}, overload.Capacity{BatchedTokens: 8192}, 0},
		{"fraction: one at 0", fraction(0), overload.Load{Prefill: 1}, overload.Capacity{BatchedTokens: 8192}, set(overload.PrefillFraction)},
		{"fraction: limit unknown", fraction(0), overload.Load{Prefill: huge}, overload.Capacity{KVBlocks: 1}, 0},
		{"fraction: product beyond 64 bits", fraction(math.MaxFloat64), overload.Load{Prefill: huge}, overload.Capacity{BatchedTokens: huge}, 0},

		{
			"each for itself",
			overload.Thresholds{DecodeBlocks: new(.5), PrefillTokens: new(uint64(10)), PrefillFraction: new(.5)},
			overload.Load{Blocks: 51, Prefill: 10},
			overload.Capacity{100, 10},
			set(overload.DecodeBlocks, overload.PrefillFraction),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.limits.Exceeded(tt.load, tt.cap); got != tt.want {
				t.Errorf("got %03b, want %03b", got, tt.want)
			}
		})
	}
}

// TestExceededExactly compares with exact arithmetic on the numbers as they are
// written: where the limit is a quarter of something, a float product is exact.
func TestExceededExactly(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(n uint64) *uint64 {
		if rnd.IntN(3) == 0 {
			return nil
		}
		return new(rnd.Uint64N(n))
	}
	quarters := func(n uint64) *float64 {
		if rnd.IntN(3) == 0 {
			return nil
		}
		return new(float64(rnd.Uint64N(n)) / 4)
	}
	above := func(load uint64, share float64, whole uint64, floor bool) bool {
		if whole == 0 {
			return false
		}
		limit := new(big.Rat).Mul(new(big.Rat).SetFloat64(share), new(big.Rat).SetUint64(whole))
		if floor {
			limit.SetInt(new(big.Int).Quo(limit.Num(), limit.Denom()))
		}
		return new(big.Rat).SetUint64(load).Cmp(limit) > 0
	}
	for range length.Of(100_000, 100_000, 20_000) {
		limits := overload.Thresholds{DecodeBlocks: quarters(5), PrefillTokens: pick(30), PrefillFraction: quarters(9)}
		load := overload.Load{Blocks: rnd.Uint64N(30), Prefill: rnd.Uint64N(30)}
		capacity := overload.Capacity{KVBlocks: rnd.Uint64N(30), BatchedTokens: rnd.Uint64N(15)}
		got := limits.Exceeded(load, capacity)
		want := [overload.NumThresholds]bool{
			overload.DecodeBlocks:    limits.DecodeBlocks != nil && above(load.Blocks, *limits.DecodeBlocks, capacity.KVBlocks, false),
			overload.PrefillTokens:   limits.PrefillTokens != nil && load.Prefill > *limits.PrefillTokens,
			overload.PrefillFraction: limits.PrefillFraction != nil && above(load.Prefill, *limits.PrefillFraction, capacity.BatchedTokens, true),
		}
		for i, want := range want {
			if got.Has(overload.Threshold(i)) != want {
				t.Fatalf("%s is %t for %+v of %+v", overload.Threshold(i), !want, load, capacity)
			}
		}
		if got != 0 && !limits.Any() {
			t.Fatal("exceeded without limits")
		}
	}
}

// TestCheck proves the ranges and the wire's texts.
func TestCheck(t *testing.T) {
	const (
		share = "active_decode_blocks_threshold must be between 0.0 and 1.0, got "
		frac  = "active_prefill_tokens_threshold_frac must be a finite value greater than or equal to 0.0, got "
	)
	tests := []struct {
		limits overload.Thresholds
		want   string
	}{
		{overload.Thresholds{}, ""},
		{blocks(0), ""},
		{blocks(1), ""},
		{blocks(1.5), share + "1.5"},
		{blocks(2), share + "2"},
		{blocks(math.Nextafter(1, 2)), share + "1.0000000000000002"},
		{blocks(-0.1), share + "-0.1"},
		{blocks(math.NaN()), share + "NaN"},
		{tokens(0), ""},
		{tokens(math.MaxUint64), ""},
		{fraction(0), ""},
		{fraction(1e6), ""},
		{fraction(-1), frac + "-1"},
		{fraction(math.Inf(1)), frac + "+Inf"},
		{fraction(math.NaN()), frac + "NaN"},
	}
	for _, tt := range tests {
		err := tt.limits.Check()
		if tt.want == "" {
			if err != nil {
				t.Errorf("refused: %v", err)
			}
			continue
		}
		if err == nil || err.Error() != tt.want {
			t.Errorf("error is %v, want %q", err, tt.want)
		}
	}
}

// TestNames proves that every limit is found by its own name, and nothing else.
func TestNames(t *testing.T) {
	for i := range overload.NumThresholds {
		want := overload.Threshold(i)
		if got, ok := overload.ParseThreshold(want.String()); !ok || got != want {
			t.Errorf("%q is %d", want, got)
		}
	}
	for _, name := range []string{"", "active_prefill_tokens", "ACTIVE_DECODE_BLOCKS_THRESHOLD"} {
		if _, ok := overload.ParseThreshold(name); ok {
			t.Errorf("%q is a threshold", name)
		}
	}
}
