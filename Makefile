# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT

# make help lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
CACHE   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/wcache

# The unmodified engine: where its programs are, and where it is installed once.
ENGINE      ?= ../shared/testbed/stock-engine
ENGINE_VENV ?= $(CACHE)/stock-engine

export GOFLAGS := -mod=readonly
# Drivers are opened when they are needed and never linked: with -z now, which
# some compilers have as a default, go-nvml's names would be looked up at start.
export CGO_LDFLAGS := -Wl,-z,lazy
export CGO_CFLAGS  := -g -O2 -Wno-deprecated-declarations

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

.PHONY: build
build: ## build bin/wcache and bin/wcache-generator
	go build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/...

.PHONY: demo
demo: build ## start the service by a connection, as an engine would, on host memory
	./demo/demo.sh

.PHONY: test
test: ## all quick tests, with the race detector
	go test -race ./...

.PHONY: test-engine
test-engine: build ## the unmodified vLLM engine against wcache serve (installs vLLM once, 10 GB)
	./enginetest/run.sh '$(ENGINE)' '$(ENGINE_VENV)'

.PHONY: prepare
prepare: ## install what the tests below need once: the engine, Debian 12 and 13 (11 GB, root)
	./enginetest/install.sh '$(ENGINE)' '$(ENGINE_VENV)'
	./systemdtest/debian.sh '$(DEBIAN_13)'
	./systemdtest/debian.sh '$(DEBIAN_12)' bookworm rpm
	CGO_ENABLED=0 go tool -n -modfile=tools/nfpm/go.mod nfpm >/dev/null

# The user manager for tests, and a Debian 13 to run it on.
BED       ?= ../shared/testbed/user-manager.sh
DEBIAN_13 ?= $(CACHE)/debian-13

.PHONY: test-systemd
test-systemd: build ## the units in a real user manager, with the unmodified engine (needs root)
	ENGINE='$(ENGINE)' ENGINE_VENV='$(ENGINE_VENV)' ./systemdtest/run.sh '$(BED)'

.PHONY: test-systemd-257
test-systemd-257: build ## the same on Debian 13 (needs root; installs it once, 300 MB)
	./systemdtest/debian.sh '$(DEBIAN_13)'
	./systemdtest/run.sh '$(BED)' '$(DEBIAN_13)'

KILLS ?= 500
.PHONY: test-crash
test-crash: build ## kill the daemon a moment after an answer, KILLS times, with all cores busy (needs root)
	./systemdtest/run.sh '$(BED)' / -test.run='^TestCrash$$' -test.timeout=2h -crash.kills=$(KILLS)

SEED    ?= 0
MINUTES ?= 1
.PHONY: churn
churn: build ## random engines, loads, kills and changed files for MINUTES; SEED as an earlier run told (as root in a real user manager)
	./churn/run.sh '$(BED)' '$(SEED)' '$(MINUTES)'

.PHONY: lint
lint: ## go vet, gofmt, golangci-lint
	@test -z "$$(gofmt -s -l $$(git ls-files '*.go'))" || { gofmt -s -d $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go tool -modfile=tools/lint/go.mod golangci-lint run

.PHONY: packages
packages: ## dist/*.deb and *.rpm; VERSION=1.2.3 instead of what git says
	rm -f dist/*.deb dist/*.rpm
	./packaging/build.sh '$(VERSION)'

.PHONY: packages-reproducible
packages-reproducible: packages ## build them again elsewhere, and compare
	./packaging/reproducible.sh '$(VERSION)'

.PHONY: lint-packages
lint-packages: packages ## lintian, rpmlint, mandoc, systemd-analyze, shellcheck
	./packaging/lint.sh dist

# A Debian 12 for the packages, with rpm.
DEBIAN_12 ?= $(CACHE)/debian-12

.PHONY: test-packages
test-packages: packages ## install, upgrade and remove them on Debian 12 and 13 (needs root; installs these once, 700 MB)
	./systemdtest/debian.sh '$(DEBIAN_12)' bookworm rpm
	./systemdtest/debian.sh '$(DEBIAN_13)'
	./packagetest/run.sh '$(BED)' dist '$(DEBIAN_12)' '$(DEBIAN_13)'

.PHONY: bench
bench: build ## measure what README promises
	go run ./bench -wcache bin/wcache

FUZZTIME ?= 10m
.PHONY: fuzz
fuzz: ## every fuzz target, FUZZTIME each, and how often they run
	./tools/fuzz.sh $(FUZZTIME)

PAGES := man/wcache.1 man/wcache.toml.5 man/wcache@.service.8
.PHONY: manual
manual: ## write DIAGNOSTICS of the manual from the comments beside the messages
	go run ./tools/manual/diagnostics $(PAGES)

.PHONY: third-party
third-party: ## write THIRD-PARTY.txt, the notices of what is compiled in
	./tools/third-party.sh

.PHONY: third-party-check
third-party-check: ## is THIRD-PARTY.txt what it would write?
	./tools/third-party.sh --check

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
