#!/usr/bin/env bash
# Plays random histories to the cache managers of vLLM and SGLang, taken out of
# their wheels, and compares what they would hit with what bin/select-service says
# (test/oracle/README.md). Arguments go to test/oracle/oracle.py, for example
# --short, or --scenario resets --seed 2 --shrink. Wheels and packages are kept
# outside the tree; SELECT_SERVICE_BIN names another program to test.
set -euo pipefail

releases=(vllm==0.33.0 sglang==0.5.23)

cd "$(dirname "$0")/.."
binary=${SELECT_SERVICE_BIN:-bin/select-service}
[ -x "$binary" ] || { printf 'test-oracle: %s is missing: make build\n' "$binary" >&2; exit 1; }

python=$(scripts/venv.sh -r test/oracle/requirements.txt)
options=()
for release in "${releases[@]}"; do
  options+=(--wheel "$(scripts/wheel.sh "$python" "$release")")
done
export PYTHONPATH=test/engines PYTHONDONTWRITEBYTECODE=1
exec "$python" test/oracle/oracle.py "${options[@]}" --command "[\"$binary\", \"--listen\", \"127.0.0.1\"]" "$@"
