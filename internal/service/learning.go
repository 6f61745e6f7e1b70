package service

import (
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// observePrefills lets the learners see the prefills of their scopes.
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

// sweepLearners lets the learners learn what has waited long enough, looks for ranks that
// are stalled, and logs which guard rails have engaged or ended.
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
