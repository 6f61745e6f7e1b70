#!/usr/bin/env bash
# Plays the same loads through select-service behind Envoy and through SMG and vllm-router, which
# pip installs, on the same simulated engines and on the loopback only (test/others/rivals). Tables, JSON,
# plots and logs are in bin/compare-gateways; docs/figures/compare.md explains them. Arguments: --plays,
# --contestants, --rounds (3), --paired, --rate, --short (whether it works; no figures), --help for the names.
# Figures need a machine that does nothing else. With --model as the first argument the plays are played
# in model time, by the rules of placement alone (test/others/rivals/model_test.go): --plays, --seeds (8).
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} == --model ]]; then
	shift
	${GO:-go} test -c -o bin/rivals-model ./test/others/rivals
	exec bin/rivals-model -test.run '^TestModel$' -test.timeout 0 -model "$@"
fi

[[ -x bin/select-service ]] || make build
${GO:-go} build -trimpath -o bin/sim-engine ./demo/engine
${GO:-go} build -trimpath -o bin/rivals ./test/others/rivals

envoy=${GATEWAY_ENVOY:-$(dirname "$(scripts/venv.sh -r test/checks/gateway/requirements.txt)")/envoy}
smg=$(scripts/venv.sh smg==1.13)
vllm_router=$(scripts/venv.sh vllm-router==0.1.17)
exec bin/rivals --envoy "$envoy" --smg "${smg%/*}/smg" --vllm-router "${vllm_router%/*}/vllm-router" "$@"
