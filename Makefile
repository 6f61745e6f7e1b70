# select-service. `make help` lists the targets; `make demo` and `make test`
# install what the machine is missing and need nothing else than Go and the
# usual build tools.
#
# Tests come in three rings. `make test` is for a change: minutes. `make check` is
# what CI runs on every push. `make nightly` is everything at full length.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
BIN      := bin
TOOLS    := .cache/bin
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS  := -s -w -X main.release=$(VERSION)
# nomsgpack is gin's own tag: without its MessagePack binding, which this service
# does not use, the program is 6 MB (28 %) smaller. grpcnotrace is grpc-go's: its
# tracing pages keep the linker from leaving out what nobody calls, 9 MB. netgo and
# osusergo leave cgo out of the standard library.
TAGS     := nomsgpack,grpcnotrace,netgo,osusergo
PKG      ?= ./...
SHORT    ?= -short
RACE     ?= -race
LOAD     ?= 20
FUZZTIME ?= 30s
FUZZGUIDE ?= all
BENCH    ?= .
COUNT    ?= 1

# Tools are built once, into .cache/bin. The version is part of the name: another
# version is another file.
GOLANGCI         := $(TOOLS)/golangci-lint-v2.15.0
GOVULNCHECK      := $(TOOLS)/govulncheck-v1.9.0
H2SPEC           := $(TOOLS)/h2spec-v2.2.1+incompatible
HELM             := $(TOOLS)/helm-v3.22.0
NFPM             := $(TOOLS)/nfpm-v2.45.2
NATS_SERVER      := $(TOOLS)/nats-server-v2.15.2
TRACES_COLLECTOR := $(TOOLS)/otlp-collector-v0.165.0

# What is built, put into the image and the packages, and released: each is a folder
# of cmd/. The first is what the image runs.
PROGRAMS := select-service selectctl
IMAGE    ?= ghcr.io/select-service/select-service

# Programs, tests and tools are built alike, so that Go compiles a package once with and
# once without the race detector: with these tags, what needs C and what does not share
# all else. Vetting is make lint's. Without DWARF, which stack traces and profiles do not need, a program is linked
# in two thirds of the time, and the tests are a hundred programs. A debugger needs what go test builds by itself.
export CGO_ENABLED := 1
export GOFLAGS := $(GOFLAGS) -trimpath -vet=off -ldflags=-w -tags=$(TAGS)

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Build, run and release

.PHONY: setup
setup: ## install what the tests need and is missing: a C compiler, libzmq's headers, pkg-config, curl
	@scripts/setup.sh

# ZMQ=libzmq builds the service with engines' streams on libzmq, which needs C.
ifeq ($(ZMQ),libzmq)
build: TAGS := $(TAGS),libzmq
build: setup
endif

.PHONY: build
build: ## build bin/select-service and bin/selectctl; they need no C (ZMQ=libzmq: with libzmq, not bounded as ours)
	CGO_ENABLED=$(if $(filter libzmq,$(ZMQ)),1,0) $(GO) build -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o $(BIN)/ $(PROGRAMS:%=./cmd/%)

.PHONY: fmt
fmt: $(GOLANGCI) ## format the sources
	$(GOLANGCI) fmt

.PHONY: bench
bench: setup ## run the benchmarks that match BENCH (all), COUNT (1) times, into bin/bench.txt (for benchstat)
	@mkdir -p $(BIN)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) $(PKG) | tee $(BIN)/bench.txt

.PHONY: demo
demo: build setup ## simulated engines, the proxy in front of them, chats through it; 90 s (ARGS for options)
	scripts/demo.sh $(ARGS)

.PHONY: demo-policies
demo-policies: build setup ## one workload under five policies (ARGS; ARGS=--fleets: two policies on several fleets)
	scripts/demo-policies.sh $(ARGS)

.PHONY: demo-replicas
demo-replicas: build setup ## two replicas behind one workload, one killed and restarted half way
	scripts/demo-replicas.sh $(ARGS)

