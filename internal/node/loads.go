package node

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/memory"
)

// loadSources are the ways by which engines say what load they have.
type loadSources struct {
	catalog  *catalog.Catalog
	sink     load.Sink
	counters *load.Counters
	streams  *load.Streams
	scraper  *load.Scraper
}

func newLoadSources(config *Config, c *catalog.Catalog, source kvevents.Source, sink load.Sink) *loadSources {
	counters := load.NewCounters()
	access := config.Scrape
	access.Endpoints = config.Endpoints
	return &loadSources{
		catalog: c, sink: sink, counters: counters,
		streams: load.NewStreams(source, sink, config.Memory.Account(memory.Streams), counters),
		scraper: load.NewScraper(engines.NewClient(access), sink, counters),
	}
}

// run follows and reads what there is until ctx ends.
func (l *loadSources) run(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return l.streams.Run(ctx) })
	g.Go(func() error { return l.scraper.Run(ctx) })
}

// Follow implements scopes.Loads.
func (l *loadSources) Follow(worker uint64, was, wanted []catalog.LoadStream) error {
	for i, st := range wanted {
		if err := l.open(worker, was, st); err != nil {
			l.restore(worker, was, wanted[:i])
			return err
		}
	}
	for _, st := range was {
		if loadStreamOf(wanted, st.DP) == nil {
			l.streams.Remove(catalog.Rank{Worker: worker, DP: st.DP})
		}
	}
	return nil
}

// open opens a stream, or changes the one that the rank has.
func (l *loadSources) open(worker uint64, was []catalog.LoadStream, st catalog.LoadStream) error {
	rank := catalog.Rank{Worker: worker, DP: st.DP}
	if loadStreamOf(was, st.DP) == nil {
		return l.streams.Add(rank, st.Endpoint)
	}
	return l.streams.Update(rank, st.Endpoint)
}

// restore undoes what open did for the given streams.
func (l *loadSources) restore(worker uint64, was, done []catalog.LoadStream) {
	for _, st := range done {
		rank := catalog.Rank{Worker: worker, DP: st.DP}
		if before := loadStreamOf(was, st.DP); before == nil {
			l.streams.Remove(rank)
		} else if l.streams.Update(rank, before.Endpoint) != nil {
			l.streams.Remove(rank) // somebody else has bound its address meanwhile
		}
	}
}

func loadStreamOf(streams []catalog.LoadStream, dp uint32) *catalog.LoadStream {
	i, ok := slices.BinarySearchFunc(streams, dp, func(s catalog.LoadStream, dp uint32) int { return cmp.Compare(s.DP, dp) })
	if !ok {
		return nil
	}
	return &streams[i]
}

// Read implements scopes.Loads.
func (l *loadSources) Read(worker uint64, pages []catalog.LoadPage) { l.scraper.Set(worker, pages) }

// RankReport is what the engine of a worker says of one rank.
type RankReport struct {
	DP     uint32
	Report load.Report
}

// ReportLoadIn takes what the engine of a worker, in a scope that matches own, says of its ranks.
// If one is not among the worker's, nothing is taken.
func (l *loadSources) ReportLoadIn(own catalog.ScopeFilter, worker uint64, of []RankReport) error {
	w := l.catalog.WorkerIn(own, worker)
	if w == nil {
		return contract.Errorf(contract.NotFound, "worker %d not found", worker)
	}
	for i := range of {
		if !w.HasRank(of[i].DP) {
			return contract.Errorf(contract.NotFound, "worker %d has no dp_rank %d", worker, of[i].DP)
		}
	}
	now := time.Now()
	for i := range of {
		l.counters.CountTold()
		l.sink.Report(catalog.Rank{Worker: worker, DP: of[i].DP}, of[i].Report, now)
	}
	return nil
}
