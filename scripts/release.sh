#!/usr/bin/env bash
# Makes what a release consists of, in dist/: release.sh image|packages|wheels|chart|all.
# The Makefile gives it GO, VERSION, PROGRAMS, TAGS, IMAGE, NFPM and SIGN_KEY; DIST is
# another folder than dist/, ARCHITECTURES fewer than amd64 and arm64.
#
# The same commit gives the same bytes, on any machine: Go's version is that of go.mod,
# paths and version control are left out of the programs, and every time is that of the
# commit. Only signatures differ.
#
# Each step packs bin/release/linux-ARCH, which has the programs and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

what=$1
dist=${DIST:-dist}
stage=bin/release
architectures=${ARCHITECTURES:-amd64 arm64}
read -r entrypoint _ <<<"$PROGRAMS"

stop() {
  printf 'release: %s\n' "$1" >&2
  exit 1
}

# Packages need a version of three numbers; what is built between tags has 0.0.0.
version=0.0.0
if [[ $VERSION =~ ^v([0-9]+\.[0-9]+\.[0-9]+(-rc\.[0-9]+)?)$ ]]; then
  version=${BASH_REMATCH[1]}
elif [ "$what" = all ]; then
  stop "$VERSION is no release: check out a tag such as v1.2.3, or say VERSION=v1.2.3"
fi

commit=$(git rev-parse HEAD)
[ "$what" != all ] || git diff --quiet HEAD || [ -n "${ALLOW_DIRTY:-}" ] || stop 'there are changes that are not committed'
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
umask 022

programs() {
  rm -rf "$stage" && mkdir -p "$stage"
  local arch
  for arch in $architectures; do
    CGO_ENABLED=0 GOOS=linux GOARCH=$arch GOAMD64=v1 GOARM64=v8.0 GOFLAGS='' "$GO" build -trimpath -buildvcs=false -tags "$TAGS" \
      -ldflags "-s -w -X main.release=$VERSION" -o "$stage/linux-$arch/" $(printf './cmd/%s ' $PROGRAMS)
  done
  CGO_ENABLED=0 GOFLAGS='' "$GO" build -trimpath -buildvcs=false -o "$stage/dist" ./scripts/dist
  CGO_ENABLED=0 GOFLAGS='' "$GO" build -trimpath -buildvcs=false -o "$stage/sbom" ./scripts/sbom
}

in_stage() { local arch=$1 p; for p in $PROGRAMS; do printf '%s ' "$stage/linux-$arch/$p"; done; }

# sbom ARTEFACT [-component PURL] [PROGRAM…] is what an artefact is made of.
sbom() {
  local artefact=$1
  shift
  "$stage/sbom" -version "v$version" -artefact "$artefact" "$@" >"$artefact.cdx.json"
}

archives() {
  local arch p files
  for arch in $architectures; do
    files=(LICENSE=LICENSE select-service.yaml=configs/select-service.yaml)
    for p in $PROGRAMS; do files+=("$p=$stage/linux-$arch/$p"); done
    name=select-service_${version}_linux_$arch
    "$stage/dist" archive -out "$dist/$name.tar.gz" -prefix "$name" "${files[@]}"
    sbom "$dist/$name.tar.gz" $(in_stage "$arch")
  done
}

image() {
  local arch folders=() file=$dist/select-service-$version-image.tar
  (cd scripts/roots && GOFLAGS='' "$GO" run .) >"$stage/certs.pem"
  for arch in $architectures; do folders+=("$arch=$stage/linux-$arch"); done
  "$stage/dist" image -out "$file" -name "$IMAGE" -version "$version" -certs "$stage/certs.pem" -entrypoint "$entrypoint" \
    -commit "$commit" -source https://github.com/select-service/select-service "${folders[@]}" >"$stage/image.digest"
  sbom "$file" $(for arch in $architectures; do in_stage "$arch"; done)
  printf 'image %s:%s@%s\n' "$IMAGE" "$version" "$(cat "$stage/image.digest")"
}

