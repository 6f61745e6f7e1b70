package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
)

// gateway looks at what the gateway has counted.
func (ex *examination) gateway() {
	if ex.doctor.gateway == nil {
		return
	}
	now, was := ex.doctor.gatewayCounts(), ex.before.gateway
	ex.looked(Tokenizer)
	if n := now.failures - was.failures; n > 0 {
		ex.find(Finding{
			Check: Tokenizer, Severity: Warning, Count: n, Remedy: "Check --gateway-tokenizer-url and the tokenizer's log.",
			Sentence: fmt.Sprintf("The tokens of %d prompts of "+lately+" were unknown, as the tokenizer failed: their engines were chosen by load alone, or they were refused.", n),
		})
	}
	ex.answerBodies(now.booked-was.booked, now.pieces-was.pieces)
	const enough, tolerated = 100, 0.2 // answers; share of the cached tokens
	answers := now.answers - was.answers
	if answers < enough {
		return
	}
	ex.looked(HitRate)
	observed, predicted, apart := now.observed-was.observed, now.predicted-was.predicted, now.apart-was.apart
	if most := max(observed, predicted); most > 0 && apart > tolerated*most {
		ex.find(Finding{
			Check: HitRate, Severity: Warning, Count: answers, Remedy: "POST /diagnose with such a prompt says where its match ends and why.",
			Sentence: fmt.Sprintf("Of %d prompts of "+lately+" engines had cached %.0f tokens where the index said %.0f: it is wrong by %.0f %%.",
				answers, observed, predicted, 100*apart/most),
		})
	}
}

// answerBodies says when Envoy could send less of the answers than it does. Policies show what is lost without them
// by the rail late_scope. The shares of CPU are those of docs/how-it-works/gateway.md, "What the answers cost".
func (ex *examination) answerBodies(booked, pieces uint64) {
	const enough, long = 100, 40 // requests; pieces of an answer above which a second filter is cheaper
	if booked < enough || pieces < booked {
		return
	}
	ex.looked(AnswerBodies)
	learns := false
	for _, state := range ex.doctor.parts.Scopes.All() {
		if p := state.Rules().Policies; p != nil && p.PredictedTTFT() != nil {
			learns = true
		}
	}
	each := pieces / booked
	f := Finding{Check: AnswerBodies, Severity: Note, Count: booked}
	switch {
	case !learns:
		f.Sentence = fmt.Sprintf("Envoy sends each answer of "+lately+" through this process in %d pieces on average, and no policy learns from them.", each)
		f.Remedy = "response_body_mode: NONE saves a sixth of the CPU of both for short answers, and more than half for answers of 100 pieces. " +
			"Then output counts as no load, and metrics do not have the tokens that engines had cached."
	case each >= long && ex.doctor.parts.Replica == nil:
		f.Sentence = fmt.Sprintf("Envoy sends each answer of "+lately+" through this process in %d pieces on average, and the policy needs the first one alone.", each)
		f.Remedy = "A second filter that shows the first token halves the CPU of both for such answers (docs/how-it-works/gateway.md). " +
			"Then output counts as no load, and metrics do not have the tokens that engines had cached."
	default:
		return
	}
	ex.find(f)
}

// memory looks at the accounts of --max-memory.
func (ex *examination) memory() {
	const near = 0.9
	for _, a := range ex.doctor.parts.Memory.Accounts() {
		ex.looked(Memory)
		if limit := a.Limit(); float64(a.Used()) >= near*float64(limit) {
			ex.find(Finding{
				Check: Memory, Severity: Warning, Count: uint64(max(0, a.Used())), Remedy: "Raise --max-memory; docs/run/security.md says what happens when it is full.",
				Sentence: fmt.Sprintf("The memory account %s is nearly full: %d of %d bytes.", a.Name(), a.Used(), limit),
			})
		}
	}
}

// replicas compares the other replicas with this one. Where they are is about the whole process.
func (ex *examination) replicas(ctx context.Context, whole bool) {
	for _, p := range ex.doctor.peers.Peers(ctx, ex.of) {
		at, the := catalog.Clip(p.Endpoint), "The replica at "+catalog.Clip(p.Endpoint)
		if !whole {
			at, the = "", "Another replica"
		}
		find := func(check Check, severity Severity, remedy, format string, args ...any) {
			ex.find(Finding{Check: check, Severity: severity, Peer: at, Remedy: remedy, Sentence: fmt.Sprintf(format, args...)})
		}
		if whole {
			ex.looked(PeerUnreachable)
			if !p.Connected {
				find(PeerUnreachable, Error, "Check that the replica runs, and that the network lets its port through.", "%s is not connected.", the)
			}
		}
		for i := range p.Processes {
			q := &p.Processes[i]
			if q.Absent {
				continue
			}
			if q.Error != "" && p.Connected && whole {
				find(PeerUnreachable, Warning, "Check --advertise-url of the replica, and that the token of --peer-token-file has the role peer.",
					"%s does not tell its state: %s.", the, catalog.Clip(q.Error))
			}
			if q.Status == nil {
				continue
			}
			ex.looked(PeerThresholds, PeerLoads)
			if models := q.ThresholdsDiffer(); len(models) > 0 {
				find(PeerThresholds, Error, "Set the thresholds on every replica, or by configuration.",
					"%s has other busy thresholds for %s.", the, list(models))
			}
			for _, d := range q.Differing() {
				f := Finding{
					Check: PeerLoads, Severity: Error, Peer: at, Scope: new(d.Own.Scope()), Remedy: "Check that both follow each other, and have the same workers.",
					Sentence: fmt.Sprintf("%s counts %d requests with %d blocks of model %q, this one %d with %d.",
						the, d.Peer.Requests, d.Peer.Blocks, catalog.Clip(d.Own.Model), d.Own.Requests, d.Own.Blocks),
				}
				ex.find(f)
			}
			if !whole {
				continue
			}
			ex.looked(PeerPolicies, PeerClock)
			if q.PoliciesDiffer() {
				find(PeerPolicies, Error, "Start all replicas with the same contract, weights and policies.", "%s chooses by other rules.", the)
			}
			if q.ClocksApart() {
				find(PeerClock, Warning, "Synchronise the clocks of the machines.", "The clock of the replica at %s is %.1f s apart from this one's.", at, q.Clock.Abs().Seconds())
			}
		}
	}
}

// list names some models.
func list(models []string) string {
	const most = 5
	named := make([]string, 0, most)
	for _, m := range models[:min(len(models), most)] {
		named = append(named, fmt.Sprintf("model %q", catalog.Clip(m)))
	}
	if len(models) > most {
		named = append(named, "and others")
	}
	return strings.Join(named, ", ")
}
