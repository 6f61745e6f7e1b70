#!/usr/bin/env bash
# Compares what requests cost with and without an option that they use: 65,536 live sessions, and queue classes that
# are fair by programs. The service runs twice at once, and load alternates between the two (test/others/bench
# -mode paired). The log has the median ratio of the processor time of each, with the range. Ends with 1 if one is
# above LIMIT (1.10). All results go to bin/bench-options.json. Arguments go to test/others/bench (-slices 200).
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
make -s build
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd test/others/bench && ${GO:-go} build -o "$work/selbench" .)

for by in none program; do
  cat >"$work/$by.yaml" <<END
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: c, policy_family: f, cache_bucket: all, quantum: 1, prefill_busy_threshold: 1000000000, fairness: {by: $by}}
END
done

compare() { # NAME, the members of bodies, and what the second one has beside the first one
  printf '%s\n' "$1"
  "$work/selbench" -mode paired -names without,with -env-a '' -env-b '' -log "$work/server.log" \
    -a "$service $3" -b "$service $4" -member "$2" -workers 8 -cap 50000 -dur 200ms -prompts 1024,8192 \
    -ops select,lifecycle -limit "${LIMIT:-1.10}" "${@:5}" >>bin/bench-options.json
}

service='bin/select-service --port {port} --threads 4 --log-level warn'
: >bin/bench-options.json
failed=0
compare '65,536 sessions' session_id:65536 '' '--session-affinity-ttl-secs 3600' "$@" || failed=1
compare 'fair by programs' fairness_id:1000 "--router-policy-config $work/none.yaml" "--router-policy-config $work/program.yaml" "$@" || failed=1
exit $failed
