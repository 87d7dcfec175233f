# What a newcomer runs. Needs Python 3.11+ and make; everything else is brought along.
# Each step is skipped when nothing it depends on has changed (deploy/local/install.py).

SHELL := /bin/sh
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; break; fi; done)
VENV := .venv/bin
INSTALL = $(PYTHON) -m deploy.local.install
export ATHANOR_TORCH ATHANOR_PORT ATHANOR_DATA_DIR CHANGED
# An empty variable is no choice: pass on only what was given.
ifeq ($(ATHANOR_TORCH),)
unexport ATHANOR_TORCH
endif
ifeq ($(CHANGED),)
unexport CHANGED
endif
ifeq ($(ATHANOR_PORT),)
unexport ATHANOR_PORT
endif
ifeq ($(ATHANOR_DATA_DIR),)
unexport ATHANOR_DATA_DIR
endif

.DEFAULT_GOAL := help
.PHONY: help python setup setup-dev demo model-demo quota-demo up down status test test-all test-fast test-matrix lint bench gpu-kit chaos images compose-test helm docs release matrix slurm gen clean

help:
	@echo 'make demo     set everything up and train, download and try a model'
	@echo 'make model-demo  a model from raw conversations: data report, LoRA, evaluation, promotion, signature, documents'
	@echo 'make quota-demo  two teams share this machine: quota edit, borrow, reclaim with checkpoint, budget stop'
	@echo 'make up       run the stack in the foreground (Ctrl-C stops it)'
	@echo 'make down     stop a stack that runs in the background'
	@echo 'make status   what runs, where, and how much memory it takes'
	@echo 'make test     set everything up and run the checks and tests (CHANGED=1: those that your changes can affect)'
	@echo 'make test-all  the slow tests too: long drills with faults, every kind of cluster, the commands of all pages'
	@echo 'make test-fast  the tests that start no server and no process'
	@echo 'make test-matrix  the tests on other versions of Python, Django and torch (VERSIONS=--only=newest, TESTS=tests/control_plane)'
	@echo 'make lint     only the static checks'
	@echo 'make bench    measure, and print the figures (BENCH=--demo adds the times of make demo)'
	@echo 'make gpu-kit  build gpu_kit/, which checks and measures the trainer on a machine with a GPU (GPU_KIT=--python=3.11)'
	@echo 'make chaos    attack and kill parts of the platform while jobs run, and check the record (CHAOS_MINUTES=10, CHAOS=--seed=7)'
	@echo '              before that, a thousand random histories of admission (CHAOS_SEEDS=1000); after it, faults of the machine:'
	@echo '              full disks, no inodes, no descriptors, frozen services, wrong clocks and keys (root);'
	@echo '              a backup during training, restored elsewhere after everything is lost;'
	@echo '              last, each kind of fault in each phase of a training run, and random kills (FAULT_MINUTES=15)'
	@echo 'make matrix   train one step on every mesh of up to 8 ranks, and compare with one rank (MATRIX=--ranks=4)'
	@echo 'make slurm    the tests of Slurm over ssh too, and on a cluster with accounting (root, slurmdbd, mariadb-server)'
	@echo 'make gen      regenerate the OpenAPI document, the types, docs/reference, alerts and dashboards'
	@echo 'make images   build the container images, with buildah (IMAGES="platform --base=python:3.12-slim")'
	@echo 'make compose-test  train the demo job in these images, by deploy/compose.yaml (podman)'
	@echo 'make helm     get helm for the tests of the chart (Linux on x86_64; a download of 36 MiB)'
	@echo 'make release VERSION=1.2.3 KEY=release_key  packages, images, chart and notes of this commit, with signed checksums; a signed tag'
	@echo 'make docs     build the site of the documentation into build/docs, which the web serves under /docs/'
	@echo 'make setup    only install and build'
	@echo 'make clean    remove what was built; the data in .athanor stays'
	@echo
	@echo 'ATHANOR_PORT, ATHANOR_DATA_DIR, ATHANOR_TORCH=cpu, PYTHON choose port, data folder, torch build, Python'

