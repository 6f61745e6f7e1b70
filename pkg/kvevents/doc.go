// Package kvevents turns what engines publish about their KV caches into calls on
// an index. It has no sockets and no log; the clock is read for deadlines of
// replays alone.
//
// # The walk of an event
//
// An event passes these types, each of which calls only the next:
//
//   - Subscribers (subscribers.go) open a subscription for each rank's stream on a
//     [Source] of sockets.
//   - A subscription (subscription.go) takes the frames of a message from the
//     socket (message.go) and puts it into the stream's inbox, which apply workers
//     empty in turns. A full inbox stops the socket from being read. A message that
//     comes alone skips the inbox: it is applied on the socket's goroutine.
//   - A stream (stream.go, replay.go) checks the sequence numbers. It holds live
//     messages while a replay fills a gap, and finds out when the engine is a new
//     one. It is a state machine without sockets and clock.
//   - A delivery (delivery.go) gives each batch to the stream's [Applier]; the usual
//     one is an [IndexApplier].
//   - A [Decoder] reads the payload into a [Batch] (decode.go; engine_event.go,
//     extrakeys.go and envelope.go for the events of one kind or the other). It
//     never panics, allocates no more than the message justifies, and nothing once
//     its slabs have grown.
//   - A [Converter] (convert.go) filters the events, computes the block hashes and
//     applies them to an [Index], or passes them to a [Sink] where adapters, salts
//     and media are keys.
//
// Replays go through the same stream: it asks for one, waits for a slot
// (replay_slots.go), and the answers come through the inbox. [Counters] counts
// messages, [Tally] events and blocks.
//
// Without ZMQ only the last two steps are needed; see the example.
//
// # Formats
//
// All layouts of vLLM 0.9–0.33, SGLang 0.5.3–0.5.23 and TensorRT-LLM's publisher
// are read, and the standard envelope of the Conductor contract with Mooncake's
// additions. One bad event is skipped and counted alone; only a message that
// cannot be followed at all is an error.
//
// # Locks
//
// Subscribers.registering comes before a subscription's turnMu, which comes before
// its mu. Subscribers.mu and tallying, the mu of a worker and that of the replay
// slots are innermost: nothing is locked or called while one of them is held.
package kvevents
