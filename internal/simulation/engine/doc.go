// Package engine models one inference engine: a block cache with prefix reuse
// and LRU eviction, a queue of requests, and one of two schedulers. It is a pure
// state machine in model time: callers bring the clock, and everything that
// happens (first tokens, finished blocks, KV cache events) comes back from
// [Engine.Advance] in order. It has no sockets, goroutines or locks.
//
// What both schedulers have in common:
//   - Requests are taken first come, first served. Only prompt tokens that the
//     cache does not hold are computed, and the last prompt token always is.
//   - The first token comes with the end of prefill.
//   - A request starts only when all blocks of its prompt and its answer find
//     room, so nothing is ever preempted. If they don't, the queue waits.
//   - Full blocks, of prompts and of answers, become part of the cache when they
//     have been computed, and stay until memory is short. Blocks of running
//     requests are never evicted.
//   - What another engine has computed of a prompt comes over a [Link]: see [Transfer]. Its blocks are in the cache, and announced,
//     once the first token has come.
//   - Config.Speed multiplies all rates, but not those of links; [Engine.SetSpeed] changes it.
//
// The serial scheduler, the default, prefills one request at a time at
// Config.PrefillRate. Decoding runs beside it: every request makes
// Config.DecodeRate tokens a second, whatever else runs.
//
// The chunked scheduler (Config.Chunked) computes in steps, as vLLM does with
// chunked prefill: one token of each answer, and prompt tokens up to a budget. A
// step takes as long as all of that together, so prefill slows decoding and long
// contexts slow both.
package engine
