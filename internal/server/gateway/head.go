package gateway

import (
	"cmp"
	"iter"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/internal/telemetry/tracing"
)

// Head has what the pipeline needs of a request's headers. A front sets its exported fields.
type Head struct {
	method, path string
	HasBody      bool // a body follows, perhaps an empty one
	// NoResponseBody: the gateway's filter does not send the response's body. The stream ends with
	// the request if the filter sends the response's trailers, else with the response's headers.
	NoResponseBody bool
	kind           openai.Kind
	// Upgrade: the request's body waits for the answer, and its pieces then pass in both
	// directions at once: a WebSocket or another upgrade of HTTP/1.1, an extended CONNECT of
	// HTTP/2 or 3, a plain CONNECT. A gateway forwards such headers only if it supports them.
	Upgrade bool
	// model is the model that the request names; empty: none, or not known yet. An upgrade names it
	// in its path's query (as OpenAI's realtime clients do), as its body comes too late.
	model string
	// contentType is the type of the body, "" if it is not said.
	contentType string
	encoding    string        // of the body, "" if it is not said
	tenants     []string      // values of x-tenant-id, in order
	stored      openai.Stored // what it has to do with what engines keep
	// priority and strictPriority take precedence over the body's hints; nil: missing or
	// malformed.
	priority       *int32
	strictPriority *uint32
	class          string // of the wait queue
	wants          wants
	reservation    reservation
	fairness       string // program that pays for the request; "": its session does, or the one that has started that
	session        identity.Session
	Subset         Subset          // zero: every endpoint
	without        []uint64        // ids of workers that have failed the request
	trace          tracing.Context // of the client
	span           *tracing.Span   // of the choice of an engine; nil: it is not traced
}

// The headers of the endpoint picker protocol (Gateway API Inference Extension, proposal 004), by
// which a gateway and its endpoint picker speak of endpoints.
const (
	DestinationHeader = "x-gateway-destination-endpoint"
	ServedHeader      = DestinationHeader + "-served"
	SubsetHeader      = DestinationHeader + "-subset"
)

// The header by which a client names the program that pays for a request in a class of the queue that is fair: llm-d's, under
// its present and its former name.
const (
	fairnessHeader = "x-llm-d-inference-fairness-id"
	fairnessAlias  = "x-gateway-inference-fairness-id"
)

// The headers to and from engines and sidecars.
const (
	rankHeader        = "x-data-parallel-rank" // vLLM and SGLang
	prefillerHeader   = "x-prefiller-host-port"
	prefillRankHeader = "x-prefiller-data-parallel-rank"
	sourceHeader      = "x-kv-cache-source-host-port" // llm-d
)

// ReadHead reads the names and values of headers. Names are in lower case, and HTTP/2's
// pseudo-headers stand for the method, the path and the protocol of an upgrade.
func (g *Gateway) ReadHead(headers iter.Seq2[string, string]) Head {
	prefix := g.config.MetadataPrefix
	h := Head{wants: wants{from: time.Now()}}
	who := g.config.Sessions.Reader()
	for name, value := range headers {
		who.Read(name, value) // also one that says something else, if it is configured
		switch name {
		case tracing.ParentHeader, tracing.StateHeader:
			h.trace.Set(name, value)
		case ":method":
			h.method = value
		case ":path":
			h.path = value
		case ":protocol", "upgrade":
			h.Upgrade = h.Upgrade || value != ""
		case "content-type":
			h.contentType = cmp.Or(h.contentType, value)
		case "content-encoding":
			h.encoding = cmp.Or(h.encoding, strings.TrimSpace(value))
		case "x-tenant-id":
			h.tenants = append(h.tenants, value)
		case "x-dynamo-request-priority":
			if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 32); err == nil {
				h.priority = new(int32(n))
			}
		case "x-dynamo-request-strict-priority":
			if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32); err == nil {
				h.strictPriority = new(uint32(n))
			}
		case prefix + "policy-class":
			h.class = cmp.Or(strings.TrimSpace(value), h.class)
		case "x-dynamo-policy-class":
			h.class = cmp.Or(h.class, strings.TrimSpace(value))
		case fairnessHeader:
			h.fairness = cmp.Or(selection.FairName(value), h.fairness)
		case fairnessAlias:
			h.fairness = cmp.Or(h.fairness, selection.FairName(value))
		case preferHeader:
			h.reservation.prefers = h.reservation.prefers || prefersReservation(value)
		case pinHeader:
			h.reservation.pin = strings.TrimSpace(value)
		case profileHeader:
			h.reservation.profile = strings.ToLower(strings.TrimSpace(value))
		case reservationHeader:
			h.reservation.id = strings.TrimSpace(value)
		case ttftHeader:
			h.wants.ttft = cmp.Or(h.wants.ttft, value)
		case ttftAlias:
			h.wants.ttftAlias = cmp.Or(h.wants.ttftAlias, value)
		case deadlineHeader:
			h.wants.deadline = cmp.Or(h.wants.deadline, value)
		case onMissHeader:
			h.wants.onMiss = cmp.Or(h.wants.onMiss, value)
		case requestIDHeader:
			h.reservation.requestID = strings.TrimSpace(value)
		}
	}
	h.session = who.Session()
	h.kind = openai.KindOf(h.method, h.path)
	h.stored = openai.StoredOf(h.method, h.path)
	if h.Upgrade = (h.Upgrade || h.method == "CONNECT") && h.kind == openai.Other; h.Upgrade {
		_, query, _ := strings.Cut(h.path, "?")
		values, _ := url.ParseQuery(query) // what is malformed is left out
		h.model = values.Get("model")
	}
	return h
}

// tenant is the last tenant that the headers name, as that of the cache salt; "": none.
func (h *Head) tenant() string {
	for _, name := range slices.Backward(h.tenants) {
		if name = strings.TrimSpace(name); name != "" {
			return name
		}
	}
	return ""
}

// Subset is the set of endpoints that a request may go to.
type Subset struct {
	given bool
	of    map[string]bool // ip:port, or an address alone for all its ports
}

// SubsetOf returns the set of the endpoints in texts, which may be lists with commas. An empty set allows
// no endpoint.
func SubsetOf(texts ...string) (s Subset) {
	s = Subset{given: true, of: make(map[string]bool)}
	for _, text := range texts {
		for e := range strings.SplitSeq(text, ",") {
			if e = strings.TrimSpace(e); e != "" {
				s.of[canonical(e)] = true
			}
		}
	}
	return s
}

// canonical writes an address, with or without a port, as an endpoint has it: there are many
// ways to write an IPv6 address.
func canonical(text string) string {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
	}
	if addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")); err == nil {
		return addr.Unmap().String()
	}
	return text
}

// has reports whether an endpoint is in the subset.
func (s Subset) has(e endpoint) bool { return !s.given || s.of[e.text] || s.of[e.ip] }
