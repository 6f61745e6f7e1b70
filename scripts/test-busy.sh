#!/usr/bin/env bash
# Runs the tests that deal with clocks, sockets and processes beside N (20) busy
# processes of the same priority. They have to be as green as on an idle machine:
# nothing in `make test` may depend on how fast the machine is.
set -euo pipefail

load=${1:-20}
cd "$(dirname "$0")/.."

# What only computes says nothing here and takes most of the time: random histories
# of decoders and state machines, which are given their time, and random bodies.
computing='^Fuzz|AgainstModel$|^Test(Mutations|DraftedEnvelopes|AllocationIsBounded|EventsKeepTheirSlices|Formats|Batch|BatchAnswer)$'

busy=()
stop() {
  ((${#busy[@]} == 0)) || kill "${busy[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
}
trap stop EXIT
for ((i = 0; i < load; i++)); do
  (while :; do :; done) &
  busy+=($!)
done

"${GO:-go}" test -race -short -count=1 -vet=off -skip "$computing" -timeout 60m \
  ./cmd/... ./demo/engine ./demo/player ./demo/sim/node ./internal/transport/fetch ./internal/server/httpapi \
  ./internal/transport/zmqsock/... ./pkg/client ./pkg/kvevents ./test/checks/e2e/... ./test/checks/conformance
