package memory

// The accounts.
const (
	// Index: the blocks of the index and their lookup structures. Measured; at the limit new
	// blocks are dropped, while removals go on.
	Index = "index"
	// Ledger: live reservations. Measured; at the limit new ones are refused.
	Ledger = "ledger"
	// Heads: long heads of requests, and TLS handshakes, while they arrive.
	Heads = "heads"
	// Requests: bodies and answers up to [SmallBody]. Large ones cannot crowd them out.
	Requests = "requests"
	// Bodies: larger bodies, while they arrive and until they have been parsed.
	Bodies = "bodies"
	// Serving: what larger bodies are parsed into (token ids, hashes), while they are served.
	Serving = "serving"
	// Scanned: token ids of prompts that were read, by their text, for prompts that begin alike.
	Scanned = "scanned"
	// Answers: answers above SmallBody until their clients have read them.
	Answers = "answers"
	// Waiting: what requests keep while they are in wait queues.
	Waiting = "waiting"
	// Remembered: first answers, pending selections and sessions.
	Remembered = "remembered"
	// Streams: frames of engines being read, and their inboxes.
	Streams = "streams"
	// Replay: replayed messages and live ones held meanwhile.
	Replay = "replay"
	// Replication: queues from and to other replicas.
	Replication = "replication"
	// Snapshots: dumps and snapshots being written to or read from other replicas.
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
