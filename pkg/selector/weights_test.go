package selector_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/select-service/select-service/pkg/selector"
)

func TestWith(t *testing.T) {
	base := selector.DefaultWeights()
	base.CreditDecay, base.Temperature = 2, 3
	tests := map[string]struct {
		override selector.Override
		want     func(*selector.Weights)
	}{
		"nothing": {selector.Override{}, func(*selector.Weights) {}},
		"every weight": {
			selector.Override{OverlapCredit: new(0.5), PrefillScale: new(100.0), Temperature: new(0.0), TrackPrefill: new(false)},
			func(w *selector.Weights) {
				w.OverlapCredit, w.PrefillScale, w.Temperature, w.TrackPrefill = 0.5, 100, 0, false
			},
		},
		"without effect": {
			selector.Override{SharedCacheMultiplier: new(1.0), AssumeKVReuse: new(false)},
			func(*selector.Weights) {},
		},
		"old weight is the prefill scale": {
			selector.Override{OverlapWeight: new(2.0), PrefillScale: new(0.1)},
			func(w *selector.Weights) { w.PrefillScale = 2 },
		},
		"old weight 0 takes the credit": {
			selector.Override{OverlapWeight: new(0.0), OverlapCredit: new(0.5)},
			func(w *selector.Weights) { w.PrefillScale, w.OverlapCredit = 0, 0 },
		},
		"bounds": {
			selector.Override{OverlapCredit: new(1.0), SharedCacheMultiplier: new(0.0), PrefillScale: new(math.MaxFloat64)},
			func(w *selector.Weights) { w.OverlapCredit, w.PrefillScale = 1, math.MaxFloat64 },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			want := base
			tc.want(&want)
			if got, err := base.With(tc.override); err != nil || got != want {
				t.Errorf("With = %+v, %v, want %+v", got, err, want)
			}
		})
	}
}

// TestWithOutOfRange: every bad value is named at once, and the weights stay.
func TestWithOutOfRange(t *testing.T) {
	for _, bad := range []float64{-0.1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		_, err := selector.DefaultWeights().With(selector.Override{
			OverlapCredit: &bad, PrefillScale: &bad, Temperature: &bad, SharedCacheMultiplier: &bad, OverlapWeight: &bad,
		})
		if !errors.Is(err, selector.ErrOverride) {
			t.Fatalf("%v: error %v is not ErrOverride", bad, err)
		}
		for _, name := range []string{"overlap_score_credit", "prefill_load_scale", "router_temperature", "shared_cache_multiplier", "overlap_score_weight"} {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%v: %q does not name %s", bad, err, name)
			}
		}
	}
	w, err := selector.DefaultWeights().With(selector.Override{OverlapCredit: new(1.5), SharedCacheMultiplier: new(2.0), Temperature: new(1.5)})
	if err == nil || strings.Contains(err.Error(), "router_temperature") {
		t.Errorf("above 1: %v", err)
	}
	if w != selector.DefaultWeights() {
		t.Errorf("a refused override changed the weights: %+v", w)
	}
}
