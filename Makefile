# Everything below runs with Go alone but for `interop`, which needs Node and Python.

GOLANGCI = go tool -modfile=$(CURDIR)/tools/go.mod golangci-lint

.PHONY: all build test race lint fmt fuzz bench history replicas soak rolling simulation interop cross

all: fmt lint test build

build: ## the binary, static and small
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/mcp-proxy ./cmd/mcp-proxy

test: ## what the README says
	go test ./...

race:
	go test -race -shuffle=on ./...

lint: ## internal/bench and internal/history are modules of their own
	for module in . internal/bench internal/history; do go -C $$module vet ./... && (cd $$module && $(GOLANGCI) run ./...) || exit; done

fmt:
	gofmt -w .

fuzz: ## each fuzzer on FUZZ inputs, 20000x if it is not set; CI only starts them
	.ci/fuzz $(FUZZ)

bench: ## a server, a relay and the proxy side by side; a few minutes
	go -C internal/bench run .

# With DOCS=docs the five below write what they have found into docs/reliability.md.
docs = $(if $(DOCS),-docs $(abspath $(DOCS)))

history: ## what clients see while all kinds of things fail: DURATION=2h, SEED=7; PLANT=all proves the judge
	go -C internal/history run . -duration $(or $(DURATION),60s) $(if $(SEED),-seed $(SEED)) $(if $(PLANT),-plant $(PLANT)) $(docs)

replicas: ## the same for three proxies behind HAProxy, which are restarted ten times, too: DURATION=2h, SEED=7, REPEAT=10; PLANT=all
	go -C internal/history run . -replicas $(if $(PLANT),-plant $(PLANT),-rolling) -haproxy $(CURDIR)/.ci/haproxy \
		-duration $(or $(DURATION),60s) -repeat $(or $(REPEAT),1) $(if $(SEED),-seed $(SEED)) $(docs)

soak: ## one proxy for long, under faults, and what it holds more and more of: DURATION=2h, SEED=7
	go -C internal/history run . -soak $(or $(DURATION),2h) $(if $(SEED),-seed $(SEED)) $(if $(DIR),-dir $(abspath $(DIR))) $(docs)

rolling: ## restart a server, the host and the proxy ten times each under load, and count what fails: SEED=7
	go -C internal/history run . -rolling $(if $(SEED),-seed $(SEED)) $(docs)

simulation: ## the same in memory and virtual time: SEEDS=100000; SEED=7 is the first one
	go -C internal/history test -count=1 -timeout 0 -v -run TestSimulation -seeds $(or $(SEEDS),10000) $(if $(SEED),-seed $(SEED)) $(docs)

interop: ## the conformance suite and real clients and servers
	interop/run.sh

cross: ## the other platforms
	GOOS=darwin GOARCH=arm64 go vet ./...
	GOOS=windows GOARCH=amd64 go vet ./...
