#!/usr/bin/env bash
# Does what a newcomer does, on a machine that has nothing: a bare Debian root (mmdebstrap, minbase)
# with make, gcc, git, certificate authorities and this machine's Go, with empty caches and an empty
# home. In it the last commit of this tree is cloned, and as root the commands of README.md and
# docs/start/install.md are played to their ends, make build, make demo and make test first. scripts/newcomer lists
# the commands that are left out, and why. Network and registries are those of this machine; no
# other setting of it gets in.
#
# --keep DIR keeps the root in DIR, or takes the one that is there, with its caches: a run in that
# shows what has been mended, but is no proof. --without PATTERN leaves out the lines that match it,
# an extended regular expression. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

stop() {
  printf 'test-newcomer: %s\n' "$1" >&2
  exit 1
}

root='' without='a^' # matches nothing
while (($#)); do
  case $1 in
    --keep) root=${2:?--keep needs a folder} ;;
    --without) without=${2:?--without needs a pattern} ;;
    *) stop "unknown argument $1" ;;
  esac
  shift 2
done
((EUID == 0)) || stop 'it needs root, to make a root and to go into it'
scripts/setup.sh --programs mmdebstrap unshare=util-linux git

if [[ ! $root ]]; then
  root=$(mktemp -d)
  trap 'rm -rf --one-file-system "$root"' EXIT
fi

# Debian as this machine has it: suite, mirrors, and how they are reached.
make_root() {
  local suite sources=() options
  suite=$(. /etc/os-release && [[ $ID == debian ]] && echo "${VERSION_CODENAME:-}") || suite=
  if [[ $suite ]]; then
    for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
      [[ ! -s $file ]] || { sources=("$file"); break; }
    done
  fi
  options=$(mktemp)
  apt-config dump | grep -E '^Acquire::(https?::|Check|Retries)' >"$options" || true
  mmdebstrap --quiet --variant=minbase --include=make,gcc,git,ca-certificates --aptopt="$options" \
    "${suite:-stable}" "$1" "${sources[@]+"${sources[@]}"}"
  rm "$options"
  find "$1/root" -mindepth 1 -delete
  cp -a "$("$go" env GOROOT)" "$1/usr/local/go"
  printf '127.0.0.1 localhost\n::1 localhost ip6-localhost\n' >"$1/etc/hosts" # as Debian's installer does
  for file in /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt ${SSL_CERT_FILE:+"$SSL_CERT_FILE"}; do
    [[ ! -f $file ]] || install -D -m 644 "$file" "$1$file"
  done
}

[[ -x $root/usr/local/go/bin/go ]] || make_root "$root"

# How registries are reached; go env has what go env -w wrote, too.
registries=()
for name in {http,https,no,all}_proxy {HTTP,HTTPS,NO,ALL}_PROXY SSL_CERT_FILE PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_CERT NPM_CONFIG_REGISTRY; do
  [[ ! ${!name:-} ]] || registries+=("$name=${!name}")
done
for name in GOPROXY GONOPROXY GOSUMDB GONOSUMDB GOPRIVATE GOINSECURE; do
  registries+=("$name=$("$go" env "$name")")
done

# inside COMMAND...: as root in the root, with its own processes, which all end with the command.
inside() {
  ROOT=$root unshare --mount --pid --fork --kill-child bash -euc '
    mount -t proc proc "$ROOT/proc"
    mount --rbind /sys "$ROOT/sys"
    mount --rbind /dev "$ROOT/dev"
    exec chroot "$ROOT" env -i "$@"' - \
    HOME=/root PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${registries[@]}" "$@" </dev/null
}

[[ ! $(git status --porcelain --untracked-files=no) ]] || echo 'test-newcomer: what is not committed is not played' >&2
clone=/srv/select-service
rm -rf "$root$clone"
git clone -q --no-local "$PWD" "$root$clone"
"$go" run -C "$root$clone" ./scripts/newcomer README.md docs/start/install.md | grep -vE -e "$without" >"$root/srv/commands"
inside bash -c "cd $clone && exec bash -veuo pipefail /srv/commands"
printf '\ntest-newcomer: ok\n'
