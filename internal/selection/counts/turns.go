package counts

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

// Turn is where a reservation of a session went.
type Turn uint8

// Where turns go.
const (
	TurnNew        Turn = iota // the session, and its group, had no rank yet
	TurnHome                   // to the rank of the session, or of its group
	TurnGone                   // elsewhere: that rank is not schedulable
	TurnOverloaded             // elsewhere: its worker is overloaded
	TurnFiltered               // elsewhere: the request's filter excludes it
	TurnBusy                   // elsewhere: another rank costs less by more than the move
	numTurns
)

var turnNames = [numTurns]string{"new", "home", "gone", "overloaded", "filtered", "busy"}

// String returns the label of the turn.
func (t Turn) String() string { return turnNames[t] }

var sessionTurns = Families.Counter("session_turns_total", "Reservations of sessions that are kept on ranks, by where they went: home is the rank of the session or its group, new had none yet; the others went elsewhere, because the rank is gone, overloaded or filtered out by the request, or busy: another one costs less by more than a move.", "went")

// Turns counts the reservations of sessions. It is safe for concurrent use.
type Turns struct{ counts [numTurns]atomic.Uint64 }

// Note counts one.
func (t *Turns) Note(of Turn) { t.counts[of].Add(1) }

func (t *Turns) collect(ch chan<- prometheus.Metric) {
	for i := range t.counts {
		metrics.Send(ch, sessionTurns, t.counts[i].Load(), turnNames[i])
	}
}
