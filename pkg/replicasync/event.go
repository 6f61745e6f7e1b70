package replicasync

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// kind of an event.
type kind uint8

const (
	booked kind = iota
	prefillCompleted
	freed
	renewed // a lease; on TopicLeases, with numbers of its own

	// Of sessions, without numbers; see sessions.go.

	sessionBound
	sessionUnbound

	servedState // without a number, see served.go

	numKinds = int(iota)
	// numSteps are the kinds before those of sessions: steps of reservations.
	numSteps = int(sessionBound)
)

// kindTexts are labels of counters.
var kindTexts = [numKinds]string{
	booked: "booked", prefillCompleted: "prefill_completed", freed: "freed", renewed: "renewed",
	sessionBound: "session_bound", sessionUnbound: "session_unbound", servedState: "served",
}

func (k kind) String() string { return kindTexts[k] }

// event is one step in the life of a reservation as it is sent between replicas. For the
// kinds of sessions only scope, id and rank are set, and sender and sequence have the
// version of the binding.
type event struct {
	kind kind
	// sender is the process that published it; sequence is the sender's number of it,
	// 0 if the sender does not number its events.
	sender, sequence uint64
	// origin names the reservation; if its Sequence is 0, scope and id do.
	origin reservations.Origin

	scope     catalog.Scope
	blockSize uint32
	id        string
	rank      catalog.Rank
	home      bool   // of a session: see Session.Home
	payload   []byte // the whole message, of servedState alone

	// The fields below are set for booked only.

	perScope bool
	pair     bool // a side of a pair
	// prefix is how the prompt begins. hashes are all blocks in an event of this replica, and
	// those after the prefix in one that was read.
	prefix         reservations.Prefix
	hashes         []uint64
	track          bool
	hinted         bool // prefillTokens is given
	prefillTokens  uint64
	expectedOutput *uint32
	lease          time.Duration // 0: none
}

// topic is where events of that kind are published.
func (k kind) topic() string {
	switch k {
	case renewed:
		return TopicLeases
	case sessionBound:
		return TopicSessions
	case sessionUnbound:
		return TopicSessionEnds
	case servedState:
		return TopicServed
	}
	return TopicEvents
}

// reservation returns the reservation of a booked event that came from peer. authority is the
// sender's.
func (e *event) reservation(peer string, authority reservations.Authority) reservations.Reservation {
	b := reservations.Reservation{
		Authority: authority, Peer: peer, Origin: e.origin, Scope: e.scope, ID: e.id, Rank: e.rank, PerScope: e.perScope, Pair: e.pair,
		Prefix: e.prefix, Hashes: e.hashes, ExpectedOutput: e.expectedOutput, Lease: e.lease,
		Prompt: promptOf(e.prefix.Blocks+len(e.hashes), e.blockSize),
	}
	if e.track && e.hinted && e.prefillTokens > 0 {
		b.TrackPrefill, b.PrefillTokens = true, e.prefillTokens
	}
	return b
}

// promptOf returns the length in tokens of the complete blocks of a prompt; an incomplete
// last block is not sent between replicas.
func promptOf(blocks int, blockSize uint32) uint64 { return uint64(blocks) * uint64(blockSize) }

// ref names the reservation that an event ends, completes or renews. authority is the
// sender's about its own reservations.
func (e *event) ref(authority reservations.Authority) reservations.Ref {
	ref := reservations.Ref{Origin: e.origin, Scope: e.scope, ID: e.id, Rank: e.rank, Sender: e.sender, Authority: reservations.Relayed}
	if authority != reservations.ByOwner {
		return ref
	}
	if e.kind != renewed {
		ref.Event = reservations.Origin{Process: e.sender, Sequence: e.sequence}
	}
	if e.origin.Process == e.sender {
		ref.Authority = reservations.ByOwner
	}
	return ref
}

// name returns the full name of the reservation, which must have a number.
func (e *event) name() history.Name {
	return history.Name{Origin: e.origin, Hash: history.NameHash(e.scope, e.id, e.rank)}
}

// localEvent returns the event that this replica publishes about a step of its ledger.
func localEvent(k kind, process uint64, e reservations.Event, blockSize uint32) event {
	out := event{
		kind: k, sender: process, origin: e.Origin,
		scope: e.Scope, blockSize: blockSize, id: e.ID, rank: e.Rank,
	}
	if k != booked {
		return out
	}
	out.perScope, out.prefix, out.hashes, out.expectedOutput = e.PerScope, e.Prefix, e.Hashes, e.ExpectedOutput
	out.lease, out.pair = e.Lease, e.Pair
	out.prefillTokens = e.PrefillTokens
	// As Dynamo's two services do it: the slot tracker tracks if there are tokens; the
	// selection service always tracks, but states no tokens if they do not count.
	out.hinted = e.TrackPrefill && (e.PrefillTokens > 0 || !e.PerScope)
	out.track = out.hinted || !e.PerScope
	return out
}
