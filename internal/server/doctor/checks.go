package doctor

// Check is something that a Doctor looks at.
type Check uint8

// The checks.
const (
	WorkerIncomplete Check = iota
	BlockSize
	Model
	NoReplay
	DroppedEvents
	UndecodableEvents
	StreamStale
	StreamDown
	EngineStalled
	EngineSilent
	Capacity
	HashSeeds
	Tokenizer
	HitRate
	Policy
	Calibration
	AnswerBodies
	Memory
	PeerUnreachable
	PeerThresholds
	PeerPolicies
	PeerClock
	PeerLoads
	// NumChecks counts the checks.
	NumChecks = int(iota)
)

// checks have each check's name, what holds if nothing is found, and where the runbook has more.
var checks = [NumChecks]struct{ name, title, runbook string }{
	WorkerIncomplete:  {"worker_incomplete", "All workers can be chosen", "selectservicenoworkers"},
	BlockSize:         {"block_size", "Engines and records have the same block size", "when-the-hit-rate-is-0"},
	Model:             {"model", "Engines serve the model of their records", "modelnotserved"},
	NoReplay:          {"no_replay", "Streams that lose messages have a replay endpoint", "kveventslost"},
	DroppedEvents:     {"dropped_events", "KV events are used", "kveventsrefused"},
	UndecodableEvents: {"undecodable_events", "KV events can be read", "kveventsrefused"},
	StreamStale:       {"stream_stale", "KV event streams are complete", "kvstreamsstale"},
	StreamDown:        {"stream_down", "KV event streams are connected", "kvstreamsdisconnected"},
	EngineStalled:     {"engine_stalled", "Engines make progress", "enginesexcluded"},
	EngineSilent:      {"engine_silent", "Engines give signs of life", "enginesexcluded"},
	Capacity:          {"capacity", "Engines have as many blocks as their records say", "workersunjudged"},
	HashSeeds:         {"hash_seeds", "Publishers hash as this service does", "when-the-hit-rate-is-0"},
	Tokenizer:         {"tokenizer", "Prompts can be tokenized", "gatewaytokenizerfails"},
	HitRate:           {"hit_rate", "Engines have cached what the index says", "when-the-hit-rate-is-0"},
	Policy:            {"policy", "The policy of each model decides, without a guard rail", "when-another-policy-decides"},
	Calibration:       {"calibration", "First tokens come when they are predicted", "when-predictions-are-off"},
	AnswerBodies:      {"answer_bodies", "Envoy sends of answers what the policies learn from, and no more", "when-answers-pass-for-nothing"},
	Memory:            {"memory", "Memory accounts have room", "memoryaccountfull"},
	PeerUnreachable:   {"peer_unreachable", "The other replicas answer", "replicapeersdisconnected"},
	PeerThresholds:    {"peer_thresholds", "Replicas have the same busy thresholds", "thresholdsdiffer"},
	PeerPolicies:      {"peer_policies", "Replicas choose by the same rules", "replicasdiverge"},
	PeerClock:         {"peer_clock", "The clocks of replicas agree", "replicasdiverge"},
	PeerLoads:         {"peer_loads", "Replicas count the same load", "replicasdiverge"},
}

// String returns the check as answers name it.
func (c Check) String() string { return checks[c].name }

// Title says what holds if the check finds nothing.
func (c Check) Title() string { return checks[c].title }

// Runbook returns where the runbook has more, as a path in the repository.
func (c Check) Runbook() string { return "docs/run/runbook.md#" + checks[c].runbook }
