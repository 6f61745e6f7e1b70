package rankstate

import (
	"math/bits"

	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// State is what a rank does for new requests.
type State uint8

// The states.
const (
	Ready      State = iota // it may be chosen
	Draining                // it gets no new requests
	Overloaded              // its worker is above a busy threshold
	Stalled                 // its engine has unfinished work and gives no sign of life
	Silent                  // its engine gives no sign of life
	Incomplete              // it cannot be chosen: something is missing in its worker's record, or in conflict
	// NumStates counts the states.
	NumStates = int(iota)
)

// String returns the state as answers name it.
func (s State) String() string {
	return [NumStates]string{"ready", "draining", "overloaded", "stalled", "silent", "incomplete"}[s]
}

// Cause is a fact about a rank that an operator may have to know.
type Cause uint8

// The causes. Of those that hold the first one decides the state.
const (
	WorkerIncomplete Cause = iota // the worker's record lacks something, or is in conflict
	WorkerDraining                // the worker is leaving
	NotInRecord                   // the record names an event endpoint of the rank, which is not one of the worker's own
	SlotTracker                   // callers of the slot tracker choose the rank by themselves
	EngineSilent                  // see reports.Silent
	EngineStalled                 // see reports.Stalled
	WorkerOverloaded              // all ranks of the worker are above a busy threshold
	StreamStale                   // see kvevents.Stale
	StreamDown                    // see kvevents.Connecting
	StreamReplaying               // see kvevents.Replaying
	StreamBehind                  // messages wait to be applied
	StreamLost                    // messages are lost
	// NumCauses counts the causes.
	NumCauses = int(iota)
)

// causes says of each cause how answers name it, which state it leads to, how urgent it is, and what
// the reason is where the worker's record does not give one.
var causes = [NumCauses]struct {
	name    string
	state   State
	urgency uint8
	reason  string
}{
	WorkerIncomplete: {"worker_incomplete", Incomplete, 7, ""},
	WorkerDraining:   {"worker_draining", Draining, 3, "its ranks are being taken away"},
	NotInRecord:      {"not_in_record", Incomplete, 3, "the worker's record has another range of ranks: only the KV events of this one are read"},
	SlotTracker:      {"slot_tracker", Ready, 0, ""},
	EngineSilent:     {"engine_silent", Silent, 9, "the engine gives no sign of life"},
	EngineStalled:    {"engine_stalled", Stalled, 8, "the engine has unfinished work and gives no sign of life"},
	WorkerOverloaded: {"worker_overloaded", Overloaded, 4, "all ranks of the worker are above a busy threshold"},
	StreamStale:      {"stream_stale", Ready, 5, ""},
	StreamDown:       {"stream_down", Ready, 2, ""},
	StreamReplaying:  {"stream_replaying", Ready, 2, ""},
	StreamBehind:     {"stream_behind", Ready, 1, ""},
	StreamLost:       {"stream_lost", Ready, 1, ""},
}

// String returns the cause as answers name it.
func (c Cause) String() string { return causes[c].name }

// Causes is a set of causes.
type Causes uint16

// Has reports whether the set has a cause.
func (c Causes) Has(one Cause) bool { return c&(1<<one) != 0 }

// All yields the causes in order.
func (c Causes) All(yield func(Cause) bool) {
	for ; c != 0; c &= c - 1 {
		if !yield(Cause(bits.TrailingZeros16(uint16(c)))) {
			return
		}
	}
}

// Verdict is the state of a rank. Verdicts can be compared.
type Verdict struct {
	State  State
	Causes Causes
}

// Reason returns why the rank of a worker is not Ready, "" if it is, or if nothing says why.
func (v Verdict) Reason(w *catalog.Worker) string {
	if v.State == Draining || v.State == Incomplete {
		if said := w.Explain(); len(said) > 0 {
			return said[0]
		}
	}
	for c := range v.Causes.All {
		if causes[c].state == v.State {
			return causes[c].reason
		}
	}
	return ""
}

// Urgency says how much the rank needs somebody, from 0 to 9; 0: it does not. What keeps a rank from
// requests against the operator's will has 7 or more.
func (v Verdict) Urgency() (most uint8) {
	for c := range v.Causes.All {
		most = max(most, causes[c].urgency)
	}
	return most
}

// IsCandidate reports whether the worker's record lets the rank be chosen, whatever its engine and its
// load say.
func (v Verdict) IsCandidate() bool { return v.Causes&noCandidate == 0 }

const noCandidate = 1<<WorkerIncomplete | 1<<WorkerDraining | 1<<NotInRecord | 1<<SlotTracker

// Stream is the state of a rank's KV events.
type Stream struct {
	Known bool // false: KV events are off, or none are followed for the rank
	State kvevents.StreamState
	Lag   int    // messages that are not applied yet
	Lost  uint64 // messages so far
}

// StreamOf returns the state of a stream.
func StreamOf(st *kvevents.StreamStatus) Stream {
	return Stream{Known: true, State: st.State, Lag: st.Pending + st.Held, Lost: st.Lost}
}

// Facts are what a rank is judged by. What a reader does not know, or does not ask about, is zero.
type Facts struct {
	Worker     *catalog.Worker
	DP         uint32 // the rank
	Liveness   reports.State
	Overloaded bool // see OverloadedWorkers
	Stream     Stream
}

// Judge returns the verdict. Of a rank that the record excludes nothing else counts: it gets no
// requests whatever its engine does.
func Judge(f Facts) (v Verdict) {
	w := f.Worker
	switch {
	case w.Tracked:
		v.Causes = 1 << SlotTracker
	case w.Lifecycle == catalog.Incomplete:
		v.Causes = 1 << WorkerIncomplete
	case w.Lifecycle != catalog.Schedulable:
		v.Causes = 1 << WorkerDraining
	case !w.HasRank(f.DP):
		v.Causes = 1 << NotInRecord
	default:
		v.Causes = f.causes()
	}
	for c := range v.Causes.All {
		if v.State = causes[c].state; v.State != Ready {
			break
		}
	}
	return v
}

// causes returns the causes that hold for a candidate.
func (f *Facts) causes() (s Causes) {
	add := func(c Cause, holds bool) {
		if holds {
			s |= 1 << c
		}
	}
	add(EngineSilent, f.Liveness == reports.Silent)
	add(EngineStalled, f.Liveness == reports.Stalled)
	add(WorkerOverloaded, f.Overloaded)
	if st := &f.Stream; st.Known {
		add(StreamStale, st.State == kvevents.Stale)
		add(StreamDown, st.State == kvevents.Connecting)
		add(StreamReplaying, st.State == kvevents.Replaying)
		add(StreamBehind, st.Lag > 0)
		add(StreamLost, st.Lost > 0)
	}
	return s
}
