package httpapi

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/select-service/select-service/internal/server/doctor"
	"github.com/select-service/select-service/internal/server/replicastatus"
	"github.com/select-service/select-service/pkg/catalog"
)

func (o operatorRoutes) doctor(c request, f catalog.ScopeFilter) (func(out []byte) []byte, error) {
	x := o.Doctor.Examine(c.Request.Context(), f, !c.who.Scoped())
	return func(out []byte) []byte { return o.d.appendExamination(out, x) }, nil
}

func (d dialect) appendExamination(out []byte, x *doctor.Examination) []byte {
	out = appendTime(append(out, '{'), "time", x.Time)
	out = appendBoolField(out, "healthy", x.Healthy())
	out = appendList(appendKey(out, "findings"), x.Findings, d.appendFinding)
	out = append(appendKey(out, "checks"), '[')
	for c, result := range x.Results {
		check := doctor.Check(c)
		out = appendStringField(append(appendComma(out), '{'), "check", check.String())
		out = appendStringField(out, "title", check.Title())
		out = append(appendStringField(out, "result", string(result)), '}')
	}
	return append(appendBoolField(append(out, ']'), "truncated", x.Truncated), '}')
}

func (d dialect) appendFinding(out []byte, f doctor.Finding) []byte {
	out = appendStringField(append(out, '{'), "check", f.Check.String())
	out = appendStringField(out, "severity", string(f.Severity))
	out = appendStringField(out, "sentence", f.Sentence)
	out = appendStringField(out, "remedy", f.Remedy)
	out = appendStringField(out, "runbook", f.Check.Runbook())
	if f.Scope != nil {
		out = d.appendScope(out, *f.Scope)
	}
	switch {
	case f.Rank != nil:
		out = appendRank(out, *f.Rank)
	case f.Worker != nil:
		out = appendUintField(out, "worker_id", *f.Worker)
	}
	if f.Peer != "" {
		out = appendStringField(out, "peer", f.Peer)
	}
	return append(appendCount(out, "count", f.Count), '}')
}

// replicas lists what is known of the other replicas. A caller of one model or tenant gets its own
// scopes' loads.
func (o operatorRoutes) replicas(c request, f catalog.ScopeFilter) (func(out []byte) []byte, error) {
	peers := o.Replicas.Peers(c.Request.Context(), f)
	if c.who.Scoped() { // where a replica is reached is no matter of one model or tenant
		for k, p := range peers {
			peers[k].Endpoint = ""
			for i := range p.Processes {
				p.Processes[i].URL, p.Processes[i].Error = "", ""
			}
		}
	}
	return func(out []byte) []byte { return o.appendReplicas(out, peers, !c.who.Scoped()) }, nil
}

// appendReplicas appends the answer of /replicas, with the counts of the whole process if they are asked for.
func (o operatorRoutes) appendReplicas(out []byte, peers []replicastatus.Peer, counts bool) []byte {
	own := o.Replicas.Status()
	stats := o.Replicas.Stats()
	out = appendBoolField(append(out, '{'), "enabled", stats != nil)
	out = appendStringField(out, "process", own.Process)
	out = appendStringField(out, "version", own.Version)
	out = appendSettingsVersion(out, own)
	if stats != nil && counts {
		out = append(appendKey(out, "stats"), '{')
		for _, n := range [...]struct {
			name string
			n    uint64
		}{
			{"sequence", stats.Sequence},
			{"lost", stats.Lost},
			{"late", stats.Late},
			{"duplicates", stats.Duplicates},
			{"snapshots", stats.Snapshots},
			{"snapshots_failed", stats.SnapshotsFailed},
			{"send_queue", uint64(stats.SendQueue)},
			{"receive_queue", uint64(stats.ReceiveQueue)},
		} {
			out = appendUintField(out, n.name, n.n)
		}
		out = append(out, '}')
	}
	out = appendList(appendKey(out, "peers"), peers, o.d.appendPeer)
	return append(out, '}')
}

// appendSettingsVersion appends the version of the fleet's settings, if there are any.
func appendSettingsVersion(out []byte, of *replicastatus.Status) []byte {
	if of.Shared == 0 {
		return out
	}
	return appendUintField(out, "settings_version", of.Shared)
}

func (d dialect) appendPeer(out []byte, p replicastatus.Peer) []byte {
	out = appendStringField(append(out, '{'), "endpoint", p.Endpoint)
	out = appendBoolField(out, "connected", p.Connected)
	out = appendList(appendKey(out, "processes"), p.Processes, d.appendProcess)
	return append(out, '}')
}

func (d dialect) appendProcess(out []byte, x replicastatus.Process) []byte {
	out = appendStringField(append(out, '{'), "process", strconv.FormatUint(x.Process, 10))
	out = appendStringField(out, "url", x.URL)
	out = appendBoolField(out, "absent", x.Absent)
	out = appendBoolField(out, "snapshot_wanted", x.Wanted)
	if x.Error != "" {
		out = appendStringField(out, "error", catalog.Clip(x.Error))
	}
	if x.Status == nil {
		return append(out, '}')
	}
	out = appendTime(out, "read", x.Read)
	out = appendStringField(out, "version", x.Status.Version)
	out = appendSettingsVersion(out, x.Status)
	out = appendFloatField(out, "clock_ahead_seconds", math.Round(x.Clock.Seconds()*1000)/1000)
	out = appendBoolField(out, "clocks_agree", !x.ClocksApart())
	out = appendBoolField(out, "policies_agree", !x.PoliciesDiffer())
	out = appendList(appendKey(out, "thresholds_differ"), x.ThresholdsDiffer(), appendString)
	differing := make(map[catalog.Scope]bool)
	for _, l := range x.Differing() {
		differing[l.Own.Scope()] = true
	}
	out = appendList(appendKey(out, "loads"), x.Common(), func(out []byte, l replicastatus.Difference) []byte {
		out = d.appendScope(append(out, '{'), l.Own.Scope())
		out = appendBoolField(out, "agree", !differing[l.Own.Scope()])
		for _, of := range [...]struct {
			name string
			*replicastatus.Load
		}{{"own", &l.Own}, {"peer", &l.Peer}} {
			out = append(appendKey(out, of.name), '{')
			out = appendUintField(out, "requests", of.Requests)
			out = appendUintField(out, "blocks", of.Blocks)
			out = append(appendUintField(out, "prefill_tokens", of.PrefillTokens), '}')
		}
		return append(out, '}')
	})
	return append(out, '}')
}

// status answers another replica.
func (o operatorRoutes) status(_ request, out []byte) (int, []byte, error) {
	text, err := json.Marshal(o.Replicas.Status())
	if err != nil {
		return 0, nil, fmt.Errorf("status for replicas: %w", err)
	}
	return http.StatusOK, append(out, text...), nil
}
