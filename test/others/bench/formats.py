"""Server CPU of /select by the format of its body: JSON, msgpack arrays, msgpack words.

python3 test/others/bench/formats.py bin/select-service [ROUNDS]

One connection, eight workers without events. The formats take turns in each round; the
figures are medians of the rounds, ratios of each round's pairs.
"""

import glob
import http.client
import json
import random
import socket
import statistics
import struct
import subprocess
import sys
import time

HASHES, TOKENS = (">BQ", 0xCF, "<%dQ"), (">BI", 0xCE, "<%dI")


def text(s):
    return bytes([0xA0 | len(s)]) + s.encode()


def body(members, lists, form, words):
    if form == "json":
        return json.dumps({**members, **lists}, separators=(",", ":")).encode()
    out = bytes([0x80 | (len(members) + len(lists))])
    for name, value in members.items():
        out += text(name) + (text(value) if isinstance(value, str) else struct.pack(">BQ", 0xCF, value))
    for name, values in lists.items():
        out += text(name)
        if form == "words":
            packed = struct.pack(words[2] % len(values), *values)
            out += struct.pack(">BI", 0xC6, len(packed)) + packed
        else:
            out += struct.pack(">BI", 0xDD, len(values)) + b"".join(struct.pack(words[0], words[1], v) for v in values)
    return out


class Server:
    def __init__(self, binary):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [binary, "--listen=127.0.0.1", f"--port={port}", "--use-kv-events=false", "--log-level=error"]
        )
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            try:
                self.call("GET", "/health", b"", "")
                break
            except OSError:
                self.connection.close()
                time.sleep(0.02)
        for worker in range(8):
            record = {"worker_id": worker, "model_name": "m", "endpoint": "http://e", "block_size": 16}
            self.call("POST", "/workers", json.dumps(record).encode(), "application/json")

    def call(self, method, path, content, kind):
        self.connection.request(method, path, content, {"content-type": kind})
        answer = self.connection.getresponse()
        if answer.read() and answer.status >= 300:
            raise SystemExit(f"{path}: {answer.status}")

    def cpu(self):
        """Nanoseconds of all threads."""
        threads = glob.glob(f"/proc/{self.process.pid}/task/*/schedstat")
        return sum(int(open(t).read().split()[0]) for t in threads)

    def cost(self, content, kind, times):
        """Microseconds of a request."""
        before = self.cpu()
        for _ in range(times):
            self.call("POST", "/select", content, kind)
        return (self.cpu() - before) / times / 1000


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    rnd = random.Random(1)
    server = Server(sys.argv[1])
    try:
        print(f"{'prompt':28}{'form':8}{'bytes':>10}{'us':>8}{'ratio':>7}")
        for size in (512, 8192, 65536):
            for kind in ("tokens", "hashes"):
                members = {"model_name": "m"}
                if kind == "tokens":
                    words, lists = TOKENS, {"token_ids": [rnd.randrange(128_000) for _ in range(size)]}
                else:
                    members["isl_tokens"] = 16 * size
                    names = ("block_hashes", "sequence_hashes")
                    words, lists = HASHES, {n: [rnd.getrandbits(64) for _ in range(size)] for n in names}
                bodies = {form: body(members, lists, form, words) for form in ("json", "arrays", "words")}
                costs = {form: [] for form in bodies}
                for _ in range(rounds):
                    for form, content in bodies.items():
                        sent = "application/json" if form == "json" else "application/msgpack"
                        costs[form].append(server.cost(content, sent, max(3, 50_000 // size)))
                for form, figures in costs.items():
                    ratio = statistics.median(a / b for a, b in zip(figures, costs["json"]))
                    name = f"{size} {kind}" + (" of both kinds" if kind == "hashes" else "")
                    print(f"{name:28}{form:8}{len(bodies[form]):10}{statistics.median(figures):8.0f}{ratio:7.2f}")
    finally:
        server.process.kill()


if __name__ == "__main__":
    main()
