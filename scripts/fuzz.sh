#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time (30s). Go fuzzes one
# target per call; the test program of a folder is built once for all of its own.
# All targets run even if one fails; the end names the failed.
#
# New inputs are those that reach new code: of all packages, or, if the second argument
# is "own", of this module's, where the others need not be compiled once more for it.
set -euo pipefail

time=${1:-30s} guide=${2:-all}
go=${GO:-go}
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log=$scratch/log
cache=$("$go" env GOCACHE)/fuzz
module=$("$go" list -m)
case $guide in
all) instrument=(-fuzz Fuzz) ;;
own) instrument=(-gcflags "$module/...=-d=libfuzzer") ;; # as -fuzz does for all
*) echo "fuzz: $guide is neither all nor own" >&2; exit 2 ;;
esac

targets() { # "./folder Name", one per line
  "$go" list -f '{{range .TestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}' ./... |
    sed -n "s,^$PWD/,./,p" | { xargs -r grep -HE '^func Fuzz[A-Za-z0-9_]*\(' || true; } |
    sed -E 's,^(.*)/[^/]+:func (Fuzz[A-Za-z0-9_]*)\(.*,\1 \2,' | sort -u
}

build() { # folder
  built=$scratch/${1//\//_}.test
  [ -x "$built" ] || "$go" test -c "${instrument[@]}" -o "$built" "$1" </dev/null
}

# New inputs go where go test puts them: failing ones below the folder's
# testdata, interesting ones into the cache. Each new one is made shorter for only
# ten runs: for two seconds, as before, took all the time of the slow targets.
run() { # folder name
  (cd "$1" && "$built" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$time" -test.fuzzminimizetime 10x \
    -test.fuzzcachedir "$cache/$module/${1#./}") >"$log" 2>&1 </dev/null
}

# Go sometimes reports the end of the time itself as a failure ("context
# deadline exceeded" without a failing input): that is worth one more run.
ran_out() {
  grep -q 'context deadline exceeded' "$log" && ! grep -q 'Failing input written' "$log" &&
    echo 'once more: its time ended during a run'
}

list=$(targets)
[ -n "$list" ] || { echo 'no fuzz target found' >&2; exit 1; }

failed=()
count=0
while read -r folder name; do
  count=$((count + 1))
  printf '=== %s %s (%s)\n' "$folder" "$name" "$time"
  : >"$log"
  { build "$folder" && run "$folder" "$name"; } || { ran_out && run "$folder" "$name"; } || failed+=("$folder $name")
  cat "$log"
done <<<"$list"

if [ "${#failed[@]}" -gt 0 ]; then
  printf 'FAIL: %s\n' "${failed[@]}"
  exit 1
fi
printf 'ok: %d fuzz targets, %s each\n' "$count" "$time"
