#!/usr/bin/env bash
# wheel.sh PYTHON NAME==VERSION prints the path of a release's wheel. It is fetched
# once, by that Python's pip, and kept outside the tree. Only Python source is taken
# out of it, so any platform's wheel will do, and the same one is used everywhere.
set -euo pipefail

python=$1 release=$2
wheels=${XDG_CACHE_HOME:-$HOME/.cache}/select-service/engines/wheels
file=$wheels/${release/==/-}

mkdir -p "$wheels"
exec 9>"$wheels/lock"
flock 9 # two runs at once fetch one wheel
if ! compgen -G "$file-*.whl" >/dev/null; then
  part=$(mktemp -d "$wheels/part.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  printf 'wheel: fetching %s\n' "$release" >&2
  "$(dirname "$0")/again.sh" "$python" -m pip --no-cache-dir download -q --disable-pip-version-check \
    --dest "$part" --no-deps --only-binary=:all: --ignore-requires-python \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none \
    --platform manylinux_2_34_x86_64 --platform manylinux_2_31_x86_64 \
    --platform manylinux_2_28_x86_64 --platform manylinux1_x86_64 --platform any "$release" >&2 ||
    { printf 'missing: pip cannot fetch %s\n' "$release" >&2; exit 1; }
  mv "$part"/*.whl "$wheels/"
fi
compgen -G "$file-*.whl"