.PHONY: demo-fleet
demo-fleet: build setup $(NATS_SERVER) ## three replicas that meet over NATS, one killed and another one added half way
	NATS_SERVER_BIN=$(CURDIR)/$(NATS_SERVER) scripts/demo-fleet.sh $(ARGS)

.PHONY: demo-gateway
demo-gateway: build setup ## chats through Envoy, placed by the service and in turn (ARGS)
	scripts/demo-gateway.sh $(ARGS)

.PHONY: sbom
sbom: build ## write bin/select-service.cdx.json: what the program is made of (CycloneDX)
	$(GO) run ./scripts/sbom $(BIN)/select-service >$(BIN)/select-service.cdx.json

# What is released goes to dist/, as of the tag v1.2.3 that is checked out or VERSION.
# SIGN_KEY is a file with an ECDSA key (PEM), its passphrase in SIGN_PASSWORD; without
# one nothing is signed.
release = GO='$(GO)' VERSION='$(VERSION)' PROGRAMS='$(PROGRAMS)' TAGS='$(TAGS)' IMAGE='$(IMAGE)' NFPM=$(NFPM) SIGN_KEY='$(SIGN_KEY)' \
	scripts/release.sh

.PHONY: image
image: ## dist/: the image for amd64 and arm64, an OCI archive
	$(release) image

.PHONY: packages
packages: $(NFPM) ## dist/: .deb and .rpm for amd64 and arm64
	$(release) packages

.PHONY: wheels
wheels: ## dist/: wheels with the programs, and the Python client's
	$(release) wheels

.PHONY: chart
chart: ## dist/: the Helm chart
	$(release) chart

.PHONY: release
release: $(NFPM) ## dist/: all of these, the programs, checksums, SBOMs, provenance, signature (SIGN_KEY)
	$(release) all

.PHONY: clean
clean: ## remove what was built; the tools stay in .cache
	rm -rf $(BIN)

##@ Rings of tests

# SHORT is the one switch between the rings: with -short, tests shorten their
# random histories (test/helpers/length) and leave out the largest sizes. The tests of the built program
# share one build, which has the race detector. A program with the race
# detector sleeps for a second before it ends, unless it is told not to, and the tests
# end hundreds. Vetting is make lint's.
test test-sequential test-busy: export SELECT_SERVICE_BIN := $(CURDIR)/$(BIN)/test/select-service
test test-sequential test-busy: export GORACE := atexit_sleep_ms=0

# The race detector finds nothing in what computes in one goroutine: what the tests of the files that use
# test/helpers/length shorten for it is played without it. Nor does it find anything in the code of
# test/checks but that of the Go client in e2e/retries: the program that these start has it; nor in internal/arch,
# which reads the sources, and test/others/policies, which plays one step after the other. All runs at the same
# time, because the checks wait more than they compute. A package that hangs ends after 20 minutes, and tells where.
units      = $(GO) test $(RACE) $(SHORT) -p 3 -shuffle=on -timeout 20m $$($(GO) list ./... | grep -vE '/(test/checks/.*|internal/arch|test/others/policies)$$') ./test/checks/e2e/retries
checks     = $(GO) test $(SHORT) -p 3 -shuffle=on -timeout 20m $$($(GO) list ./test/checks/... ./internal/arch ./test/others/policies | grep -vE '/e2e/(attacks|retries)$$')
sequential = $(GO) test $(SHORT) -p 1 -shuffle=on -timeout 20m -run "^($$(grep -hoE '^func Test\w+' $(shortened) | cut -d' ' -f2 | sort -u | paste -sd'|'))$$" \
	$$(dirname $(shortened) | sort -u | sed 's,^,./,')
shortened  = $$(grep -rlF '/test/helpers/length"' --include='*_test.go' cmd demo internal pkg)

