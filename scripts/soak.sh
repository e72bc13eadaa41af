#!/usr/bin/env bash
# What finds more the longer it runs, in turn, for HOURS (8) hours: kills, seeds
# and scripts that no round had before, fuzzing, and the lists of mutants. Ends
# at the first failure. What was reached is noted in build/soak, so that the
# next soak goes on behind it.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/soak
end=$((SECONDS + ${HOURS:-8} * 3600))

reached() { cat "build/soak/$1" 2>/dev/null || echo "$2"; } # what, where it begins

run() { # command…: unless the time is over
  [ $SECONDS -lt $end ] || { echo "soak: ${HOURS:-8} h are over"; exit 0; }
  echo "=== soak: $*"
  "$@"
}

run make crash-states STATES=2000000
run make overtake-long
while :; do
  run make kill-test ROUNDS=50
  seed=$(reached seeds 20001)
  run make sim SEEDS="$seed..$((seed + 4999))"
  echo $((seed + 5000)) >build/soak/seeds
  run make mutants-sim RESULTS="build/soak/mutants-$(git rev-parse --short=12 HEAD)"
  run make cluster-long
  run make namespaces-long
  run make company-long
  run make hostile-test HOSTILE_PACKETS=1000000
  run make thousand-long THOUSAND=5000
  run make rolling-long
  run make snapshot-kills
  run make overtake-wire WIRE=600s
  run env FUZZTIME=60s scripts/fuzz.sh
  run make mutants
done
