package httpapi

import (
	"encoding/json"

	"github.com/select-service/select-service/internal/fleet"
	"github.com/select-service/select-service/internal/workers/kubernetes"
)

// appendCluster appends the answer of GET /kubernetes. of is nil without discovery there.
func appendCluster(out []byte, of ClusterStatus) []byte {
	var st kubernetes.Status
	if of != nil {
		st = of.Status()
	}
	if !st.Enabled {
		return append(out, `{"enabled":false}`...)
	}
	return appendJSON(out, st)
}

// appendSources appends the member kubernetes of GET /ready, if there is discovery there.
func appendSources(out []byte, of ClusterStatus) []byte {
	if of == nil {
		return out
	}
	st := of.Status()
	if !st.Enabled {
		return out
	}
	type source struct {
		Name  string           `json:"name"`
		State kubernetes.State `json:"state"`
	}
	shown := struct {
		Synced  bool     `json:"synced"`
		Sources []source `json:"sources"`
	}{Synced: st.Synced, Sources: []source{}}
	for _, s := range st.Sources {
		shown.Sources = append(shown.Sources, source{s.Name, s.State})
	}
	return appendJSON(appendKey(out, "kubernetes"), shown)
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
