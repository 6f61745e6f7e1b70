package doctor

import (
	"cmp"
	"fmt"

	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// workers looks at the workers' records.
func (ex *examination) workers() {
	for _, w := range ex.doctor.parts.Catalog.List(ex.of.Model, ex.of.Tenant) {
		ex.looked(WorkerIncomplete, BlockSize, Model)
		verdict := rankstate.Judge(rankstate.Facts{Worker: w, DP: w.FirstRank()})
		if !verdict.Causes.Has(rankstate.WorkerIncomplete) {
			continue
		}
		why := cmp.Or(verdict.Reason(w), "its record is not complete")
		f := Finding{Check: WorkerIncomplete, Severity: Error, Scope: &w.Scope, Worker: &w.ID, Remedy: "Complete the worker's record, or delete it."}
		what := "cannot be chosen"
		switch w.Conflict() {
		case catalog.ConflictBlockSize:
			f.Check, what = BlockSize, "has another block size and cannot be chosen"
			f.Remedy = "Start all engines of the model with the same block size, and write that into the records."
		case catalog.ConflictModel:
			f.Check, what = Model, "serves another model and cannot be chosen"
			f.Remedy = "Correct model_name of the record, or the engine's model."
		case catalog.NoConflict:
		}
		f.Sentence = fmt.Sprintf("Worker %d %s: %s.", w.ID, what, catalog.Clip(why))
		ex.find(f)
	}
}

// streams looks at the KV event streams of the workers.
func (ex *examination) streams() {
	for _, snap := range ex.doctor.parts.Catalog.Snapshots() {
		if !snap.Scope.Matches(ex.of.Model, ex.of.Tenant) {
			continue
		}
		for _, e := range snap.Known() {
			if st, ok := ex.doctor.parts.Streams.Stream(e.Rank); ok {
				ex.looked(NoReplay, DroppedEvents, UndecodableEvents, StreamStale, StreamDown)
				ex.stream(snap, e, &st)
			}
		}
	}
}

// stream looks at one stream.
func (ex *examination) stream(snap *catalog.Snapshot, e catalog.Entry, st *kvevents.StreamStatus) {
	who := fmt.Sprintf("worker %d rank %d", e.Rank.Worker, e.DP)
	about := Finding{Severity: Warning, Scope: &snap.Scope, Rank: &e.Rank}
	find := func(check Check, severity Severity, n uint64, remedy, format string, args ...any) {
		f := about
		f.Check, f.Severity, f.Count, f.Remedy, f.Sentence = check, severity, n, remedy, fmt.Sprintf(format, args...)
		ex.find(f)
	}
	verdict := rankstate.Judge(rankstate.Facts{Worker: e.Worker, DP: e.DP, Stream: rankstate.StreamOf(st)})
	switch {
	case verdict.Causes.Has(rankstate.StreamDown):
		find(StreamDown, Error, 0, "Check that the engine runs and publishes KV events at this endpoint.",
			"The KV event stream of %s is not connected: nobody publishes at %s.", who, catalog.Clip(st.Endpoint))
	case verdict.Causes.Has(rankstate.StreamStale):
		find(StreamStale, Error, st.Lost, "Restart the engine, or let it clear its cache; a replay endpoint prevents it.",
			"The KV event stream of %s is stale: %d messages are lost, and its cached blocks may be wrong.", who, st.Lost)
	}
	replay := e.Worker.ReplayEndpoint != nil || e.Worker.ReplayEndpoints[e.DP] != ""
	recent := countsOf(&st.StreamCounts).since(ex.before.streams[e.Rank])
	if recent.lost > 0 && !replay {
		find(NoReplay, Warning, recent.lost, "Give the worker a replay_endpoint.",
			"The KV event stream of %s has lost %d messages in "+lately+", and nothing could bring them back: it has no replay endpoint.", who, recent.lost)
	}
	if recent.undecodable > 0 {
		find(UndecodableEvents, Error, recent.undecodable, "Check that the endpoint is that of KV events, in a form that docs/start/engines.md lists.",
			"%d messages of the KV event stream of %s could not be read in "+lately+".", recent.undecodable, who)
	}
	switch {
	case st.OtherBlockSize > 0:
		find(BlockSize, Error, recent.dropped, "Give the worker the engine's block size.",
			"The engine of %s has another block size than the %d tokens of its record: its KV events have %d, and none can be used. %d were dropped in "+lately+".",
			who, snap.BlockSize, st.OtherBlockSize, recent.dropped)
	case recent.dropped == 0:
	default:
		find(DroppedEvents, Warning, recent.dropped, "docs/reference/contract.md says what the reason means.",
			"%d KV events of %s were dropped in "+lately+", the last one as %s.", recent.dropped, who, st.DroppedWhy)
	}
}

// engines looks at what engines say, or do not say.
func (ex *examination) engines() {
	for _, snap := range ex.doctor.parts.Catalog.Snapshots() {
		if !snap.Scope.Matches(ex.of.Model, ex.of.Tenant) {
			continue
		}
		excluded := ex.doctor.parts.Reports.Excluded(snap.Scope)
		for _, e := range snap.Ranks() {
			verdict := rankstate.Judge(rankstate.Facts{Worker: e.Worker, DP: e.DP, Liveness: excluded.State(e.Rank)})
			st, reported := ex.doctor.parts.Reports.Status(snap.Scope, e.Rank)
			if !reported && verdict.State == rankstate.Ready {
				continue
			}
			ex.looked(EngineStalled, EngineSilent)
			who := fmt.Sprintf("worker %d rank %d", e.Rank.Worker, e.DP)
			f := Finding{Severity: Error, Scope: &snap.Scope, Rank: &e.Rank, Remedy: "Look at the engine's log; restart it if it hangs."}
			switch {
			case verdict.Causes.Has(rankstate.EngineSilent) && !reported:
				f.Check, f.Sentence = EngineSilent, fmt.Sprintf("The engine of %s takes no connections, and gets no new requests.", who)
				ex.find(f)
			case verdict.Causes.Has(rankstate.EngineSilent):
				f.Check, f.Sentence = EngineSilent, fmt.Sprintf("The engine of %s is silent for %.0f s, and gets no new requests.", who, st.Age.Seconds())
				ex.find(f)
			case verdict.Causes.Has(rankstate.EngineStalled):
				f.Check, f.Sentence = EngineStalled, fmt.Sprintf("The engine of %s has unfinished work and makes no progress; it gets no new requests.", who)
				ex.find(f)
			}
			recorded := e.Worker.TotalKVBlocks
			tokens, said := st.KVTokensTotal.Get()
			if recorded == nil || !said || snap.BlockSize == 0 {
				continue
			}
			ex.looked(Capacity)
			if blocks := tokens / uint64(snap.BlockSize); catalog.CapacityDiffers(*recorded, blocks) {
				ex.find(Finding{
					Check: Capacity, Severity: Warning, Scope: &snap.Scope, Rank: &e.Rank, Remedy: "Write the engine's number into the record.",
					Sentence: fmt.Sprintf("The engine of %s has room for %d blocks, its record says %d.", who, blocks, *recorded),
				})
			}
		}
	}
}

// publishers looks at the Conductor's publishers.
func (ex *examination) publishers() {
	for _, p := range ex.doctor.parts.Publishers.Publishers() {
		sc := catalog.Scope{Model: p.Model, Tenant: p.Tenant}
		if !sc.Matches(ex.of.Model, ex.of.Tenant) {
			continue
		}
		ex.looked(HashSeeds, UndecodableEvents)
		st := p.Status()
		if st.Hashes == diagnose.HashesOwn {
			ex.find(Finding{
				Check: HashSeeds, Severity: Warning, Scope: &sc, Peer: p.Instance, Remedy: "Register the publisher with the engine's hash seed.",
				Sentence: fmt.Sprintf("The hashes of publisher %q rank %d are the engine's own, not XXH3-64 with seed %d: blocks without tokens match nothing.",
					catalog.Clip(p.Instance), p.Rank, p.HashSeed),
			})
		}
		if n := st.Undecodable - ex.before.publishers[p.ID]; n > 0 {
			ex.find(Finding{
				Check: UndecodableEvents, Severity: Error, Scope: &sc, Peer: p.Instance, Count: n,
				Remedy:   "Check that the endpoint is that of KV events, in a form that docs/start/engines.md lists.",
				Sentence: fmt.Sprintf("%d messages of publisher %q rank %d could not be read in "+lately+".", n, catalog.Clip(p.Instance), p.Rank),
			})
		}
	}
}

// policies looks for scopes in which a guard rail has put Dynamo's cost in the place of predicted-ttft.
func (ex *examination) policies() {
	for sc, state := range ex.doctor.parts.Scopes.All() {
		p := state.Rules().Policies
		if !sc.Matches(ex.of.Model, ex.of.Tenant) || p == nil || p.PredictedTTFT() == nil {
			continue
		}
		ex.looked(Policy)
		for _, rail := range p.Learner.States() {
			f := Finding{Check: Policy, Severity: Warning, Scope: &sc}
			why := ""
			switch {
			case rail.Engaged && rail.Rail == ttft.LateScope:
				why = "the first tokens of most of its requests are told late, or never"
				f.Remedy = "Let the gateway see the answers' bodies, or their first tokens by a second filter, which costs half of the CPU where answers are long " +
					"(docs/how-it-works/gateway.md), or call prefill_complete at the first token. " +
					"Where answers are not streamed, --policy dynamo-default-cost-fn says that this cost is wanted."
			case rail.Engaged && rail.Rail == ttft.Untracked:
				why, f.Remedy = "prefills do not count as load", "Set --router-track-prefill-tokens, or another policy."
			default:
				continue
			}
			f.Sentence = fmt.Sprintf("Dynamo's cost decides for model %q instead of policy %s, and targets refuse nothing, as %s.", catalog.Clip(sc.Model), p.Name, why)
			ex.find(f)
		}
	}
}

const (
	// calibratedFrom is the number of compared predictions from which on they are judged.
	calibratedFrom = 200
	// mostOff is how far the median of observed over predicted times may be from 1, as a factor either way.
	mostOff = 1.5
	// leastHeld is the least share of first tokens that must come within the ninth decile of their prediction. Of the latest 256,
	// of which nine of ten should, fewer do by chance once in ten million times.
	leastHeld = 0.8
)

// calibration checks whether first tokens come when they are predicted, where a policy or a shadow predicts them.
func (ex *examination) calibration() {
	for sc, state := range ex.doctor.parts.Scopes.All() {
		l := state.Rules().Learner()
		if !sc.Matches(ex.of.Model, ex.of.Tenant) || l == nil {
			continue
		}
		of, latest := l.Model().Calibration, l.Compare()
		if of.Samples < calibratedFrom || latest.Predictions < calibratedFrom {
			continue
		}
		ex.looked(Calibration)
		f := Finding{Check: Calibration, Severity: Warning, Scope: &sc, Count: of.Samples}
		name := catalog.Clip(sc.Model)
		switch {
		case of.Q50 > mostOff:
			f.Sentence = fmt.Sprintf("First tokens of model %q come later than predicted: after %.1f times the predicted time in the median.", name, of.Q50)
			f.Remedy = "See whether requests reach the engines past this service, whose load it does not know (let the engines report theirs), and whether prefill_complete " +
				"is called at the first token and not later. Targets are held by a learned margin meanwhile, but fewer requests than could be are promised them."
		case of.Q50 < 1/mostOff:
			f.Sentence = fmt.Sprintf("First tokens of model %q come sooner than predicted: after %.2f of the predicted time in the median.", name, of.Q50)
			f.Remedy = "See whether engines have more cached than the index says (KV events that are missing or dropped), and whether prefill_complete is called before " +
				"the first token. Requests with a target are refused, or sent elsewhere, that could have been served."
		case latest.Held < leastHeld:
			f.Sentence = fmt.Sprintf("Predictions for model %q do not hold: of the latest %d first tokens %.0f %% came within the ninth decile of their prediction.", name, latest.Predictions, 100*latest.Held)
			f.Remedy = "If the load or the engines have just changed, wait: the margin is learned again within a few hundred requests. If it stays so, see in " +
				"GET /policies which deciles are off: the longest ones show load that this service does not know."
		default:
			continue
		}
		ex.find(f)
	}
}
