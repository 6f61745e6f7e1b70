"""Asks a running service everything that its documents describe.

scripts/test-openapi.sh runs it in a Python that has Schemathesis. The service is
started once with each contract and asked in its own dialect, unprefixed, and in
the other one's, under its prefix: so every operation is asked in both dialects,
and each dialect beside either behaviour.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "others" / "engines"))

from ports import free_ports  # noqa: E402

DOCUMENTS = HERE.parents[2] / "api"

# By contract: its document, and the prefix of the other dialect.
CONTRACTS = {
    "1.3": (DOCUMENTS / "openapi.yaml", "/v1.6"),
    "1.6": (DOCUMENTS / "openapi-1.6.yaml", "/v1.3"),
}

# Requests that may take away what the others need come last.
CATALOG = r"^(putWorker|reconcileWorkers|patchWorker|deleteWorker|drainWorker|undrainWorker)(V\d+)?$"

# Requests go to this machine only: a proxy of the environment is not for them.
_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Service:
    """A running service with something to choose from and something booked."""

    def __init__(self, binary: str, contract: str, folder: Path):
        port = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self._log = (folder / f"service-{contract}.log").open("w+")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "SELECT_SERVICE_"))}
        token = [binary, "token", "new", "--name", "ask", "--roles", "operate,peer,metrics"]
        secret, entry = subprocess.run(token, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n", 1)
        self.authorization = f"Bearer {secret}"
        tokens = folder / "tokens.yaml"
        tokens.write_text("tokens:\n" + entry)
        argv = [binary, "--contract", contract, "--port", str(port), "--replica-sync-port", str(port + 1)]
        argv += ["--tokens-file", str(tokens)]
        self._process = subprocess.Popen(
            argv, env=env | {"DYN_USE_KV_EVENTS": "false"}, stdout=self._log, stderr=self._log
        )
        deadline = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                sys.exit(f"the service does not start:\n{self.log()}")
            time.sleep(0.02)
        # The ids are the examples of the document's parameters.
        worker = {"worker_id": 7, "endpoint": "http://w", "block_size": 4, "data_parallel_size": 2, "total_kv_blocks": 1000}
        self._post("/v1.3/workers", worker)
        self._post("/v1.3/reservations", {"reservation_id": "r1", "worker_id": 7, "token_ids": [1, 2, 3, 4]})
        self._post("/v1.3/slots/register", {"worker_id": 8, "model_name": "m", "block_size": 4, "dp_start": 0, "dp_size": 1})

    def _answers(self) -> bool:
        try:
            with _http.open(self.url + "/health", timeout=30) as answer:
                return answer.status == 200
        except OSError:
            return False

    def _post(self, path: str, body: dict) -> None:
        request = urllib.request.Request(
            self.url + path, data=json.dumps(body).encode(),
            headers={"content-type": "application/json", "authorization": self.authorization},
        )
        with _http.open(request, timeout=30):
            pass

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> bool:
        """Ends it; says whether it was alive and well until then."""
        well = self._process.poll() is None and self._answers()
        self._process.terminate()
        try:
            return self._process.wait(60) == 0 and well
        except subprocess.TimeoutExpired:
            self._process.kill()
            return False


def ask(service: Service, document: Path, folder: Path, options: list[str]) -> tuple[bool, str]:
    """Runs Schemathesis; says whether all answers were as described, and what it wrote."""
    # One worker: Python 3.11 cannot compile in two threads at a time (SystemError).
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml"), "run", str(document),
        "--url", service.url, "--header", f"Authorization: {service.authorization}", "--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--seed", "1",
        "--workers", "1", "--request-timeout", "60", "--continue-on-failure", "--suppress-health-check", "all", *options,
    ]  # fmt: skip
    env = os.environ | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE)}
    run = subprocess.run(
        command, cwd=folder, env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return run.returncode == 0, run.stdout


def ask_all(binary: str, contract: str, options: list[str]) -> tuple[bool, str]:
    """Starts a service with a contract and asks it everything."""
    document, other = CONTRACTS[contract]
    if options:
        runs = [options]
    else:
        paths = ["--include-path-regex", f"^(?!/v1\\.)|^{other}/"]
        runs = [[*paths, "--exclude-operation-id-regex", CATALOG], [*paths, "--include-operation-id-regex", CATALOG]]
    # Schemathesis leaves notes where it runs.
    with tempfile.TemporaryDirectory() as name:
        service = Service(binary, contract, Path(name))
        try:
            results = [ask(service, document, Path(name), run) for run in runs]
        finally:
            well = service.stop()
        if not well:
            results.append((False, f"the service did not live to the end:\n{service.log()[-4000:]}"))
    return all(good for good, _ in results), "\n".join(text for _, text in results)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--service", required=True, help="the program to ask")
    arguments, options = parser.parse_known_args()
    binary = str(Path(arguments.service).resolve())
    failed = False
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda contract: ask_all(binary, contract, options), CONTRACTS)
        for contract, (good, text) in zip(CONTRACTS, results):
            print(f"##### --contract {contract}\n{text}", flush=True)
            failed |= not good
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
