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
// operator. It compares each check with the one before.
type Watcher struct {
	log        zerolog.Logger
	catalog    *catalog.Catalog
	scopes     *scopes.Registry
	streams    Streams
	conductor  *conductor.Registry
	selections *counts.Selections

	// last is what the last check saw. Only the goroutine of Run uses it.
	last seen
	// publishers has the publishers during a check, by stream; nil: not loaded yet.
	publishers map[catalog.Rank]*conductor.Publisher
}

// seen is what a check saw.
type seen struct {
	workers, conductor streamsByRank
	dropped            [kvevents.NumReasons]uint64
	undecodable        uint64
	badFrames          uint64
	copiesAsSet        uint64
	replays            [kvevents.NumReplayResults]uint64
	models             map[*counts.ModelSelections]modelTally
}

// streamsByRank has streams sorted by rank, as Subscribers.Streams returns them. There may be
// thousands, and a map would take twice the memory.
type streamsByRank []kvevents.StreamStatus

// of returns the stream of a rank.
func (s streamsByRank) of(r catalog.Rank) (status kvevents.StreamStatus, ok bool) {
	i, ok := slices.BinarySearchFunc(s, r, func(st kvevents.StreamStatus, r catalog.Rank) int { return st.Rank.Compare(r) })
	if !ok {
		return kvevents.StreamStatus{}, false
	}
	return s[i], true
}

// NewWatcher returns a watcher that writes to log.
func NewWatcher(c *catalog.Catalog, s *scopes.Registry, streams Streams, publishers *conductor.Registry, selections *counts.Selections, log zerolog.Logger) *Watcher {
	return &Watcher{log: log, catalog: c, scopes: s, streams: streams, conductor: publishers, selections: selections}
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
	var news []streamNews
	collectNews(&news, w.streams.Workers.Streams(), &w.last.workers)
	own := len(news)
	collectNews(&news, w.streams.Conductor.Streams(), &w.last.conductor)
	if len(news) > own {
		news = append(news[:own], w.withPublishers(news[own:])...)
	}
	w.lookAtStreams(news)
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

// streamNews has the changes of one stream.
type streamNews struct {
	streamName
	state      kvevents.StreamState
	was        kvevents.StreamState // state at the last check, if not fresh
	fresh      bool                 // seen for the first time
	lost       uint64               // messages
	restarts   uint64
	replays    uint64 // begun
	badReplays uint64
	badReplay  kvevents.ReplayResult // the last of them
}

// newsOf compares a stream with its state at the last check.
func newsOf(st kvevents.StreamStatus, before streamsByRank) streamNews {
	was, seen := before.of(st.Rank)
	if was.Endpoint != st.Endpoint || was.Applied > st.Applied || was.Lost > st.Lost || was.Restarts > st.Restarts ||
		was.Replays > st.Replays || was.BadReplays > st.BadReplays {
		was, seen = kvevents.StreamStatus{}, false // another stream of the same rank
	}
	return streamNews{
		streamName: streamName{rank: st.Rank, endpoint: st.Endpoint},
		state:      st.State, was: was.State, fresh: !seen,
		lost: st.Lost - was.Lost, restarts: st.Restarts - was.Restarts, replays: st.Replays - was.Replays,
		badReplays: st.BadReplays - was.BadReplays, badReplay: st.BadReplay,
	}
}

// moved reports whether the state has changed.
func (n *streamNews) moved() bool { return n.fresh || n.was != n.state }

// lineDue reports whether the stream gets a line of its own.
func (n *streamNews) lineDue() bool { return n.moved() || n.lost > 0 || n.restarts > 0 }

// disconnected reports whether the connection to the publisher was lost.
func (n *streamNews) disconnected() bool {
	return !n.fresh && n.moved() && n.state == kvevents.Connecting
}

// bad reports whether the change needs an operator.
func (n *streamNews) bad() bool {
	return n.disconnected() || n.moved() && n.state == kvevents.Stale || n.lost > 0 || n.restarts > 0
}

func (n *streamNews) level() zerolog.Level {
	if n.bad() {
		return zerolog.WarnLevel
	}
	return zerolog.InfoLevel
}

func (n *streamNews) text() string {
	switch {
	case n.disconnected():
		return "kv event stream has lost its connection"
	case n.restarts > 0:
		return "engine of a kv event stream has restarted: its blocks are gone"
	case n.lost > 0:
		return "kv event stream has lost messages"
	}
	return "kv event stream is " + n.state.String()
}

// MarshalZerologObject writes the stream's name and its changes.
func (n streamNews) MarshalZerologObject(e *zerolog.Event) {
	e.EmbedObject(n.streamName)
	if n.moved() && !n.fresh {
		e.Stringer("was", n.was)
	}
	e.Stringer("state", n.state)
	addCount(e, "messages_lost", n.lost)
	addCount(e, "restarts", n.restarts)
	addCount(e, "replays", n.replays)
}

// addCount writes a field if n is not 0, and reports whether it did.
func addCount(e *zerolog.Event, name string, n uint64) bool {
	if n > 0 {
		e.Uint64(name, n)
	}
	return n > 0
}

// collectNews appends the changes of some streams since the last check, and updates last.
func collectNews(news *[]streamNews, now streamsByRank, last *streamsByRank) {
	for _, st := range now {
		if n := newsOf(st, *last); n.lineDue() || n.badReplays > 0 {
			*news = append(*news, n)
		}
	}
	*last = now
}

// withPublishers fills in the publishers of the streams, and drops streams whose publishers
// have just been withdrawn.
func (w *Watcher) withPublishers(news []streamNews) []streamNews {
	for i := range news {
		news[i].publisher = w.publisher(news[i].rank)
	}
	return slices.DeleteFunc(news, func(n streamNews) bool { return n.publisher == nil })
}

// lookAtStreams logs up to maxLines streams, those that need an operator first.
func (w *Watcher) lookAtStreams(all []streamNews) {
	news := slices.DeleteFunc(slices.Clone(all), func(n streamNews) bool { return !n.lineDue() })
	slices.SortStableFunc(news, func(a, b streamNews) int { return int(b.level()) - int(a.level()) })
	for _, n := range news[:min(len(news), maxLines)] {
		w.log.WithLevel(n.level()).EmbedObject(n).Msg(n.text())
	}
	if len(news) > maxLines {
		rest := news[maxLines:]
		w.log.WithLevel(rest[0].level()).Int("more", len(rest)).Msg("more kv event streams have changed")
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
		stream, _ := w.last.workers.of(sample.Rank) // the stream may be new
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