packages() {
  local arch format file
  for arch in $architectures; do
    for format in deb rpm; do
      file=$(ARCH=$arch VERSION=$version PROGRAMS_DIR=$stage/linux-$arch "$NFPM" package --config deploy/package/nfpm.yaml \
        --packager "$format" --target "$dist/" | sed -n 's/^created package: //p')
      sbom "$file" $(in_stage "$arch")
    done
  done
}

wheels() {
  local arch wheel client python
  for arch in $architectures; do
    "$stage/dist" wheel -out "$dist" -version "$version" -arch "$arch" -readme deploy/package/wheel.md -license LICENSE $(in_stage "$arch")
  done
  for wheel in "$dist"/select_service-*.whl; do
    case $wheel in *x86_64*) arch=amd64 ;; *) arch=arm64 ;; esac
    sbom "$wheel" $(in_stage "$arch")
  done
  # The client's version in the tree is that of its next release; here it is the release's.
  python=$(scripts/venv.sh hatchling==1.27.0)
  client=$stage/client
  rm -rf "$client" && mkdir -p "$client"
  git ls-files -z clients/python | xargs -0 cp --parents -t "$client"
  cp LICENSE "$client/clients/python/"
  sed -i "s/^version = .*/version = \"${version/-rc./rc}\"/" "$client/clients/python/pyproject.toml"
  (cd "$client/clients/python" && "$python" -m hatchling build -t wheel -t sdist -d ../../out >/dev/null 2>&1) || stop 'the Python client cannot be built'
  for file in "$client"/out/*; do
    cp "$file" "$dist/"
    sbom "$dist/${file##*/}" -component pkg:pypi/httpx
  done
}

chart() {
  "$stage/dist" chart -out "$dist/select-service-$version.tgz" -version "$version" deploy/chart
  sbom "$dist/select-service-$version.tgz" -component "$(image_purl)"
}

# manifests are deploy/kubernetes with the image of this version.
manifests() {
  local file files=() name=select-service-$version-kubernetes
  mkdir -p "$stage/kubernetes"
  for file in deploy/kubernetes/*.yaml; do
    sed "s|$IMAGE:[^\"]*|$IMAGE:$version|" "$file" >"$stage/kubernetes/${file##*/}"
    files+=("${file##*/}=$stage/kubernetes/${file##*/}")
  done
  "$stage/dist" archive -out "$dist/$name.tar.gz" -prefix "$name" "${files[@]}"
  sbom "$dist/$name.tar.gz" -component "$(image_purl)"
}

# image_purl names the image, if it was built by its digest.
image_purl() {
  local digest
  digest=$(cat "$stage/image.digest" 2>/dev/null || true)
  printf 'pkg:oci/%s?repository_url=%s&tag=%s' "${IMAGE##*/}${digest:+@${digest/:/%3A}}" "$IMAGE" "$version"
}

statement() {
  local compiler files
  compiler=$("$GO" env GOVERSION)
  mapfile -t files < <(find "$dist" -maxdepth 1 -type f ! -name '*.cdx.json' | LC_ALL=C sort)
  "$stage/dist" provenance -version "$version" -commit "$commit" -go "$compiler" "${files[@]}" >"$dist/select-service-$version.intoto.jsonl"
}

checksums() {
  (cd "$dist" && find . -type f ! -name 'SHA256SUMS*' -printf '%f\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
}

# The signature is as cosign's sign-blob makes it: ECDSA of the SHA-256, in base64.
sign() {
  [ -n "$SIGN_KEY" ] || { printf 'release: without SIGN_KEY nothing is signed\n' >&2; return; }
  openssl dgst -sha256 -sign "$SIGN_KEY" ${SIGN_PASSWORD:+-passin env:SIGN_PASSWORD} "$dist/SHA256SUMS" | base64 -w0 >"$dist/SHA256SUMS.sig"
}

main() {
  mkdir -p "$dist"
  programs
  case $what in
  image | packages | wheels | chart) "$what" ;;
  all)
    rm -rf "${dist:?}"/*
    archives
    image
    packages
    wheels
    chart
    manifests
    grep -q "^## \[$version\]" CHANGELOG.md || printf 'release: CHANGELOG.md has no section %s\n' "$version" >&2
    statement
    checksums
    sign
    ;;
  *) stop "there is no $what" ;;
  esac
  (cd "$dist" && ls -l)
}

main
