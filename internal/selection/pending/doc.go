// Package pending keeps the results of selections, so that a reservation can follow by the
// selection's id alone, without the prompt (dynamo-kv-router 1.6.1). A [Store] is bounded in
// time, entries and bytes; the oldest entries make room. The package has no clock, logs or
// goroutines of its own.
package pending
