#!/usr/bin/env bash
# Installs what cgo needs to link libzmq: its headers and pkg-config. Does
# nothing where they are present. As root it uses apt-get, else sudo; where it
# can do neither it prints the one line to run and stops.
set -euo pipefail

packages=(libzmq3-dev pkg-config)
by_hand="apt-get update && apt-get install -y ${packages[*]}"

complete() {
  command -v pkg-config >/dev/null && pkg-config --exists 'libzmq >= 4.2'
}

stop() { # message [line to run]
  printf 'setup: %s\n' "$1" >&2
  [ $# -lt 2 ] || printf '%s\n' "$2" >&2
  exit 1
}

complete && exit 0

command -v apt-get >/dev/null ||
  stop 'libzmq 4.2 or newer with its headers, and pkg-config, are missing: install them'

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || stop 'as root, run:' "$by_hand"
  as_root=(sudo)
fi

# "${a[@]+…}" because an empty array is an unset variable in bash before 4.4.
apt() { "${as_root[@]+"${as_root[@]}"}" env DEBIAN_FRONTEND=noninteractive apt-get "$@"; }
install() { apt install -y --no-install-recommends "${packages[@]}"; }

printf 'setup: installing %s\n' "${packages[*]}" >&2
# A fresh system has no package lists yet, an old one has stale ones.
install >&2 || { apt update >&2 && install >&2; } ||
  stop 'the installation failed; as root, run:' "$by_hand"
complete || stop 'libzmq is still not found by pkg-config.'
