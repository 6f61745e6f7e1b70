// Package admission decides when a request may run, not where. It holds the requests that found
// every rank they may use busy, in policy classes with their own order, thresholds and limits,
// and decides which one is next.
//
// It is pure data: it has no goroutine, lock or clock. The owner serialises the calls, passes
// the times, and calls [Queue.Next] whenever load went down.
package admission