.PHONY: test test-sequential
ifeq ($(PKG) $(SHORT) $(RACE),./... -short -race)
test: test-program ## ring 1: every test, short, with the race detector where it can find something (PKG, SHORT=, RACE= to change that)
	{ failed=; $(checks) || failed=yes; $(sequential) && [[ ! $$failed ]]; } & failed=; $(units) || failed=yes; wait $$! && [[ ! $$failed ]]
else
test: test-program
	$(GO) test $(RACE) $(SHORT) -p 4 -shuffle=on -timeout 60m $(PKG)
endif

test-sequential: test-program ## of ring 1, what is shorter with the race detector, without it
	$(sequential)

.PHONY: test-program
test-program: setup
	$(GO) build $(RACE) -o $(BIN)/test/select-service ./cmd/select-service

.PHONY: check
check: ## ring 2: what CI runs
	.ci/run

.PHONY: nightly
nightly: ## ring 3: everything at full length; all steps run, the end names the failed
	.ci/nightly

.PHONY: lint
lint: setup $(GOLANGCI) ## run the linters and check the format
	$(GOLANGCI) run
	cd test/checks/ui && $(CURDIR)/$(GOLANGCI) run

.PHONY: fuzz
fuzz: setup ## run every fuzz target for FUZZTIME (30s)
	GO='$(GO)' scripts/fuzz.sh $(FUZZTIME) $(FUZZGUIDE)

##@ Checks of the product

.PHONY: test-attacks test-attacks-short
test-attacks test-attacks-short: export SELECT_SERVICE_BIN := $(CURDIR)/$(BIN)/select-service
test-attacks: build setup ## hostile callers, engines, peers and browsers (E2E_ALONE=1: delays too)
	$(GO) test -count=1 -timeout 40m ./test/checks/e2e/attacks
test-attacks-short: build setup ## the same with fewer attackers
	$(GO) test -short -count=1 -timeout 40m ./test/checks/e2e/attacks

.PHONY: test-busy
test-busy: test-program ## the timing-sensitive tests beside LOAD (20) busy processes
	GO='$(GO)' scripts/test-busy.sh $(LOAD)

.PHONY: test-sim
test-sim: setup ## simulate replicas: SIM_RUNS (1000) histories, and every planted bug is found
	$(GO) test -count=1 -timeout 90m -v -run '^TestSimulation' ./pkg/replicasync

.PHONY: test-faults
test-faults: setup ## 100 (FAULT_SCHEDULES) schedules of faults between replicas; run it alone
	E2E_ALONE=1 FAULT_SCHEDULES=$${FAULT_SCHEDULES:-100} $(GO) test -race -count=1 -timeout 60m -v -run '^TestFaults$$' ./test/checks/e2e/replicas

.PHONY: test-overload
test-overload: setup ## twice and ten times what simulated engines can take; run it alone
	E2E_ALONE=1 $(GO) test -count=1 -timeout 15m -v ./test/checks/e2e/overload

.PHONY: test-proxy
test-proxy: build setup ## broken engines behind the proxy, and 2,000 streams through it; run it alone
	E2E_ALONE=1 SELECT_SERVICE_BIN=$(CURDIR)/$(BIN)/select-service $(GO) test -count=1 -timeout 15m -v ./test/checks/e2e/proxy

.PHONY: test-h2spec
test-h2spec: build $(H2SPEC) ## HTTP/2 of the proxy's listener, by h2spec
	H2SPEC=$(CURDIR)/$(H2SPEC) SELECT_SERVICE_BIN=$(CURDIR)/$(BIN)/select-service scripts/test-h2spec.sh

.PHONY: test-fleet test-fleet-short
test-fleet test-fleet-short: export NATS_SERVER_BIN := $(CURDIR)/$(NATS_SERVER)
test-fleet test-fleet-short: export SELECT_SERVICE_BIN := $(CURDIR)/$(BIN)/select-service
test-fleet: build setup $(NATS_SERVER) ## replicas over a real NATS server, killed under load
	$(GO) test -race -count=1 -timeout 20m ./internal/fleet/bus ./internal/fleet
	$(GO) test -count=1 -timeout 20m -run 'TestKilledReplica|TestServersDie|TestCutOff|TestMigration|TestFleet|TestJoin|TestGroupsOutliveReplica|TestFairOverNATS' ./test/checks/e2e/replicas
