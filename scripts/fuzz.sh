#!/usr/bin/env bash
# Fuzzes every target of the module, FUZZTIME (default 5s) each; with FUZZ, a
# regular expression, only those whose "folder Target" it matches.
set -euo pipefail
cd "$(dirname "$0")/.."

time_each=${FUZZTIME:-5s}
count=0
for dir in $(git grep -lE '^func Fuzz' -- '*_test.go' | xargs -r -n1 dirname | sort -u); do
  for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | sed 's/^func //' | sort -u); do
    [[ "$dir $target" =~ ${FUZZ:-.} ]] || continue
    echo "fuzz: $dir $target for $time_each"
    go test "./$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time_each"
    count=$((count + 1))
  done
done
echo "FIGURE fuzz: $count targets, $time_each each"
