package service

import (
	"context"
	"time"

	"github.com/select-service/select-service/pkg/reservations"
)

// The timers. Leases end when they should; what nobody sees the end of (kept
// selections, sessions, predicted blocks) is looked at every second, and requests
// that wait at least as often as in dynamo-kv-router 1.3.1.
const (
	expireEvery   = reservations.ExpireEvery
	sweepEvery    = time.Second
	dispatchEvery = 60 * time.Second
)

// expire ends reservations whose time is over. Some have been ended already, by
// bookings and by calls about them, whose callers do not see the load of others.
func (s *Service) expire(ctx context.Context) error {
	due := time.NewTicker(expireEvery)
	defer due.Stop()
	var seen uint64
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
		}
		s.ledger.ExpireDue()
		if n := s.ledger.Stats().Expired; n != seen {
			s.scopes.LoadChanged()
			seen = n
		}
	}
}

// sweep forgets what is too old, and looks after requests that wait although
// nothing happens.
func (s *Service) sweep(ctx context.Context) error {
	age, dispatch := time.NewTicker(sweepEvery), time.NewTicker(dispatchEvery)
	defer age.Stop()
	defer dispatch.Stop()
	var told reservations.Stats // up to the last line of the log
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-age.C:
			s.sweepAged(&told)
		case <-dispatch.C:
			s.scopes.LoadChanged()
		}
	}
}

// sweepAged forgets what is too old, and tells of reservations that have expired.
func (s *Service) sweepAged(told *reservations.Stats) {
	s.ledger.Expire()
	now := s.ledger.Stats()
	if n := now.Expired - told.Expired; n > 0 {
		s.log.Warn().Uint64("reservations", n).Uint64("leases", now.LeasesExpired-told.LeasesExpired).Msg("stale reservations ended")
	}
	*told = now
	s.wakeRepeats()
	s.kept.Sweep()
	if s.sessions != nil {
		s.sessions.Sweep()
	}
	if s.approximate != nil {
		s.approximate.Sweep()
	}
}
