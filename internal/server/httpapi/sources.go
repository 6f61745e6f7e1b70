package httpapi

import (
	"encoding/json"

	"github.com/select-service/select-service/internal/fleet"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

// appendReport appends what a source that discovers workers knows, as GET /KIND shows it.
func appendReport(out []byte, of Sources, kind catalog.SourceKind) []byte {
	if of != nil {
		for _, r := range of.Reports() {
			if r.Kind == kind {
				return appendJSON(out, r.Detail)
			}
		}
	}
	return append(out, `{"enabled":false}`...)
}

// appendReports appends a member of GET /ready for each source that tells what it knows, named as its kind.
func appendReports(out []byte, of Sources) []byte {
	if of == nil {
		return out
	}
	for _, r := range of.Reports() {
		out = appendJSON(appendKey(out, string(r.Kind)), struct {
			Synced  bool           `json:"synced"`
			Sources []workers.Part `json:"sources"`
		}{r.Synced, r.Parts})
	}
	return out
}

// appendMembership appends the member fleet of GET /ready, if this replica is of a fleet.
func appendMembership(out []byte, of FleetStatus) []byte {
	if of == nil {
		return out
	}
	m := of.Membership()
	if m == nil {
		return out
	}
	return appendJSON(appendKey(out, "fleet"), struct {
		State    string       `json:"state"`
		Fault    string       `json:"fault,omitempty"`
		Replica  string       `json:"replica"`
		Replicas []string     `json:"replicas"`
		Catalog  fleet.Status `json:"catalog"`
	}{m.State, m.Fault, m.Replica, m.Replicas, m.Catalog})
}

// appendJSON appends a value of strings, numbers and times, which can always be written.
func appendJSON(out []byte, v any) []byte {
	text, _ := json.Marshal(v)
	return append(out, text...)
}
