package telemetry

import (
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// StreamObserver collects what happens to event streams between two checks of a Watcher. The zero
// value is ready for use. It is safe for concurrent use.
type StreamObserver struct {
	mu                  sync.Mutex // innermost; guards the fields below
	workers, publishers map[catalog.Rank]*streamNews
	more                int // transitions of further streams
}

// maxNews bounds the streams of which a check knows what has happened to them; of others it counts
// the transitions.
const maxNews = 16384

// Worker is kvevents.Config.Observe of the workers' streams.
func (o *StreamObserver) Worker(t kvevents.Transition) { o.note(&o.workers, t) }

// Publisher is kvevents.Config.Observe of the streams of the Conductor's publishers.
func (o *StreamObserver) Publisher(t kvevents.Transition) { o.note(&o.publishers, t) }

func (o *StreamObserver) note(of *map[catalog.Rank]*streamNews, t kvevents.Transition) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if *of == nil {
		*of = make(map[catalog.Rank]*streamNews)
	}
	n := (*of)[t.Rank]
	switch {
	case n != nil && !t.Added && n.endpoint == t.Endpoint:
	case n == nil && len(*of) == maxNews:
		o.more++
		return
	default:
		n = &streamNews{streamName: streamName{rank: t.Rank, endpoint: t.Endpoint}, was: t.Was, fresh: t.Added}
		(*of)[t.Rank] = n
	}
	n.add(&t)
}

// take returns what has happened since the last call, by rank, of the streams that there are, and how
// many transitions others had.
func (o *StreamObserver) take(now Streams) (workers, publishers []streamNews, more int) {
	o.mu.Lock()
	ofWorkers, ofPublishers := o.workers, o.publishers
	more = o.more
	o.workers, o.publishers, o.more = nil, nil, 0
	o.mu.Unlock()
	return newsOf(ofWorkers, now.Workers), newsOf(ofPublishers, now.Conductor), more
}

func newsOf(all map[catalog.Rank]*streamNews, now *kvevents.Subscribers) []streamNews {
	list := make([]streamNews, 0, len(all))
	for rank, n := range all {
		if st, ok := now.Stream(rank); ok && st.Endpoint == n.endpoint && (n.lineDue() || n.badReplays > 0) {
			list = append(list, *n)
		}
	}
	slices.SortFunc(list, func(a, b streamNews) int { return a.rank.Compare(b.rank) })
	return list
}

// streamNews is what has happened to one stream between two checks.
type streamNews struct {
	streamName
	state      kvevents.StreamState
	was        kvevents.StreamState // state at the last check, if not fresh
	fresh      bool                 // the stream is new
	broken     bool                 // the connection was lost, it may be there again
	lost       uint64               // messages
	restarts   uint64
	replays    uint64 // begun
	badReplays uint64
	badReplay  kvevents.ReplayResult // the last of them
}

func (n *streamNews) add(t *kvevents.Transition) {
	n.state = t.State
	n.broken = n.broken || t.State == kvevents.Connecting && t.Was != kvevents.Connecting
	n.lost += t.Lost
	n.restarts += t.Restarts
	n.replays += t.Replays
	n.badReplays += t.BadReplays
	n.badReplay = t.BadReplay
}

// moved reports whether the state has changed.
func (n *streamNews) moved() bool { return n.fresh || n.was != n.state }

// lineDue reports whether the stream gets a line of its own.
func (n *streamNews) lineDue() bool { return n.moved() || n.broken || n.lost > 0 || n.restarts > 0 }

// disconnected reports whether the connection to the publisher was lost and is not there.
func (n *streamNews) disconnected() bool { return n.broken && n.state == kvevents.Connecting }

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
	case n.broken && !n.moved():
		return "kv event stream had lost its connection, and has it again"
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
