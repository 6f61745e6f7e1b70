package extproc

import (
	"iter"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/select-service/select-service/internal/server/gateway"
)

// The metadata of the endpoint picker protocol (Gateway API Inference Extension, proposal 004).
const (
	lbNamespace    = "envoy.lb"
	subsetMetadata = "envoy.lb.subset_hint"
)

// fields are the names and values of headers. Envoy sends the names in lower case.
func fields(headers *corev3.HeaderMap) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for _, f := range headers.GetHeaders() {
			if !yield(f.GetKey(), valueOf(f)) {
				return
			}
		}
	}
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
	h.served = metadata.GetFilterMetadata()[lbNamespace].GetFields()[gateway.ServedHeader].GetStringValue()
	return h
}

// readSubset reads the endpoints that a request may go to: a list of strings, or one string with commas.
// An empty subset allows no endpoint; a missing one, nil, allows all.
func readSubset(h *gateway.Head, metadata *corev3.Metadata) {
	v := metadata.GetFilterMetadata()[subsetMetadata].GetFields()[gateway.SubsetHeader]
	if v == nil {
		return
	}
	texts := []string{v.GetStringValue()}
	for _, e := range v.GetListValue().GetValues() {
		texts = append(texts, e.GetStringValue())
	}
	h.Subset = gateway.SubsetOf(texts...)
}
