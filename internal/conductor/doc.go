// Package conductor is the Conductor API: which instances hold how much of a prompt, per medium
// and per data-parallel rank. [API] has the use cases: register and unregister publishers of KV
// events, query, list the publishers, diagnose a prompt. [Registry] is the index behind them.
//
// An [Identity] (tenant, model, LoRA adapter, salt, block size) is the isolation key of a query:
// a query never sees blocks of another identity. A [Publisher] is an active registration with
// its stream of KV events. The events say which blocks an owner holds: the engine itself, or a
// cache backend behind the instance that the publisher was registered for. Blocks of several
// publishers of one instance count together for that instance, and for each of its ranks.
//
// Blocks of one tenant, model, block size and hash seed are in one indexer.Space. There each
// identity is a namespace with a random key that is folded into every block's value, so that
// chains of different namespaces never meet, while the hashes on the wire stay the standard's
// (decisions C2 and C4).
//
// The package knows no protocol: internal/server/httpapi has the routes.
package conductor
