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

for part in 1 2 3 4; do
  step "kill-test-$part" make kill-test ROUNDS=50
done
step sim make sim SEEDS=1..20000 RESULTS="$notes/sim.results"
step mutants-sim make mutants-sim RESULTS="$notes/mutants.results"
step overtake make overtake-long
step cluster make cluster-long
step transfers make transfers-long
step goclient make goclient-long
step partition make partition-long
step namespaces make namespaces-long
step company make company-long
step replicas make replicas-long
step thousand make thousand-long
step refill make refill-long
step bench make bench
step bench-cluster make bench-cluster
step bench-tracking make bench-tracking
step crash-states make crash-states
step readers go test -race ./segstore -run '^TestReaders_' -count 1 -timeout 60m -v -crowd.readers 500 -crowd.rounds 200
step fuzz env FUZZTIME="${FUZZTIME:-60s}" scripts/fuzz.sh

echo "=== figures"
grep -hoE 'FIGURE .*' "$notes"/*.log || true
