package selection

import (
	"cmp"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// promise is what a request that has a reservation wants of its times, until it is known what came of it. It belongs to the
// record of the reservation. A nil promise promises nothing.
type promise struct {
	counts *counts.Promises
	payer  admission.Payer
	// The request is one of probes, or is one of prefixes at this cost or continues one of them; nil: it is none, or is done. Set before
	// the reservation can be found, then guarded by mu.
	probes     *ttft.Probes
	prefixes   *ttft.PrefixProbes
	prefixCost float64

	mu                   sync.Mutex // guards the fields below; innermost, but for the locks of those above
	ahead                time.Time  // see SelectRequest.Ahead: the request has not come, and may never; zero: it has
	firstToken, deadline time.Time  // zero: not wanted, or it is known
}

// newPromise returns what the attempt's reservation promises, nil if that is nothing.
func (a *attempt) newPromise() *promise {
	a.promised = nil
	if !a.hasTarget() || a.ByLoad {
		return nil
	}
	a.promised = &promise{counts: a.promises(), payer: a.payer, firstToken: a.firstToken, deadline: a.Deadline, ahead: a.Ahead}
	return a.promised
}

// promises returns where it is counted what comes of the request's target and deadline.
func (a *attempt) promises() *counts.Promises {
	tenant := a.payingTenant()
	return a.counts.counters(true).Promises(a.payer.PolicyClass, tenant, a.payer.Class != nil && a.payer.Class.Named(tenant))
}

// payingTenant is the tenant that pays for the request.
func (r *request) payingTenant() string { return cmp.Or(r.FairTenant, r.Scope.Tenant) }

// refusePromise counts that the request was refused because of what it wants.
func (a *attempt) refusePromise() {
	p := &promise{counts: a.promises(), payer: a.payer, firstToken: a.firstToken, deadline: a.Deadline}
	p.tell(counts.FirstToken, &p.firstToken, fairness.Refused)
	p.tell(counts.WholeAnswer, &p.deadline, fairness.Refused)
}

// firstTokenCame notes that the request's first token has come.
func (p *promise) firstTokenCame() {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.settle(counts.FirstToken, &p.firstToken, true)
	}
}

// ended notes that the request has ended; answered: with its whole answer, as far as is known. A first token that nobody has
// reported has come at an unknown time, if at all.
func (p *promise) ended(answered bool) {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.ahead.IsZero() {
			p.firstToken, p.deadline = time.Time{}, time.Time{}
		}
		p.settle(counts.FirstToken, &p.firstToken, false)
		p.settle(counts.WholeAnswer, &p.deadline, answered)
	}
}

// begun notes that the request has come for which a reservation was made ahead. What it wants runs from now on.
func (p *promise) begun() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ahead.IsZero() {
		return
	}
	since := time.Since(p.ahead)
	for _, by := range []*time.Time{&p.firstToken, &p.deadline} {
		if !by.IsZero() {
			*by = by.Add(since)
		}
	}
	p.ahead = time.Time{}
}

// settle counts whether what is wanted by a time has come until then. If it has not come, but there was still time, nothing
// is counted: nobody knows. It needs p.mu.
func (p *promise) settle(w counts.Wanted, by *time.Time, came bool) {
	switch {
	case time.Now().After(*by):
		p.tell(w, by, fairness.Missed)
	case came:
		p.tell(w, by, fairness.Attained)
	}
	*by = time.Time{}
}

// tell counts an outcome, unless it is known.
func (p *promise) tell(w counts.Wanted, by *time.Time, o fairness.Outcome) {
	if by.IsZero() {
		return
	}
	*by = time.Time{}
	p.counts.Note(w, o)
	if p.payer.Class != nil {
		p.payer.Class.Note(p.payer.Account, o)
	}
	if o == fairness.Missed || p.firstToken.IsZero() && p.deadline.IsZero() {
		p.tellProbes(o == fairness.Attained)
	}
}

// tellProbes notes whether the request got in time all that it wanted. Only the first call counts.
func (p *promise) tellProbes(inTime bool) {
	if p.probes != nil {
		p.probes.Done(inTime)
	}
	if p.prefixes != nil && inTime {
		p.prefixes.InTime(p.prefixCost)
	}
	p.probes, p.prefixes = nil, nil
}

// FirstToken notes that the first token of a reservation's request has come, for a caller that has told the end of its prefill
// by another sign. Unknown ids are ignored.
func (a *API) FirstToken(id string) {
	a.promiseOf(id).firstTokenCame()
}

// Abandon notes that the request of a reservation, which is about to be freed, does not get its whole answer: its client has
// gone, or its engine has failed. Unknown ids are ignored.
func (a *API) Abandon(id string) {
	a.promiseOf(id).ended(false)
}

// promiseOf returns the promise of a reservation that was accepted here.
func (a *API) promiseOf(id string) *promise {
	if r := a.recordOf(id); r != nil {
		return r.promise.Load()
	}
	return nil
}

// recordOf returns the record of a live reservation, of a pair that of the side that decodes; nil if it has none here.
func (a *API) recordOf(id string) *idempotencyRecord {
	live, _ := a.idempotency.find(id)
	r, _ := live.CallerState.(*idempotencyRecord)
	return r
}
