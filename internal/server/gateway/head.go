package gateway

import (
	"cmp"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/internal/telemetry/tracing"
)

// head has what the picker needs of a request's headers.
type head struct {
	method, path string
	hasBody      bool // a body follows, perhaps an empty one
	// noResponseBody: the gateway's filter does not send the response's body. The stream ends with
	// the request if the filter sends the response's trailers, else with the response's headers.
	noResponseBody bool
	kind           openai.Kind
	// upgrade: the request's body waits for the answer, and its pieces then pass in both
	// directions at once: a WebSocket or another upgrade of HTTP/1.1, an extended CONNECT of
	// HTTP/2 or 3, a plain CONNECT. A gateway forwards such headers only if it supports them.
	upgrade bool
	// model is the model that the request names; empty: none, or not known yet. An upgrade names it
	// in its path's query (as OpenAI's realtime clients do), as its body comes too late.
	model   string
	tenants []string // values of x-tenant-id, in order
	// priority and strictPriority take precedence over the body's hints; nil: missing or
	// malformed.
	priority       *int32
	strictPriority *uint32
	class          string // of the wait queue
	session        string
	subset         subset
	trace          tracing.Context // of the client
	span           *tracing.Span   // of the choice of an engine; nil: it is not traced
}

// The headers and metadata of the endpoint picker protocol (Gateway API Inference Extension,
// proposal 004).
const (
	destinationKey = "x-gateway-destination-endpoint"
	servedKey      = destinationKey + "-served"
	subsetKey      = destinationKey + "-subset"
	lbNamespace    = "envoy.lb"
	subsetMetadata = "envoy.lb.subset_hint"
)

// The headers to and from engines and sidecars.
const (
	rankHeader        = "x-data-parallel-rank" // vLLM and SGLang
	prefillerHeader   = "x-prefiller-host-port"
	prefillRankHeader = "x-prefiller-data-parallel-rank"
)

// sessionHeaders may name the session of a request. The first one in this order that is not
// empty counts.
var sessionHeaders = [...]string{"x-dynamo-session-id", "x-session-id", "thread-id", "x-claude-code-session-id"}

// readHead reads the headers; Envoy sends their names in lower case. prefix is
// Config.MetadataPrefix.
func readHead(headers *corev3.HeaderMap, metadata *corev3.Metadata, prefix string) head {
	var h head
	var sessions [len(sessionHeaders)]string
	for _, f := range headers.GetHeaders() {
		switch f.GetKey() {
		case tracing.ParentHeader, tracing.StateHeader:
			h.trace.Set(f.GetKey(), valueOf(f))
		case ":method":
			h.method = valueOf(f)
		case ":path":
			h.path = valueOf(f)
		case ":protocol", "upgrade":
			h.upgrade = h.upgrade || valueOf(f) != ""
		case "x-tenant-id":
			h.tenants = append(h.tenants, valueOf(f))
		case "x-dynamo-request-priority":
			if n, err := strconv.ParseInt(strings.TrimSpace(valueOf(f)), 10, 32); err == nil {
				h.priority = new(int32(n))
			}
		case "x-dynamo-request-strict-priority":
			if n, err := strconv.ParseUint(strings.TrimSpace(valueOf(f)), 10, 32); err == nil {
				h.strictPriority = new(uint32(n))
			}
		case prefix + "policy-class":
			h.class = cmp.Or(strings.TrimSpace(valueOf(f)), h.class)
		case "x-dynamo-policy-class":
			h.class = cmp.Or(h.class, strings.TrimSpace(valueOf(f)))
		default:
			for i, name := range sessionHeaders {
				if f.GetKey() == name {
					sessions[i] = strings.TrimSpace(valueOf(f))
				}
			}
		}
	}
	for i := range sessions {
		if h.session = sessions[i]; h.session != "" {
			break
		}
	}
	h.kind = openai.KindOf(h.method, h.path)
	if h.upgrade = (h.upgrade || h.method == "CONNECT") && h.kind == openai.Other; h.upgrade {
		_, query, _ := strings.Cut(h.path, "?")
		values, _ := url.ParseQuery(query) // what is malformed is left out
		h.model = values.Get("model")
	}
	h.subset = readSubset(metadata.GetFilterMetadata()[subsetMetadata].GetFields()[subsetKey])
	return h
}

// valueOf returns the value of a header: Envoy sets one of the two fields.
func valueOf(h *corev3.HeaderValue) string {
	if len(h.GetRawValue()) > 0 {
		return string(h.GetRawValue())
	}
	return h.GetValue()
}

// responseHead has what the picker needs of a response's headers.
type responseHead struct {
	status                       int
	contentType, contentEncoding string
	served                       string // the endpoint that Envoy sent the request to; "": it does not report it
}

func readResponseHead(headers *corev3.HeaderMap, metadata *corev3.Metadata) responseHead {
	var h responseHead
	for _, f := range headers.GetHeaders() {
		switch f.GetKey() {
		case ":status":
			h.status, _ = strconv.Atoi(valueOf(f)) // Envoy's own
		case "content-type":
			h.contentType = valueOf(f)
		case "content-encoding":
			h.contentEncoding = valueOf(f)
		}
	}
	h.served = metadata.GetFilterMetadata()[lbNamespace].GetFields()[servedKey].GetStringValue()
	return h
}

// subset is the set of endpoints that a request may go to.
type subset struct {
	given bool
	of    map[string]bool // ip:port, or an address alone for all its ports
}

// readSubset reads a list of strings, or one string with commas. An empty subset allows no
// endpoint; a missing one allows all.
func readSubset(v *structpb.Value) subset {
	if v == nil {
		return subset{}
	}
	s := subset{given: true, of: make(map[string]bool)}
	add := func(text string) {
		for e := range strings.SplitSeq(text, ",") {
			if e = strings.TrimSpace(e); e != "" {
				s.of[canonical(e)] = true
			}
		}
	}
	add(v.GetStringValue())
	for _, e := range v.GetListValue().GetValues() {
		add(e.GetStringValue())
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
func (s subset) has(e endpoint) bool { return !s.given || s.of[e.text] || s.of[e.ip] }
