package proxy

import (
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/transport/http1"
)

// ofConnection are the headers that are about one connection (RFC 9110, section 7.6.1) or the framing of one
// message, in the form of net/http. They are not passed on, in either direction.
var ofConnection = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Proxy-Authentication-Info": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Content-Length": true, "Expect": true, "Host": true, "Http2-Settings": true,
}

// named returns the headers that a header Connection names as its own, in the form of net/http.
func named(connection []string) (names map[string]bool) {
	for _, list := range connection {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.Trim(name, " \t"))
			if name == "" || ofConnection[name] || name == "Close" {
				continue
			}
			if names == nil {
				names = make(map[string]bool)
			}
			names[name] = true
		}
	}
	return names
}

// The headers with which a client may say who sent it the request, and the client's keys.
const forwarded = "X-Forwarded-"

// requestHeader returns the header for the engine: the client's, without what is about its connection and what is
// set here.
func (e *exchange) requestHeader(place *gateway.Placement) http1.Header {
	s, from := e.server, e.r.Header
	set, remove := place.Headers(make([]gateway.Header, 0, 8))
	of := named(from["Connection"])
	trusted := s.trusts(e.peer)
	own := s.config.Guard != nil || s.config.Token != nil
	header := make(http1.Header, 0, len(from)+len(set)+6)
	hasID := false
	for name, values := range from {
		switch {
		case ofConnection[name] || of[name]:
			continue
		case name == "Authorization" || name == "X-Api-Key":
			if own {
				continue
			}
		case strings.HasPrefix(name, "X-"):
			if !trusted && (strings.HasPrefix(name, forwarded) || name == "X-Real-Ip") || isSet(set, remove, name) || strings.EqualFold(name, gateway.DestinationHeader) {
				continue
			}
			hasID = hasID || name == "X-Request-Id"
		case name == "Forwarded" && !trusted, isSet(set, nil, name):
			continue
		}
		for _, value := range values {
			header = append(header, http1.Field{Name: name, Value: value})
		}
	}
	for _, f := range set {
		header = append(header, http1.Field{Name: f.Name, Value: f.Value})
	}
	if s.config.Token != nil {
		header = append(header, http1.Field{Name: "Authorization", Value: "Bearer " + s.config.Token()})
	}
	if !hasID {
		header = append(header, http1.Field{Name: "X-Request-Id", Value: uuid.NewString()})
	}
	return e.addForwarded(header, trusted)
}

// isSet reports whether a header is among those that a placement sets or removes.
func isSet(set []gateway.Header, remove []string, name string) bool {
	for i := range set {
		if strings.EqualFold(set[i].Name, name) {
			return true
		}
	}
	for _, n := range remove {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// addForwarded adds the headers that say who sent the request. The values that a peer gives for its own clients
// are kept only if the peer is trusted.
func (e *exchange) addForwarded(header http1.Header, trusted bool) http1.Header {
	add := func(name, value string) {
		if !trusted || e.r.Header.Get(name) == "" {
			header = append(header, http1.Field{Name: name, Value: value})
		}
	}
	if e.peer.IsValid() {
		header = append(header, http1.Field{Name: forwarded + "For", Value: e.peer.String()}) // behind those before
	}
	scheme := "http"
	if e.r.TLS != nil {
		scheme = "https"
	}
	add(forwarded+"Proto", scheme)
	if e.r.Host != "" {
		add(forwarded+"Host", e.r.Host)
	}
	return header
}

// addTo adds the header of an answer for the client: the engine's, without what is about its connection.
func addTo(to http.Header, from http1.Header) {
	var connection []string
	for value := range from.Values("Connection") {
		connection = append(connection, value)
	}
	of := named(connection)
	for i := range from {
		if name := http.CanonicalHeaderKey(from[i].Name); !ofConnection[name] && !of[name] {
			to[name] = append(to[name], from[i].Value)
		}
	}
}

// informational passes an answer before the last one on, such as 103.
func (e *exchange) informational(status int, header http1.Header) {
	if status == http.StatusProcessing || !e.r.ProtoAtLeast(1, 1) {
		return
	}
	h := e.w.Header()
	addTo(h, header)
	e.w.WriteHeader(status)
	clear(h)
}
