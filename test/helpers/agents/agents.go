// Package agents has requests of agents as tests play them: their headers, and what these say of sessions.
package agents

import (
	_ "embed"
	"encoding/json"
	"testing"
)

// Request is the headers of one request.
type Request struct {
	Name string
	// Source is where the headers are from: recorded from a client, or a source that is public.
	Source  string
	Headers [][2]string // name, as it was sent, and value
	// What they say; empty: nothing.
	Session, Parent, Client string
	Final                   bool
}

//go:embed requests.json
var requests []byte

// Requests returns all requests.
func Requests(t testing.TB) (all []Request) {
	t.Helper()
	if err := json.Unmarshal(requests, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// Fields returns the names and values of the headers in turn.
func (r *Request) Fields() (fields []string) {
	for _, h := range r.Headers {
		fields = append(fields, h[:]...)
	}
	return fields
}
