# Every target is one line; `make` alone lists them.
TOOL := go tool -modfile=tools/go.mod
.DEFAULT_GOAL := help
.PHONY: help build run test race vet lint fuzz ci

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
build: ## build everything
	go build ./...
test: ## run the whole test suite
	go test ./...
race: ## run the whole test suite under the race detector
	go test -race ./...
vet: ## run go vet
	go vet ./...
lint: vet ## run gofmt, staticcheck and errorlint
	scripts/lint.sh
fuzz: ## fuzz every target for FUZZTIME (5s) each
	scripts/fuzz.sh
ci: ## what a change must pass before it lands
	.ci/run
