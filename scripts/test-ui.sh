#!/usr/bin/env bash
# Looks at the operators' page in Chromium (test/checks/ui). At full length it checks first
# that the committed bundle is what its sources give, that they have no type errors,
# where there is npm, and it has axe-core look for what keeps people out. Arguments go
# to go test.
set -euo pipefail
cd "$(dirname "$0")/.."

short=
for arg; do [[ $arg != -short ]] || short=yes; done
if [[ $short ]] && ! command -v chromium chromium-browser google-chrome >/dev/null; then
	echo 'test-ui: no Chromium, nothing is looked at'
	exit
fi
[[ $short ]] || scripts/setup.sh --programs chromium

if [[ ! $short ]]; then
	(cd internal/server/ui/build && ${GO:-go} run .)
	if command -v npm >/dev/null; then
		# The lock file has the hash of every package.
		mkdir -p .cache/ui
		cp internal/server/ui/web/package*.json .cache/ui
		(cd .cache/ui && "$OLDPWD/scripts/again.sh" npm ci --no-audit --no-fund --ignore-scripts --silent) ||
			{ echo 'missing: npm cannot install the packages of the page' >&2; exit 1; }
		for file in preact/dist/preact.mjs preact/hooks/dist/hooks.mjs uplot/dist/uPlot.esm.js uplot/dist/uPlot.min.css; do
			cmp "internal/server/ui/web/vendor/${file%%/*}/${file##*/}" ".cache/ui/node_modules/$file"
		done
		ln -sfn "$PWD/.cache/ui/node_modules" internal/server/ui/web/node_modules
		.cache/ui/node_modules/.bin/tsc -p internal/server/ui/web
		export SELECT_SERVICE_AXE=$PWD/.cache/ui/node_modules/axe-core/axe.min.js
	fi
fi
cd test/checks/ui
${GO:-go} test -count=1 -timeout 30m "$@" .
