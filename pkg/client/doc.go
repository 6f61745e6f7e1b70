// Package client calls select-service from Go: it chooses workers, books their load
// and makes sure that no reservation is left behind.
//
//	c, err := client.New("http://selector:8092", client.Options{})
//	lease, err := c.Lease(ctx, client.SelectRequest{Model: "llama", Prompt: client.Prompt{TokenIDs: tokens}})
//	if err != nil { ... }
//	defer lease.Free()
//	// send the request to lease.Selection().Endpoint and .DPRank
//	_ = lease.PrefillComplete(ctx) // at the first token
//
// A [Lease] is freed by Free, by [Client.Close] and when its context ends; if the
// program dies, the service ends it after Options.Lease. [Client.SelectAndReserve] and
// [Client.Reserve] book without a lease: the caller has to free the reservation.
// [Client.Slots] and [Client.Conductor] have the routes of the slot tracker and of
// Mooncake's Conductor.
//
// The client speaks the 1.6 dialect (paths under /v1.6), in which the id of a
// reservation is its selection id. It keeps connections open and reuses them. A call
// is retried, after a growing and partly random wait, if it was refused for overload
// or could not be delivered. If its answer was lost, it is retried only if a second
// call has no further effect. For that the client books under an id of its own with
// if_exists "return", and never retries output blocks. Other refusals, such as a full
// queue or a model without workers, are errors at once.
//
// Prompts are sent in msgpack, with tokens and hashes as binary words, which costs both
// sides less than JSON. A service that refuses that with 415, as other implementations
// of the contract do, gets JSON from then on.
//
// # Order
//
// All methods are safe for concurrent use. Calls about one reservation, including the
// call that books it, reach the service in the order in which they were made: each
// waits until the one before has its answer or has given up. There are two
// exceptions. A lease is renewed in the background without waiting for other calls.
// And freeing a Lease, by Free, its context or Close, waits at most 2.5 s for the
// calls before it; those may then arrive after it and find no reservation. The free
// gives up 5 s after it began, so that Free takes that long if the service cannot be
// reached. After a failed call that may have booked, the client tries for 5 s to free
// the reservation; calls about its id wait for that.
package client
