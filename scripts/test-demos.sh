#!/usr/bin/env bash
# Runs every demo to its end, one after the other, and fails with the output of the first
# that fails. With --short each plays a few requests only, which shows that it works and not
# the figures that docs/start/demo.md, docs/figures/demo-policies.md and docs/start/gateway.md have.
set -euo pipefail
cd "$(dirname "$0")/.."

# All plays of the policies with all their seeds take more than an hour: here each once.
demo=() policies=() fleets=(--rounds 1 --seeds 4) replicas=() gateway=()
case ${1:-} in
'') ;;
--short)
	demo=(--duration 5s --turns 2)
	policies=(--requests 100 --speedup 20 --decisions 2)
	fleets=(--rounds 1 --seeds 4 chats -- --requests 100 --speedup 20)
	replicas=(--requests 1500 --speedup 4) # long enough for the restarted one to choose again
	gateway=(--duration 5s --turns 2)
	;;
*) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
esac

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# run NAME ARGUMENT...
run() {
	local name=$1 began=$SECONDS
	shift
	if ! "scripts/$name.sh" "$@" >"$log" 2>&1; then
		printf 'FAIL: scripts/%s.sh %s ended with an error, after:\n' "$name" "$*"
		tail -n 40 "$log"
		exit 1
	fi
	printf '%-14s ran to its end in %d s\n' "$name" $((SECONDS - began))
}

run demo "${demo[@]}"
run demo-policies "${policies[@]}"
run demo-policies --fleets --out bin/test-demos "${fleets[@]}"
run demo-replicas "${replicas[@]}"
run demo-gateway "${gateway[@]}"