test-fleet-short: build setup $(NATS_SERVER) ## a few of these tests
	$(GO) test -race -short -count=1 -timeout 10m -run '^(TestFleet|TestAccounts|TestOperator|TestFleetMeets)$$' ./internal/fleet/bus ./test/checks/e2e/replicas

.PHONY: test-gateway test-gateway-short
test-gateway: build setup ## a real Envoy between clients and simulated engines (ARGS to choose; 15 minutes)
	GO='$(GO)' scripts/test-gateway.sh $(ARGS)
test-gateway-short: build setup ## ten of its scenarios, and a little of its traffic
	GO='$(GO)' scripts/test-gateway.sh -short

# Chromium is Debian's. axe-core, which looks for what keeps people out, is npm's, by its hash.
.PHONY: test-ui test-ui-short
test-ui: build ## look at the page in Chromium: every view, screenshots in bin/ui
	SELECT_SERVICE_BIN=$(CURDIR)/$(BIN)/select-service scripts/test-ui.sh
test-ui-short: build ## a few of its views, if there is a Chromium
	SELECT_SERVICE_BIN=$(CURDIR)/$(BIN)/select-service scripts/test-ui.sh -short

.PHONY: test-demos test-demos-short
test-demos: build setup ## every demo to its end; run it alone
	GO='$(GO)' scripts/test-demos.sh
test-demos-short: build setup ## every demo with a few requests
	GO='$(GO)' scripts/test-demos.sh --short

.PHONY: test-completion
test-completion: ## the completion of selectctl, sourced in bash, zsh and fish
	scripts/setup.sh --programs zsh fish bash_completion=bash-completion
	$(GO) test -count=1 -v -run '^TestCompletion$$' ./cmd/selectctl

# The OTLP receiver of the OpenTelemetry collector is in a module of its own.
$(TRACES_COLLECTOR): test/others/traces/collector/main.go test/others/traces/collector/go.mod
	cd test/others/traces/collector && $(GO) build -o $(CURDIR)/$@ .

.PHONY: test-traces
test-traces: build setup $(TRACES_COLLECTOR) ## traces come to a real OpenTelemetry collector, through a real Envoy, too
	TRACES_COLLECTOR=$(CURDIR)/$(TRACES_COLLECTOR) $(GO) test -count=1 -timeout 5m ./internal/telemetry/tracing
	TRACES_COLLECTOR=$(CURDIR)/$(TRACES_COLLECTOR) SELECT_SERVICE_BIN=$(CURDIR)/$(BIN)/select-service $(GO) test -count=1 -timeout 5m -run '^TestTraces$$' ./test/checks/e2e/restart
	TRACES_COLLECTOR=$(CURDIR)/$(TRACES_COLLECTOR) GO='$(GO)' scripts/test-gateway.sh -run 'TestScenarios/.*traces'

.PHONY: test-metrics
test-metrics: build setup $(NATS_SERVER) ## a real Prometheus scrapes the service: dashboard, alerts, metrics
	NATS_SERVER_BIN=$(CURDIR)/$(NATS_SERVER) GO='$(GO)' SELECT_SERVICE_BIN=$(CURDIR)/$(BIN)/select-service scripts/test-metrics.sh $(ARGS)

.PHONY: test-openapi
test-openapi: build setup ## lint the OpenAPI documents and let schemathesis try the server (ARGS to choose)
	scripts/test-openapi.sh $(ARGS)

.PHONY: test-python
test-python: build ## the Python client: types, lint, and every failure against the real server
	scripts/test-python.sh $(ARGS)

