package gateway

import (
	"slices"
	"strconv"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
)

// Placement is where a request goes.
type Placement struct {
	destinations []endpoint // the chosen one first
	rank         *uint32    // the rank in the form of the engine's frontend; nil: it is not named
	prefiller    string     // ip:port of the prefill's engine; "": none
	prefillRank  *uint32    // of the prefill's engine, as rank
	prefills     *rankOf    // the rank of the prefill's engine; nil: none
	source       string     // host:port of the engine from which the sidecar of the one that prefills fetches; "": none
	hints        []byte     // kv_hints for the body; nil: none
	body         [][]byte   // body for the engine, in pieces
	limit        uint32     // of the answer, in tokens; 0: none
	booking      *booking   // nil: nothing is booked
	outcome      counts.GatewayOutcome
	trace        tracing.Context // for the engine
	scope        catalog.Scope
	chosen       catalog.Rank // that answers
	tenant       string       // whose session the request belongs to
}

// Addresses returns the endpoints that the request may go to, ip:port, the chosen one first.
func (p *Placement) Addresses() []string {
	all := make([]string, len(p.destinations))
	for i := range p.destinations {
		all[i] = p.destinations[i].text
	}
	return all
}

// Destination returns the chosen endpoint's address, ip:port, and the URL, or host:port, of its server as the
// record of its worker has it.
func (p *Placement) Destination() (address, url string) {
	return p.destinations[0].text, p.destinations[0].url
}

// Worker returns the chosen worker and rank as a header's value: ID;dp_rank=RANK.
func (p *Placement) Worker() string {
	return strconv.FormatUint(p.chosen.Worker, 10) + ";dp_rank=" + strconv.FormatUint(uint64(p.chosen.DP), 10)
}

// goesTo reports whether an endpoint, ip:port, is among the destinations.
func (p *Placement) goesTo(at string) bool {
	return slices.ContainsFunc(p.destinations, func(e endpoint) bool { return e.text == at })
}

// Body returns the request's body for the engine, in pieces.
func (p *Placement) Body() [][]byte { return p.body }

// Header is a header's field. Its name is in lower case.
type Header struct{ Name, Value string }

// placed are the headers that a placement may set; those that it does not set are removed.
var placed = [...]string{rankHeader, prefillerHeader, prefillRankHeader, sourceHeader}

// removals has the headers to remove for each set of headers of placed that a placement sets, by
// their bits: those of steering, and the rest of placed.
var removals = func() (lists [1 << len(placed)][]string) {
	for set := range lists {
		lists[set] = slices.Clone(steering)
		for i, name := range placed {
			if set&(1<<i) == 0 {
				lists[set] = append(lists[set], name)
			}
		}
	}
	return lists
}()

// Headers appends the headers that the engine gets in place of the client's to set, and returns the
// names of those that are to be removed, in a list that must not be changed.
func (p *Placement) Headers(set []Header) (all []Header, remove []string) {
	which := 0
	for i, value := range [len(placed)]string{rankText(p.rank), p.prefiller, rankText(p.prefillRank), p.source} {
		if value != "" {
			which |= 1 << i
			set = append(set, Header{placed[i], value})
		}
	}
	for _, name := range p.trace.Keys() {
		if value := p.trace.Get(name); value != "" {
			set = append(set, Header{name, value})
		}
	}
	return set, removals[which]
}

// tell has the request say where the engine of a booking fetches from. A sidecar reads the source in a header, for
// the engine that prefills. In the body both engines of a pair would read it, so that a pair has it in a header only.
func (p *Placement) tell(sel *selection.Selection) {
	switch f := sel.Fetch; {
	case f == nil:
	case f.Peer:
		p.source = f.Endpoint
	case p.prefiller == "":
		p.hints = f.AppendHint(nil, *sel.ReservationID)
	}
}

// rankText returns the value of a header that names a rank, "" for nil.
func rankText(rank *uint32) string {
	if rank == nil {
		return ""
	}
	return strconv.FormatUint(uint64(*rank), 10)
}
