package gateway

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/pkg/catalog"
)

// A client may ask in advance where a request would go, and have the place kept for it: some engines have to be
// named in the body of the request. The names are llm-d's (llm-d-router, pkg/common/routing and
// pkg/coordinator/steps/prefill_decode.go), but for reservationHeader. llm-d's endpoint picker keeps nothing.
const (
	preferHeader    = "prefer"                     // RFC 7240
	reserveEndpoint = "reserve-endpoint"           // the preference
	appliedHeader   = "preference-applied"         // RFC 7240, of the answer
	reservedHeader  = "x-llm-d-reserved-host-port" // of the answer
	pinHeader       = "x-llm-d-pin-host-port"      // of the request that follows
	profileHeader   = "epp-profile"                // prefill or decode: the request is that side of a pair alone
	requestIDHeader = "x-request-id"
	// llm-d's coordinator tells its requests for one client's apart by these ends of the id.
	reserveEnd, prefillEnd = "-reserve", "-prefill"
	// reservationHeader names what is reserved: in the answer, and in the request that follows.
	reservationHeader = "x-select-reservation-id"
)

// reservation is what the headers of a request say of reserved places.
type reservation struct {
	prefers                     bool // Prefer: reserve-endpoint
	id, pin, profile, requestID string
}

// prefersReservation reports whether a value of preferHeader has the preference. Values with quoted commas are not read.
func prefersReservation(value string) bool {
	for preference := range strings.SplitSeq(value, ",") {
		name, _, _ := strings.Cut(preference, ";")
		name, _, _ = strings.Cut(name, "=")
		if strings.EqualFold(strings.TrimSpace(name), reserveEndpoint) {
			return true
		}
	}
	return false
}

// follows returns the name of what has been reserved for the request; "": nothing.
func (r *reservation) follows() string {
	if r.id == "" && r.pin != "" {
		return cmp.Or(strings.TrimSuffix(r.requestID, prefillEnd), r.pin)
	}
	return r.id
}

// readReservation reads what is to be reserved for a later request, or has been for this one.
func (r *request) readReservation() *Problem {
	v := &r.head.reservation
	switch {
	case v.prefers && r.config.ReserveFor <= 0:
		return errInvalid("reservations_off", "This gateway reserves no endpoints.")
	case v.prefers:
		name, found := strings.CutSuffix(v.requestID, reserveEnd)
		if r.reserves = name; !found || name == "" || r.api.IsReserved(r.reservationID(name)) {
			r.reserves = uuid.NewString()
		}
	case r.config.ReserveFor > 0:
		r.follows = v.follows()
	}
	switch v.profile {
	case catalog.RolePrefill:
		r.alone, r.prefillOnly = true, r.pool.prefills
	case catalog.RoleDecode:
		r.alone, r.decodeOnly = true, r.pool.prefills
	}
	return nil
}

// reservationID returns the id in the ledger of what is reserved under a name. Every replica has the same one, and those
// of other callers, tenants and models are others: nobody can take over what is reserved for somebody else.
func (r *request) reservationID(name string) string {
	caller := ""
	if r.caller != nil {
		caller = r.caller.Name
	}
	sc := r.target.scope
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %q", sc.Model, sc.Tenant, caller, r.sessionTenant(), name))
	return "reserved-" + hex.EncodeToString(sum[:16])
}

// answerReserved ends a request for which a place has been reserved. llm-d's names the endpoint that the request itself would go
// to; of a pair also the engine that prefills has a name, as in the request for the sidecar.
func (r *request) answerReserved(place *Placement) *Problem {
	if place.booking == nil {
		return errFull("limit_reached", "A limit of the endpoint picker is reached.")
	}
	p := &Problem{status: http.StatusNoContent, code: "reserved", outcome: counts.GatewayReserved, headers: []Header{
		{appliedHeader, reserveEndpoint}, {reservedHeader, place.destinations[0].text}, {reservationHeader, r.reserves},
	}}
	if place.prefiller != "" {
		p.headers = append(p.headers, Header{prefillerHeader, place.prefiller})
	}
	return p
}

// errReservationGone is for a request whose reserved place has not been reserved for it, is over or was taken: what it says may be
// right for that place alone.
func errReservationGone(cause error) *Problem {
	p := errUnavailable("reservation_gone", "What was reserved for this request is not any more: reserve again.", cause)
	p.retry = true
	return p
}

// checkTaken returns why a request may not go to the place that was reserved for it.
func (r *request) checkTaken(place *Placement) error {
	if pin := r.head.reservation.pin; pin != "" && canonical(pin) != place.destinations[0].text {
		return errReservationGone(nil)
	}
	if !r.head.Subset.has(place.destinations[0]) {
		return errNoEndpoint(nil)
	}
	return nil
}

// isGone reports whether the error of a choice says that nothing is reserved for the request.
func (r *request) isGone(err error) bool {
	return r.follows != "" && contract.KindOf(err) == contract.NotFound
}
