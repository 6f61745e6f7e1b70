// Package budget shares out the memory that the process may take (--max-memory)
// among those who fill it: callers, engines and replicas.
//
// Each of them has an [Account] with a fixed share of its own, so that whoever fills
// one account, by accident or on purpose, takes nothing from the others: a full index
// stops no request, and no flood of requests stops an event. There is no common pool
// for the same reason.
//
// The shares add up to less than all (see the table in shares.go). The rest is for
// what nobody accounts for: code, stacks, the catalog, and garbage. Go's collector
// lets garbage grow to GOGC percent of the live heap, but never beyond the memory
// limit that the process sets to the budget; it has to find room below that limit
// even while every account is full, or it would run all the time.
//
// Accounts count bytes that are known to be held, not what the allocator makes of
// them. A byte is reserved before it is allocated where its number is known then,
// and otherwise as it comes. Because somebody says that they will come no more than
// SmallBody are: a claim costs its sender nothing.
package budget
