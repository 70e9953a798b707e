# The two commands are `make demo` and `make test`. Each first installs what is missing (deploy/bootstrap.sh).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
.PHONY: help setup demo test test-kubernetes test-pacemaker unit system simulation soak fuzz spark core bench bench-lag drains arbiters format lint types imports clean

PYTHON := .venv/bin/python
TOX := .venv/bin/tox run
TOX_READY := ./deploy/bootstrap.sh test
# Three workers keep two cores busy: half of the time tests wait for brokers. What runs together is said in tests/groups.py.
WORKERS ?= 3
AT_ONCE = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
# What the demo takes from its environment: INPUT=file of lines to send, KEEP=1 to leave the cluster running.
ifdef INPUT
export INPUT
endif
ifdef KEEP
export KEEP
endif
ifdef KUBE_APISERVER
export KUBE_APISERVER
endif

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

setup: ## install what is missing: .venv with the package, and through apt what it stands on
	@./deploy/bootstrap.sh run

demo: ## the main job on real input: a cluster that survives kill -9 (INPUT=file, KEEP=1)
	@./deploy/bootstrap.sh run
	$(PYTHON) -m cli.demo.command

test: ## everything that must hold, in WORKERS=3 processes; ends with pytest's closing line
	@$(TOX_READY)
	$(TOX) -q -e tests --notest
	$(TOX) -qq -e tests --skip-pkg-install -- $(AT_ONCE) --cover-cores

test-kubernetes: ## the arbiter for Kubernetes, and qpid-scaledown, against a real API server (KUBE_APISERVER=path of kube-apiserver)
	@[[ -x "$${KUBE_APISERVER:-}" ]] || { echo "test-kubernetes: give KUBE_APISERVER=path of a kube-apiserver that runs here (docs/howto/kubernetes.md says how to get one)" >&2; exit 2; }
	$(TOX_READY)
	KUBE_APISERVER=$$(realpath "$$KUBE_APISERVER") $(TOX) -q -e tests -- tests/resource_manager/arbiters/test_kubernetes.py tests/resource_manager/arbiters/test_kubernetes_faults.py tests/cli/test_scaledown_namespace.py

TROUBLES ?=
test-pacemaker: ## a real Pacemaker cluster of three in namespaces: 20 moves, kill, cut, ... (root; TROUBLES="moves cut")
	@((EUID == 0)) || { echo "test-pacemaker: this needs root" >&2; exit 2; }
	$(TOX_READY)
	$(TOX) -q -e pacemaker -- $(TROUBLES)

unit: ## the tests without clusters of processes, without Spark and without tools
	@$(TOX_READY)
	$(TOX) -q -e tests -- $(AT_ONCE) -m "not system and not spark and not static"

system: ## the tests with real processes
	@$(TOX_READY)
	$(TOX) -q -e tests -- -m system

simulation: ## whole simulated clusters, from a fixed set of seeds
	@$(TOX_READY)
	$(TOX) -q -e tests -- $(AT_ONCE) -m simulation

MINUTES ?= 10
soak: ## simulated clusters from seeds that nobody has chosen, on all cores (MINUTES=m)
	@$(TOX_READY)
	$(TOX) -q -e soak -- --minutes $(MINUTES) -j $$(nproc)

SECONDS_EACH ?= 60
fuzz: ## any bytes for each reader of strangers' bytes (SECONDS_EACH=s)
	@$(TOX_READY)
	$(TOX) -q -e fuzz -- --seconds $(SECONDS_EACH)

spark: WORKERS = 2
spark: ## the tests with Spark, in WORKERS=2 processes with a session each
	@$(TOX_READY)
	$(TOX) -q -e tests -- $(AT_ONCE) -m spark

core: ## the cores' own tests, with the gate on their branch coverage
	@$(TOX_READY)
	$(TOX) -q -e core

bench: ## measure throughput and latency on this machine
	@./deploy/bootstrap.sh run
	$(PYTHON) -m tests.bench

KILLS ?= 50
drains: ## scale down again and again, while everybody is killed and held up at random (KILLS=n)
	@./deploy/bootstrap.sh run
	$(PYTHON) -m tests.system.drains --kills $(KILLS)

SAMPLES ?= 2000000
bench-lag: ## measure summaries and the stream of replication lag, beside plain Spark and DuckDB (SAMPLES=n)
	@$(TOX_READY)
	$(TOX) -q -e bench-lag -- --samples $(SAMPLES)

ROUNDS ?= 3
arbiters: ## every arbiter in every fault, on real brokers (ROUNDS=n; needs root)
	@$(TOX_READY)
	$(TOX) -q -e arbiters -- --rounds $(ROUNDS)

format: ## format the files and mend what ruff can mend
	@$(TOX_READY)
	$(TOX) -q -e fix

lint: ## ruff's rules
	@$(TOX_READY)
	$(TOX) -q -e lint

types: ## mypy, strict
	@$(TOX_READY)
	$(TOX) -q -e types

imports: ## who may import whom
	@$(TOX_READY)
	$(TOX) -q -e imports

clean: ## remove everything that was built or installed here
	@rm -rf .venv .tox build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -path ./.git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
