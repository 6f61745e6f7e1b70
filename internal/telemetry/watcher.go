package telemetry

import (
	"context"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// watchEvery is how often event streams and models are checked for the log.
const watchEvery = 10 * time.Second

// maxLines bounds the lines of one check about single streams or models; a further line counts
// the rest.
const maxLines = 20

// Watcher logs changes of event streams, and of models that refuse selections, that concern an
// operator: every ten seconds what was observed of streams, and how counts differ from the check before.
type Watcher struct {
	log        zerolog.Logger
	catalog    *catalog.Catalog
	scopes     *scopes.Registry
	streams    Streams
	observed   *StreamObserver
	conductor  *conductor.Registry
	selections *counts.Selections

	// last is what the last check saw. Only the goroutine of Run uses it.
	last seen
	// publishers has the publishers during a check, by stream; nil: not loaded yet.
	publishers map[catalog.Rank]*conductor.Publisher
}

// seen is what a check saw.
type seen struct {
	dropped     [kvevents.NumReasons]uint64
	undecodable uint64
	badFrames   uint64
	copiesAsSet uint64
	replays     [kvevents.NumReplayResults]uint64
	models      map[*counts.ModelSelections]modelTally
}

// NewWatcher returns a watcher that writes to log.
func NewWatcher(c *catalog.Catalog, s *scopes.Registry, streams Streams, observed *StreamObserver, publishers *conductor.Registry, selections *counts.Selections, log zerolog.Logger) *Watcher {
	return &Watcher{log: log, catalog: c, scopes: s, streams: streams, observed: observed, conductor: publishers, selections: selections}
}

// Run checks every ten seconds until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.look()
		}
	}
}

// look makes one check and logs the changes.
func (w *Watcher) look() {
	w.publishers = nil
	workers, publishers, more := w.observed.take(w.streams)
	news := append(workers, w.withPublishers(publishers)...)
	w.lookAtStreams(news, more)
	w.lookAtReplays(news)
	w.lookAtEvents()
	w.lookAtModels()
}

// streamName names the worker or publisher of a stream.
type streamName struct {
	rank      catalog.Rank
	endpoint  string
	publisher *conductor.Publisher // nil: of a selection worker
}

// MarshalZerologObject writes the fields.
func (n streamName) MarshalZerologObject(e *zerolog.Event) {
	if n.publisher != nil {
		e.EmbedObject(conductor.LoggedRegistration(n.publisher.Registration))
	} else {
		e.Uint64("worker", n.rank.Worker).Uint32("rank", n.rank.DP).Str("endpoint", catalog.Clip(n.endpoint))
	}
}

// publisher returns the publisher of one of the Conductor's streams, nil if it has been withdrawn.
func (w *Watcher) publisher(rank catalog.Rank) *conductor.Publisher {
	if w.publishers == nil {
		w.publishers = make(map[catalog.Rank]*conductor.Publisher)
		for _, p := range w.conductor.Publishers() {
			w.publishers[conductor.StreamRank(p)] = p
		}
	}
	return w.publishers[rank]
}

// withPublishers fills in the publishers of the streams, and drops streams whose publishers
// have just been withdrawn.
func (w *Watcher) withPublishers(news []streamNews) []streamNews {
	for i := range news {
		news[i].publisher = w.publisher(news[i].rank)
	}
	return slices.DeleteFunc(news, func(n streamNews) bool { return n.publisher == nil })
}

// lookAtStreams logs up to maxLines streams, those that need an operator first. more counts streams
// of which nothing else is known.
func (w *Watcher) lookAtStreams(all []streamNews, more int) {
	news := slices.DeleteFunc(slices.Clone(all), func(n streamNews) bool { return !n.lineDue() })
	slices.SortStableFunc(news, func(a, b streamNews) int { return int(b.level()) - int(a.level()) })
	for _, n := range news[:min(len(news), maxLines)] {
		w.log.WithLevel(n.level()).EmbedObject(n).Msg(n.text())
	}
	if rest := news[min(len(news), maxLines):]; len(rest)+more > 0 {
		level := zerolog.InfoLevel
		if more > 0 || rest[0].bad() {
			level = zerolog.WarnLevel
		}
		w.log.WithLevel(level).Int("more", len(rest)+more).Msg("more kv event streams have changed")
	}
}

