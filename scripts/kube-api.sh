#!/usr/bin/env bash
# Prints the folder of kube-apiserver and etcd, as tests start them. They are built once per version
# from their modules (test/helpers/kubetest/apiserver, …/etcd) into the cache: about 12 minutes of one core,
# 2.4 GB of memory, and 3 GB of disk until it is done. KUBEBUILDER_ASSETS names a folder with
# programs to use instead.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

version_of() { (cd "test/helpers/kubetest/$1" && "$go" list -m -f '{{.Version}}' "$2"); }

if [[ ${KUBEBUILDER_ASSETS:-} ]]; then
  echo "$KUBEBUILDER_ASSETS"
  exit
fi
kube=$(version_of apiserver k8s.io/kubernetes)
etcd=$(version_of etcd go.etcd.io/etcd/server/v3)
bin=$PWD/.cache/kube-$kube-etcd-$etcd
if [[ ! -x $bin/kube-apiserver || ! -x $bin/etcd ]]; then
  echo "building kube-apiserver $kube and etcd $etcd" >&2
  tmp=$PWD/.cache/kube-build version=k8s.io/component-base/version minor=${kube#v*.}
  rm -rf "$tmp"
  mkdir -p "$tmp/bin"
  (cd test/helpers/kubetest/apiserver && "$go" mod download k8s.io/kubernetes) >&2 ||
    { echo 'missing: the module k8s.io/kubernetes cannot be fetched' >&2; exit 1; }
  export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' GOCACHE=$tmp/cache
  # Helm refuses a cluster without a version.
  (cd test/helpers/kubetest/apiserver && nice "$go" build -p 1 -tags providerless -o "$tmp/bin/kube-apiserver" -ldflags \
    "-s -w -X $version.gitVersion=$kube -X $version.gitMajor=1 -X $version.gitMinor=${minor%%.*} -X $version.gitTreeState=clean" \
    k8s.io/kubernetes/cmd/kube-apiserver) >&2
  (cd test/helpers/kubetest/etcd && nice "$go" build -p 1 -ldflags '-s -w' -o "$tmp/bin/etcd" .) >&2
  mkdir -p "$bin"
  mv "$tmp/bin"/* "$bin/"
  chmod -R u+w "$tmp"
  rm -rf "$tmp"
fi
echo "$bin"
