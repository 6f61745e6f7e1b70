// Package httpapi is the service's HTTP face: routes, wire types and
// the one place where errors become statuses. It holds no state beyond pooled
// buffers; everything happens behind [Service].
//
// Status, shape and text of every answer follow the contract of
// dynamo-kv-router 1.3.1 as amended by our decisions; api/openapi.yaml is its
// machine-readable form. The Conductor's routes follow Mooncake's Conductor
// Indexer API instead, with a form of errors of their own.
package httpapi
