// Package telemetry shows a process to its operators: metrics for Prometheus, and a log of
// events that need their attention.
//
// A metric family is declared once, as a variable beside the collector that sends
// it: see family.go for the declarations and, for an example, conductor.go.
// Collectors read the counters of other packages when Prometheus scrapes; nothing
// is counted here but HTTP requests (Requests), selections (counts.Selections) and
// histograms. Each collector looks at its subject once a scrape, and no lock is
// held while metrics are sent. Prometheus may call several collectors at a time:
// families of different collectors may differ by what changes in between.
//
// Families and the values of their labels are part of the service's interface.
// Label values are bounded: models, tenants, workers and ranks are those of the
// catalog, never what a request says.
package telemetry
