#!/usr/bin/env bash
# The first five minutes without engines: starts simulated engines that describe themselves
# as vLLM does, select-service as the proxy in front of them, and plays chats through it over
# HTTP. Then the same chats go to the engines themselves in turn, and a table compares both.
# docs/start/demo.md explains what is seen.
#
# --workers N sets the number of engines (2). --keep lets chats go on at the end until
# Ctrl-C. --cache-blocks, --speed, --prefill-rate, --decode-rate, --block-size and --hash-seed
# go to sim-engine, all else to gateway-load, such as --seed 2, --duration 60s, --rounds 3 and
# --rate 1.2. DYN_ROUTER_* and the other variables of the service apply.
set -euo pipefail
cd "$(dirname "$0")/.."

workers=2 engine_args=() load_args=()
while (($#)); do
	case $1 in
	--*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
	esac
	case $1 in
	-h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit ;;
	--workers | --cache-blocks | --speed | --prefill-rate | --decode-rate | --block-size | --hash-seed)
		(($# > 1)) || { echo "demo: $1 needs a value" >&2; exit 2; } ;;&
	--workers) workers=$2; shift 2 ;;
	--cache-blocks | --speed | --prefill-rate | --decode-rate | --block-size | --hash-seed)
		engine_args+=("$1" "$2"); shift 2 ;;
	*) load_args+=("$1"); shift ;;
	esac
done

source scripts/processes.sh

[[ -x bin/select-service ]] || make build
${GO:-go} build -trimpath -o bin/sim-engine ./demo/engine
${GO:-go} build -trimpath -o bin/gateway-load ./demo/gateway

# An eighth of the cache of a real engine: it fills within the minute.
run engines bin/sim-engine --engines "$workers" --cache-blocks 4096 --each-token "${engine_args[@]}"
await engines '^ready$'
engines=$(awk '/^engine /{print $3}' "$tmp/engines" | paste -sd,)

# The usual ports, or the next ones that nobody listens on.
api=$(free_port 8092)
proxy=$(free_port 8080)
command=(bin/select-service --engines "$engines" --proxy-port "$proxy" --listen 127.0.0.1)
((api == 8092)) || command+=(--port "$api")
run select-service "${command[@]}"
until [[ $(curl -s -o "$tmp/ready" -w '%{http_code}' "http://127.0.0.1:$proxy/ready") == 200 ]]; do
	kill -0 "$(<"$tmp/select-service.pid")" 2>/dev/null || await select-service 'a^' # shows why
	sleep 0.1
done

cat <<TEXT
$workers simulated engines are up, and this is in front of them:

  ${command[*]}

It learns from the engines what they serve, and places each request by what they have cached
and are busy with. Watch it in a browser, and send it a chat of your own:

  http://127.0.0.1:$api/ui/
  curl http://127.0.0.1:$proxy/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"model": "simulated", "messages": [{"role": "user", "content": "Hello"}]}'

TEXT
# In the background: a shell heeds signals only while it waits.
trap 'exit 130' INT TERM
bin/gateway-load --via "select-service=http://127.0.0.1:$proxy" --via "round-robin=$engines" --engines "$engines" --show --duration 25s "${load_args[@]}" &
echo $! >"$tmp/load.pid"
wait $!
