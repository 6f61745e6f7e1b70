// Package httpapi is the service's HTTP face: routes, wire types and
// the one place where errors become statuses. It holds no state beyond pooled
// buffers; everything happens behind [Service].
//
// Status, shape and text of every answer follow the contract of
// dynamo-kv-router as amended by our decisions; package api has its
// machine-readable form. There are two dialects, of 1.3.1 and of 1.6.1, each
// below a prefix of its own; routes without a prefix speak that of the process.
// The Conductor's routes follow Mooncake's Conductor Indexer API instead, with a
// form of errors of their own.
package httpapi
