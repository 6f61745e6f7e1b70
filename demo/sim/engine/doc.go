// Package engine models one inference engine: a block cache with prefix reuse
// and LRU eviction, a FIFO prefill queue and concurrent decoding. It is a pure
// state machine in model time: callers bring the clock, and everything that
// happens (first tokens, finished blocks, KV cache events) comes back from
// [Engine.Advance] in order. It has no sockets, goroutines or locks.
//
// The model, on purpose a simple one:
//   - Prefill is first come, first served, one request at a time, at
//     Config.PrefillRate tokens a second; only tokens that the cache does not
//     hold are computed, and the last prompt token always is.
//   - Decoding runs beside it: every request makes Config.DecodeRate tokens a
//     second, whatever else runs. The first token comes with the end of prefill.
//   - A request starts only when all blocks of its prompt and its answer find
//     room, so nothing is ever preempted. If they don't, the queue waits.
//   - Full blocks, of prompts and of answers, become part of the cache when they
//     have been computed, and stay until memory is short. Blocks of running
//     requests are never evicted.
package engine
