#!/usr/bin/env bash
# Measures how long bin/millrace takes from its start to its ready line, in an
# empty data directory, RUNS (5) times; fails if the median is above a second.
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${RUNS:-5}
figures=()
for _ in $(seq "$runs"); do
  dir=$(mktemp -d)
  begin=$(date +%s%N)
  coproc NODE { exec bin/millrace dev --data-dir "$dir" --stream-addr localhost:0 --http-addr localhost:0 --management-addr localhost:0 2>"$dir/log"; }
  node=$NODE_PID
  if ! IFS= read -r line <&"${NODE[0]}"; then
    cat "$dir/log"
    exit 1
  fi
  figures+=($((($(date +%s%N) - begin) / 1000000)))
  kill "$node"
  wait "$node" || { cat "$dir/log"; echo "the node did not stop well"; exit 1; }
  rm -rf "$dir"
done
sorted=($(printf '%s\n' "${figures[@]}" | sort -n))
median=${sorted[$((runs / 2))]}
echo "FIGURE ready: median $median ms of $runs starts in an empty directory (${sorted[*]} ms); goal 1000 ms"
[ "$median" -le 1000 ]
