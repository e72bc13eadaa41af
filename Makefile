# Every target is one line; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: bench-tls mutants-sim help build run test race vet lint fuzz sim bench bench-cluster bench-tracking kill-test overtake overtake-long overtake-wire goclient goclient-long long soak ready ci clean start-bench crash-states mutants cluster-test cluster-long transfers-long partition-test partition-long hostile-test group-test namespaces-long company-long replicas-long operators-test refill-long
ROUNDS ?= 10
ADDRESSES ?=

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
build: ## build bin/millrace
	go build -o bin/millrace ./cmd/millrace
run: ## run one node on this machine
	go run ./cmd/millrace dev $(ADDRESSES)
test: ## run the whole test suite
	go test ./...
race: ## run the whole test suite under the race detector
	go test -race ./...
vet: ## run go vet
	go vet ./... && cd integration/goclient && go vet ./...
lint: vet ## run gofmt, staticcheck and errorlint
	scripts/lint.sh
sim: ## simulate clusters by seed: SEED=7, or SEEDS=1..1000 [RESULTS=file] [TRACE=1]
	go test -count=1 -timeout 0 -v -run TestSeeds ./integration/sim -args -seeds $(if $(SEED),$(SEED),$(or $(SEEDS),1..1000)) $(if $(RESULTS),-results $(abspath $(RESULTS))) $(if $(TRACE),-trace)
mutants-sim: ## break the rules one by one; each must be seen (MUTANT=part of a name, SEEDS=1..10000, RESULTS=file to go on)
	go test -count=1 -timeout 0 -v -run TestMutants ./integration/sim -args -mutants $(if $(SEEDS),-mutant-seeds $(SEEDS)) $(if $(MUTANT),-mutant "$(MUTANT)") $(if $(RESULTS),-mutant-results $(abspath $(RESULTS)))
fuzz: ## fuzz every target for FUZZTIME (5s) each, or those that FUZZ matches ("segstore FuzzRecover")
	scripts/fuzz.sh
bench: build ## produce, consume, e2e at 100 B and 1 KiB beside this disk's own figures (PROFILE=1: CPU profiles)
	scripts/bench.sh
bench-cluster: build ## three nodes beside one node, and with TLS between them: publish, consume, end to end (TIME=3s each, PROFILE=1)
	MILLRACE_BINARY=$(CURDIR)/bin/millrace BENCH_CLUSTER=$(or $(TIME),3s) BENCH_PROFILE=$(if $(PROFILE),$(CURDIR)/build/bench-cluster) go test ./integration -run '^TestBenchCluster$$' -count 1 -timeout 10m -v
bench-tracking: build ## what 50,000 stored offsets a second cost a publisher, in one run, and what 1 and 255 names do
	scripts/bench-tracking.sh
	go test ./replication -run '^$$' -bench '^BenchmarkPublish_names$$' -benchtime 2s -count 3
bench-tls: build ## what TLS costs clients: publish and read over both ports in turn, ROUNDS (3) times (TIME=3s each)
	ROUNDS=$(if $(filter file,$(origin ROUNDS)),3,$(ROUNDS)) scripts/bench-tls.sh
start-bench: ## a node of 100 GB (sparse files, 5,000 segments): how soon it is ready, how long an attach takes
	go test ./segstore -run '^TestStart_bigNode$$' -count 1 -v -start.gb 100 && go test ./segstore -run '^TestStart_bigNode$$' -count 1 -v -start.gb 200 -start.streams 1
crash-states: ## walk STATES (2000000) different crash states (FROM, TO: numbers of scripts, to go on)
	go test ./segstore -run '^TestCrash_everyState$$' -count 1 -timeout 0 -v -crash.long -crash.from $(or $(FROM),0) -crash.to $(or $(TO),0) -crash.states $(or $(STATES),2000000)
mutants: ## break the store's code in each way of a list: the walks over crashes and faults must notice
	go test ./segstore -run '^TestMutants$$' -count 1 -timeout 0 -v -mutants
kill-test: ## kill -9 at ROUNDS (10) random moments under load
	KILL_ROUNDS=$(ROUNDS) STORED_KILLS=1 go test ./integration -run '^Test(Kill|Stored_damagedSnapshotKilled)$$' -count 1 -timeout 60m -v
cluster-test: ## kill -9 of nodes in a cluster of three under load, CLUSTER_KILLS (5) times; disks emptied, bits flipped
	CLUSTER_KILLS=$(or $(CLUSTER_KILLS),5) CONTENDED_SECONDS=10 REFILLS=2 REPLICA_CASES=10 go test ./integration -run '^Test(Cluster|Refill|ReplicaCases)' -count 1 -timeout 30m -v
cluster-long: ## the same for longer: 20 kills, 4 nodes that hang for 10 s, 10 times all nodes at once, sessions that take names from each other
	CLUSTER_KILLS=20 CLUSTER_PAUSES=4 CLUSTER_KILL_ALL=10 CONTENDED_SECONDS=40 go test ./integration -run '^TestCluster' -count 1 -timeout 60m -v
