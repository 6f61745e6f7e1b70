#!/usr/bin/env bash
# Checks the Python client: types, style, and its tests against bin/select-service.
# Arguments go to pytest (-k lease). The packages are kept outside the tree;
# SELECT_SERVICE_BIN names another program to test.
set -euo pipefail

cd "$(dirname "$0")/.."
binary=${SELECT_SERVICE_BIN:-bin/select-service}

[ -x "$binary" ] || { printf 'test-python: %s is missing: make build\n' "$binary" >&2; exit 1; }
SELECT_SERVICE_BIN=$(realpath "$binary")
export SELECT_SERVICE_BIN PYTHONDONTWRITEBYTECODE=1

python=$(scripts/venv.sh -r clients/python/tests/requirements.txt)
# As a user installs it, and always as it is now.
"$python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall clients/python

cd clients/python
"$python" -m ruff check --no-cache .
"$python" -m ruff format --no-cache --check .
"$python" -m mypy --cache-dir "${TMPDIR:-/tmp}/select-service-mypy"
exec "$python" -m pytest -q "$@"
