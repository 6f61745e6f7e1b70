// Package tracing sends spans of a sampled part of the work to an OpenTelemetry collector. It
// knows nothing of the rest of the service: what is traced imports it. With tracing off there is
// no Tracer, and a request that is not sampled has no Span: both are nil, and their methods then
// do nothing.
package tracing
