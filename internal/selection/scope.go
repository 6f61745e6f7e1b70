package selection

import (
	"slices"
	"time"

	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// scope is the scope of a request as an attempt finds it: the state and the workers that the
// attempt is judged by, and which of their ranks may take the request.
type scope struct {
	*request
	state    *scopes.State
	rules    *scopes.Rules // of the state when the attempt began
	snapshot *catalog.Snapshot

	eligible   []catalog.Entry // the ranks that pass the request's filters; in eligibleMem, or the snapshot's own list
	responding []catalog.Entry // the ranks of eligible that give signs of life, if others do not
	free       []catalog.Entry // the ranks of these whose workers are not overloaded
	limited    bool            // free has the ranks that the thresholds left
	// silent has the ranks of the scope that give no sign of life, if they are therefore not among
	// the ranks that may be chosen; nil: none.
	silent reports.Exclusions
	// allSilent: none of the eligible ranks gives a sign of life, so that all may be chosen.
	allSilent bool

	eligibleMem []catalog.Entry
}

// reset empties the scope, but for its memory.
func (s *scope) reset() {
	clear(s.eligibleMem)
	clear(s.responding)
	clear(s.free)
	*s = scope{request: s.request, eligibleMem: s.eligibleMem[:0], responding: s.responding[:0], free: s.free[:0]}
}

// find takes the scope's current state and snapshot.
func (s *scope) find() (err error) {
	if s.snapshot, s.state, err = s.api.scopes.Schedulable(s.Scope); err == nil {
		s.rules = s.state.Rules()
	}
	return err
}

// isCurrent reports whether the workers are still those of the snapshot.
func (s *scope) isCurrent() bool { return s.api.catalog.Snapshot(s.Scope) == s.snapshot }

// refresh takes the current snapshot. changed reports whether it is another one. It is an error if
// there is none, or if the state has ended.
func (s *scope) refresh() (changed bool, err error) {
	snap, state, err := s.api.scopes.Schedulable(s.Scope)
	if err != nil {
		return false, err
	}
	if state != s.state {
		return false, scopes.ErrGone
	}
	changed, s.snapshot = snap != s.snapshot, snap
	if now := state.Rules(); now.Queue == s.rules.Queue { // with another queue the request is tried again
		s.rules = now
	}
	return changed, nil
}

// listEligible lists the ranks that pass the request's filters. It is an error if there are none.
func (s *scope) listEligible() error {
	target := s.Target
	if target != nil && s.ignoresTarget() {
		target = nil
	}
	eligible := s.Eligible.of(s.snapshot)
	switch pinned := s.Pinned; {
	case target != nil:
		s.filterRanks(eligible)
		if err := s.applyTarget(); err != nil {
			return err
		}
	case pinned != nil:
		s.eligible = s.eligibleMem[:0]
		if e, ok := s.snapshot.Entry(*pinned); ok && s.filter.Eligible(pinned.Worker, e.Worker.HasTaint) &&
			(eligible == nil || eligible(e)) {
			s.eligible = append(s.eligible, e)
			s.eligibleMem = s.eligible
		}
	case s.filter.AdmitsAll() && eligible == nil:
		s.eligible = s.snapshot.Ranks()
	default:
		s.filterRanks(eligible)
	}
	if len(s.eligible) == 0 {
		return &contract.Error{Kind: contract.Unavailable, Text: selector.ErrNoEndpoints.Error(), Err: selector.ErrNoEndpoints}
	}
	return nil
}

// filterRanks lists the ranks that are eligible (nil: all), of the workers that pass the filter.
func (s *scope) filterRanks(eligible func(catalog.Entry) bool) {
	list := s.eligibleMem[:0]
	if allowed, restricted := s.filter.Allowed(); restricted && len(allowed) < len(s.snapshot.Workers)/16 {
		for _, id := range allowed {
			if ranks := s.snapshot.RanksOf(id); len(ranks) > 0 && s.filter.Eligible(id, ranks[0].Worker.HasTaint) {
				list = append(list, ranks...)
			}
		}
	} else {
		for ranks := range rankstate.ByWorker(s.snapshot.Ranks()) {
			if w := ranks[0].Worker; s.filter.Eligible(w.ID, w.HasTaint) {
				list = append(list, ranks...)
			}
		}
	}
	if eligible != nil {
		list = slices.DeleteFunc(list, func(e catalog.Entry) bool { return !eligible(e) })
	}
	s.eligible, s.eligibleMem = list, list
}

// applyTarget narrows the eligible ranks to those of the affinity target, if any of them is
// eligible, and of these to the pinned one. In that case a rank pinned on another worker is an
// error, as in dynamo-kv-router 1.6.1.
func (s *scope) applyTarget() error {
	pinned, target := s.Pinned, s.Target
	if slices.ContainsFunc(s.eligible, func(e catalog.Entry) bool { return target.matches(e.Rank) }) {
		if pinned != nil {
			only := selector.NewFilter([]uint64{target.Worker}, nil)
			if err := only.CheckPinned(pinned.Worker); err != nil {
				return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
			}
		}
		s.eligible = slices.DeleteFunc(s.eligible, func(e catalog.Entry) bool { return !target.matches(e.Rank) })
	}
	if pinned != nil {
		s.eligible = slices.DeleteFunc(s.eligible, func(e catalog.Entry) bool { return e.Rank != *pinned })
	}
	return nil
}

// ignoresTarget reports whether the scope's policy ignores affinity targets and decides among
// all ranks.
func (s *scope) ignoresTarget() bool {
	p := s.rules.Policies
	return p != nil && p.Policy.Needs().Has(selector.IgnoresTarget)
}

// responsive lists the eligible ranks whose engines give signs of life, and those that are due for
// a trial; all eligible ranks if there are none, and for a pinned request.
func (s *scope) responsive() []catalog.Entry {
	s.silent, s.allSilent = nil, false
	excluded := s.api.reports.Excluded(s.Scope)
	if excluded == nil || s.Pinned != nil {
		return s.eligible
	}
	s.responding = appendResponsive(s.responding[:0], s.eligible, excluded)
	if len(s.responding) == 0 {
		s.allSilent = true
		return s.eligible
	}
	s.silent = excluded
	if len(s.responding) == len(s.eligible) {
		return s.eligible
	}
	return s.responding
}

// appendResponsive appends the ranks that are not excluded, or due for a trial.
func appendResponsive(dst, ranks []catalog.Entry, excluded reports.Exclusions) []catalog.Entry {
	now := time.Now()
	for _, e := range ranks {
		if x := excluded[e.Rank]; x == nil || x.Due(now) {
			dst = append(dst, e)
		}
	}
	return dst
}

// tries takes the trial of a chosen rank that gives no sign of life, at that time; false if another request has
// taken it. If all do, it counts the choice instead. A request that has no effect does neither.
func (s *scope) tries(of catalog.Rank, at time.Time) bool {
	if s.silent == nil && !s.allSilent || s.Advisory || s.ExplainOnly {
		return true
	}
	if s.allSilent {
		s.api.reports.NoteAllExcluded()
	}
	x := s.silent[of]
	return x == nil || x.Try(at)
}

// thresholds returns the current thresholds of the request's model.
func (s *scope) thresholds() *overload.Thresholds {
	return s.api.busy.Of(s.Scope.Model)
}

// dropOverloaded returns the ranks that give signs of life, of the workers that are not overloaded. An overloaded
// rank stays if another rank of its worker is free: the cost distinguishes them. It is an
// error if no worker is left.
func (s *scope) dropOverloaded(v *reservations.View) ([]catalog.Entry, error) {
	limits := s.thresholds()
	responsive := s.responsive()
	s.limited = false
	switch {
	case !limits.Any() || s.Advisory:
		return responsive, nil
	case s.Pinned != nil:
		return s.eligible, s.checkOverload(v, limits)
	}
	s.limited, s.free = true, s.free[:0]
	var causes overload.Causes
	for ranks := range rankstate.ByWorker(responsive) {
		if why := rankstate.Exceeded(limits, ranks, v); why != 0 {
			causes |= why
		} else {
			s.free = append(s.free, ranks...)
		}
	}
	if len(s.free) == 0 {
		return nil, contract.NewOverload(contract.OverloadError{Causes: causes})
	}
	return s.free, nil
}

// expireStale ends the expired reservations of the scope, so that no request is refused because
// of them. Every new reservation ends some, and a timer ends all of them; but while every
// request is refused there are no new reservations, and the timer may be a second away.
func (s *scope) expireStale() {
	if s.thresholds().Any() {
		s.api.ledger.ExpireIn(s.Scope)
	}
}

// rejectIfOverloaded makes the check of dropOverloaded before the prompt is processed, so that
// refusals are cheapest under the highest load. With a wait queue thresholds count only at
// dispatch, so there is no early check.
func (s *scope) rejectIfOverloaded() (err error) {
	limits := s.thresholds()
	if !limits.Any() || s.rules.Queue.Enabled() || s.Advisory {
		return nil
	}
	s.api.ledger.Look(s.Scope, nil, func(v *reservations.View) { err = s.checkOverload(v, limits) })
	return err
}

// checkOverload fails if every worker that the request could use is overloaded. For a pinned
// request all ranks of the worker count, not only the pinned one.
func (s *scope) checkOverload(v *reservations.View, limits *overload.Thresholds) error {
	ranks := s.responsive()
	var refusal contract.OverloadError
	if pinned := s.Pinned; pinned != nil {
		ranks = s.snapshot.RanksOf(pinned.Worker)
		refusal.Pinned, refusal.Worker = true, pinned.Worker
	}
	for ranks := range rankstate.ByWorker(ranks) {
		why := rankstate.Exceeded(limits, ranks, v)
		if why == 0 {
			return nil
		}
		refusal.Causes |= why
	}
	return contract.NewOverload(refusal)
}

// excluded lists the ranks of the scope that could not be chosen, given those that were scored; or
// nil.
func (s *scope) excluded(scored []catalog.Entry) (list []ExcludedRank) {
	known := s.snapshot.Known()
	if len(known) == len(scored) {
		return nil
	}
	for _, e := range known {
		if indexRank(scored, e.Rank) >= 0 {
			continue
		}
		why := s.exclusion(e)
		if why == "" {
			if why = NotOfSession; len(scored) == 0 {
				why = Overloaded
			}
		}
		list = append(list, ExcludedRank{e.Rank, why})
	}
	return list
}

// exclusion returns why the request's filters, the rank's engine or its load exclude a rank; "" if
// they do not.
func (s *scope) exclusion(e catalog.Entry) Exclusion {
	if v := rankstate.Judge(rankstate.Facts{Worker: e.Worker, DP: e.DP}); !v.IsCandidate() {
		return exclusionOf(v)
	}
	switch {
	case e.Worker.OnlyEncodes():
		return NotOfRole
	case !s.filter.Allows(e.Rank.Worker):
		return NotAllowed
	case !s.filter.Eligible(e.Rank.Worker, e.Worker.HasTaint):
		return MissingTaint
	case s.Pinned != nil && *s.Pinned != e.Rank:
		return NotPinned
	case s.Target != nil && indexRank(s.eligible, e.Rank) < 0:
		return NotTarget
	}
	facts := rankstate.Facts{Worker: e.Worker, DP: e.DP, Overloaded: s.limited && indexRank(s.free, e.Rank) < 0}
	if s.silent[e.Rank] != nil && indexRank(s.responding, e.Rank) < 0 {
		facts.Liveness = s.silent.State(e.Rank)
	}
	return exclusionOf(rankstate.Judge(facts))
}

// addHeaders adds to an explanation how the ranks' workers want to be told them.
func (s *scope) addHeaders(x *Explanation) *Explanation {
	of := func(r catalog.Rank) (h RankHeader) {
		if w, ok := s.snapshot.Worker(r.Worker); ok {
			h = RankHeader{Form: s.api.catalog.RankHeader(w), Local: w.LocalRank(r.DP)}
		}
		return h
	}
	for i := range x.Candidates {
		x.Candidates[i].Header = of(x.Candidates[i].Rank)
	}
	if x.Chosen != nil {
		x.ChosenHeader = of(*x.Chosen)
	}
	return x
}