// maxExamples bounds the streams named in a line about all streams.
const maxExamples = 5

// lookAtReplays logs how many replays of all streams were incomplete, and names a few of the
// streams.
func (w *Watcher) lookAtReplays(news []streamNews) {
	results, failed := zerolog.Dict(), false
	for r := range w.last.replays {
		n := w.streams.Workers.Counters().ReplayResults[r].Load() // includes the Conductor's streams
		if r := kvevents.ReplayResult(r); r != kvevents.ReplayComplete && r != kvevents.ReplayAborted {
			failed = addCount(results, r.String(), n-w.last.replays[r]) || failed
		}
		w.last.replays[r] = n
	}
	if !failed {
		return
	}
	var named examples
	for _, n := range news {
		if n.badReplays > 0 && len(named) < maxExamples {
			named = append(named, example{n.streamName, "result", n.badReplay.String()})
		}
	}
	w.log.Warn().Dict("replays", results).EmbedObject(named).Msg("replays of kv event streams failed or had gaps")
}

// lookAtEvents logs how many events of all streams were dropped although they were meant for
// the index, with an example of each kind.
func (w *Watcher) lookAtEvents() {
	tally, n := w.streams.tally(), w.streams.Workers.Counters()
	dropped := tally.ByReason()
	undecodable, badFrames := n.Undecodable.Load(), n.FrameErrors.Load()

	what, found := zerolog.Dict(), false
	for reason := int(kvevents.Applied) + 1; reason < len(dropped); reason++ {
		if reason := kvevents.Reason(reason); !reason.Ordinary() {
			found = addCount(what, reason.String(), dropped[reason]-w.last.dropped[reason]) || found
		}
	}
	found = addCount(what, "undecodable_messages", undecodable-w.last.undecodable) || found
	found = addCount(what, "bad_frames", badFrames-w.last.badFrames) || found
	asSet := tally.CopiesAsSet - w.last.copiesAsSet
	var some examples
	if found || asSet > 0 {
		some = w.examples()
	}
	if found {
		w.log.Warn().Dict("dropped", what).EmbedObject(some).Msg("kv events dropped")
	}
	if asSet > 0 {
		w.log.Warn().Uint64("streams", asSet).EmbedObject(some).
			Msg("kv events announce more copies of blocks than there is room for: they are not counted any more; " +
				"kv_event_copies of such a worker is to be set")
	}
	w.last.copiesAsSet = tally.CopiesAsSet
	w.last.dropped, w.last.undecodable, w.last.badFrames = dropped, undecodable, badFrames
}

// example is a stream and what happened to it.
type example struct {
	stream    streamName
	key, text string
}

// MarshalZerologObject writes the fields.
func (ex example) MarshalZerologObject(e *zerolog.Event) {
	e.EmbedObject(ex.stream).Str(ex.key, catalog.Clip(ex.text))
}

type examples []example

// MarshalZerologObject writes the examples, if there are any.
func (ex examples) MarshalZerologObject(e *zerolog.Event) {
	if len(ex) > 0 {
		e.Array("examples", ex)
	}
}

// MarshalZerologArray writes each.
func (ex examples) MarshalZerologArray(a *zerolog.Array) {
	for _, one := range ex {
		a.Object(one)
	}
}

// examples returns some of the events dropped since the last call.
func (w *Watcher) examples() examples {
	var out examples
	for _, sample := range w.streams.Workers.Samples() {
		stream, _ := w.streams.Workers.Stream(sample.Rank) // it may be gone
		name := streamName{rank: sample.Rank, endpoint: stream.Endpoint}
		out = append(out, example{name, "reason", sample.Reason})
	}
	for _, sample := range w.streams.Conductor.Samples() {
		if p := w.publisher(sample.Rank); p != nil {
			out = append(out, example{streamName{publisher: p}, "reason", sample.Reason})
		}
	}
	return out
}
