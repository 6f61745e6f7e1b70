#!/usr/bin/env bash
# Plays rules of placement, ours and those of other gateways, in model time (test/others/policies), and prints the tables of
# docs/figures/policies-compared.md. Arguments: -rules A,B and -workloads A,B choose some, -seed 11 is the first of three seeds,
# -requests 5000 the length of a play, -mooncake FILE and -agentic FILE add traces. -results FILE keeps the figures of each play,
# and what the file has is not played again. --targets, first, plays requests with targets instead, and prints the table of
# docs/figures/targets-compared.md; -seeds 1 is then the number of seeds, and -results is as above. --pairs, first, plays engines that prefill and decode
# apart, and prints the tables of docs/figures/pairs-compared.md; -prefillers 4 of the eight engines prefill.
# --fairness, first, plays tenants that share engines, and prints the table of docs/figures/fairness-compared.md.
set -euo pipefail
cd "$(dirname "$0")/.."
play=TestWhole
if [[ ${1:-} == --targets ]]; then
	play=TestTargetsWhole
	shift
elif [[ ${1:-} == --pairs ]]; then
	play=TestPairsWhole
	shift
elif [[ ${1:-} == --fairness ]]; then
	play=TestFairWhole
	shift
fi
${GO:-go} test -c -o bin/policies-compared ./test/others/policies
# Most of the garbage is short-lived, and two plays at a time need little memory.
GOGC=${GOGC:-400} exec bin/policies-compared -test.run "^$play\$" -test.timeout 0 -whole "$@"
