package service

import (
	"errors"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/selector"
)

// Outcome is how a selection ended.
type Outcome uint8

// The outcomes of a selection.
const (
	Selected    Outcome = iota // by /select
	Reserved                   // by /select_and_reserve
	NotReady                   // no schedulable workers in the scope, or shutting down
	NoEndpoint                 // the request's filters left none
	QueueFull                  // its class of the wait line takes no more
	IDTaken                    // the reservation id is live
	Invalid                    // the request can never work
	Failed                     // anything else: the worker left
	Refused                    // every worker that it could use is overloaded
	Abandoned                  // the client went away
	Repeated                   // answered as the first time
	NumOutcomes = int(iota)
)

var outcomeTexts = [NumOutcomes]string{
	"selected", "reserved", "not_ready", "no_endpoint", "queue_full", "id_taken", "invalid", "failed", "overloaded", "cancelled", "repeated",
}

// String gives the outcome's label.
func (o Outcome) String() string { return outcomeTexts[o] }

func outcomeOf(err error, reserve bool) Outcome {
	switch {
	case err == nil && reserve:
		return Reserved
	case err == nil:
		return Selected
	case errors.Is(err, selector.ErrNoEndpoints):
		return NoEndpoint
	}
	e, ok := errors.AsType[*contract.Error](err)
	if !ok {
		return Failed
	}
	switch e.Kind {
	case contract.BadRequest:
		return Invalid
	case contract.Conflict:
		return IDTaken
	case contract.Overloaded:
		return Refused
	case contract.Cancelled:
		return Abandoned
	case contract.QueueRejected:
		return QueueFull
	case contract.Unavailable:
		if e.Err == nil {
			return NotReady
		}
	}
	return Failed
}
