// Package metrics exposes the counters of a process to Prometheus. It counts
// nothing itself: at every scrape it asks the sources that it was given, which
// keep their own counters. It depends on no other package of this module.
//
// The families and the values of their labels are part of the service's
// interface. Label values are bounded: no model, tenant, worker or request
// names.
package metrics
