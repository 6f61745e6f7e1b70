"""Free ports in a row, as engines need them for their ranks.

A port belongs to this process until that ends, also while nothing listens there: a
restarted program finds it free. The claim is the name of a socket, for all tests that
run on this machine (test/checks/e2e has the same); the kernel takes it back with the process.
"""

import itertools
import os
import socket

# Below the range that the system takes ports for outgoing connections from.
_LOWEST, _HIGHEST = 20_000, 32_000
_offset = itertools.count(os.getpid() * 64)
_claims: list[socket.socket] = []


def free_ports(count: int) -> int:
    """The first of count free ports in a row. No call returns one again."""
    while True:
        first = _LOWEST + next(_offset) % (_HIGHEST - _LOWEST)
        claims = [claim for port in range(first, first + count) if (claim := _claim(port))]
        if len(claims) == count:
            _claims.extend(claims)
            for _ in range(count):
                next(_offset)
            return first
        for claim in claims:
            claim.close()


def _claim(port: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0select-service-test-port-{port}")
    except OSError:
        claim.close()
        return None
    if not _free(port):
        claim.close()
        return None
    return claim


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
