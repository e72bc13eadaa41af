#!/usr/bin/env bash
# What stored offsets cost on this machine: 1,000 references over 8 connections
# store 50,000 times a second in all beside a publisher at full speed, in turn
# with the publisher alone, so that the ratios are those of one run; then as many
# stores as go without a publisher. Prints tables and two FIGURE lines. TIME
# changes the length.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$(mktemp -d "${TMPDIR:-/tmp}/millrace-bench-XXXXXX")
coproc NODE { exec bin/millrace dev --data-dir "$dir/data" --stream-addr localhost:0 --http-addr localhost:0 --management-addr localhost:0 --node-addr localhost:0 --gossip-addr localhost:0 2>"$dir/log"; }
node=$NODE_PID
trap 'kill "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; rm -rf "$dir"' EXIT
IFS= read -r line <&"${NODE[0]}" || { cat "$dir/log"; exit 1; }
stream=$(sed -E 's/.*streams ([^ ]+).*/\1/' <<<"$line")

run() { # name arguments…
  local name=$1
  shift
  bin/millrace bench tracking --stream "$stream" --server-pid "$node" --data-dir "$dir/data" --max-length-bytes 1000000000 \
    --segment-bytes 100000000 "$@" -o csv >"$dir/$name.csv"
  cat "$dir/$name.csv"
}

run beside --time "${TIME:-10s}" --rounds 10
run alone --time "${TIME:-10s}" --producers 0 --references 10 --connections 1 --store-rate 0

column() { # run column format
  awk -F, -v name="$2" -v format="$3" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i } NR == 2 { printf format, $at }' "$dir/$1.csv"
}
echo "FIGURE stores beside a publisher: $(column beside stores_per_second %.0f)/s accepted, query p99 $(column beside query_p99_ms %.2f) ms; publish throughput $(column beside throughput_ratio %.2f) of without (goal 0.90), CPU for each message $(column beside cpu_ratio %.2f) of without (goal 1.20)"
echo "FIGURE stores without a publisher: $(column alone stores_per_second %.0f)/s accepted, query p99 $(column alone query_p99_ms %.2f) ms"
