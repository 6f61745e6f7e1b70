package service

import (
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// maxExamples bounds the streams that are named in a line about all of them.
const maxExamples = 5

// lookAtReplays logs the replays of all streams that did not bring all that was
// asked for, and of a few which ones.
func (w *watcher) lookAtReplays(news []streamNews) {
	results, failed := zerolog.Dict(), false
	for r := range w.replays {
		n := w.s.streams.Counters().ReplayResults[r].Load() // Conductor's streams count there, too
		if r := kvevents.ReplayResult(r); r != kvevents.ReplayComplete && r != kvevents.ReplayAborted {
			failed = addCount(results, r.String(), n-w.replays[r]) || failed
		}
		w.replays[r] = n
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
	w.s.log.Warn().Dict("replays", results).EmbedObject(named).Msg("replays of kv event streams failed or had gaps")
}

// lookAtEvents logs what of all streams was not used and should have been, with
// an example of each kind of it.
func (w *watcher) lookAtEvents() {
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
		w.s.log.Warn().Dict("dropped", what).EmbedObject(w.examples()).Msg("kv events dropped")
	}
	w.dropped, w.undecodable, w.badFrames = dropped, undecodable, badFrames
}

// example names a stream, and what happened to it.
type example struct {
	stream    streamName
	key, text string
}

// MarshalZerologObject writes the fields.
func (x example) MarshalZerologObject(e *zerolog.Event) {
	e.EmbedObject(x.stream).Str(x.key, catalog.Clip(x.text))
}

type examples []example

// MarshalZerologObject writes them, if there are any.
func (x examples) MarshalZerologObject(e *zerolog.Event) {
	if len(x) > 0 {
		e.Array("examples", x)
	}
}

// MarshalZerologArray writes each.
func (x examples) MarshalZerologArray(a *zerolog.Array) {
	for _, one := range x {
		a.Object(one)
	}
}

// examples returns some of what was dropped since they were asked for last.
func (w *watcher) examples() examples {
	var out examples
	for _, sample := range w.s.streams.Samples() {
		name := streamName{rank: sample.Rank, endpoint: w.selection[sample.Rank].Endpoint}
		out = append(out, example{name, "reason", sample.Reason})
	}
	for _, sample := range w.s.conductor.Streams().Samples() {
		if p := w.publisher(sample.Rank); p != nil {
			out = append(out, example{streamName{publisher: p}, "reason", sample.Reason})
		}
	}
	return out
}
