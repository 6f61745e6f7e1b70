package service

import (
	"context"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/conductor"
	"github.com/select-service/select-service/pkg/kvevents"
)

// watchEvery is how often the event streams are looked at for the log.
const watchEvery = 10 * time.Second

// watchStreams writes down, until ctx ends, what an operator should know of the
// event streams.
func (s *Service) watchStreams(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	w := streamWatch{s: s}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.look()
		}
	}
}

// streamWatch tells what has changed between two looks at the streams. It
// belongs to one goroutine.
type streamWatch struct {
	s *Service

	// As of the last look:

	selection, conductor map[catalog.Rank]kvevents.StreamStatus
	dropped              [kvevents.NumReasons]uint64
	undecodable          uint64
	badFrames            uint64
	replays              [kvevents.NumReplayResults]uint64
}

// look writes what is new; nothing if nothing is.
func (w *streamWatch) look() {
	w.lookAtStreams()
	w.lookAtReplays()
	w.lookAtEvents()
}

// streamNews is what is new of one stream.
type streamNews struct {
	stream    kvevents.StreamStatus
	publisher *conductor.Publisher // nil: of a selection worker
	was       kvevents.StreamState // if not fresh
	fresh     bool                 // seen for the first time
	lost      uint64               // messages
	restarts  uint64
	replays   uint64 // begun
}

// newsOf compares a stream with what was seen of it before, if anything.
func newsOf(st kvevents.StreamStatus, before map[catalog.Rank]kvevents.StreamStatus) (streamNews, bool) {
	was, seen := before[st.Rank]
	if was.Endpoint != st.Endpoint || was.Applied > st.Applied || was.Lost > st.Lost || was.Restarts > st.Restarts || was.Replays > st.Replays {
		was, seen = kvevents.StreamStatus{}, false // another stream of the same rank
	}
	n := streamNews{
		stream: st, was: was.State, fresh: !seen,
		lost: st.Lost - was.Lost, restarts: st.Restarts - was.Restarts, replays: st.Replays - was.Replays,
	}
	return n, n.fresh || n.moved() || n.lost > 0 || n.restarts > 0
}

// moved: the state is another one.
func (n *streamNews) moved() bool { return n.fresh || n.was != n.stream.State }

// disconnected: the publisher was there and is not any more.
func (n *streamNews) disconnected() bool {
	return !n.fresh && n.moved() && n.stream.State == kvevents.Connecting
}

// bad: somebody should look after it.
func (n *streamNews) bad() bool {
	return n.disconnected() || n.moved() && n.stream.State == kvevents.Stale || n.lost > 0 || n.restarts > 0
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
	return "kv event stream is " + n.stream.State.String()
}

// MarshalZerologObject writes whose stream it is and what is new.
func (n streamNews) MarshalZerologObject(e *zerolog.Event) {
	if p := n.publisher; p != nil {
		e.EmbedObject(loggedRegistration(p.Registration))
	} else {
		e.Uint64("worker", n.stream.Rank.Worker).Uint32("rank", n.stream.Rank.DP).Str("endpoint", clip(n.stream.Endpoint))
	}
	if n.moved() && !n.fresh {
		e.Stringer("was", n.was)
	}
	e.Stringer("state", n.stream.State)
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

func (w *streamWatch) lookAtStreams() {
	var news []streamNews
	w.selection = collectNews(&news, w.s.streams.Streams(), w.selection)
	own := len(news)
	w.conductor = collectNews(&news, w.s.conductorStreams.Streams(), w.conductor)
	if len(news) > own {
		news = append(news[:own], w.withPublishers(news[own:])...)
	}
	w.write(news)
}

// collectNews adds what is new of some streams, and returns them by rank.
func collectNews(news *[]streamNews, now []kvevents.StreamStatus, before map[catalog.Rank]kvevents.StreamStatus) map[catalog.Rank]kvevents.StreamStatus {
	seen := make(map[catalog.Rank]kvevents.StreamStatus, len(now))
	for _, st := range now {
		seen[st.Rank] = st
		if n, ok := newsOf(st, before); ok {
			*news = append(*news, n)
		}
	}
	return seen
}

// withPublishers names the publishers of the streams, and leaves out streams
// whose publishers have just been withdrawn.
func (w *streamWatch) withPublishers(news []streamNews) []streamNews {
	publishers := make(map[catalog.Rank]*conductor.Publisher)
	for _, p := range w.s.conductor.Publishers() {
		publishers[streamKey(p)] = p
	}
	for i := range news {
		news[i].publisher = publishers[news[i].stream.Rank]
	}
	return slices.DeleteFunc(news, func(n streamNews) bool { return n.publisher == nil })
}

// write logs news, bad ones first, as many as one look may.
func (w *streamWatch) write(news []streamNews) {
	slices.SortStableFunc(news, func(a, b streamNews) int { return int(b.level()) - int(a.level()) })
	for _, n := range news[:min(len(news), maxLines)] {
		w.s.log.WithLevel(n.level()).EmbedObject(n).Msg(n.text())
	}
	if len(news) > maxLines {
		rest := news[maxLines:]
		w.s.log.WithLevel(rest[0].level()).Int("more", len(rest)).Msg("more kv event streams have changed")
	}
}

// lookAtReplays logs the replays of all streams that did not bring all that was
// asked for.
func (w *streamWatch) lookAtReplays() {
	results, failed := zerolog.Dict(), false
	for r := range w.replays {
		n := w.s.streams.Counters().ReplayResults[r].Load() // Conductor's streams count there, too
		if r := kvevents.ReplayResult(r); r != kvevents.ReplayComplete && r != kvevents.ReplayAborted {
			failed = addCount(results, r.String(), n-w.replays[r]) || failed
		}
		w.replays[r] = n
	}
	if failed {
		w.s.log.Warn().Dict("replays", results).Msg("replays of kv event streams failed or had gaps")
	}
}

// lookAtEvents logs what of all streams was not used and should have been.
func (w *streamWatch) lookAtEvents() {
	tally, n := w.s.tally(), w.s.streams.Counters()
	dropped := tally.ByReason()
	undecodable, badFrames := n.Undecodable.Load(), n.FrameErrors.Load()

	what, found := zerolog.Dict(), false
	for reason := int(kvevents.Applied) + 1; reason < len(dropped); reason++ {
		if reason := kvevents.Reason(reason); !reason.Ordinary() {
			found = addCount(what, reason.String(), dropped[reason]-w.dropped[reason]) || found
		}
	}
	found = addCount(what, "undecodable_messages", undecodable-w.undecodable) || found
	found = addCount(what, "bad_frames", badFrames-w.badFrames) || found
	if found {
		w.s.log.Warn().Dict("dropped", what).Msg("kv events dropped")
	}
	w.dropped, w.undecodable, w.badFrames = dropped, undecodable, badFrames
}
