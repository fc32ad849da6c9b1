# The steps of CI. `make` alone runs the tests.
LINT_VERSION := v2.15.0
SUDO         := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
# Pure packages start no goroutines, so the race detector cannot find anything in them;
# layout_test.go checks this list.
PURE         := forecast internal/catalogue internal/printable internal/service internal/sim internal/sim/barrier \
                internal/sim/engine internal/sim/workload internal/skypilot lbd/batch/job lbd/bfio lbd/buffer lbd/cachemap lbd/core lbd/core/breaker lbd/core/concurrency lbd/core/fair lbd/core/pace \
                lbd/openai lbd/policy lbd/prefix lbd/record plan plan/chart
CONCURRENT    = $(filter-out skyserve $(PURE:%=skyserve/%),$(shell go list ./...)) # skyserve itself reads files only

.PHONY: test short build vet lint race race-slow bench bench-batch chaos chaos-store chaos-batch chaos-control skew chaos-weeks crashes long record-faults compare-batch compare-proxy compare-bursts compare-solver compare-forecast compare-plan day judge-clouds disk examples openai-clients real-engine real-gpu snapshot release-check release-files image ci

test:
	go test ./...

# The fast tier, for use while editing: skips tests that call testkit.Slow.
short:
	go test -short ./...

# grpcnotrace drops gRPC's debug pages, whose templates prevent the linker's dead-code
# elimination. It saves 12 MB.
build:
	CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags '-s -w' -o bin/skyserve ./cmd/skyserve

# Builds everything that a release consists of, without publishing it, in bin/dist. SBOMs need syft
# (go install github.com/anchore/syft/cmd/syft@latest, which compiles for minutes), images need
# Docker: what cannot be made here is left out and named. Go builds for four platforms: 4 minutes on two cores at first.
GORELEASER   := go run github.com/goreleaser/goreleaser/v2@v2.16.0
SNAPSHOT_SKIP = $(shell command -v syft >/dev/null || echo sbom,)$(shell docker info >/dev/null 2>&1 || echo docker,)publish
snapshot: export SKYSERVE_COMMIT = $(shell git rev-parse HEAD)
snapshot: export SKYSERVE_COMMIT_DATE = $(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)
snapshot: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
snapshot: release-check
	@echo "left out here: $(SNAPSHOT_SKIP)"
	$(GORELEASER) release --snapshot --clean --skip=$(SNAPSHOT_SKIP)

# Checks the configuration of GoReleaser.
release-check:
	$(GORELEASER) check

# The man pages and shell completions of a release. The date in the pages is SOURCE_DATE_EPOCH.
# Built as `make build` and GoReleaser build, so that they share compiled packages.
release-files: export CGO_ENABLED = 0
release-files:
	rm -rf bin/release
	mkdir -p bin/release/completions
	go test -trimpath ./cmd/skyserve -run '^TestManPages$$' -count=1 -man-pages $(CURDIR)/bin/release/man
	go build -trimpath -tags grpcnotrace -ldflags '-s -w' -o bin/release/skyserve ./cmd/skyserve
	bin/release/skyserve completion bash >bin/release/completions/skyserve.bash
	bin/release/skyserve completion zsh >bin/release/completions/_skyserve
	bin/release/skyserve completion fish >bin/release/completions/skyserve.fish

# Builds the image for this machine's architecture with Docker or buildah: make image IMAGE=registry.example/skyserve:v1
# BASE=scratch needs no registry: without certificates of authorities, for tests.
IMAGE   ?= localhost/skyserve:dev
BASE    ?=
BUILDER ?= $(shell docker info >/dev/null 2>&1 && echo docker || command -v buildah || echo docker)
image: ARCH := $(shell go env GOARCH)
image:
	CGO_ENABLED=0 GOOS=linux go build -trimpath -tags grpcnotrace -ldflags '-s -w' -o bin/image/linux/$(ARCH)/skyserve ./cmd/skyserve
	$(BUILDER) build $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg TARGETPLATFORM=linux/$(ARCH) -f Dockerfile -t $(IMAGE) bin/image

