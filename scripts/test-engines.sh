#!/usr/bin/env bash
# Feeds bin/select-service from the KV event publishers of real engine releases
# and checks the overlaps that it answers. By default the newest vLLM and
# SGLang; with --all every release whose wire format differs. Other arguments
# go to pytest (-k restart). Packages and wheels are kept outside the tree;
# SELECT_SERVICE_BIN names another program to test.
set -euo pipefail

releases=(vllm==0.33.0 sglang==0.5.23)
older=(vllm==0.23.0 vllm==0.25.0 sglang==0.5.19)

cd "$(dirname "$0")/.."
tests=test/others/engines
binary=${SELECT_SERVICE_BIN:-bin/select-service}

if [ "${1:-}" = --all ]; then
  shift
  releases+=("${older[@]}")
fi
[ -x "$binary" ] || { printf 'test-engines: %s is missing: make build\n' "$binary" >&2; exit 1; }

python=$(scripts/venv.sh -r test/others/requirements.txt)
options=()
for release in "${releases[@]}"; do
  options+=(--wheel "$(scripts/wheel.sh "$python" "$release")")
done
PYTHONDONTWRITEBYTECODE=1 exec "$python" -m pytest -q "$tests" --service "$binary" "${options[@]}" "$@"
