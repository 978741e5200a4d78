# StrandMQ. `make help` lists what can be made; Go and make are all it needs.

GO       ?= go
BIN      := bin/strandmq
BUF      := $(GO) tool -modfile=../tools/go.mod buf
GRPCURL  := github.com/fullstorydev/grpcurl/cmd/grpcurl
LINT     := $(GO) tool -modfile=tools/lint/go.mod golangci-lint
HOUSE    := ./internal/house/...
WEB      := internal/broker/testdata/web
TS       := clients/typescript
ARGS     ?=

# How often the kill test kills the broker.
KILLS    ?= 10

# Packages with goroutines of their own: their tests run again under the race
# detector, shortened (-short), since it makes them about ten times slower.
RACE     := ./partition/... ./consumer/... ./coordinator/... ./router/... ./internal/broker/... ./internal/histogram/... ./internal/nemesis/... ./internal/peer/... ./internal/retry/... ./client/... ./loadtest/... ./cmd/strandmq/...

# What random tests draw: the same each time, so that a red run is a change's fault.
# DRAW=0 draws anew, as make random does, with so many checks.
DRAW     ?= 1
CHECKS   ?= 5000
DRAWN    := ./client ./consumer ./coordinator/... ./internal/broker ./internal/keyspace ./internal/record ./loadtest ./partition/... ./router

# What `make sim` runs: so many seeds from the first one on, or one alone; and flags.
SEEDS    ?= 100
FROM     ?= 1
SEED     ?=
SIM      ?=

# What `make nemesis` does: so many faults of these kinds, by SEED if there is one; and flags.
FAULTS   ?= 16
KINDS    ?= all
NEMESIS  ?=

# How long `make fuzz` spends on each target, and which benchmarks run how.
FUZZTIME  ?= 20s
BENCH     ?= .
BENCHTIME ?= 1s
COUNT     ?= 1
SHAPES    ?= .*

# What `make bench-memory` measures, and sizes other than the full ones, such as
# SIZES='-memory.backlog 100000 -memory.holes 50000 -memory.write-mb 256 -memory.restart-mb 1024'.
MEMORY    ?= .*
SIZES     ?=

.DEFAULT_GOAL := help
.PHONY: help run build test check vet house unit race bench bench-broker bench-cluster bench-unary bench-memory bench-members bench-client bench-metrics random fuzz sim nemesis examples-deps generate generate-check ts-deps ts-browser ts-generate ts-pack lint fmt tidy clean

help: ## List what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## Build the broker and run the demo; ARGS=--exit ends it afterwards
	$(BIN) demo $(ARGS)

build: ## Build bin/strandmq
	$(GO) build -o $(BIN) ./cmd/strandmq

test: vet house unit race generate-check ## Everything that CI runs; it ends with the skipped tests
	@cat bin/skipped

check: test lint ## What CI runs, and the linters (their first build takes minutes)

vet: ## go vet
	$(GO) vet ./...

# Not cached: these tests read the whole tree, docs included, and run the binary.
house: build ## Import table, package pages, promises, links, dependency list, README tour
	$(GO) test -count=1 $(HOUSE)

bin/grpcurl: tools/grpcurl/go.mod ## grpcurl, for the test of reflection
	$(GO) build -modfile=tools/grpcurl/go.mod -o $@ $(GRPCURL)

bin/alerts: tools/alerts/go.mod tools/alerts/main.go ## Prometheus' own engine, for the test of the alert rules
	cd tools/alerts && $(GO) build -o ../../$@ .

unit: bin/grpcurl bin/alerts ## Tests of all packages; at the end it names the skipped ones
	@echo 'STRANDMQ_KILLS=$(KILLS) RAPID_SEED=$(DRAW) $(GO) test of all packages'
	@mkdir -p bin
	@{ STRANDMQ_KILLS=$(KILLS) RAPID_SEED=$(DRAW) $(GO) test -v -vet=off -timeout 30m $$($(GO) list ./... | grep -v /internal/house) 2>&1; echo "=== EXIT $$?"; } | awk -v keep=bin/skipped -f tools/tests.awk

