// Package httpapi is the HTTP API of the service: routes, wire types and the one
// place where errors become statuses. It holds no state except pooled buffers; the
// work is done behind [Service].
//
// Status, shape and text of every answer follow the contract of
// dynamo-kv-router as amended by our decisions; package api has its
// machine-readable form. There are two dialects, of 1.3.1 and of 1.6.1, each
// under its own prefix; routes without a prefix speak the dialect of the process.
// The Conductor's routes follow Mooncake's Conductor Indexer API instead, with their
// own form of errors.
package httpapi
