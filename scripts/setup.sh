#!/usr/bin/env bash
# Installs system packages with apt-get: those named, or without arguments what is
# missing of what the tests need: a C compiler with its library, libzmq's headers and
# pkg-config, curl. With --programs the arguments are programs, PROGRAM or
# PROGRAM=PACKAGE, and those that are missing are installed.
# Works as root or with sudo; where neither is possible it prints the one line
# to run and stops. Here and in the other scripts a line that begins with "missing: " says what
# cannot be had: .ci/nightly skips such a step.
set -euo pipefail

stop() { # message [line to run]
  printf 'missing: %s\n' "$1" >&2
  [ $# -lt 2 ] || printf '%s\n' "$2" >&2
  exit 1
}

apt_install() { # package...
  local by_hand="apt-get update && apt-get install -y $*" as_root=()
  command -v apt-get >/dev/null || stop "there is no apt-get here; install by hand: $*"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || stop 'as root, run:' "$by_hand"
    as_root=(sudo)
  fi
  # "${a[@]+…}" because an empty array is an unset variable in bash before 4.4.
  # Steps of CI that run at the same time wait for each other, and for who else installs something.
  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/select-service
  mkdir -p "$cache"
  exec 8>"$cache/apt.lock"
  flock 8
  apt() { "${as_root[@]+"${as_root[@]}"}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 "$@" 8>&-; }
  install() { apt install -y --no-install-recommends "$@"; }
  printf 'setup: installing %s\n' "$*" >&2
  # A fresh system has no package lists yet, an old one has stale ones.
  install "$@" >&2 || { apt update >&2 && install "$@" >&2; } ||
    stop 'the installation failed; as root, run:' "$by_hand"
}

compiles() {
  printf '#include <stdlib.h>\n' | ${CC:-gcc} -E - >/dev/null 2>&1
}

zmq_is_there() {
  command -v pkg-config >/dev/null && pkg-config --exists 'libzmq >= 4.2'
}

if [ "${1:-}" = --programs ]; then
  shift
  missing=()
  for program; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${program%%=*}" >/dev/null || missing+=("${program#*=}")
  done
  [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
elif [ $# -gt 0 ]; then
  apt_install "$@"
else
  missing=()
  compiles || missing+=(gcc libc6-dev)
  zmq_is_there || missing+=(libzmq3-dev pkg-config)
  command -v curl >/dev/null || missing+=(curl)
  [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
  compiles || stop "${CC:-gcc} still does not compile a program with stdlib.h."
  zmq_is_there || stop 'libzmq 4.2 or newer is still not found by pkg-config.'
fi
