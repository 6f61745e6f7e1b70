package conductor

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// sweepEvery is how often the registry drops unused state.
const sweepEvery = 30 * time.Second

// Selection is the part of the selection service that this package reads.
type Selection interface {
	// Closing reports whether the service is shutting down: it accepts no new work.
	Closing() bool
	// Scope returns the workers and the index of a scope.
	Scope(sc catalog.Scope) diagnose.ScopeView
	// Workers lists the workers of all contracts; nil matches all names.
	Workers(model, tenant *string) []*catalog.Worker
}

// API is the Conductor API of one process. Its publishers are registered one by one, and have
// an index and streams of their own. Their instances are never selected, but answers also show
// the selection service's workers (decision C7).
type API struct {
	registry  *Registry
	streams   *kvevents.Subscribers
	endpoints catalog.EndpointPolicy // policy for publishers' endpoints
	selection Selection
	log       zerolog.Logger

	// mu is held while a publisher comes or goes, so that it has a stream exactly while it is
	// active. It guards replays.
	mu sync.Mutex
	// replays has the publishers with a stream, by replay endpoint.
	replays map[string]sharedReplay
}

// New returns an API without publishers. streams opens their streams; endpoints is the policy
// for their endpoints; index is the account of their indexes, nil for no limit.
func New(streams *kvevents.Subscribers, endpoints catalog.EndpointPolicy, index *indexer.Account, selection Selection, log zerolog.Logger) *API {
	return &API{
		registry:  newRegistry(index),
		streams:   streams,
		endpoints: endpoints,
		selection: selection,
		log:       log,
		replays:   make(map[string]sharedReplay),
	}
}

// Run follows the publishers' streams until ctx ends.
func (a *API) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.streams.Run(ctx) })
	g.Go(func() error { return a.sweep(ctx) })
	return g.Wait()
}

func (a *API) sweep(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			a.registry.sweep()
		}
	}
}

// Registry returns the active publishers and their index, for reading.
func (a *API) Registry() *Registry { return a.registry }

// Streams returns the publishers' streams, for reading.
func (a *API) Streams() *kvevents.Subscribers { return a.streams }

// StreamRank returns the rank that identifies a publisher's stream.
func StreamRank(p *Publisher) catalog.Rank {
	return catalog.Rank{Worker: p.ID, DP: p.Rank}
}

// Service is a row of /services: an active publisher.
type Service struct {
	Registration
	Status  Status
	State   kvevents.StreamState
	Last    uint64 // number of the last applied message of the stream,
	HasLast bool   // if any
	// Lost counts message numbers that never came, Restarts the detected restarts of the engine.
	Lost, Restarts uint64
}

// Services lists the active publishers in order of registration.
func (a *API) Services() []Service {
	streams := make(map[catalog.Rank]kvevents.StreamStatus)
	for _, st := range a.streams.Streams() {
		streams[st.Rank] = st
	}
	publishers := a.registry.Publishers()
	rows := make([]Service, len(publishers))
	for i, p := range publishers {
		st := streams[StreamRank(p)] // the zero value, "connecting", if just registered
		rows[i] = Service{
			Registration: p.Registration, Status: p.Status(), State: st.State,
			Last: st.Last, HasLast: st.HasLast, Lost: st.Lost, Restarts: st.Restarts,
		}
	}
	return rows
}

// SelectionWorkers counts the selection service's workers of a model and tenant that answers to
// queries can show beside the publishers' instances; nil matches any name.
func (a *API) SelectionWorkers(model, tenant *string) (n uint64) {
	for _, w := range a.selection.Workers(model, tenant) {
		if !w.Tracked {
			n++
		}
	}
	return n
}
