// Package hashing turns prompt tokens into the block hashes that the whole
// field agrees on: XXH3-64 per block (local hash) and a rolling hash over the
// chain of blocks (sequence hash). The rules are those of dynamo-kv-router
// 1.3.1 (salt: 1.6.1), which are also Mooncake Conductor's with seed 1337.
package hashing
