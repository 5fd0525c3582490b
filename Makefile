# Everything below runs with Go alone but for `interop`, which needs Node and Python.

GOLANGCI = go tool -modfile=$(CURDIR)/tools/go.mod golangci-lint

.PHONY: all build test race lint fmt fuzz bench interop cross

all: fmt lint test build

build: ## the binary, static and small
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/mcp-proxy ./cmd/mcp-proxy

test: ## what the README says
	go test ./...

race:
	go test -race -shuffle=on ./...

lint: ## internal/bench is a module of its own
	go vet ./...
	$(GOLANGCI) run ./...
	go -C internal/bench vet ./...
	cd internal/bench && $(GOLANGCI) run ./...

fmt:
	gofmt -w .

fuzz: ## each fuzzer on FUZZ inputs, 20000x if it is not set; CI only starts them
	.ci/fuzz $(FUZZ)

bench: ## a server, a relay and the proxy side by side; a few minutes
	go -C internal/bench run .

interop: ## the conformance suite and real clients and servers
	interop/run.sh

cross: ## the other platforms
	GOOS=darwin GOARCH=arm64 go vet ./...
	GOOS=windows GOARCH=amd64 go vet ./...
