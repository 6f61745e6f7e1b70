#!/usr/bin/env bash
# Feeds bin/select-service from the KV event publishers of real engine releases
# and checks the overlaps that it answers. By default the newest vLLM and
# SGLang; with --all every release whose wire format differs. Other arguments
# go to pytest (-k restart). Packages and wheels are kept outside the tree;
# SELECT_SERVICE_BIN names another program to test.
set -euo pipefail

releases=(vllm==0.33.0 sglang==0.5.23)
older=(vllm==0.23.0 vllm==0.25.0 sglang==0.5.19)
packages=(python3 python3-venv)
by_hand="apt-get update && apt-get install -y ${packages[*]}"

cd "$(dirname "$0")/.."
tests=test/engines
cache=${XDG_CACHE_HOME:-$HOME/.cache}/select-service/engines
wheels=$cache/wheels
binary=${SELECT_SERVICE_BIN:-bin/select-service}

stop() { # message [line to run]
  printf 'test-engines: %s\n' "$1" >&2
  [ $# -lt 2 ] || printf '%s\n' "$2" >&2
  exit 1
}

# The publishers are written for Python 3.10 or newer. Debian's python3 comes
# without ensurepip, so that it cannot make an environment.
usable_python() {
  python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

install_python() {
  command -v apt-get >/dev/null || stop 'Python 3.10 or newer with venv is missing: install it'
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || stop 'as root, run:' "$by_hand"
    as_root=(sudo)
  fi
  # "${a[@]+…}" because an empty array is an unset variable in bash before 4.4.
  apt() { "${as_root[@]+"${as_root[@]}"}" env DEBIAN_FRONTEND=noninteractive apt-get "$@"; }
  install() { apt install -y --no-install-recommends "${packages[@]}"; }
  printf 'test-engines: installing %s\n' "${packages[*]}" >&2
  install >&2 || { apt update >&2 && install >&2; } ||
    stop 'the installation failed; as root, run:' "$by_hand"
  usable_python || stop 'Python 3.10 or newer with venv is still not found.'
}

# One environment per Python and set of pins; an interrupted one is made again.
environment() {
  local key
  key=$({ python3 -VV && cat "$tests/requirements.txt"; } | sha256sum)
  venv=$cache/venv-${key:0:12}
  [ -e "$venv/complete" ] && return
  python3 -m venv --clear "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -r "$tests/requirements.txt"
  touch "$venv/complete"
}

# Only Python source is taken out of a wheel, so any platform's wheel will do,
# and the same one is used on every machine.
fetch() { # name==version
  local file=$wheels/${1/==/-}
  compgen -G "$file-*.whl" >/dev/null && return
  part=$(mktemp -d "$wheels/part.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  printf 'test-engines: fetching %s\n' "$1" >&2
  "$venv/bin/python" -m pip --no-cache-dir download -q --disable-pip-version-check \
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
[ -x "$binary" ] || stop "$binary is missing: make build"
usable_python || install_python

mkdir -p "$wheels"
environment
options=()
for release in "${releases[@]}"; do
  fetch "$release"
  file=$(compgen -G "$wheels/${release/==/-}-*.whl")
  options+=(--wheel "$file")
done
PYTHONDONTWRITEBYTECODE=1 exec "$venv/bin/python" -m pytest -q "$tests" --service "$binary" "${options[@]}" "$@"
