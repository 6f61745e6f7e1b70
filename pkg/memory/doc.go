// Package memory divides the memory that the process may use (--max-memory) among its uses:
// callers, engines and replicas.
//
// Each use has an [Account] with a fixed share, so that filling one account, by accident or on
// purpose, takes nothing from the others: a full index stops no request, and a flood of
// requests stops no event. For the same reason there is no common pool.
//
// The shares add up to less than the budget (see the table in shares.go). The rest is for uses
// without an account: code, stacks, the catalog, and garbage. Go's collector lets garbage grow
// to GOGC percent of the live heap, but not beyond the memory limit, which the process sets to
// the budget. If the accounts filled the budget, the collector would have no room below that
// limit and would run all the time.
//
// Accounts count bytes that are known to be held, not the allocator's overhead. A byte is
// reserved before it is allocated if the size is known by then, otherwise as the data arrives.
// A size that a sender only announces (a Content-Length) reserves no more than SmallBody, since
// announcing costs the sender nothing.
package memory