vet:
	go vet ./...

lint:
	go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	$$(go env GOPATH)/bin/golangci-lint run

# Runs the fast tests under the race detector: most slow ones start processes, repeat crashes at every call, or simulate
# days, and the fast ones run the same code. make race-slow runs RACE_NIGHTLY too, whose tests take minutes under it (the
# command line, deployments, the simulator's evaluation), and slow tests of the others, such as the changes of the store's
# members. Tests that call testkit.NotUnderRace are skipped; each states its reason. The race detector needs cgo. -vet=off:
# linting runs vet's analyzers; go test would analyse all dependencies again, here for the race detector's build.
RACE         := CGO_ENABLED=1 go test -race -vet=off -timeout 15m
RACE_NIGHTLY := skyserve/cmd/skyserve skyserve/internal/controller/deploy skyserve/internal/sim/eval
race:
	$(RACE) -short $(filter-out $(RACE_NIGHTLY),$(CONCURRENT))

race-slow:
	$(RACE) -short $(RACE_NIGHTLY)
	$(RACE) $(filter-out $(RACE_NIGHTLY),$(CONCURRENT))

# Runs each benchmark once, so that it keeps working; -short leaves out or shortens those that compute for seconds.
# Figures of all: go test ./lbd/core -run '^$$' -bench .
BENCHED = $(sort $(dir $(shell grep -rl --include=*_test.go '^func Benchmark' .)))
bench:
	go test -short -vet=off -run '^$$' -bench . -benchtime 1x $(BENCHED)

# Kills, hangs, resets and slows replicas, links and balancers under load, and reports
# every lost or stopped request (about 12 minutes). ARGS are flags of the test:
# make chaos ARGS='-chaos.seeds=5 -chaos.clients=60'
chaos:
	go test -run 'TestChaos$$' -v -count=1 -timeout 60m ./lbd -chaos.seeds=20 -chaos.duration=30s $(ARGS)

# Kills members of the store's cluster at random, each in a process of its own, while clients write and contend
# for a lease (about 10 minutes). ARGS are flags of the test: make chaos-store ARGS='-store.seed=7 -store.seeds=1', or
# ARGS='-store.rtt=200ms' for members with a round-trip time between them, as in different regions
chaos-store:
	go test -run 'TestClusterKills$$' -v -count=1 -timeout 60m ./internal/store -store.seeds=10 -store.kills=20 $(ARGS)

# Kills, cuts off, stops and fills the machines of the control plane of a local service under load, one fault a
# seed, and prints what clients saw, when another controller acted and what was lost (Linux, 30 seconds a seed; root and
# nft for all faults). ARGS are flags of the test: make chaos-control ARGS='-control.seeds=0 -control.seed=2 -control.kills=50',
# which kills machines 50 times by the seed 2, or ARGS='-control.rtt=150ms', which puts the machines into regions with a
# round-trip time between them: they connect through proxies, which also cut the network, so that it needs no nft.
# -control.faults=REGEXP chooses faults by name. After that, it kills a leader and checks that the next one continues its
# plan, donation, cooldown and history (about 8 minutes)
chaos-control: build
	go test -tags compare -run 'TestCompareTakeover$$|TestCompareFaults$$' -v -count=1 -timeout 5h ./internal/controller -control.seeds=20 $(ARGS)

# Updates the quickstart from the binary of an earlier version to this one under load and back, and checks machines of
# both versions beside each other (Linux, about 6 minutes): make skew OLD=/usr/local/bin/skyserve
skew: build
	go test -tags compare -run 'TestCompareSkew$$' -v -count=1 -timeout 30m ./internal/controller -skew.old='$(abspath $(OLD))' $(ARGS)