.PHONY: test-kube
test-kube: setup ## workers as pods, over a stand-in of an API server, at full length
	$(GO) test -race ./internal/workers/kubernetes/... ./test/others/kube

# Exit code 3 is a known vulnerability that the program calls; any other failure is
# that of the check, such as no way to the database.
.PHONY: govulncheck
govulncheck: setup $(GOVULNCHECK) ## look for known vulnerabilities that the program calls (needs vuln.go.dev)
	@code=0; $(GOVULNCHECK) ./... || code=$$?; \
	if ((code == 3)); then exit 3; elif ((code)); then echo 'govulncheck could not run: nothing was checked' >&2; fi

.PHONY: bench-compare
bench-compare: setup ## paired CPU and memory of this tree against an earlier commit (ARGS); run it alone
	GO='$(GO)' scripts/bench-compare.sh $(ARGS)

.PHONY: bench-options
bench-options: setup ## what requests cost with 65,536 sessions and with fairness (ARGS)
	GO='$(GO)' scripts/bench-options.sh $(ARGS)

.PHONY: test-image
test-image: setup ## the image of this machine's architecture, run as on a node (runc, as root)
	scripts/setup.sh --programs runc
	rm -rf $(BIN)/test/dist
	DIST=$(BIN)/test/dist ARCHITECTURES=$$($(GO) env GOARCH) $(release) image >/dev/null
	SELECT_SERVICE_DIST=$(BIN)/test/dist $(GO) test -count=1 -run '^TestImage' ./test/checks/packages

.PHONY: test-packages
test-packages: $(NFPM) ## a release, made twice, installed and started in every form; run it alone
	GO='$(GO)' NFPM=$(abspath $(NFPM)) scripts/test-packages.sh $(ARGS)

.PHONY: test-chart
test-chart: $(HELM) ## render the chart and compare (ARGS=-rewrite writes its files); installed where TEST_KUBECONFIG leads
	SELECT_SERVICE_HELM=$(CURDIR)/$(HELM) $(GO) test -count=1 -timeout 10m ./test/checks/chart $(ARGS)

.PHONY: test-newcomer
test-newcomer: ## the commands of README and docs/start/install.md on a bare machine, make demo and make test first (as root; ARGS=--keep DIR)
	GO='$(GO)' scripts/test-newcomer.sh $(ARGS)

##@ Beside engines, other services and clusters

.PHONY: test-engines
test-engines: build ## feed the service from the publishers of vLLM and SGLang (ARGS to choose)
	scripts/test-engines.sh $(ARGS)

.PHONY: test-libzmq
test-libzmq: setup ## conformance cases and engines' publishers with engines' streams on libzmq (ARGS to choose)
	$(MAKE) build ZMQ=libzmq BIN=$(BIN)/libzmq
	SELECT_SERVICE_BIN=$(CURDIR)/$(BIN)/libzmq/select-service $(GO) test -count=1 -timeout 30m ./test/checks/conformance
	SELECT_SERVICE_BIN=$(CURDIR)/$(BIN)/libzmq/select-service scripts/test-engines.sh $(ARGS)

.PHONY: test-oracle test-oracle-short
test-oracle: build ## compare with the cache managers of vLLM and SGLang (ARGS to choose)
	scripts/test-oracle.sh $(ARGS)
test-oracle-short: build ## one short history of each of its scenarios
	scripts/test-oracle.sh --short

.PHONY: test-fields
test-fields: ## the fields of the engines' request models are as listed, in their newest releases too
	scripts/test-fields.sh $(ARGS)

.PHONY: test-mocker
test-mocker: build ## what is predicted is what Dynamo's mocker then finds in its cache (ARGS to choose)
	scripts/test-mocker.sh $(ARGS)

.PHONY: test-vllm
test-vllm: build ## what is predicted is what two vLLM engines on the CPU then find in their caches
	scripts/test-vllm.sh $(ARGS)

