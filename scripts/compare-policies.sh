#!/usr/bin/env bash
# Plays rules of placement, ours and those of other gateways, in model time (test/others/policies), and prints the tables of
# docs/figures/policies-compared.md. Arguments: -rules A,B and -workloads A,B choose some, -seed 11 is the first of three seeds,
# -requests 12000 the length of a play, -mooncake FILE and -agentic FILE add traces.
set -euo pipefail
cd "$(dirname "$0")/.."
${GO:-go} test -c -o bin/policies-compared ./test/others/policies
exec bin/policies-compared -test.run '^TestWhole$' -test.timeout 0 -whole "$@"
