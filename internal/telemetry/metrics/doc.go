// Package metrics declares families of Prometheus metrics and counts values by size. It knows
// nothing of the rest of the service: what counts imports it, and a collector that stands
// beside its subject.
package metrics
