#!/usr/bin/env bash
# Compares policies: starts the service and simulated engines, and plays one workload
# under two policies of the service and three simple ones. docs/figures/demo-policies.md explains
# what is seen.
#
# With --fleets as the first argument it compares two policies of the service on several
# fleets, with the other arguments as scripts/demo-policies-fleets.sh explains them.
#
# Options of the engines (--cache-blocks, --speed, --chunked, --prefill-rate,
# --decode-rate, --block-size, --hash-seed) go to sim-engine, --workers N sets
# their number, --policy-config FILE is the policy file of the service instead of
# demo/policies.yaml, --target URL uses a service that runs already; all else goes to
# sim-player, such as --keep, which lets requests go on at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${1:-} != --fleets ]] || exec scripts/demo-policies-fleets.sh "${@:2}"

ours=demo/policies.yaml
workers=4 target='' policies=${DYN_ROUTER_POLICY_CONFIG:-$ours} engine_args=() player_args=() played=
while (($#)); do
	case $1 in
	--*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
	esac
	case $1 in
	-h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" ; exit ;;
	--workers | --target | --policy-config | --policies | --cache-blocks | --speed | --prefill-rate | --decode-rate | --block-size | --hash-seed)
		(($# > 1)) || { echo "demo-policies: $1 needs a value" >&2; exit 2; } ;;&
	--workers) workers=$2; shift 2 ;;
	--target) target=$2; shift 2 ;;
	--policy-config) policies=$2; shift 2 ;;
	--policies) played=$2; player_args+=("$1" "$2"); shift 2 ;;
	--chunked) engine_args+=("$1"); shift ;;
	--cache-blocks | --speed | --prefill-rate | --decode-rate | --block-size | --hash-seed)
		engine_args+=("$1" "$2"); shift 2 ;;
	*) player_args+=("$1"); shift ;;
	esac
done

source scripts/processes.sh

[[ -n $target || -x bin/select-service ]] || make build
${GO:-go} build -trimpath -o bin/sim-engine ./demo/engine
${GO:-go} build -trimpath -o bin/sim-player ./demo/player

run engines bin/sim-engine --engines "$workers" "${engine_args[@]}"
await engines '^ready$'
engines=$(awk '/^engine /{print $3}' "$tmp/engines" | paste -sd,)

if [[ -z $target ]]; then
	run select-service bin/select-service --listen 127.0.0.1 --port 0 --log-format json --log-level info --router-policy-config "$policies" --tokenizer-url "${engines%%,*}"
	await select-service '"message":"listening"'
	[[ $played || $policies != "$ours" ]] || player_args+=(--policies select-service,select-service/predicted-ttft,round-robin,random,least-loaded)
	target=http://$(sed -n 's/.*"address":"\([^"]*\)".*"message":"listening".*/\1/p' "$tmp/select-service" | head -n 1)
fi

cat <<TEXT
$workers simulated engines publish their KV events, $target listens to them and
chooses an engine for each request. Every policy plays the same requests on restarted
engines; each takes about 20 seconds. Ctrl-C stops it.

To watch it in a browser: $target/ui/

TEXT
# In the background: a shell heeds signals only while it waits.
trap 'exit 130' INT TERM
bin/sim-player --target "$target" --engines "$engines" "${player_args[@]}" &
echo $! >"$tmp/player.pid"
wait $!
