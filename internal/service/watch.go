package service

import (
	"context"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/conductorapi"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// watchEvery is how often event streams and models are looked at for the log.
const watchEvery = 10 * time.Second

// maxLines bounds the lines that one look writes about single streams, or single
// models; a further line counts the rest.
const maxLines = 20

// watch writes down, until ctx ends, what an operator should know of the event
// streams and of the models that refuse selections.
func (s *Service) watch(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	w := watcher{s: s}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.look()
		}
	}
}

// watcher tells what has changed between two looks. It belongs to one goroutine.
type watcher struct {
	s *Service

	// As of the last look:

	selection, conductor map[catalog.Rank]kvevents.StreamStatus
	dropped              [kvevents.NumReasons]uint64
	undecodable          uint64
	badFrames            uint64
	replays              [kvevents.NumReplayResults]uint64
	models               map[*modelStats]modelTally

	// publishers are those of the look at hand, by stream; nil: not asked for yet.
	publishers map[catalog.Rank]*conductor.Publisher
}

// look writes what is new; nothing if nothing is.
func (w *watcher) look() {
	w.publishers = nil
	var news []streamNews
	w.selection = collectNews(&news, w.s.streams.Streams(), w.selection)
	own := len(news)
	w.conductor = collectNews(&news, w.s.conductor.Streams().Streams(), w.conductor)
	if len(news) > own {
		news = append(news[:own], w.withPublishers(news[own:])...)
	}
	w.lookAtStreams(news)
	w.lookAtReplays(news)
	w.lookAtEvents()
	w.lookAtModels()
}

// streamName says whose a stream is.
type streamName struct {
	rank      catalog.Rank
	endpoint  string
	publisher *conductor.Publisher // nil: of a selection worker
}

// MarshalZerologObject writes the fields.
func (n streamName) MarshalZerologObject(e *zerolog.Event) {
	if n.publisher != nil {
		e.EmbedObject(conductorapi.LoggedRegistration(n.publisher.Registration))
	} else {
		e.Uint64("worker", n.rank.Worker).Uint32("rank", n.rank.DP).Str("endpoint", catalog.Clip(n.endpoint))
	}
}

// publisher returns the publisher of one of Conductor's streams, nil if it has
// been withdrawn.
func (w *watcher) publisher(rank catalog.Rank) *conductor.Publisher {
	if w.publishers == nil {
		w.publishers = make(map[catalog.Rank]*conductor.Publisher)
		for _, p := range w.s.conductor.Registry().Publishers() {
			w.publishers[conductorapi.StreamRank(p)] = p
		}
	}
	return w.publishers[rank]
}

// streamNews is what is new of one stream.
type streamNews struct {
	streamName
	state      kvevents.StreamState
	was        kvevents.StreamState // if not fresh
	fresh      bool                 // seen for the first time
	lost       uint64               // messages
	restarts   uint64
	replays    uint64 // begun
	badReplays uint64
	badReplay  kvevents.ReplayResult // the last of them
}

// newsOf compares a stream with what was seen of it before, if anything.
func newsOf(st kvevents.StreamStatus, before map[catalog.Rank]kvevents.StreamStatus) streamNews {
	was, seen := before[st.Rank]
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

// moved: the state is another one.
func (n *streamNews) moved() bool { return n.fresh || n.was != n.state }

// lineDue: it is worth a line of its own.
func (n *streamNews) lineDue() bool { return n.moved() || n.lost > 0 || n.restarts > 0 }

// disconnected: the publisher was there and is not any more.
func (n *streamNews) disconnected() bool {
	return !n.fresh && n.moved() && n.state == kvevents.Connecting
}

// bad: somebody should look after it.
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

// MarshalZerologObject writes whose stream it is and what is new.
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

// addCount writes a field, if there is anything to count, and returns whether
// there is.
func addCount(e *zerolog.Event, name string, n uint64) bool {
	if n > 0 {
		e.Uint64(name, n)
	}
	return n > 0
}

// collectNews adds what is new of some streams, and returns them by rank.
func collectNews(news *[]streamNews, now []kvevents.StreamStatus, before map[catalog.Rank]kvevents.StreamStatus) map[catalog.Rank]kvevents.StreamStatus {
	seen := make(map[catalog.Rank]kvevents.StreamStatus, len(now))
	for _, st := range now {
		seen[st.Rank] = st
		if n := newsOf(st, before); n.lineDue() || n.badReplays > 0 {
			*news = append(*news, n)
		}
	}
	return seen
}

// withPublishers names the publishers of the streams, and leaves out streams
// whose publishers have just been withdrawn.
func (w *watcher) withPublishers(news []streamNews) []streamNews {
	for i := range news {
		news[i].publisher = w.publisher(news[i].rank)
	}
	return slices.DeleteFunc(news, func(n streamNews) bool { return n.publisher == nil })
}

// lookAtStreams logs single streams, bad news first, as many as one look may.
func (w *watcher) lookAtStreams(all []streamNews) {
	news := slices.DeleteFunc(slices.Clone(all), func(n streamNews) bool { return !n.lineDue() })
	slices.SortStableFunc(news, func(a, b streamNews) int { return int(b.level()) - int(a.level()) })
	for _, n := range news[:min(len(news), maxLines)] {
		w.s.log.WithLevel(n.level()).EmbedObject(n).Msg(n.text())
	}
	if len(news) > maxLines {
		rest := news[maxLines:]
		w.s.log.WithLevel(rest[0].level()).Int("more", len(rest)).Msg("more kv event streams have changed")
	}
}
