#!/usr/bin/env bash
# Measures replicas beside those of Dynamo 1.6.1: recovery of 1.0 and 3.2 million
# entries, bookings over HTTP, and 20,000 events a second fed below HTTP. On a
# quiet machine of two cores it takes about fifteen minutes.
#
#   test/others/bench/replicas.sh TRACE [recover|recover-large|replica|feed]...
#
# TRACE is conversation_trace.jsonl of Mooncake's FAST'25 release. Each line of
# output is one JSON object; the summary lines of selbench hold medians and the
# ratios of ours to the peer. ROUNDS (3) and OUT (a folder for the output) can be
# set; SELECT_SERVICE_BIN names another program.
set -euo pipefail

(($#)) || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
trace=$(realpath "$1")
shift
cd "$(dirname "$0")/../../.."
(($#)) || set -- replica feed recover recover-large

rounds=${ROUNDS:-3}
out=${OUT:-$(mktemp -d)}
service=$(realpath "${SELECT_SERVICE_BIN:-bin/select-service}")
[[ -x $service ]] || { echo "$service is missing: make build" >&2; exit 1; }
peer=$(scripts/venv.sh ai-dynamo-runtime==1.6.1)
mkdir -p "$out"
go build -o "$out/feed" ./test/others/feed
(cd test/others/bench && go build -o "$out/selbench" .)
cd "$out" # servers log here

flags='--port {port} --threads 4 --indexer-peers={ipeers} --replica-sync-port={sync} --replica-sync-peers={speers}'
selbench() { # name, flags
	local name=$1
	shift
	./selbench -trace "$trace" -names peer,ours -env-a '' -env-b '' \
		-a "$peer -m dynamo.select_service $flags" -b "$service $flags" "$@" | tee "$name.jsonl" | grep -v '"kind":"workload"'
}

# feed NAME PORT COMMAND...: starts a receiver and feeds it.
feed() {
	local name=$1 port=$2
	shift 2
	DYN_USE_KV_EVENTS=false "$@" --port "$port" --replica-sync-port $((port + 1)) \
		--replica-sync-peers "tcp://127.0.0.1:$((port + 2))" >>server.log 2>&1 &
	local pid=$!
	for _ in {1..200}; do
		(exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
		sleep 0.05
	done
	./feed --name "$name" --receiver "http://127.0.0.1:$port" --bind "tcp://127.0.0.1:$((port + 2))" | tee -a feed.jsonl || true
	kill "$pid"
	wait "$pid" || true
}

for what; do
	case $what in
	recover) selbench recover -mode recover -workers 8 -cap 125000 -rounds "$rounds" -checks 60 ;;
	recover-large) selbench recover-large -mode recover -workers 64 -cap 50000 -rounds "$rounds" -checks 60 ;;
	replica) selbench replica -mode replica -workers 8 -cap 10000 -rounds "$rounds" ;;
	feed)
		for ((round = 0; round < rounds; round++)); do
			feed peer $((24500 + 20 * round)) "$peer" -m dynamo.select_service
			feed ours $((24510 + 20 * round)) "$service" --log-level warn
		done
		;;
	*) echo "what is $what?" >&2; exit 2 ;;
	esac
done
echo "output in $out" >&2
