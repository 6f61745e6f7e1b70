#!/usr/bin/env bash
# Runs bin/select-service under Ray: real actors publish KV events and book through
# the Python client, and Ray Serve LLM's own KV tracker runs on it unmodified.
# Arguments go to pytest (-k tracker). The packages are kept outside the tree;
# SELECT_SERVICE_BIN names another program to test.
set -euo pipefail

cd "$(dirname "$0")/.."
tests=test/others/ray
binary=${SELECT_SERVICE_BIN:-bin/select-service}

[ -x "$binary" ] || { printf 'test-ray: %s is missing: make build\n' "$binary" >&2; exit 1; }

python=$(scripts/venv.sh -r "$tests/requirements.txt")
# As a user installs it, and always as it is now.
"$python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall clients/python
PYTHONDONTWRITEBYTECODE=1 exec "$python" -m pytest -q "$tests" --service "$binary" "$@"
