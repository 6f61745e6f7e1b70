package selection

import (
	"fmt"
	"time"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/counts"
)

// Bounds of what a request may want, in milliseconds, inclusive.
const (
	leastTarget     = 1
	mostTTFTTarget  = 3_600_000  // an hour
	mostDeadlineAge = 86_400_000 // a day: whole answers take longer than first tokens
)

// TTFTTargetOf returns the target of a request that gives it in milliseconds, by a member or header of that name. The
// error, of kind BadRequest, says which numbers are targets.
func TTFTTargetOf(name string, ms float64) (time.Duration, error) {
	return targetOf(name, ms, mostTTFTTarget)
}

// DeadlineOf returns the deadline of a request that gives it in milliseconds from now on. The error is as that of TTFTTargetOf.
func DeadlineOf(name string, ms float64, now time.Time) (time.Time, error) {
	within, err := targetOf(name, ms, mostDeadlineAge)
	if err != nil {
		return time.Time{}, err
	}
	return now.Add(within), nil
}

func targetOf(name string, ms, most float64) (time.Duration, error) {
	if ms >= leastTarget && ms <= most { // not NaN
		return time.Duration(ms * float64(time.Millisecond)), nil
	}
	return 0, contract.Errorf(contract.BadRequest, "%s must be a number of milliseconds between %d and %.0f", name, leastTarget, most)
}

// RefusesOnMiss returns what a request wants if its target cannot be held: to be placed, or to be refused. The error, of
// kind BadRequest, says which texts there are.
func RefusesOnMiss(name, text string) (refuse bool, err error) {
	switch text {
	case "place":
		return false, nil
	case "refuse":
		return true, nil
	}
	return false, &contract.Error{Kind: contract.BadRequest, Text: fmt.Sprintf("%s must be place or refuse", name)}
}

// hasTarget reports whether the request wants a first token or the whole answer by a certain time.
func (r *SelectRequest) hasTarget() bool { return r.TTFTTarget > 0 || !r.Deadline.IsZero() }

// ignoreTargets drops what the request wants, and counts that.
func (r *request) ignoreTargets() {
	r.TTFTTarget, r.Deadline, r.RefuseOnMiss = 0, time.Time{}, false
	r.api.selections.Of(r.Scope.Model).Targeted(counts.TargetIgnored)
}
