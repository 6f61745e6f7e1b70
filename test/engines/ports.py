"""Free ports in a row, as engines need them for their ranks."""

import itertools
import os
import socket

# Below the range that the system takes ports for outgoing connections from.
_LOWEST, _HIGHEST = 20_000, 32_000
_offset = itertools.count(os.getpid() * 64)


def free_ports(count: int) -> int:
    """The first of count free ports in a row. No call returns one again."""
    while True:
        first = _LOWEST + next(_offset) % (_HIGHEST - _LOWEST)
        if all(_free(port) for port in range(first, first + count)):
            for _ in range(count):
                next(_offset)
            return first


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
