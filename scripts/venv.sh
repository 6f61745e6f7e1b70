#!/usr/bin/env bash
# Prints the path of a Python that has the given requirements: arguments of pip
# install, such as name==version or -r FILE. The environment is made once and
# kept outside the tree; Python itself is installed if it is missing.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/select-service

# Debian's python3 comes without ensurepip, so that it cannot make an environment.
usable() {
  python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

# What the environment depends on: Python, the arguments, and what is in the files among them,
# wherever these are.
describe() {
  python3 -VV
  for argument in "$@"; do
    if [ -f "$argument" ]; then cat "$argument"; else printf '%s\n' "$argument"; fi
  done
}

if ! usable; then
  "$(dirname "$0")/setup.sh" python3 python3-venv
  usable || { echo 'venv: Python 3.10 or newer with venv is still not found' >&2; exit 1; }
fi

key=$(describe "$@" | sha256sum)
venv=$cache/venv-${key:0:12}
mkdir -p "$cache"
exec 9>"$venv.lock"
flock 9 # two runs at once make one environment, not half of two
if [ ! -e "$venv/complete" ]; then # an interrupted one is made again
  printf 'venv: installing %s\n' "$*" >&2
  python3 -m venv --clear "$venv"
  "$(dirname "$0")/again.sh" "$venv/bin/python" -m pip install -q --disable-pip-version-check "$@" >&2 ||
    { printf 'missing: pip cannot install %s\n' "$*" >&2; exit 1; }
  touch "$venv/complete"
fi
printf '%s\n' "$venv/bin/python"
