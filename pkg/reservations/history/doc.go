// Package history remembers which reservations are no longer live, so that a
// ledger that hears of one again does not enter it a second time.
//
// Replicas exchange what they know in messages that may be lost, repeated, late
// and in any order. A ledger therefore has to recognise the acceptance of a
// reservation that it has already seen end. Its memory is bounded:
//
//   - Numbered holds the ends of reservations whose process numbers them. It
//     tells single numbers apart in a window of the last 2^23 of each process;
//     everything below the window counts as ended. An EndedSet is the part that
//     a replica reports to the others.
//   - Named holds steps of numbered reservations that other processes than the
//     accepting one have reported, by the full names of the reservations.
//   - Unnumbered holds the latest steps of reservations that have no number,
//     which are those of dynamo-kv-router, for seconds or for one lifetime.
//   - ExpiredIDs holds the ids of own reservations that expired before their
//     callers freed them, to count late frees.
//
// All times are durations since a moment that the ledger chose; the package reads
// no clock. All types are safe for concurrent use, and their locks are innermost:
// no method calls back.
package history