# Injects faults into a local service of real processes and records `skyserve top` from some seconds before each fault
# until its alert, in docs/recordings/faults (Linux, about 10 minutes; root and nft for all faults).
# ARGS are flags of the test: make record-faults ARGS='-run TestRecordFaults/slow'
record-faults: export PATH := $(PATH):/usr/local/sbin:/usr/sbin
record-faults: export SKYSERVE_OTHER = $(CURDIR)/bin/other/skyserve
record-faults: build
	CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags '-s -w -X main.linkedVersion=v0.9.0' -o bin/other/skyserve ./cmd/skyserve
	go test -tags compare -run 'TestRecordFaults$$' -v -count=1 -timeout 60m ./internal/controller $(ARGS)

# Repeats programs that crash after each of their changes to two clouds, with current and with lagging lists, where go test
# has every sixth of these crashes, and at every call to AWS, where it crashes after changes only (2 minutes of CPU).
crashes:
	go test -run '^TestRerunAfterCrashInTwoClouds$$' -count=1 ./internal/controller/deploy -crash-every-change
	go test -run '^TestRecoversFromCrashAtAnyCall$$' -count=1 ./provision/aws -crash-every-call

# Updates, loses and replaces machines of emulated services, mostly of whole control planes, with the tests that take
# minutes and that go test skips (2 minutes).
long:
	go test -run '^TestLong' -count=1 ./cmd/skyserve -long

# Simulates weeks of random faults of balancers, controllers and the store; the same together with interruptions of the
# replicas' machines and controllers that die during launches; and days of the spot market with crashes of the controller
# (20 minutes of CPU). ARGS are flags of the last test.
chaos-weeks:
	go test -run 'TestWeekOfFaults$$|TestWeekOfMachines$$' -v -count=1 -timeout 120m ./internal/controller -week.seeds=200 -week.hours=168
	go test -run 'TestControllersCrash$$' -v -count=1 -timeout 60m ./internal/controller/deploy -hedge-seeds=200 $(ARGS)

# Compares the balancer with nginx and haproxy on this machine (Linux, about 8 minutes).
# ARGS are flags of the comparison: make compare-proxy ARGS='-rounds 2 -streams 1000'
compare-proxy: export PATH := $(PATH):/usr/local/sbin:/usr/sbin
compare-proxy: build
	@for p in nginx haproxy; do command -v $$p >/dev/null || missing=1; done; \
	if [ -n "$$missing" ]; then $(SUDO) apt-get update && $(SUDO) apt-get install -y --no-install-recommends nginx-light haproxy || \
	{ echo "comparing proxies: cannot install nginx and haproxy here: install them yourself" >&2; exit 1; }; fi
	go test -tags compare -run TestCompareProxy -v -count=1 -timeout 20m ./lbd/proxy $(ARGS)

# Measures the latency that the balancer adds to bursts of 20 requests, beside the same bursts
# sent to an engine directly (Linux, about 6 minutes): make compare-bursts ARGS='-rounds 2'
compare-bursts: build
	go test -tags compare -run TestCompareBursts -v -count=1 -timeout 20m ./lbd/proxy $(ARGS)

# Uploads, validates and writes a batch at the limits of its size, 1 GiB, on the quickstart: rates and the
# peak memory of each process (Linux, about 2 minutes).
bench-batch: build
	go test -tags compare -run TestCompareIngest -v -count=1 -timeout 30m ./lbd/batch $(ARGS)

# Compares interactive requests on the quickstart with and without a batch (Linux, about 6 minutes;
# ARGS='-batch.requests=20000 -batch.duration=10m -batch.window=2h' for the whole size, 40 minutes or more).
compare-batch: build
	go test -tags compare -run TestCompareInterference -v -count=1 -timeout 150m ./lbd/batch $(ARGS)

# Kills processes of balancers, the controller and the store during batches: 20, or as many as
# ARGS=-batch.kills=200 names (Linux, 8 seconds a kill on a busy machine: 30 minutes for 200).
chaos-batch: build
	go test -tags compare -run TestCompareKills -v -count=1 -timeout 3h ./lbd/batch $(ARGS)

