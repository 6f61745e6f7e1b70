package selector

import (
	"errors"
	"fmt"
	"math"
)

// Weights are the coefficients of the cost function. All of them are finite
// and not negative; Host and Disk are at most 1, and so is OverlapCredit in the
// contract of dynamo-kv-router 1.3.1.
type Weights struct {
	OverlapCredit float64 // worth of a device block that is already cached
	CreditDecay   float64 // how fast that worth falls with the rank's excess prefill; 0: never
	Host          float64 // worth of a block in the host tier
	Disk          float64 // worth of a block on disk or in external storage
	PrefillScale  float64 // weight of prefill work against decode work
	Temperature   float64 // softmax temperature of the choice; 0: always the cheapest
	TrackPrefill  bool    // whether prefill work counts at all

	// Of dynamo-kv-router 1.6.1:

	// ActiveRequests is the cost, in blocks, of each request that is active on a
	// rank (decode_active_request_weight).
	ActiveRequests float64
	// PrefixOnly: where prefill work does not count, cached blocks lower the cost of
	// decode work. It has no effect if OverlapCredit is 0.
	PrefixOnly bool
}

// DefaultWeights returns the defaults of dynamo-kv-router 1.3.1.
func DefaultWeights() Weights {
	return Weights{OverlapCredit: 1, Host: 0.75, Disk: 0.25, PrefillScale: 1, TrackPrefill: true}
}

// Override holds what one request changes about the weights; nil leaves a
// weight as configured.
type Override struct {
	OverlapCredit         *float64 // >= 0; the contract of 1.3.1 has [0, 1]
	PrefillScale          *float64 // >= 0
	Temperature           *float64 // >= 0
	SharedCacheMultiplier *float64 // [0, 1]; checked only: there is no shared cache
	TrackPrefill          *bool
	AssumeKVReuse         *bool    // no effect
	OverlapWeight         *float64 // >= 0; the old name of PrefillScale, wins over it; 0 also takes the overlap credit away
}

// ErrOverride is in the chain of every error of [Weights.With].
var ErrOverride = errors.New("invalid router_config_override")

// With returns the weights of one request. The error wraps [ErrOverride] and
// names every value that is out of range, by its name on the wire.
func (w Weights) With(o Override) (Weights, error) {
	err := errors.Join(
		checkNamed("overlap_score_credit", o.OverlapCredit, math.MaxFloat64),
		checkNamed("prefill_load_scale", o.PrefillScale, math.MaxFloat64),
		checkNamed("router_temperature", o.Temperature, math.MaxFloat64),
		checkNamed("shared_cache_multiplier", o.SharedCacheMultiplier, 1),
		checkNamed("overlap_score_weight", o.OverlapWeight, math.MaxFloat64),
	)
	if err != nil {
		return w, fmt.Errorf("%w: %w", ErrOverride, err)
	}
	set(&w.OverlapCredit, o.OverlapCredit)
	set(&w.PrefillScale, o.PrefillScale)
	set(&w.Temperature, o.Temperature)
	set(&w.TrackPrefill, o.TrackPrefill)
	if o.OverlapWeight != nil {
		w = w.WithOverlapWeight(*o.OverlapWeight)
	}
	return w, nil
}

// WithOverlapWeight applies the setting that older routers called
// overlap_score_weight: it is the prefill scale, and 0 means that the cache
// does not count.
func (w Weights) WithOverlapWeight(weight float64) Weights {
	w.PrefillScale = weight
	if weight == 0 {
		w.OverlapCredit = 0
	}
	return w
}

// MaxCredit13 is the largest OverlapCredit of the 1.3 contract.
const MaxCredit13 = 1

// CheckWeight returns an error unless v is in [0, upper], so neither NaN nor infinity.
func CheckWeight(v, upper float64) error {
	switch {
	case v >= 0 && v <= upper:
		return nil
	case upper == math.MaxFloat64:
		return fmt.Errorf("%v is not a finite number >= 0", v)
	}
	return fmt.Errorf("%v is not in [0, %v]", v, upper)
}

// checkNamed is CheckWeight with the weight's name; nil is accepted.
func checkNamed(name string, v *float64, upper float64) error {
	if v == nil {
		return nil
	}
	if err := CheckWeight(*v, upper); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func set[T any](dst, value *T) {
	if value != nil {
		*dst = *value
	}
}
