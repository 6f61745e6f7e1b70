package service

import (
	"errors"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/statefile"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// observePrefills passes finished prefills to the learners of their scopes.
func (s *Service) observePrefills() {
	if s.config.Policies == nil {
		return
	}
	s.ledger.SetPrefills(func(sc catalog.Scope) reservations.PrefillObserver {
		if l := s.learners.Of(sc); l != nil {
			return l
		}
		return nil
	})
}

// sweepLearners lets the learners process samples that have waited long enough, checks for
// stalled ranks, and logs which guard rails have engaged or ended.
func (s *Service) sweepLearners() {
	s.learners.Forget(func(sc catalog.Scope) bool { return s.scopes.Of(sc) != nil })
	for sc, l := range s.learners.All() {
		l.Settle(s.ledger.Now())
		model := l.Model()
		s.eachQueue(sc, l, func(e catalog.Entry, q ttft.Queue) {
			_, stall := model.Wait(&q)
			l.Watch(e.Slot, e.Rank, stall > 1)
		})
		for _, c := range l.Changes() {
			logRail(s.log, sc, c)
		}
	}
}

func logRail(log zerolog.Logger, sc catalog.Scope, c ttft.Change) {
	event, text := log.Info(), "guard rail of predicted-ttft ended"
	if c.Engaged {
		event, text = log.Warn(), "guard rail of predicted-ttft engaged"
	}
	event = event.Str("model", catalog.Clip(sc.Model)).Str("tenant", catalog.Clip(sc.Tenant)).Stringer("rail", c.Rail)
	if c.Rail.OfRank() {
		event = event.Uint64("worker_id", c.Rank.Worker).Uint32("dp_rank", c.Rank.DP)
	}
	event.Msg(text)
}

// restoreLearned passes a file's learned parameters to the learners, and returns for how many
// scopes. Parameters that no longer fit are dropped and learned again.
func (s *State) restoreLearned(f *statefile.File) (restored int) {
	all, err := f.Learned()
	for _, l := range all {
		learner := s.service.learners.Of(l.Scope)
		if learner == nil {
			continue // its policy no longer predicts
		}
		if bad := learner.UnmarshalJSON(l.State); bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		restored++
	}
	if err != nil {
		s.failures[faultRefused].Add(1)
		s.log.Warn().Err(err).Msg("what was learned of prefill times is not used")
	}
	return restored
}

func (s *State) writeLearned(w *statefile.Writer) error {
	for sc, l := range s.service.learners.All() {
		if l.Samples() == 0 {
			continue
		}
		text, err := l.MarshalJSON()
		if err != nil {
			return err
		}
		if err := s.leaveOut(w.Learned(&statefile.Learned{Scope: sc, State: text})); err != nil {
			return err
		}
	}
	return nil
}
