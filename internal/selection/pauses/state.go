package pauses

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// State is what a learner knows of the sessions of a scope, for another process to go on with.
type State struct {
	Horizon time.Duration
	Classes map[string]Known // by the name of the class
	Started Started          // zero in what earlier programs have kept
}

// Known is what is known of a class. Turns whose sessions may still come back count by the part of their pauses that has passed.
type Known struct {
	Samples         int     // pauses, up to the number from which they count
	Mu, Variance    float64 // of the logarithm of a pause in seconds, with samples
	Ended, Returned float64 // turns, and those of them that were followed by another one
}

// Kept returns what is known of each scope at a time.
func (l *Learner) Kept(now time.Time) map[catalog.Scope]State {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[catalog.Scope]State, len(l.scopes))
	for sc, of := range l.scopes {
		s := State{Horizon: l.horizon, Classes: make(map[string]Known), Started: of.started}
		for c := range classes {
			e := &of.of[c]
			k := Known{Samples: e.samples, Mu: e.mu, Variance: e.variance}
			k.Ended, k.Returned = e.watched(e.pauses(Prior(c, l.horizon)), l, now)
			if over := k.Ended / memory; over > 1 {
				k.Ended, k.Returned = k.Ended/over, k.Returned/over
			}
			k.Returned = min(k.Returned, k.Ended) // as shares of turns that are watched still may say otherwise
			if k != (Known{}) {
				s.Classes[c.String()] = k
			}
		}
		all[sc] = s
	}
	return all
}

// ErrHorizon refuses what was learned while sessions were watched for another time.
var ErrHorizon = errors.New("sessions were watched for another time")

// Restore goes on with what an earlier learner knew of a scope. It must be called before anything is noted of the scope. The error is
// ErrHorizon, or says what no learner can have known; then nothing has changed.
func (l *Learner) Restore(sc catalog.Scope, s State) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Horizon != l.horizon {
		return ErrHorizon
	}
	for name, k := range s.Classes {
		if !k.possible() {
			return fmt.Errorf("pauses of sessions, %.20q: no turns make %+v", name, k)
		}
	}
	if !s.Started.possible() {
		return fmt.Errorf("sessions that sessions have started: %+v cannot be", s.Started)
	}
	of := l.of(sc)
	of.started = s.Started
	for c := range classes {
		if k, known := s.Classes[c.String()]; known {
			e := &of.of[c]
			e.samples, e.mu, e.variance = k.Samples, k.Mu, k.Variance
			e.before = turnsBefore{k.Ended, k.Returned}
		}
	}
	return nil
}

// possible reports whether a learner can have known this. A number that is none is not.
func (k *Known) possible() bool {
	learned := k.Samples == 0 && k.Mu == 0 && k.Variance == 0 ||
		k.Samples > 0 && k.Samples <= enough && k.Mu > leastMu-rounding && k.Mu < mostMu+rounding && k.Variance >= 0 && k.Variance <= mostVariance
	return learned && k.Returned >= 0 && k.Returned <= k.Ended && k.Ended <= memory
}

// rounding is above the error of a mean of logarithms.
const rounding = 1e-9

// The means of pauses between shortest and longest are between these, and the variances below this.
var (
	leastMu, mostMu = math.Log(shortest.Seconds()), math.Log(longest.Seconds())
	mostVariance    = (mostMu - leastMu) * (mostMu - leastMu)
)
