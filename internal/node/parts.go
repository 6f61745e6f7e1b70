package node

import (
	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/pkg/reservations"
)

// Parts are the parts of a Service, for views of its state: users only read.
type Parts struct {
	Process    uint64 // id among the replicas
	Catalog    *catalog.Catalog
	Scopes     *scopes.Registry
	Ledger     *reservations.Ledger
	Reports    *reports.Reports
	Thresholds *overload.Table
	// Streams are the KV event streams of the workers; nil: KV events are off.
	Streams    *kvevents.Subscribers
	Publishers *conductor.Registry
	Replica    *replicasync.Replica // nil: reservations are not shared
	Memory     *memory.Budget       // nil: there is no limit
}

// Parts returns the parts of the service.
func (s *Service) Parts() Parts {
	p := Parts{
		Process: s.config.Process,
		Catalog: s.catalog, Scopes: s.scopes, Ledger: s.ledger, Reports: s.reports, Thresholds: s.UseCases.Thresholds(),
		Publishers: s.conductor.Registry(), Replica: s.replica, Memory: s.config.Memory,
	}
	if s.config.KVEvents {
		p.Streams = s.streams
	}
	return p
}
