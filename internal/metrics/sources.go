package metrics

// Sample is one value of a family. Labels are the values of the family's labels
// in their order; no two samples of a family have the same.
type Sample struct {
	Labels []string
	Value  float64
}

// Samples are the values of one family. None: the family is left out.
type Samples []Sample

// Value is a family of a single sample without labels.
func Value[N int | int64 | uint64 | float64](v N) Samples { return Samples{{Value: float64(v)}} }

// Distribution is a histogram of a family.
type Distribution struct {
	Labels []string
	*Histogram
}

// Sources are what all families show at one moment. The comments name the
// labels. Counters must never go down.
type Sources struct {
	KVEvents       Samples // counter: kind, tier, outcome ("applied", or why not)
	KVEventBlocks  Samples // counter: tier, outcome
	KVMessages     Samples // counter: outcome; a message may count under several
	KVMessagesLost Samples // counter
	KVGaps         Samples // counter: outcome
	KVReplays      Samples // counter: result
	KVRestarts     Samples // counter
	KVConnections  Samples // counter: change
	KVStreams      Samples // gauge: state
	KVEventLag     []Distribution

	IndexBlocks       Samples // gauge: tier; (rank, block) entries
	IndexUniqueBlocks Samples // gauge
	IndexOrphans      Samples // gauge
	IndexBytes        Samples // gauge

	Ready             Samples // gauge
	RanksUnlisted     Samples // gauge
	ReservationsLive  Samples // gauge
	ReservationEvents Samples // counter: event
	Remembered        Samples // gauge: kind
	WorkersFile       Samples // counter: outcome; none without a file
	WorkersFileStale  Samples // gauge; none without a file
	QueuedRequests    Samples // gauge
	QueuedTokens      Samples // gauge

	// Of the models that the catalog knows; "" has all others.

	Workers         Samples        // gauge: model, lifecycle
	Selections      Samples        // counter: model, outcome
	OverlapRatio    []Distribution // model
	OverlapForegone []Distribution // model
	CostSpread      []Distribution // model
	QueueWait       []Distribution // model
	Rejections      Samples        // counter: model, cause
	BusyThresholds  Samples        // gauge: model, threshold; those that are set
	WorkersUnjudged Samples        // gauge: model, threshold
	TasksIssued     Samples        // counter: model, endpoint
	TasksRejected   Samples        // counter: model, endpoint
	TasksQueued     Samples        // gauge: model, endpoint
	ModelQueued     Samples        // gauge: model

	// Of ranks that can carry load: model, tenant, worker, rank.

	RankActiveBlocks   Samples // gauge
	RankPrefillTokens  Samples // gauge
	RankActiveRequests Samples // gauge
	RankUsedBlocks     Samples // gauge
	RankTotalBlocks    Samples // gauge
	RankBatchedTokens  Samples // gauge
	WorkerOverloaded   Samples // gauge: model, tenant, worker
	FrontendBlocks     Samples // gauge: worker, rank, worker type
	FrontendPrefill    Samples // gauge: worker, rank, worker type

	ReplicaSent      Samples // counter: kind
	ReplicaReceived  Samples // counter: kind
	ReplicaLost      Samples // counter
	ReplicaLate      Samples // counter
	ReplicaDropped   Samples // counter: reason
	ReplicaPeers     Samples // gauge: state
	ReplicaSnapshots Samples // counter: outcome
	ReplicaLearned   Samples // counter: change

	RecoveryStage   Samples // gauge: stage; 1 for the present one
	RecoveryEntries Samples // counter
	RecoverySkipped Samples // counter: reason

	ConductorPublishers     Samples // gauge
	ConductorSpaces         Samples // gauge
	ConductorNamespaces     Samples // gauge
	ConductorOwners         Samples // gauge
	ConductorIndexBlocks    Samples // gauge: tier; (rank, block) entries
	ConductorIndexUnique    Samples // gauge
	ConductorIndexOrphans   Samples // gauge
	ConductorIndexBytes     Samples // gauge
	ConductorBlocks         Samples // counter: hashes
	ConductorEventGaps      Samples // counter
	ConductorEventsMissed   Samples // counter
	ConductorLateEvents     Samples // counter
	ConductorStreamRestarts Samples // counter
	ConductorBaseMismatches Samples // counter

	// For the aliases; not needed without Options.DynamoAliases.

	IndexerModels    Samples // gauge
	IndexerWorkers   Samples // gauge
	IndexerListeners Samples // gauge: status
	IndexerEvents    Samples // counter: event type, status
	IndexerWarnings  Samples // counter: warning kind
}
