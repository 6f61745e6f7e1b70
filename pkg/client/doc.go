// Package client calls select-service from Go: it chooses workers, books their
// load and makes sure that no booking is left behind.
//
//	c, err := client.New("http://selector:8092", client.Options{})
//	lease, err := c.Lease(ctx, client.SelectRequest{Model: "llama", Prompt: client.Prompt{TokenIDs: tokens}})
//	if err != nil { ... }
//	defer lease.Free()
//	// send the request to lease.Selection().Endpoint and .DPRank
//	_ = lease.PrefillComplete(ctx) // at the first token
//
// A [Lease] is freed by Free, when its context ends and by [Client.Close]; if the
// program dies the service ends it after its seconds. [Client.SelectAndReserve]
// and [Client.Reserve] book without that care. [Client.Slots] and
// [Client.Conductor] have the routes of the slot tracker and of Mooncake's
// Conductor.
//
// The client speaks the 1.6 dialect (paths under /v1.6), in which a booking is
// named by its selection id. It keeps connections open and reuses them. A call is
// repeated, after a growing and partly random wait, when it was refused for
// overload or could not be delivered, and after an answer was lost only where a
// repetition has no further effect: bookings are therefore made under an id of the
// client's with if_exists "return", and output blocks are never repeated. Other
// refusals, such as a full queue or a model without workers, are errors at once.
//
// # Order
//
// All methods are safe for concurrent use. Calls about one reservation, that which
// books it included, reach the service in the order in which they were made: each
// waits until the one before has its answer or has given up. There are two
// exceptions. A lease is renewed in the background without waiting for anything.
// And the free of a Lease, by Free, its context or Close, waits at most 2.5 s for
// the calls before it, which may then arrive behind it and find nothing. It gives
// up 5 s after it began, so that Free takes that long while the service cannot be
// reached. The same 5 s has what frees a booking that failed and may have been made
// all the same; calls about its id wait for that.
package client
