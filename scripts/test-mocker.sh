#!/usr/bin/env bash
# Two of Dynamo's mockers, engines without a GPU, behind Dynamo's frontend: for every
# request, what bin/select-service predicts is what the engine finds in its cache
# (test/others/serving/README.md). Arguments go to pytest (--requests 2000, --seed 3). The
# packages are kept outside the tree; SELECT_SERVICE_BIN names another program to test.
set -euo pipefail

cd "$(dirname "$0")/.."
tests=test/others/serving
binary=${SELECT_SERVICE_BIN:-bin/select-service}

[ -x "$binary" ] || { printf 'test-mocker: %s is missing: make build\n' "$binary" >&2; exit 1; }

# Without what only real engines need; the file names everything that is needed.
python=$(scripts/venv.sh --no-deps -r "$tests/requirements-mocker.txt")
export PYTHONPATH=test/others/oracle:test/others/engines PYTHONDONTWRITEBYTECODE=1
exec "$python" -m pytest -q "$tests/test_mocker.py" --service "$binary" "$@"
