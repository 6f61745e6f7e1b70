#!/usr/bin/env bash
# Runs bin/select-service beside Dynamo's own services (selection service, slot
# tracker, indexer): reservations and dumps cross, and the two slot trackers answer
# alike. By default beside the newest release; with --all beside one of each
# supported contract. Other arguments go to pytest (-k recovery);
# `--service 1.6.1` puts that release in our service's place, which shows that
# the tests demand nothing that Dynamo does not do with itself. The packages are
# kept outside the tree; SELECT_SERVICE_BIN names another program to test.
set -euo pipefail

releases=(1.6.1)
older=(1.3.1)

cd "$(dirname "$0")/.."
tests=test/others/peers
binary=${SELECT_SERVICE_BIN:-bin/select-service}

if [ "${1:-}" = --all ]; then
  shift
  releases=("${older[@]}" "${releases[@]}")
fi
[ -x "$binary" ] || { printf 'test-peers: %s is missing: make build\n' "$binary" >&2; exit 1; }

options=()
for release in "${releases[@]}"; do
  peer=$(scripts/venv.sh "ai-dynamo-runtime==$release")
  options+=(--peer "$release=$peer")
done
python=$(scripts/venv.sh -r test/others/requirements.txt)
PYTHONDONTWRITEBYTECODE=1 exec "$python" -m pytest -q "$tests" --service "$binary" "${options[@]}" "$@"
