#!/usr/bin/env bash
# Shows two replicas behind one workload: both choose in turn, one is killed
# half way and restarted three seconds later. docs/start/demo.md explains what is seen.
#
# --cold restarts it without its peer, --replay=false registers the engines
# without their replay endpoints; both together show what a peer is worth, and
# make the demo fail. --workers N sets the number of engines; all else goes to
# sim-player.
set -euo pipefail
cd "$(dirname "$0")/.."

workers=6 cold='' player_args=(--requests 3000 --speedup 8 --decisions 0)
while (($#)); do
	case $1 in
	-h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit ;;
	--cold) cold=yes; shift ;;
	--workers=*) workers=${1#*=}; shift ;;
	--workers) workers=${2:?--workers needs a value}; shift 2 ;;
	*) player_args+=("$1"); shift ;;
	esac
done

source scripts/processes.sh

[[ -x bin/select-service ]] || make build
${GO:-go} build -trimpath -o bin/sim-engine ./demo/engine
${GO:-go} build -trimpath -o bin/sim-player ./demo/player

# Four ports that nobody listens on: HTTP and synchronisation of each replica.
free_ports 4
http=("${ports[@]:0:2}") sync=("${ports[@]:2:2}")

# argv I [cold]: what runs replica 0 or 1.
argv() {
	echo bin/select-service --listen 127.0.0.1 --port "${http[$1]}" --log-format json --log-level info
	[[ ${2:-} ]] || echo --replica-sync-port "${sync[$1]}" --replica-sync-peers "tcp://127.0.0.1:${sync[1 - $1]}" \
		--indexer-peers "http://127.0.0.1:${http[1 - $1]}"
}

run engines bin/sim-engine --engines "$workers" --cache-blocks 65536
await engines '^ready$'
engines=$(awk '/^engine /{print $3}' "$tmp/engines" | paste -sd,)
for i in 0 1; do
	# shellcheck disable=SC2046 # these are words
	run "replica$i" $(argv $i)
	disown # the shell does not tell that one is killed
	await "replica$i" '"message":"listening"'
done

# What sim-player runs half way.
cat >"$tmp/disturb" <<TEXT
kill -KILL \$(cat "$tmp/replica1.pid")
sleep 3
$(echo $(argv 1 $cold)) >>"$tmp/replica1" 2>&1 &
echo \$! >"$tmp/replica1.pid"
TEXT

cat <<TEXT
$workers simulated engines publish their KV events; two replicas listen to them, tell
each other their reservations, and choose in turn. Half way, replica 2 is killed
(SIGKILL) and restarted 3 s later. About a minute; Ctrl-C stops it.

TEXT
bin/sim-player --policies select-service --engines "$engines" \
	--target "http://127.0.0.1:${http[0]},http://127.0.0.1:${http[1]}" \
	--disturb "sh '$tmp/disturb'" "${player_args[@]}"
