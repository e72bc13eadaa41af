#!/usr/bin/env bash
# Measures bin/millrace on this machine: publish, consume and end to end, with
# every confirm behind an fdatasync, beside what this disk does by itself. Writes
# build/bench/*.json and prints a table with ratios. PROFILE=1 adds CPU profiles
# of node and benchmark; PEER=host:port measures another broker of the protocol
# in turn; TIME and MESSAGES change the length.
set -euo pipefail
cd "$(dirname "$0")/.."

out=build/bench
dir=$(mktemp -d "${TMPDIR:-/tmp}/millrace-bench-XXXXXX")
mkdir -p "$out"
rm -f "$out"/*.json
time_each=${TIME:-10s}
messages=${MESSAGES:-5000000}

coproc NODE { exec bin/millrace dev --data-dir "$dir/data" --stream-addr localhost:0 --http-addr localhost:0 --management-addr localhost:0 2>"$dir/log"; }
node=$NODE_PID
trap 'kill "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; rm -rf "$dir"' EXIT
IFS= read -r line <&"${NODE[0]}" || { cat "$dir/log"; exit 1; }
stream=$(sed -E 's/.*streams ([^ ]+).*/\1/' <<<"$line")
http=$(sed -E 's|.*page http://([^ ]+).*|\1|' <<<"$line")

run() { # name command…
  local name=$1
  shift
  echo "bench: $name"
  if [ -n "${PROFILE:-}" ]; then
    curl -s -u guest:guest -o "$out/$name.node.pprof" "http://$http/debug/pprof/profile?seconds=8" &
    local profile=$!
    bin/millrace bench "$@" --stream "$stream" --server-pid "$node" --cpuprofile "$out/$name.bench.pprof" -o json >"$out/$name.json"
    wait "$profile" || true
  else
    bin/millrace bench "$@" --stream "$stream" --server-pid "$node" -o json >"$out/$name.json"
  fi
  if [ -n "${PEER:-}" ]; then
    bin/millrace bench "$@" --stream "$PEER" -o json >"$out/$name.peer.json" || echo "bench: the peer failed at $name"
  fi
}

bin/millrace bench disk --dir "$dir" --time 2s -o json >"$out/disk.json"
run P1-publish-100B produce --time "$time_each"
run P2-publish-100B-large-frames produce --frame 1000 --window 200000 --time "$time_each"
run P3-publish-1KiB produce --size 1024 --time "$time_each"
run P4-publish-4-streams produce --producers 4 --streams 4 --time "$time_each"
run P5-publish-single produce --frame 1 --window 1000 --time "$time_each"
run P9-consume-100B consume --messages "$messages"
run P9-consume-1KiB consume --size 1024 --messages $((messages / 5))
run P11-e2e-1000 e2e --rate 1000 --time "$time_each"
run P12-e2e-20000 e2e --rate 20000 --frame 20 --time "$time_each"

bin/millrace bench report "$out"
