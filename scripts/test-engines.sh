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
tests=test/engines
wheels=${XDG_CACHE_HOME:-$HOME/.cache}/select-service/engines/wheels
binary=${SELECT_SERVICE_BIN:-bin/select-service}

# Only Python source is taken out of a wheel, so any platform's wheel will do,
# and the same one is used on every machine.
fetch() { # name==version
  local file=$wheels/${1/==/-}
  compgen -G "$file-*.whl" >/dev/null && return
  part=$(mktemp -d "$wheels/part.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  printf 'test-engines: fetching %s\n' "$1" >&2
  "$python" -m pip --no-cache-dir download -q --disable-pip-version-check \
    --dest "$part" --no-deps --only-binary=:all: --ignore-requires-python \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none \
    --platform manylinux_2_34_x86_64 --platform manylinux_2_31_x86_64 \
    --platform manylinux_2_28_x86_64 --platform manylinux1_x86_64 --platform any "$1"
  mv "$part"/*.whl "$wheels/"
  rm -r "$part"
}

if [ "${1:-}" = --all ]; then
  shift
  releases+=("${older[@]}")
fi
[ -x "$binary" ] || { printf 'test-engines: %s is missing: make build\n' "$binary" >&2; exit 1; }

mkdir -p "$wheels"
python=$(scripts/venv.sh -r "$tests/requirements.txt")
options=()
for release in "${releases[@]}"; do
  fetch "$release"
  file=$(compgen -G "$wheels/${release/==/-}-*.whl")
  options+=(--wheel "$file")
done
PYTHONDONTWRITEBYTECODE=1 exec "$python" -m pytest -q "$tests" --service "$binary" "${options[@]}" "$@"
