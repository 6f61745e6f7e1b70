"""The hashing standard of the KV events contract, without the service's code."""

import struct

import xxhash

SEED = 1337  # of every registration that names no other


def rolling(tokens, block_size: int, seed: int = SEED) -> list[int]:
    """The rolling sequence hashes of the complete blocks.

    local = XXH3-64 of the block's tokens as little-endian u32; the first rolling
    hash is the first local one, each further one XXH3-64 of the one before it
    and its own local hash, both as little-endian u64.
    """
    hashes: list[int] = []
    for end in range(block_size, len(tokens) + 1, block_size):
        block = tokens[end - block_size : end]
        local = xxhash.xxh3_64_intdigest(struct.pack(f"<{block_size}I", *block), seed)
        if hashes:
            local = xxhash.xxh3_64_intdigest(struct.pack("<QQ", hashes[-1], local), seed)
        hashes.append(local)
    return hashes
