#!/usr/bin/env bash
# Holds deploy/ against a real Prometheus server: promtool checks the rules, their
# tests and the example configuration, then the server scrapes real replicas that
# serve known traffic, and every query of the dashboard and the alerts has to
# answer. Takes about a minute. Arguments go to go test (-run TestLive/panels).
#
# Where prometheus and promtool are missing, Debian's package is unpacked into the
# cache. It is not installed: that would start a server of its own on port 9090.
set -euo pipefail

cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/select-service/prometheus

stop() {
  printf 'missing: %s\n' "$1" >&2
  exit 1
}

there() { command -v prometheus >/dev/null && command -v promtool >/dev/null; }

# A fresh system has no package lists yet, and only root may fetch them.
update() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || stop 'as root, run: apt-get update'
    as_root=(sudo)
  fi
  "${as_root[@]+"${as_root[@]}"}" apt-get update >&2
}

fetch() {
  command -v apt-get >/dev/null || stop 'there is no apt-get here; put prometheus and promtool into PATH'
  printf 'test-metrics: fetching the package prometheus\n' >&2
  mkdir -p "$cache"
  part=$(mktemp -d "$cache/part.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  download() { (cd "$part" && apt-get download prometheus >&2); }
  download || { update && download; } || stop 'the package prometheus cannot be fetched'
  dpkg-deb --extract "$part"/prometheus_*.deb "$part/root"
  rm -rf "$cache/root"
  mv "$part/root" "$cache/root"
}

if ! there; then
  PATH=$cache/root/usr/bin:$PATH
  there || fetch
  there || stop 'the package prometheus has no prometheus and promtool'
fi

promtool check config deploy/prometheus/prometheus.yml
promtool check rules deploy/prometheus/rules.yml
promtool test rules deploy/prometheus/rules_test.yml
SELECT_SERVICE_PROMETHEUS=1 exec "${GO:-go}" test -count=1 -timeout 5m -v "$@" ./test/checks/prometheus
