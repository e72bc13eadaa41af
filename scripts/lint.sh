#!/usr/bin/env bash
# Few linters, each with a reason:
#   gofmt        one layout, so that a diff shows only what changed
#   staticcheck  misuse of the standard library, dead code, unused names
#   errorlint    errors compared and unwrapped so that wrapping never breaks them
# Their versions are those of tools/go.mod, apart from the product's own.
set -euo pipefail
cd "$(dirname "$0")/.."

unformatted=$(git ls-files '*.go' | xargs -r gofmt -l)
if [ -n "$unformatted" ]; then
  printf 'gofmt would change:\n%s\n' "$unformatted"
  exit 1
fi
tool() { go tool -modfile=tools/go.mod "$@"; }
tool staticcheck ./...
tool go-errorlint ./...
# The official client's tests are a module of their own: whoever gives the
# product a requirement must tidy there too. Better heard here, at the start.
go -C integration/goclient mod tidy -diff
go -C integration/goclient vet ./...
echo "lint: clean"