python:
	@test -n '$(PYTHON)' || { echo 'athanor: Python 3.11 or newer is needed: install it, or set PYTHON=' >&2; exit 1; }

setup: python
	@$(INSTALL) --extras server,trainer,local,docs --dashboard --docs

setup-dev: python
	@$(INSTALL) --extras server,trainer,local,docs,dev --dashboard --docs

quota-demo: setup
	@$(VENV)/python -m deploy.local up --background
	@$(VENV)/python -m deploy.local.quota_demo

demo: setup
	@$(VENV)/python -m deploy.local.demo

model-demo: setup
	@$(VENV)/python -m deploy.local.model_demo

up: setup
	@exec $(VENV)/python -m deploy.local up

down:
	@test -x $(VENV)/python || { echo 'nothing is installed here'; exit 0; }; exec $(VENV)/python -m deploy.local down

status:
	@exec $(VENV)/python -m deploy.local status

lint: setup-dev
	@$(VENV)/python -m deploy.local.checks lint

test: setup-dev
	@$(VENV)/python -m deploy.local.checks test

test-all: setup-dev
	@$(VENV)/python -m deploy.local.checks test-all

test-fast: setup-dev
	@$(VENV)/python -m deploy.local.checks test-fast

test-matrix: setup-dev
	@$(VENV)/python -m deploy.local.matrix $(VERSIONS) $(TESTS)

bench: setup-dev
	@$(VENV)/python -m tests.bench.run $(BENCH)

gpu-kit: setup-dev
	@$(VENV)/python -m tests.gpu_kit.build $(GPU_KIT)

chaos: setup-dev
	@$(VENV)/python -m tests.chaos.policies --seeds $(or $(CHAOS_SEEDS),1000)
	@$(VENV)/python -m tests.chaos.contention --seeds $(or $(CHAOS_SEEDS),1000) --minutes $(or $(CHAOS_MINUTES),10)
	@$(VENV)/python -m tests.chaos.attacks
	@ATHANOR_TEST_EXAMPLES=all $(VENV)/python -m pytest -q tests/control_plane/api/test_fuzz.py \
		tests/control_plane/budgets/test_properties.py tests/control_plane/jobs/test_transitions.py
	@$(VENV)/python -m tests.chaos.run --minutes $(or $(CHAOS_MINUTES),10) $(CHAOS)
	@$(VENV)/python -m pytest -q tests/chaos/test_machine.py tests/chaos/test_backup.py tests/chaos/test_rolling_upgrade.py
	@$(VENV)/python -m tests.chaos.faults --minutes $(or $(FAULT_MINUTES),15)

images: setup
	@$(VENV)/python -m deploy.images $(IMAGES)

compose-test: setup-dev
	@ATHANOR_TEST_COMPOSE=1 $(VENV)/python -m pytest -q tests/deploy/test_compose.py

helm: setup-dev
	@$(VENV)/python -m tests.deploy.helm

matrix: setup-dev
	@$(VENV)/python -m tests.trainer.matrix $(MATRIX)

slurm: setup-dev
	@ATHANOR_TEST_SLURM=all $(VENV)/python -m pytest tests/backends -q -k slurm_ssh
	@ATHANOR_TEST_SLURM=accounting $(VENV)/python -m pytest tests/backends -q -k slurm_commands
	@ATHANOR_TEST_SLURM=accounting $(VENV)/python -m pytest tests/slurm -q
	@ATHANOR_TEST_SLURM=accounting $(VENV)/python -m pytest tests/slurm/with_accounting.py -q

release: setup
	@$(VENV)/python -m deploy.release $(VERSION) --key $(KEY) $(RELEASE)

docs: python
	@$(INSTALL) --extras docs --docs

gen: setup-dev
	@$(VENV)/python -m deploy.local.checks gen

clean:
	rm -rf .venv frontend/node_modules frontend/dist build dist test-results .mypy_cache .ruff_cache .pytest_cache
