#!/usr/bin/env bash
# Runs the tests of discovery in Kubernetes, and of the chart, on a real kube-apiserver with
# etcd (scripts/kube-api.sh) and the real definition of InferencePools. As root the tests run in
# a network namespace of their own, with the addresses 10.77.0.0/16. Arguments go to go test.
set -euo pipefail
cd "$(dirname "$0")/.."

TEST_KUBE_API=$(scripts/kube-api.sh)
TEST_KUBE_CRDS=$(scripts/kube-crds.sh)
export TEST_KUBE_API TEST_KUBE_CRDS
python=$(scripts/venv.sh -r test/checks/gateway/requirements.txt)
export GATEWAY_ENVOY=${GATEWAY_ENVOY:-$(dirname "$python")/envoy}
inside=()
if ((EUID == 0)) && unshare --net true 2>/dev/null; then
  inside=(-exec "unshare --net $PWD/scripts/in-namespace.sh")
fi
exec "${GO:-go}" test -count=1 -timeout 40m -p 1 "${inside[@]}" \
  -run 'TestPool|TestTwoPools|TestEnds|TestUnseen|TestOutage|TestFrozen|TestMissing|TestService|TestThousandPods|TestLife|TestPods|TestReplicas|TestInstall|TestRollingUpdate' \
  "${@:--v}" ./internal/workers/kubernetes ./test/others/kube ./test/checks/chart ./test/checks/gateway