# Compares the planner's solver with GLPK on small problems of every kind (2 minutes).
compare-solver:
	go test -tags compare -run TestSolveEqualsGLPK -v -count=1 ./plan

# Compares auto with the single forecasters and R's auto.arima on public weeks and on
# tenants that its settings were not chosen on, and measures burst detection, the coverage of
# intervals and deferred loads (30 minutes of CPU). It needs two public traces:
# make compare-forecast WEEK=sageserve_week.csv.gz RATES=servegen_client_rates.csv.gz
compare-forecast:
	go test -tags compare -run TestCompare -v -count=1 -timeout 3h ./forecast -forecast.week '$(abspath $(WEEK))' -forecast.rates '$(abspath $(RATES))' $(ARGS)

# Compares the default of plan backtest with the reactive rule and with hourly plans, on public weeks
# and generated ones (30 minutes of CPU; minutes with ARGS='-plan.forecaster moving-average -plan.hourly=false'):
# make compare-plan WEEK=sageserve_week.csv.gz RATES=servegen_client_rates.csv.gz ARGS='-plan.seed 7'
# ARGS='-run TestCompareHindsight' prints the fewest replica-hours that knowing the load in advance permits (a minute).
compare-plan:
	go test -tags compare -run TestCompareBacktests -v -count=1 -timeout 3h ./plan -plan.week '$(abspath $(WEEK))' -plan.rates '$(abspath $(RATES))' $(ARGS)

# A working day's load in 20 minutes on a local service with real processes, for each strategy, beside the simulator's
# prediction for the same minutes: hours, list price, late first tokens and overload (Linux, an hour; one strategy
# at a time with ARGS='-day.strategies auto', a check of 2 minutes with ARGS='-day.strategies auto -day.length 2m').
day: build
	go test -tags compare -run TestCompareDay -v -count=1 -timeout 3h ./internal/sim/eval $(ARGS)

# Checks the calls of the providers' tests, and the responses of the emulated clouds, against AWS's and Google's
# own descriptions of their APIs, and boot files against cloud-init's schema, shellcheck and systemd (needs the
# module proxy, and Debian's packages for the boot files; no root). With recordings instead:
# make judge-clouds ARGS="-calls $$PWD/calls".
judge-clouds:
	go test -tags compare -v -count=1 ./internal/testcloud/judge $(ARGS)

# Runs the store on a 32 MiB file system that fills up (Linux, as root).
disk:
	$(SUDO) env "PATH=$$PATH" go test -tags disktest -run 'TestStoreRecoversOnRealDisk|TestClusterContinuesWithFullDisk' -v -count=1 ./internal/store

examples: export PATH := $(CURDIR)/bin:$(PATH)
examples: build
	sh examples/run-all

# Runs clients of OpenAI and Anthropic for Node against a local service (needs Node 20 and npm's registry).
openai-clients: export PATH := $(CURDIR)/bin:$(PATH)
openai-clients: build
	sh examples/openai-clients/check

# Measures the balancer before engines on a GPU (15 minutes, 140 GB of GPU memory for policies); requires
# PyTorch with CUDA, transformers and aiohttp: make real-gpu OUT=/tmp/gpu STEPS='calibrate continue'
real-gpu: OUT   ?= real-gpu-results
real-gpu: STEPS ?= calibrate overhead cancel continue policies
real-gpu: export PATH := $(CURDIR)/bin:$(PATH)
real-gpu: build
	@python3 -c 'import aiohttp, transformers, torch, sys; sys.exit(not torch.cuda.is_available())' || \
	{ echo "measuring on a GPU: python3 here has no PyTorch with a CUDA device, transformers and aiohttp" >&2; exit 1; }
	python3 examples/real-gpu/run.py --out $(OUT) $(STEPS)

# Runs llama.cpp with a tiny random model behind the balancer (needs Linux on x86-64, Node 20 and npm's registry).
real-engine: export PATH := $(CURDIR)/bin:$(PATH)
real-engine: build
	sh examples/real-engine/check

ci:
	bash .ci/run
