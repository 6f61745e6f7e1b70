// Package reservations is the ledger of active load: which reservation holds
// which blocks and how many unfinished prefill tokens on which rank. It answers
// what every rank carries now and how much of a prompt is already active there.
// It makes a choice and books it in one step, so that two concurrent requests can
// never both see the load before either is booked.
//
// The accounting is that of dynamo-kv-router 1.3.1: per rank, each distinct
// sequence hash counts once however many reservations hold it.
//
// A ledger is also one replica of the reservations of many processes. Its knowledge
// of them can be joined with another replica's in any order and any number of
// times: see Reservation. Package history remembers those that are no longer live.
//
// The code, from the caller inwards: Ledger (ledger.go) finds the scope; calls that
// name a reservation by its id are in calls.go, those on behalf of other processes
// in remote.go, walks over all reservations in listing.go. scope.go keeps the
// entries and loads of one scope, prefixes.go which of its blocks are held where.
//
// The package has no goroutine, no log, no socket and no clock of its own. All
// methods of Ledger are safe for concurrent use.
package reservations
