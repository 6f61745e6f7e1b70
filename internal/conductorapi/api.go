// Package conductorapi holds the use cases of the Conductor API: register and
// unregister publishers of KV events, query how much of a prompt every instance
// holds, list the publishers, diagnose a prompt. ScopeDiagnoser diagnoses a
// prompt on the selection service's own workers, with an answer of the same form.
// The package knows no protocol; internal/httpapi calls it.
package conductorapi

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// sweepEvery is how often the registry drops what no publisher uses any more.
const sweepEvery = 30 * time.Second

// Selection is what this package reads of the selection service.
type Selection interface {
	// Closing reports whether the service is shutting down: it accepts no new work.
	Closing() bool
	// Scope returns the workers and the index of a scope.
	Scope(sc catalog.Scope) ScopeView
	// Unavailable says why a scope cannot serve requests. It is never nil.
	Unavailable(sc catalog.Scope) error
	// Workers lists the workers of all contracts; nil takes all names.
	Workers(model, tenant *string) []*catalog.Worker
}

// ScopeView is a scope of the selection service at one moment.
type ScopeView struct {
	// Snapshot has the scope's workers, nil if there are none.
	*catalog.Snapshot
	// Index has the blocks of the scope's ranks by the slots of Snapshot, nil if no
	// worker is attached. Events are applied to it all the time.
	Index *indexer.Space
	Seeds SeedLookup // of the index
	// State.Gone becomes true when the scope has lost all workers. Blocks that were
	// read from the index while it was false are those of the ranks of Snapshot.
	State interface{ Gone() bool }
}

// SeedLookup finds the adapter and salt that a block seed of an index is made of.
type SeedLookup interface {
	// SeedName returns the adapter of a seed and whether there is a salt; ok is
	// false if no event has named them.
	SeedName(seed uint64) (lora string, salted, ok bool)
}

// API is the Conductor API of one process. Its publishers are registered one by
// one and have an index and streams of their own: their instances are never
// selected, while answers show the selection service's workers, too (decision C7).
type API struct {
	registry  *conductor.Registry
	streams   *kvevents.Subscribers
	endpoints catalog.EndpointPolicy // of publishers
	selection Selection
	log       zerolog.Logger

	// mu is held while a publisher comes or goes, so that it has its stream exactly
	// while it is in force. It guards replays.
	mu sync.Mutex
	// replays has the publishers with a stream that have a replay endpoint, by that.
	replays map[string]sharedReplay
}

// New returns an API without publishers, whose streams are opened by streams;
// they may have these endpoints.
func New(streams *kvevents.Subscribers, endpoints catalog.EndpointPolicy, selection Selection, log zerolog.Logger) *API {
	return &API{
		registry:  conductor.NewRegistry(),
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
			a.registry.Sweep()
		}
	}
}

// Registry has the publishers in force and their index. It is to be read only.
func (a *API) Registry() *conductor.Registry { return a.registry }

// Streams are those of the publishers. They are to be read only.
func (a *API) Streams() *kvevents.Subscribers { return a.streams }

// StreamRank names a publisher's stream among those of all publishers.
func StreamRank(p *conductor.Publisher) catalog.Rank {
	return catalog.Rank{Worker: p.ID, DP: p.Rank}
}

// Service is a row of /services: a publisher in force.
type Service struct {
	conductor.Registration
	Status  conductor.Status
	State   kvevents.StreamState
	Last    uint64 // number of the last message of the stream that was applied,
	HasLast bool   // if any
	// Lost counts message numbers that never came, Restarts the restarts of the
	// engine that were noticed.
	Lost, Restarts uint64
}

// Services lists the publishers in force in the order of their registration.
func (a *API) Services() []Service {
	streams := make(map[catalog.Rank]kvevents.StreamStatus)
	for _, st := range a.streams.Streams() {
		streams[st.Rank] = st
	}
	publishers := a.registry.Publishers()
	rows := make([]Service, len(publishers))
	for i, p := range publishers {
		st := streams[StreamRank(p)] // just registered: none yet, which is "connecting"
		rows[i] = Service{
			Registration: p.Registration, Status: p.Status(), State: st.State,
			Last: st.Last, HasLast: st.HasLast, Lost: st.Lost, Restarts: st.Restarts,
		}
	}
	return rows
}

// SelectionWorkers counts the workers of the selection service, of a model and a
// tenant, that answers to queries can show beside the publishers' instances; nil is
// any name.
func (a *API) SelectionWorkers(model, tenant *string) (n uint64) {
	for _, w := range a.selection.Workers(model, tenant) {
		if !w.Tracked {
			n++
		}
	}
	return n
}
