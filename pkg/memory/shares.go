package memory

// The accounts. Each comment says what an account has; then, what happens when it is full, and the
// file with the code that does it.
const (
	// Index: the blocks of the index and their lookup structures, as measured. Full: new blocks of
	// ranks that hold over three times what is free are dropped, while removals go on
	// (pkg/indexer/account.go).
	Index = "index"
	// Ledger: live reservations, as measured. Full: new ones are refused
	// (pkg/reservations/limits.go).
	Ledger = "ledger"
	// Heads: long heads of requests, and TLS handshakes, while they arrive. Full: the connection
	// is closed (internal/server/connections).
	Heads = "heads"
	// Requests: bodies and answers up to [SmallBody], and token ids that a tokenizer answers beyond what
	// Serving has for the body. Large ones cannot crowd them out. Full: the client that has stalled longest is cut off, else the request is refused
	// (limiter.go).
	Requests = "requests"
	// Bodies: larger bodies, while they arrive and until they have been parsed. Full: as Requests.
	Bodies = "bodies"
	// Serving: what larger bodies are parsed into (token ids, hashes), while they are served. Full:
	// the request waits for its turn, then it is refused (internal/server/httpapi/memory.go).
	Serving = "serving"
	// Scanned: token ids of prompts that were read, by their text, for prompts that begin alike.
	// Never full: the cache is smaller than its account, and others go (internal/codec/bodyscan/cache.go).
	Scanned = "scanned"
	// Answers: answers above SmallBody until their clients have read them. Full: as Requests.
	Answers = "answers"
	// Waiting: what requests keep while they are in wait queues. Full: a request that would wait is
	// refused (internal/selection/waiting.go).
	Waiting = "waiting"
	// Remembered: first answers, pending selections and sessions, each within a third, owners of ids and accounts of fairness
	// within a sixth. Full: the oldest answers, selections and owners go; there are no more sessions, and new accounts count as
	// others do (internal/selection).
	Remembered = "remembered"
	// Streams: frames of engines being read, and their inboxes. Full: the stream pauses, or
	// connections that hold unfinished messages for longest are closed (internal/transport/zmqsock/memory.go).
	Streams = "streams"
	// Replay: replayed messages and live ones held meanwhile. Full: the replay ends, and what it has
	// not brought is lost (pkg/kvevents/subscription.go).
	Replay = "replay"
	// Replication: queues from and to other replicas. Full: the replica furthest behind is
	// disconnected, or messages are lost and repaired (internal/transport/zmqsock/publisher.go, pkg/replicasync/queue.go).
	Replication = "replication"
	// Snapshots: dumps and snapshots being written to or read from other replicas. Full: the reader
	// is refused (internal/server/httpapi/dump.go, internal/fleet/bus/ask.go).
	Snapshots = "snapshots"
)

// SmallBody is the largest body or answer that counts as small, in bytes.
const SmallBody = 64 << 10

// shares has every account's share of the budget in thousandths. With 512 MiB a thousandth is
// about half a MiB, and Serving has just enough room for the largest body, 8 MiB.
var shares = []struct {
	name     string
	thousand int64
}{
	{Index, 250},
	{Ledger, 100},
	{Heads, 20},
	{Requests, 40},
	{Bodies, 80},
	{Serving, 160},
	{Scanned, 20},
	{Answers, 40},
	{Waiting, 40},
	{Remembered, 30},
	{Streams, 60},
	{Replay, 30},
	{Replication, 30},
	{Snapshots, 20},
}
