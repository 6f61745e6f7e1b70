package budget

// The accounts.
const (
	// Index: blocks of the index and what it needs to find them. Measured; at the
	// limit new blocks are dropped and removals go on.
	Index = "index"
	// Ledger: live reservations. Measured; at the limit new ones are refused.
	Ledger = "ledger"
	// Bodies: requests above [SmallBody] from their first byte to the end of their
	// answer, with what is made of them (token ids, hashes, answers).
	Bodies = "bodies"
	// Requests: the same for the requests up to SmallBody, which large ones cannot
	// crowd out.
	Requests = "requests"
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

// SmallBody is the length of the longest body in bytes that account Requests takes.
const SmallBody = 64 << 10

// shares has every account with its share of the budget in thousandths. With 512 MiB
// one thousandth is 0.5 MiB. The largest request, 8 MiB of token ids, may take ten
// times its bytes while it is served, and must fit into Bodies.
var shares = []struct {
	name     string
	thousand int64
}{
	{Index, 300},
	{Ledger, 100},
	{Bodies, 200},
	{Requests, 50},
	{Waiting, 40},
	{Remembered, 40},
	{Streams, 60},
	{Replay, 30},
	{Replication, 30},
	{Snapshots, 30},
}
