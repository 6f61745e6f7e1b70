#!/usr/bin/env bash
# Makes a trace of agents that write code, with aiperf's generator: SEED (1), SESSIONS (100), into bin/agents-SEED.jsonl.
# sim-player --trace and make compare-policies ARGS="-agentic FILE" play it: prompts of 50,000 to 200,000 tokens.
set -euo pipefail
cd "$(dirname "$0")/.."

seed=${SEED:-1}
python=$(scripts/venv.sh agentx-harness==1.0.12) # Apache-2.0; it has aiperf and its manifests
manifest=$("$python" -c 'import aiperf.dataset.agentic_code_gen as d, os; print(os.path.join(os.path.dirname(d.__file__), "datasets/1k_sessions_200k_ctx/manifest.json"))')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${python%/*}/aiperf" synthesize agentic-code --num-sessions "${SESSIONS:-100}" --seed "$seed" --config "$manifest" --output "$work" >"$work/log" 2>&1 ||
	{ cat "$work/log" >&2; exit 1; }
mkdir -p bin
mv "$work"/*/dataset.jsonl "bin/agents-$seed.jsonl"
printf 'bin/agents-%s.jsonl: %s turns\n' "$seed" "$(wc -l <"bin/agents-$seed.jsonl")"
