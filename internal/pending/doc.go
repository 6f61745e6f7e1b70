// Package pending keeps what a selection computed for the reservation that may
// follow it by the selection's id alone, without the prompt (dynamo-kv-router
// 1.6.1). A [Store] is bounded in time, entries and bytes; the oldest go first.
// The package has no clock, logs or goroutines of its own.
package pending
