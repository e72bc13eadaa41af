#!/usr/bin/env bash
# What takes too long for every change, step by step. A step that passed on this
# commit is noted in build/long/COMMIT and not run again, so that an interrupted
# run goes on where it was. All figures are printed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=$(git describe --always --dirty --abbrev=12)
notes=build/long/$commit
mkdir -p "$notes"

step() { # name command…
  local name=$1 begin=$SECONDS
  shift
  if [ -e "$notes/$name.passed" ]; then
    echo "=== $name: passed before"
    return
  fi
  echo "=== $name: $*"
  "$@" 2>&1 | tee "$notes/$name.log"
  touch "$notes/$name.passed"
  echo "--- $name: $((SECONDS - begin)) s"
}

# First what prints figures in time or has a cluster wait for its faults, then
# what only walks: an hour in all on two cores. What is worth more time than
# that goes round in scripts/soak.sh.
step transfers make transfers-long
step thousand env STARVED=20 make thousand-long
step bench make bench
step bench-cluster make bench-cluster
step bench-tls make bench-tls
step bench-tracking make bench-tracking
step start make start-bench
step cluster make cluster-long
step goclient make goclient-long
step partition make partition-long
step namespaces make namespaces-long
step replicas make replicas-long
step refill make refill-long
step kill-test make kill-test ROUNDS=50
step sim make sim SEEDS=1..20000 RESULTS="$notes/sim.results"
step crash-states make crash-states STATES=500000
step readers go test -race ./segstore -run '^TestReaders_' -count 1 -timeout 60m -v -crowd.readers 500 -crowd.rounds 40
step fuzz env FUZZTIME="${FUZZTIME:-5s}" scripts/fuzz.sh

echo "=== figures"
grep -hoE 'FIGURE .*' "$notes"/*.log || true
