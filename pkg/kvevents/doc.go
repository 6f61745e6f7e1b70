// Package kvevents turns what engines publish about their KV caches into calls
// on an index.
//
// A message travels: frames → Decoder (bytes to Batch: bounds checked, never
// panics, allocates no more than the message justifies, nothing at all once
// its slabs have grown) → Converter (filters, block hashes; one per stream) →
// Index, or, where adapters, salts and media are keys, a Sink. The stream's
// sequence numbers, gaps and replays are kept beside that way.
//
// All layouts of vLLM 0.9–0.33, SGLang 0.5.3–0.5.23 and TensorRT-LLM's
// publisher are read, and the standard envelope of the Conductor contract with
// Mooncake's additions. One bad event is skipped and counted alone; only a
// message that cannot be followed at all is an error.
//
// The package has no sockets, clock or log.
package kvevents