race: ## Tests of the concurrent packages under the race detector (needs a C compiler)
	@if [ "$$($(GO) env CGO_ENABLED)" = 1 ]; then \
		echo 'RAPID_SEED=$(DRAW) $(GO) test -race -short -p 1 $(RACE)'; \
		RAPID_SEED=$(DRAW) $(GO) test -vet=off -race -short -p 1 -timeout 30m $(RACE); \
	else \
		echo 'SKIPPED: the race detector needs a C compiler and there is none here; install gcc and run make race.'; \
	fi

random: ## The tests of packages with random scripts, by other seeds than make test's; CHECKS=5000 scripts each
	RAPID_SEED=0 RAPID_CHECKS=$(CHECKS) $(GO) test -vet=off -short -count=1 -p 1 -timeout 120m $(DRAWN)

bench: bench-broker ## Benchmarks, the broker's first; BENCH=regexp BENCHTIME=1s COUNT=1
	$(GO) test -run '^$$' -bench '$(BENCH)' -skip '^Benchmark(Shapes|Cluster|Memory|Members|Client|Metrics)$$' -benchtime $(BENCHTIME) -count $(COUNT) -benchmem \
		$$($(GO) list ./... | grep -v /internal/house)

bench-broker: ## The load test's shapes against a real broker, 7 s each; SHAPES='w1|w3.*' COUNT=1; JSON in bin/shapes.json
	@mkdir -p bin
	$(GO) test ./cmd/strandmq -run '^$$' -bench '^BenchmarkShapes$$/^($(SHAPES))$$' -benchtime 1x -count $(COUNT) -timeout 60m \
		-shapes.json '$(CURDIR)/bin/shapes.json'

bench-cluster: ## The same against three nodes, and the outage when leaders are killed (w5): under 5 minutes; SHAPES, COUNT
	@mkdir -p bin
	$(GO) test ./cmd/strandmq -run '^$$' -bench '^BenchmarkCluster$$/^($(SHAPES))$$' -benchtime 1x -count $(COUNT) -timeout 60m \
		-shapes.json '$(CURDIR)/bin/shapes.json'

bench-unary: ## Publish and receive + settle by unary calls, beside the yardstick, as a table; COUNT=3
	$(GO) test ./internal/broker -run '^$$' -bench '^Benchmark(Publish|ReceiveSettle)$$' -benchtime 1s -count $(if $(filter-out 1,$(COUNT)),$(COUNT),3) \
		| awk -f tools/medians.awk

bench-memory: ## What a real broker takes: memory, bytes written, time of a start; MEMORY='idle|holes' and SIZES for less
	$(GO) test ./cmd/strandmq -run '^$$' -bench '^BenchmarkMemory$$/^($(MEMORY))$$' -benchtime 1x -timeout 120m $(SIZES)

bench-members: ## 2,000 members in 200 groups, on one node and on three: how fast assignments settle, and what a rest costs
	$(GO) test ./cmd/strandmq -run '^$$' -bench '^BenchmarkMembers$$' -benchtime 1x -timeout 20m

bench-client: ## w1, w3max and w4 by the Go client with four members, beside bare streams, with the processor time of both ends; COUNT, PROFILE=folder
	$(GO) test ./cmd/strandmq -run '^$$' -bench '^BenchmarkClient$$' -benchtime 1x -count $(COUNT) -timeout 60m $(if $(PROFILE),-client.profile '$(abspath $(PROFILE))')

bench-metrics: ## What metrics cost under full load: runs with scrapes beside runs without, and a profile; 3 minutes; profiles in bin/
	@mkdir -p bin
	$(GO) test ./cmd/strandmq -run '^$$' -bench '^BenchmarkMetrics$$' -benchtime 1x -timeout 30m -metrics.keep '$(CURDIR)/bin'

fuzz: ## Every fuzz target for FUZZTIME=20s
	@for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$target"; \
			$(GO) test -vet=off -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

sim: ## Whole brokers by a seed, with every fault: SEEDS=100 FROM=1, or SEED=42; SIM=-lines
	@if [ -n "$(SEED)" ]; then \
		$(GO) test -vet=off -count=1 -v ./internal/sim -run 'TestSeed$$' -seed $(SEED) $(SIM); \
	else \
		$(GO) test -vet=off -count=1 -timeout 0 -v ./internal/sim -run 'TestSeeds$$' -seeds $(SEEDS) -from $(FROM) $(SIM); \
	fi

