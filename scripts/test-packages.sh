#!/usr/bin/env bash
# The dry run of the next release: makes the newest version that CHANGELOG.md has, with a key
# of its own, makes it again in another folder with nothing built before, and holds both
# against test/checks/packages: equal, signed, and installed as .deb, .rpm, wheels, image (amd64 under runc, arm64 under QEMU) and by go install. As root it
# installs and removes the package select-service on this machine. NFPM is the path of nfpm.
# Arguments go to go test.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^## \[\([0-9][0-9.]*\)\].*/v\1/p' CHANGELOG.md | head -n 1)
[[ $version ]] || { echo 'test-packages: CHANGELOG.md has no section of a version' >&2; exit 1; }
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

scripts/setup.sh --programs runc qemu-aarch64-static=qemu-user-static rpm dpkg-deb=dpkg git openssl systemd-analyze=systemd setpriv=util-linux

openssl ecparam -name prime256v1 -genkey -noout -out "$work/key.pem"
openssl ec -in "$work/key.pem" -pubout -out "$work/pub.pem" 2>/dev/null

# Both are of the commit, not of what has been changed since.
for copy in first second/in/another/folder; do
  git clone -q --depth 1 "file://$PWD" "$work/$copy"
done
make -C "$work/first" release VERSION=$version NFPM="$NFPM" SIGN_KEY="$work/key.pem" >/dev/null
GOCACHE="$work/cache" make -C "$work/second/in/another/folder" release VERSION=$version NFPM="$NFPM" >/dev/null

SELECT_SERVICE_DIST=$work/first/dist SELECT_SERVICE_DIST_AGAIN=$work/second/in/another/folder/dist SELECT_SERVICE_SIGN_PUB=$work/pub.pem \
  "${GO:-go}" test -count=1 -timeout 30m -v "$@" ./test/checks/packages
