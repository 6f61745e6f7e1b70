#!/usr/bin/env bash
# Compares what the service of this tree costs with what an earlier one costs: both
# are built, and test/others/bench drives them in turn in one run (same work, server CPU and
# memory). Ends with 1 if a median ratio of CPU or memory is above LIMIT (1.05).
# The earlier one is the commit of the first argument, else the last tag, else the
# commit in .ci/baseline, the last one before the work under way.
# All results go to bin/bench-compare.json. Further arguments go to test/others/bench (-rounds 9, -workers 64, -trace FILE).
set -euo pipefail
cd "$(dirname "$0")/.."

old=
if (($#)) && [[ $1 != -* ]]; then
  old=$1
  shift
fi
old=${old:-$(git describe --tags --abbrev=0 2>/dev/null || cat .ci/baseline)}
if ! git cat-file -e "$old^{commit}" 2>/dev/null; then
  printf 'bench-compare: commit %s is not in this clone: nothing was compared\n' "$old" >&2
  exit 0
fi

work=$(mktemp -d)
trap 'git worktree remove --force "$work/old"; rm -rf "$work"' EXIT
git worktree add -q --detach "$work/old" "$old"
make -s -C "$work/old" build
make -s build
scripts/setup.sh
(cd test/others/bench && ${GO:-go} build -o "$work/selbench" .)

printf 'old: %s\nnew: %s\n' "$(git log -1 --format='%h %s' "$old")" "$(git log -1 --format='%h %s')"
service='--port {port} --threads 4 --log-level warn'
"$work/selbench" -names old,new -env-a '' -env-b '' -log "$work/server.log" \
  -a "$work/old/bin/select-service $service" -b "bin/select-service $service" \
  -workers 8 -cap 50000 -rounds 7 -dur 1s -checks 20 -limit "${LIMIT:-1.05}" \
  -ops select,tokens,lifecycle,overlap "$@" >bin/bench-compare.json