transfers-long: ## 100 moves of leaders under load, on a quiet machine: the longest gap, and where the time goes; 4 to stopped nodes
	CLUSTER_TRANSFERS=100 CLUSTER_QUIET=1 CLUSTER_STOPPED_TARGETS=4 go test ./integration -run '^TestCluster_transfers' -count 1 -timeout 10m -v
partition-test: ## cut the nodes of a cluster from each other under load, in PARTITIONS (5, at most 9) ways
	PARTITIONS=$(or $(PARTITIONS),5) go test ./integration -run '^TestPartition' -count 1 -timeout 30m -v
partition-long: ## the same in all 9 ways
	PARTITIONS=9 go test ./integration -run '^TestPartition' -count 1 -timeout 30m -v
group-test: ## single active consumers on a cluster of three: consumers and nodes killed, nodes cut off
	GROUP_TESTS=1 go test ./integration -run '^TestGroups_' -count 1 -timeout 10m -v
operators-test: ## what people ask of a cluster of three: on any node, and while nodes are down
	OPERATORS=1 go test ./integration -run '^TestOperators_' -count 1 -timeout 10m -v
hostile-test: ## hostile bytes at the ports between nodes of three processes, by secret and by certificates; HOSTILE_PACKETS (50000) to gossip
	HOSTILE=1 HOSTILE_PACKETS=$(or $(HOSTILE_PACKETS),50000) go test ./integration -run '^TestHostile_' -count 1 -timeout 15m -v
namespaces-long: ## cuts, changes and founding on networks that lose what they do not carry (root, ip): NAMESPACES (12) ways to cut, NEMESIS_SECONDS (120)
	NAMESPACES=$(or $(NAMESPACES),12) go test ./integration -run '^TestNamespaces_' -count 1 -timeout 30m -v
company-long: ## five nodes killed and started MASS_RESTARTS (30) times, and two clusters that swap addresses
	MASS_RESTARTS=$(or $(MASS_RESTARTS),30) go test ./integration -run '^TestCompany_' -count 1 -timeout 60m -v
replicas-long: ## add, remove and move replicas of a stream of 1 GB while it is written
	REPLICA_FILL=1000000000 go test ./integration -run '^TestReplicas_comeAndGo' -count 1 -timeout 30m -v
refill-long: ## empty disks of nodes, 6 in a row with 600 MB on each, and flip bits of nodes that run, under load
	REFILLS=6 REFILL_BYTES=600000000 go test ./integration -run '^TestRefill' -count 1 -timeout 30m -v
overtake: ## 24 h of stored offsets on a clock of its own, and each mechanism switched off
	OVERTAKE_HOURS=24 OVERTAKE_MANY_HOURS=3 OVERTAKE_CONTROLS=1 go test ./integration/overtake -count 1 -timeout 30m -v
overtake-long: ## 24 h of 100,000 references (of which make overtake runs 3 h)
	OVERTAKE_MANY_HOURS=24 go test ./integration/overtake -run '^TestOvertake_manyReferences$$' -count 1 -timeout 60m -v
overtake-wire: ## a minute of stores over the wire with shortened intervals, then kill -9 (WIRE: how long)
	OVERTAKE_WIRE=$(or $(WIRE),60s) go test ./integration -run '^TestOvertakeWire$$' -count 1 -timeout 10m -v
goclient: ## the official Go client, unmodified, against a node and a cluster of three
	cd integration/goclient && go test -count 1 -timeout 20m -v ./...
goclient-long: ## its reliable producers and consumers on a cluster of three, over 20 kills and a kill of all nodes at once
	cd integration/goclient && GOCLIENT_KILLS=20 go test -run '^TestReliable_' -count 1 -timeout 60m -v ./...
ready: build ## measure from the binary's start to its ready line, in an empty directory
	scripts/ready.sh
long: ## what takes too long for every change, an hour on two cores: clusters under faults, benchmarks, 20,000 simulated clusters, walks; goes on where it was
	scripts/long.sh
soak: ## what finds more the longer it runs, for HOURS (8): kills, new seeds, crash states, mutants, fuzzing
	scripts/soak.sh
ci: ## what a change must pass before it lands
	.ci/run
clean: ## remove what was built
	rm -rf bin build
.PHONY: thousand-long rolling-long snapshot-kills
rolling-long: ## restart node after node under ROLLING (500) streams: how soon all are in step, how much is logged
	ROLLING=$(or $(ROLLING),500) go test ./integration -run '^TestThousand_rolling$$' -count 1 -timeout 60m -v
snapshot-kills: ## kill -9 of a process among changes and snapshots of its metadata, SNAPSHOT_KILLS (200) times
	SNAPSHOT_KILLS=$(or $(SNAPSHOT_KILLS),200) go test ./cluster -run '^TestSnapshots_killed$$' -count 1 -timeout 60m -v
thousand-long: ## 1,000 streams on three nodes: what they cost to make and to keep, and what happens when nodes die, drain, hang
	THOUSAND=$(or $(THOUSAND),1000) go test ./integration -run '^TestThousand_' -count 1 -timeout 60m -v
