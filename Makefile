# What CI runs, in pieces. `make` alone runs the tests.
LINT_VERSION := v2.15.0
SHELL_ROOMS  := ./lbd/... ./internal/... ./provision/... ./tui/... ./cmd/...

.PHONY: test build vet lint race bench examples ci

test:
	go test ./...

build:
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/skyserve ./cmd/skyserve

vet:
	go vet ./...

lint:
	go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	$$(go env GOPATH)/bin/golangci-lint run

race:
	go test -race $(SHELL_ROOMS)

bench:
	go test -run '^$$' -bench . -benchtime 1x ./...

examples:
	sh examples/run-all

ci:
	bash .ci/run
