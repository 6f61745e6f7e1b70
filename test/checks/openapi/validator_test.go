package openapi

import (
	"net/http"
	"strings"
	"testing"
)

var jsonHeader = http.Header{"Content-Type": {"application/json"}}

// TestAnswer proves, without a server, what is a described answer and what is
// not.
func TestAnswer(t *testing.T) {
	const (
		ok       = `{"status":"ok"}`
		notFound = `{"error":"route not found"}`
		notHere  = `{"error":"route not found","reason":"route_not_found"}`
		load     = `{"worker_id":18446744073709551615,"dp_rank":0,"potential_prefill_tokens":1,"potential_decode_blocks":2,"active_requests":3}`
		overload = `{"error":"all","message":"busy","type":"service_unavailable","code":503}`
	)
	html, retry := http.Header{"Content-Type": {"text/html"}}, jsonHeader.Clone()
	retry.Set("Retry-After", "soon")
	for _, c := range []struct {
		name           string
		prefix         string
		method, target string
		status         int
		header         http.Header
		body, fault    string // fault: part of the error, "" for none
	}{
		{name: "good", method: "GET", target: "/health", status: 200, body: ok},
		{name: "with a query", method: "GET", target: "/loads?model_name=m", status: 200, body: `[]`},
		{name: "in another dialect", method: "GET", target: "/v1.6/health", status: 200, body: ok},
		{name: "parameter", method: "DELETE", target: "/reservations/a%2Fb", status: 200, body: ok},
		{name: "greatest integer", method: "POST", target: "/potential_loads", status: 200, body: "[" + load + "]"},
		{name: "HEAD", method: "HEAD", target: "/health", status: 200},
		{name: "no body", method: "GET", target: "/slots/health", status: 200, header: http.Header{}},
		{name: "unknown path", method: "GET", target: "/nowhere", status: 404, body: notFound},
		{name: "unknown method", method: "PUT", target: "/health", status: 405, body: notFound},
		{name: "empty parameter", method: "DELETE", target: "/reservations/", status: 404, body: notFound},
		{name: "overload", method: "POST", target: "/select", status: 503, body: overload},
		{name: "slots listener", prefix: "/slots", method: "GET", target: "/v1.6/workers", status: 200, body: `[]`},
		{name: "replicas on the slots listener", prefix: "/slots", method: "GET", target: "/replica_sync/peers", status: 200, body: `[]`},
		{name: "conductor listener", prefix: "/conductor", method: "GET", target: "/nowhere", status: 404, body: notHere},

		{name: "served, but unknown path", method: "GET", target: "/nowhere", status: 200, body: ok, fault: "404 is due"},
		{name: "served, but unknown method", method: "PUT", target: "/health", status: 200, body: ok, fault: "405 is due"},
		{name: "unknown path with a bare body", method: "GET", target: "/nowhere", status: 404, body: ok, fault: "error"},
		{name: "unknown path of the conductor in another form", prefix: "/conductor", method: "GET", target: "/x", status: 404, body: notFound, fault: "reason"},
		{name: "unknown status", method: "GET", target: "/health", status: 201, body: ok, fault: "no answer with this status"},
		{name: "unknown type", method: "GET", target: "/health", status: 200, header: html, body: ok, fault: "no answer of type text/html"},
		{name: "no type", method: "GET", target: "/health", status: 200, header: http.Header{}, body: ok, fault: "content type"},
		{name: "member too much", method: "GET", target: "/health", status: 200, body: `{"status":"ok","x":1}`, fault: "additional properties 'x'"},
		{name: "member too few", method: "GET", target: "/health", status: 200, body: `{}`, fault: "missing property 'status'"},
		{name: "wrong type", method: "GET", target: "/health", status: 200, body: `{"status":1}`, fault: "status"},
		{
			name: "too great an integer", method: "POST", target: "/potential_loads", status: 200,
			body: "[" + strings.Replace(load, "615", "616", 1) + "]", fault: "maximum",
		},
		{name: "no JSON", method: "GET", target: "/health", status: 200, body: `{`, fault: "no JSON"},
		{name: "two values", method: "GET", target: "/health", status: 200, body: ok + ok, fault: "no JSON"},
		{name: "body of an empty answer", method: "GET", target: "/slots/health", status: 200, body: ok, fault: "without a body"},
		{name: "body of HEAD", method: "HEAD", target: "/health", status: 200, body: ok, fault: "with a body"},
		{name: "overload without its members", method: "POST", target: "/select", status: 503, body: `{"error":"all","code":503}`, fault: "anyOf"},
		{name: "faulty header", method: "POST", target: "/select", status: 503, header: retry, body: overload, fault: "Retry-After"},
		{name: "slots listener with a prefix", prefix: "/slots", method: "GET", target: "/slots/workers", status: 200, body: `[]`, fault: "404 is due"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.header == nil {
				c.header = jsonHeader
			}
			v := load13(t)
			if c.prefix != "" {
				v = v.Under(c.prefix)
			}
			err := v.Answer(c.method, c.target, c.status, c.header, []byte(c.body))
			if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
				t.Errorf("got %v, want %q", err, c.fault)
			}
		})
	}
}

// TestRequest proves the same for requests.
func TestRequest(t *testing.T) {
	for _, c := range []struct{ name, method, target, body, fault string }{
		{"good", "POST", "/v1.6/reservations", `{"selection_id":"s","unknown":1}`, ""},
		{"without a body", "DELETE", "/reservations/r", ``, ""},
		{"ignored body", "POST", "/reservations/r/renew", `x`, ""},
		{"unknown", "POST", "/nowhere", `{}`, "not described"},
		{"member too few", "POST", "/reservations", `{"selection_id":"s"}`, "missing"},
		{"wrong type", "POST", "/select", `{"token_ids":[-1]}`, "minimum"},
		{"no JSON", "POST", "/select", ``, "no JSON"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := load13(t).Request(c.method, c.target, jsonHeader, []byte(c.body))
			if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
				t.Errorf("got %v, want %q", err, c.fault)
			}
		})
	}
}

func load13(t *testing.T) *Validator {
	t.Helper()
	return load(t, "1.3")
}
