package service

import (
	"context"
	"time"

	"github.com/select-service/select-service/pkg/reservations"
)

// The timers. What has a deadline of its own (leases, kept selections, sessions,
// predicted blocks) is looked at every second; requests that wait at least as
// often as in dynamo-kv-router 1.3.1.
const (
	sweepEvery     = reservations.ExpireEvery
	conductorEvery = 30 * time.Second
	pumpEvery      = 60 * time.Second
)

// sweep ends reservations whose caller never came back, forgets what is too old,
// and looks after requests that wait although nothing happens.
func (s *Service) sweep(ctx context.Context) error {
	age, conductor, pump := time.NewTicker(sweepEvery), time.NewTicker(conductorEvery), time.NewTicker(pumpEvery)
	defer age.Stop()
	defer conductor.Stop()
	defer pump.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-age.C:
			s.sweepAged()
		case <-conductor.C:
			s.conductor.Sweep()
		case <-pump.C:
			for _, p := range *s.pools.Load() {
				p.line.pump()
			}
		}
	}
}

// sweepAged ends and forgets what is too old.
func (s *Service) sweepAged() {
	leases := s.ledger.Stats().LeasesExpired
	if n, _ := s.ledger.Expire(); n > 0 {
		s.log.Warn().Int("reservations", n).Uint64("leases", s.ledger.Stats().LeasesExpired-leases).Msg("stale reservations ended")
		s.loadChanged()
	}
	s.wakeRepeats()
	s.kept.Sweep()
	if s.sessions != nil {
		s.sessions.Sweep()
	}
	s.sweepApproximate()
}