nemesis: ## Three real brokers under cuts, kills, full disks, power cuts (root): FAULTS=16 KINDS=all SEED=42
	$(GO) test -vet=off -count=1 -timeout 0 -v ./cmd/strandmq -run '^TestNemesis$$' -nemesis.faults $(FAULTS) -nemesis.kinds '$(KINDS)' \
		$(if $(SEED),-nemesis.seed $(SEED)) $(NEMESIS)

examples-deps: ## Install what the examples in node and python need, into their folders
	cd examples/node && npm ci --no-audit --no-fund
	cd examples/python && python3 -m venv venv && venv/bin/pip install -q -r requirements.txt

generate: ## Generate Go code from proto/, and with node the JavaScript of the web test
	cd proto && $(BUF) generate
	@if command -v npm >/dev/null; then \
		echo 'npm run generate in $(WEB)'; \
		cd $(WEB) && { [ -d node_modules ] || npm ci --no-audit --no-fund; } && npm run --silent generate; \
	else \
		echo 'SKIPPED: the JavaScript in $(WEB) needs node and npm, and they are not here; TestJavaScriptIsCurrent says whether it is out of date.'; \
	fi
	@if [ -d $(TS)/node_modules ]; then $(MAKE) --no-print-directory ts-generate; else \
		echo 'SKIPPED: the TypeScript in $(TS) needs its packages: make ts-deps ts-generate.'; \
	fi

generate-check: ## Fail when proto/ is badly formatted or the committed code is not what it generates
	cd proto && $(BUF) lint && $(BUF) format --diff --exit-code
	@rm -rf bin/_generated && mkdir -p bin/_generated
	cd proto && $(BUF) generate --output ../bin/_generated
	@cd proto && find . -name '*.go' | sort > ../bin/_generated/.have
	@cd bin/_generated && find . -name '*.go' | sort > .want && same=yes && \
	{ diff .have .want || same=no; } && \
	while read -r f; do diff -u "../../proto/$$f" "$$f" || same=no; done < .want && \
	if [ $$same = no ]; then \
		echo 'The committed code is not what proto/ generates: run make generate and commit the result.' >&2; exit 1; \
	fi

	@if [ -d $(TS)/node_modules ]; then \
		echo 'buf generate for $(TS)' && rm -rf bin/_generated_ts && mkdir -p bin/_generated_ts && \
		(cd proto && $(BUF) generate --template ../$(TS)/buf.gen.yaml --output ../bin/_generated_ts) && \
		diff -ru $(TS)/src/gen bin/_generated_ts/src/gen || \
		{ echo 'The TypeScript of $(TS) is not what proto/ generates: run make ts-generate and commit the result.' >&2; exit 1; }; \
	else \
		echo 'SKIPPED: whether $(TS) is what proto/ generates, comments included, needs its packages (make ts-deps); TestJavaScriptIsCurrent compares the rest.'; \
	fi

ts-deps: ## The npm packages of the TypeScript client, into its folder
	cd $(TS) && npm ci --no-audit --no-fund

ts-browser: ## Install Chromium for the TypeScript client's tests (Debian, root)
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }

ts-generate: ## Generate the TypeScript client's protocol code (needs make ts-deps)
	cd proto && $(BUF) generate --template ../$(TS)/buf.gen.yaml --output ../$(TS)

ts-pack: ## Build the TypeScript client into a package that can be published (needs make ts-deps)
	cd $(TS) && npm run prepack && npm pack --ignore-scripts

lint: ## golangci-lint by .golangci.yml
	$(LINT) run ./...

fmt: ## Format Go and proto files
	$(GO) fmt ./...
	cd proto && $(BUF) format -w

tidy: ## Tidy all modules
	$(GO) mod tidy
	cd tools && $(GO) mod tidy
	cd tools/lint && $(GO) mod tidy
	cd tools/grpcurl && $(GO) mod tidy
	cd tools/alerts && $(GO) mod tidy

clean: ## Remove what was built; data folders stay
	rm -rf bin
