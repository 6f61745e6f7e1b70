// Package metrics exposes the counters of a process to Prometheus. Of the
// service's numbers it counts none: at every scrape it gathers them once, from
// whoever keeps them. It keeps the counters of HTTP requests (Requests) and
// provides Histogram. It depends on no other package of this module.
//
// The families and the values of their labels are part of the service's
// interface. Who gathers sees to it that label values are bounded: models,
// tenants, workers and ranks are those of the catalog, never what a request
// says.
package metrics
