package service

import "context"

// SettleConductor waits until everything that Conductor's streams have received
// is applied.
func (s *Service) SettleConductor(ctx context.Context) error { return s.conductorStreams.Barrier(ctx) }
