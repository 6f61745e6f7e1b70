#!/usr/bin/env bash
# Shows a fleet: three replicas that meet over one NATS server, which choose in turn. The engines
# are registered once. Half way one replica is killed, and another one is added that is told nothing
# but the server. docs/start/demo.md explains the table.
#
# --workers N sets the number of engines; all else goes to sim-player. NATS_SERVER_BIN names the
# server: make demo-fleet builds one.
set -euo pipefail
cd "$(dirname "$0")/.."

workers=6 player_args=(--requests 3000 --speedup 8 --decisions 0)
while (($#)); do
	case $1 in
	-h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit ;;
	--workers=*) workers=${1#*=}; shift ;;
	--workers) workers=${2:?--workers needs a value}; shift 2 ;;
	*) player_args+=("$1"); shift ;;
	esac
done

source scripts/processes.sh

[[ -x bin/select-service ]] || make build
${GO:-go} build -trimpath -o bin/sim-engine ./demo/engine
${GO:-go} build -trimpath -o bin/sim-player ./demo/player

# Four ports that nobody listens on: NATS and HTTP of each replica.
free_ports 4
http=("${ports[@]:1:3}")

# argv I NAME: what runs a replica at the address of replica I.
argv() {
	echo bin/select-service --listen 127.0.0.1 --port "${http[$1]}" --log-format json --log-level info \
		--fleet "nats://127.0.0.1:${ports[0]}" --fleet-replica "$2" --fleet-required
}

run nats "${NATS_SERVER_BIN:?names no nats-server: use make demo-fleet}" -a 127.0.0.1 -p "${ports[0]}" -js -sd "$tmp/streams"
await nats 'Server is ready'
run engines bin/sim-engine --engines "$workers" --cache-blocks 65536
await engines '^ready$'
engines=$(awk '/^engine /{print $3}' "$tmp/engines" | paste -sd,)
for i in 0 1 2; do
	# shellcheck disable=SC2046 # these are words
	run "replica$i" $(argv $i "replica-$i")
	disown # the shell does not tell that one is killed
	await "replica$i" '"message":"listening"'
done

# What sim-player runs half way. The new replica has the address of the killed one, as behind a
# load balancer.
cat >"$tmp/disturb" <<TEXT
kill -KILL \$(cat "$tmp/replica2.pid")
sleep 3
$(argv 2 added) >>"$tmp/replica2" 2>&1 &
echo \$! >"$tmp/replica2.pid"
TEXT

cat <<TEXT
$workers simulated engines publish their KV events; three replicas listen to them and meet over
NATS. The engines are registered with the first one. Half way replica 3 is killed (SIGKILL), and 3 s
later a new one takes its place, which is told the NATS server alone. About a minute; Ctrl-C stops it.

TEXT
bin/sim-player --policies select-service --engines "$engines" --fleet \
	--target "http://127.0.0.1:${http[0]},http://127.0.0.1:${http[1]},http://127.0.0.1:${http[2]}" \
	--disturb "sh '$tmp/disturb'" "${player_args[@]}"
