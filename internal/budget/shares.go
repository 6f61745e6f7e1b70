package budget

// The accounts.
const (
	// Index: blocks of the index and what it needs to find them. Measured; at the
	// limit new blocks are dropped and removals go on.
	Index = "index"
	// Ledger: live reservations. Measured; at the limit new ones are refused.
	Ledger = "ledger"
	// Heads: what connections have sent before a request is complete but for its body:
	// long headers, and handshakes of TLS.
	Heads = "heads"
	// Requests: bodies up to [SmallBody], which large ones cannot crowd out.
	Requests = "requests"
	// Bodies: larger ones, while they arrive and until they have been read.
	Bodies = "bodies"
	// Serving: what is made of larger bodies (token ids, hashes) while they are served.
	Serving = "serving"
	// Answers: answers above SmallBody until their clients have read them.
	Answers = "answers"
	// Waiting: what is kept of requests in wait queues.
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

// SmallBody is the longest body or answer in bytes that counts as small.
const SmallBody = 64 << 10

// shares has every account with its share of the budget in thousandths. With 512 MiB
// one thousandth is half a MiB, and Serving just has room for the largest body, 8 MiB.
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
	{Answers, 40},
	{Waiting, 40},
	{Remembered, 30},
	{Streams, 60},
	{Replay, 30},
	{Replication, 30},
	{Snapshots, 20},
}
