#!/usr/bin/env bash
# What TLS costs clients: one node, publishing and reading over the plain port and
# over TLS in turn, ROUNDS (3) times. Prints FIGURE lines: TLS as a share
# of plain, of the medians. TIME (3s) is how long each publisher runs.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/bin/millrace
rounds=${ROUNDS:-3}
time=${TIME:-3s}
messages=${MESSAGES:-5000000}
dir=$(mktemp -d)
node=
trap '[ -z "$node" ] || { kill "$node"; wait "$node" || true; }; rm -rf "$dir"' EXIT

"$bin" cert init-ca bench --out "$dir/ca" >/dev/null
"$bin" cert server localhost 127.0.0.1 ::1 --ca "$dir/ca" --out "$dir/tls" >/dev/null
"$bin" dev --data-dir "$dir/data" --stream-addr localhost:0 --stream-tls-addr localhost:0 --http-addr localhost:0 \
  --management-addr localhost:0 --node-addr localhost:0 --tls-cert "$dir/tls/localhost.crt" --tls-key "$dir/tls/localhost.key" >"$dir/out" &
node=$!
until grep -q 'is ready' "$dir/out"; do kill -0 "$node"; sleep 0.1; done
plain=$(grep -oE 'streams [^ ]+' "$dir/out" | cut -d' ' -f2)
secure=$(grep -oE 'over TLS localhost:[0-9]+' "$dir/out" | head -1 | cut -d' ' -f3)

# rate NAME KIND SIZE FLAGS…: messages a second of one run, added to NAME's.
rate() {
  local name=$1 kind=$2 size=$3
  shift 3
  "$bin" bench "$kind" --size "$size" "$@" -o json | grep -oE "\"messages_per_second\": *[0-9.]+" | grep -oE "[0-9.]+$" >>"$dir/$name"
}
median() { sort -n "$dir/$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

for _ in $(seq "$rounds"); do
  for size in 100 1024; do
    rate "produce-$size-plain" produce "$size" --time "$time" --stream "$plain"
    rate "produce-$size-tls" produce "$size" --time "$time" --stream "$secure" --ca "$dir/ca/ca.crt"
    rate "consume-$size-plain" consume "$size" --messages "$((messages * 100 / size))" --stream "$plain"
    rate "consume-$size-tls" consume "$size" --messages "$((messages * 100 / size))" --stream "$secure" --ca "$dir/ca/ca.crt"
  done
done
for kind in produce consume; do
  for size in 100 1024; do
    p=$(median "$kind-$size-plain")
    s=$(median "$kind-$size-tls")
    awk -v k="$kind" -v b="$size" -v p="$p" -v s="$s" -v r="$rounds" \
      'BEGIN {printf "FIGURE clients over TLS: %s %d B: %d messages/s, plain %d; %.2f of plain, medians of %d\n", k, b, s, p, s / p, r}'
  done
done
