package overload

import (
	"fmt"
	"math"
	"strconv"
)

// Thresholds are the limits of a model. Nil is unset; the limits are
// independent, and exceeding one is enough.
type Thresholds struct {
	DecodeBlocks    *float64 // active blocks, as a share of the rank's KV blocks, 0 to 1
	PrefillTokens   *uint64  // tokens of unfinished prefill
	PrefillFraction *float64 // the same, as a share of max_num_batched_tokens, 0 or more
}

// Any reports whether a limit is set.
func (t *Thresholds) Any() bool {
	return t.DecodeBlocks != nil || t.PrefillTokens != nil || t.PrefillFraction != nil
}

// Check returns an error, in the words of the wire, if a limit is outside its
// range.
func (t *Thresholds) Check() error {
	if v := t.DecodeBlocks; v != nil && !(*v >= 0 && *v <= 1) {
		return fmt.Errorf("%s must be between 0.0 and 1.0, got %s", DecodeBlocks, decimal(*v))
	}
	if v := t.PrefillFraction; v != nil && !(*v >= 0 && !math.IsInf(*v, 1)) {
		return fmt.Errorf("%s must be a finite value greater than or equal to 0.0, got %s", PrefillFraction, decimal(*v))
	}
	return nil
}

// decimal writes a number without an exponent.
func decimal(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// Threshold names one of the limits.
type Threshold uint8

// The limits, in the order of [Thresholds].
const (
	DecodeBlocks Threshold = iota
	PrefillTokens
	PrefillFraction
	NumThresholds = int(iota)
)

var names = [NumThresholds]string{
	"active_decode_blocks_threshold",
	"active_prefill_tokens_threshold",
	"active_prefill_tokens_threshold_frac",
}

// String gives the limit's name on the wire.
func (t Threshold) String() string { return names[t] }

// ParseThreshold finds a limit by its name on the wire.
func ParseThreshold(name string) (Threshold, bool) {
	for i, n := range names {
		if n == name {
			return Threshold(i), true
		}
	}
	return 0, false
}

// Load is the load of one rank.
type Load struct {
	Blocks  uint64 // active KV blocks
	Prefill uint64 // tokens of unfinished prefill
}

// Capacity is the capacity of one rank; 0: unknown.
type Capacity struct {
	KVBlocks      uint64 // total_kv_blocks
	BatchedTokens uint64 // max_num_batched_tokens
}

// Causes is a set of limits: those that a load exceeds.
type Causes uint8

// Has reports whether the limit is in the set.
func (c Causes) Has(t Threshold) bool { return c&(1<<t) != 0 }

// Exceeded returns the limits that the load of a rank exceeds; 0: the rank is free. A limit
// that depends on an unknown capacity is not exceeded. The formulas are the Dynamo
// frontend's, including rounding: blocks are compared with the unrounded product, tokens with
// the product rounded down.
func (t *Thresholds) Exceeded(l Load, c Capacity) (why Causes) {
	if v := t.DecodeBlocks; v != nil && c.KVBlocks > 0 && float64(l.Blocks) > *v*float64(c.KVBlocks) {
		why |= 1 << DecodeBlocks
	}
	if v := t.PrefillTokens; v != nil && l.Prefill > *v {
		why |= 1 << PrefillTokens
	}
	if v := t.PrefillFraction; v != nil && c.BatchedTokens > 0 && l.Prefill > floor(*v*float64(c.BatchedTokens)) {
		why |= 1 << PrefillFraction
	}
	return why
}

// floor rounds v, which is not negative, down; it saturates beyond 64 bits.
func floor(v float64) uint64 {
	if v >= math.MaxUint64 {
		return math.MaxUint64
	}
	return uint64(v)
}
