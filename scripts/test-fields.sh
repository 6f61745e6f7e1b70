#!/usr/bin/env bash
# Compares the fields of the request models of vLLM and SGLang with
# test/others/fields/request_fields.json: of the pinned releases, and of the newest ones, so that
# a new release shows what is new. docs/how-it-works/gateway.md says what the gateway does with
# each field. With --pinned only the former. Wheels are kept outside the tree.
set -euo pipefail

releases=(vllm==0.33.0 sglang==0.5.23)

cd "$(dirname "$0")/.."
python=$(scripts/venv.sh -r test/others/requirements.txt)

# newest NAME: the newest release, without pre-releases.
newest() {
  "$python" -m pip index versions --disable-pip-version-check --ignore-requires-python "$1" 2>/dev/null | sed -n "1s/^$1 (\(.*\))$/$1==\1/p"
}

if [ "${1:-}" != --pinned ]; then
  for release in "${releases[@]}"; do
    latest=$(newest "${release%==*}")
    [ -n "$latest" ] || { printf 'missing: the newest release of %s is not found\n' "${release%==*}" >&2; exit 1; }
    [ "$latest" = "$release" ] || releases+=("$latest")
  done
fi
wheels=()
for release in "${releases[@]}"; do
  wheel=$(scripts/wheel.sh "$python" "$release")
  wheels+=("$wheel")
done
PYTHONDONTWRITEBYTECODE=1 exec "$python" test/others/fields/fields.py "${wheels[@]}"
