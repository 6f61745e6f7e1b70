#!/usr/bin/env bash
# Plays two policies of the service against each other on several fleets, workloads and
# kinds of callers, and prints the ratios of each play. docs/figures/demo-policies.md has the plays.
#
#   scripts/demo-policies.sh --fleets [--ours select-service/NAME] [--base select-service] [--rounds 3]
#                                     [--out DIRECTORY] [--trace FILE] [--seeds 4,5,6] [PLAY...]
#
# PLAY is one of chats, mixed, slow, late, chunked, agents, busy-agents (each with every
# seed) and trace (needs --trace); without any, all of them. Everything after -- goes to
# scripts/demo-policies.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

ours=select-service/predicted-ttft base=select-service rounds=3 out=bin/demo-policies trace='' seeds=4,5,6,7,8,9
plays=() more=()
while (($#)); do
	case $1 in
	--*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
	esac
	case $1 in
	-h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit ;;
	--) more=("${@:2}"); break ;;
	--ours | --base | --rounds | --out | --trace | --seeds)
		(($# > 1)) || { echo "demo-policies: $1 needs a value" >&2; exit 2; }
		printf -v "${1#--}" %s "$2"; shift 2 ;;
	chats | mixed | slow | late | chunked | agents | busy-agents | trace) plays+=("$1"); shift ;;
	*) echo "demo-policies: $1 is no play" >&2; exit 2 ;;
	esac
done
if ((${#plays[@]} == 0)); then
	plays=(chats mixed slow late chunked agents busy-agents)
	[[ -z $trace ]] || plays+=(trace)
fi
mkdir -p "$out"
failed=0

# options PLAY: what demo-policies.sh gets for it.
options() {
	case $1 in
	mixed) echo --speed 1,1,0.5,0.5 --cache-blocks 16384,16384,8192,8192 --rate 0.75 ;;
	slow) echo --slow 1:0.3:0.33-0.67 ;;
	late) echo --lifecycle late ;;
	chunked) echo --chunked --rate 2 ;;
	agents) echo --workload agents --rate 1.8 ;;
	busy-agents) echo --workload agents --rate 2.6 ;;
	trace) echo --trace "$trace" --cache-blocks 65536 ;;
	esac
}

# play NAME OPTION...: both policies; one line of the ratios.
play() {
	local name=$1
	shift
	if ! scripts/demo-policies.sh --policies "$base,$ours" --rounds "$rounds" --again 2 --decisions 0 --json "$out/$name.json" "$@" "${more[@]}" >"$out/$name.txt" 2>&1; then
		printf '%-14s failed, see %s\n' "$name" "$out/$name.txt"
		failed=1
		return
	fi
	awk -v name="$name" -v ours="$ours" '
		/^By the figures of/ { ratios = 1 }
		ratios && $1 == ours { sub(/^[^ ]+ +/, ""); line = $0 }
		/: the machine was too busy/ && ratios { busy = "  (busy machine)" }
		END { printf "%-14s %s%s\n", name, line, busy }
	' "$out/$name.txt"
}

echo "$ours by $base, medians of $rounds rounds (least–most); tables, JSON and plots are in $out"
printf '%-14s %-17s %-17s %-17s %-17s %-17s %s\n' play 'TTFT mean' 'TTFT p99' '+ choice, mean' '+ choice, p99' TPOT 'whole answer'
for p in "${plays[@]}"; do
	# shellcheck disable=SC2046 # these are words
	if [[ $p == trace ]]; then
		play trace $(options trace)
	else
		for seed in ${seeds//,/ }; do
			play "$p-$seed" --seed "$seed" $(options "$p")
		done
	fi
done
exit "$failed"