.PHONY: test-peers
test-peers: build ## run the service beside Dynamo's releases (ARGS to choose)
	scripts/test-peers.sh $(ARGS)

.PHONY: compare-gateways
compare-gateways: build setup ## beside SMG and vllm-router on the same engines (ARGS: --plays, --rounds, --short, --model); run it alone
	GO='$(GO)' scripts/compare-gateways.sh $(ARGS)

.PHONY: compare-policies
compare-policies: setup ## rules of placement, ours and those of other gateways, in model time (ARGS)
	GO='$(GO)' scripts/compare-policies.sh $(ARGS)

.PHONY: compare-targets
compare-targets: setup ## first tokens in time, by our targets and by other rules, in model time (ARGS)
	GO='$(GO)' scripts/compare-policies.sh --targets $(ARGS)

.PHONY: compare-fairness
compare-fairness: setup ## shares of the engines by tenants, with fairness and without, in model time (ARGS)
	GO='$(GO)' scripts/compare-policies.sh --fairness $(ARGS)

.PHONY: compare-pairs
compare-pairs: setup ## prefill and decode apart: pairs, two calls, and engines that do both, in model time (ARGS)
	GO='$(GO)' scripts/compare-policies.sh --pairs $(ARGS)

.PHONY: traces-agents
traces-agents: ## a trace of agents that write code into bin/agents-SEED.jsonl (SEED, SESSIONS)
	scripts/traces-agents.sh

.PHONY: test-kube-api
test-kube-api: build setup $(HELM) ## the same, an update of 100 pods behind Envoy and the chart, on a real API server (built once, 12 minutes; ARGS)
	GO='$(GO)' SELECT_SERVICE_HELM=$(CURDIR)/$(HELM) SELECT_SERVICE_BIN=$(CURDIR)/$(BIN)/select-service scripts/test-kube-api.sh $(ARGS)

.PHONY: test-istio
test-istio: build setup ## two replicas behind a real Istio on a real API server (both built once, 20 minutes; as root; ARGS)
	GO='$(GO)' SELECT_SERVICE_BIN=$(CURDIR)/$(BIN)/select-service scripts/test-istio.sh $(ARGS)

.PHONY: test-tutorials
test-tutorials: build setup ## the tutorials with the real LiteLLM, Claude Code and Codex; flags of SMG and vllm-router (ARGS for go test)
	GO='$(GO)' SELECT_SERVICE_BIN=$(CURDIR)/$(BIN)/select-service scripts/test-tutorials.sh $(ARGS)

.PHONY: test-ray
test-ray: build ## Ray actors and Ray's own KV tracker on the service
	scripts/test-ray.sh $(ARGS)

# The build goes through a folder of its own, so that an interrupted one leaves nothing.
# $(1) is the tool and $(2) its package.
define tool
$(1):
	@mkdir -p $(TOOLS)/tmp
	CGO_ENABLED=0 GOBIN=$(CURDIR)/$(TOOLS)/tmp nice scripts/again.sh $(GO) install -trimpath $(2)@$$(lastword $$(subst -v, v,$(1))) || \
	  { echo 'missing: $(notdir $(1)) cannot be built' >&2; exit 1; }
	mv $(TOOLS)/tmp/$(firstword $(subst -v, ,$(notdir $(1)))) $$@
endef
$(eval $(call tool,$(GOLANGCI),github.com/golangci/golangci-lint/v2/cmd/golangci-lint))
$(eval $(call tool,$(GOVULNCHECK),golang.org/x/vuln/cmd/govulncheck))
$(eval $(call tool,$(H2SPEC),github.com/summerwind/h2spec/cmd/h2spec))
$(eval $(call tool,$(HELM),helm.sh/helm/v3/cmd/helm))
$(eval $(call tool,$(NATS_SERVER),github.com/nats-io/nats-server/v2))
$(eval $(call tool,$(NFPM),github.com/goreleaser/nfpm/v2/cmd/nfpm))
