#!/usr/bin/env bash
# h2spec against the proxy's listener: nothing may fail but what test/checks/h2spec/known.txt names, and all of that
# still does. The path is one that reads a request's body before it answers: elsewhere an answer may come before the
# frames that h2spec expects to be refused. H2SPEC and SELECT_SERVICE_BIN are the two programs.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/processes.sh

port=$(free_port 18080)
run service "$SELECT_SERVICE_BIN" --listen 127.0.0.1 --port "$(free_port $((port + 1)))" --use-kv-events=false --proxy-port "$port"
for _ in {1..100}; do (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; sleep 0.1; done
"$H2SPEC" -h 127.0.0.1 -p "$port" -P /v1/chat/completions -o 3 >"$tmp/report" || true # it fails for what is known, too
grep -q '^[0-9]* tests, ' "$tmp/report" || { cat "$tmp/report" "$tmp/service" >&2; exit 1; }
sed -n '/^Failures:/,$s/^ *× [0-9]*: //p' "$tmp/report" | sort -u >"$tmp/failed"
grep -v '^#' test/checks/h2spec/known.txt | sort -u >"$tmp/known"
if ! diff "$tmp/known" "$tmp/failed"; then
	echo 'h2spec: < is known and passes now, > fails anew' >&2
	cat "$tmp/report" >&2
	exit 1
fi
tail -1 "$tmp/report"
