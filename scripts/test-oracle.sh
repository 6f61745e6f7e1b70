#!/usr/bin/env bash
# Plays random histories to the cache managers of vLLM and SGLang, taken out of
# their wheels, and compares what they would hit with what bin/select-service says
# (test/others/oracle/README.md). Arguments go to test/others/oracle/oracle.py, for example
# --short, or --scenario resets --seed 2 --shrink. With --peer 1.6.1 (or 1.3.1) first
# the same histories are played to that release of Dynamo's selection service, of which
# nothing is expected, and with --rule first to test/others/oracle/rule.py. Wheels and packages are kept outside the tree;
# SELECT_SERVICE_BIN names another program to test.
set -euo pipefail

releases=(vllm==0.33.0 sglang==0.5.23)

cd "$(dirname "$0")/.."
if [ "${1:-}" = --peer ]; then
  release=${2:?a release of ai-dynamo-runtime}
  shift 2
  peer=$(scripts/venv.sh "ai-dynamo-runtime==$release")
  options=(--no-expectations --command "[\"$peer\", \"-m\", \"dynamo.select_service\", \"--threads\", \"2\"]")
  [[ $release = 1.3.* ]] || options+=(--group routing_group) # its name of a tenant
elif [ "${1:-}" = --rule ]; then
  shift
  options=()
else
  binary=${SELECT_SERVICE_BIN:-bin/select-service}
  [ -x "$binary" ] || { printf 'test-oracle: %s is missing: make build\n' "$binary" >&2; exit 1; }
  options=(--command "[\"$binary\", \"--listen\", \"127.0.0.1\"]")
fi

python=$(scripts/venv.sh -r test/others/requirements.txt)
for release in "${releases[@]}"; do
  options+=(--wheel "$(scripts/wheel.sh "$python" "$release")")
done
export PYTHONPATH=test/others/engines PYTHONDONTWRITEBYTECODE=1
exec "$python" test/others/oracle/oracle.py "${options[@]}" "$@"
