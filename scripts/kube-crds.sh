#!/usr/bin/env bash
# Prints the folder with the definitions of InferencePools, or of the Gateway API with the argument
# gateway: those of the modules of test/helpers/kubetest/crds.
set -euo pipefail
cd "$(dirname "$0")/../test/helpers/kubetest/crds"
go=${GO:-go}
module=sigs.k8s.io/gateway-api-inference-extension folder=config/crd/bases
[[ ${1:-} != gateway ]] || module=sigs.k8s.io/gateway-api folder=config/crd/standard
"$go" mod download "$module"
echo "$("$go" list -m -f '{{.Dir}}' "$module")/$folder"
