# What one types in this repository. Every command makes the environment in .venv first where it is missing or outdated.
SHELL := bash
PYTHON ?= python3
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n : 8)))
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(VENV)/.torch
READY := $(VENV)/.ready
FIRST := notebooks/01-first-nan.ipynb

LAB := --LabApp.default_url=/lab/tree/$(FIRST)
ifeq ($(BROWSER),none)
LAB += --no-browser
endif
ifeq ($(shell id -u),0)
LAB += --allow-root
endif

.DEFAULT_GOAL := help
.PHONY: help env lab test lint format conformance answers bench notebooks docs wheel older clean

help:  ## list the commands
	@grep -hE '^[a-z]+:.*  ## ' $(MAKEFILE_LIST) | awk -F ':.*  ## ' '{printf "  make %-12s %s\n", $$1, $$2}'

env: $(READY)  ## make the environment in .venv

lab: $(READY)  ## open JupyterLab on the first notebook (BROWSER=none: print the address only)
	$(BIN)/jupyter lab $(LAB)

test: $(READY)  ## run the tests (JOBS=1: in one process)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)  ## let ruff mend and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

conformance: $(READY)  ## the whole of the conformance tests, the slow ones too
	$(BIN)/python -m pytest -q -m conformance

answers: $(READY)  ## what nanlab answers for every program, and what changed: make answers OLD=HEAD~1 NEW=HEAD
	$(BIN)/python tests/answers.py $(or $(OLD),HEAD) $(or $(NEW),.)

bench: $(READY)  ## measure what a watch costs
	$(BIN)/python benchmarks/overhead.py --output benchmarks/results/overhead-cpu.md
	$(BIN)/python benchmarks/stats.py
	$(BIN)/python benchmarks/views.py

notebooks: $(READY)  ## run the notebooks and keep their outputs in them
	$(BIN)/python notebooks/build.py

docs: $(READY)  ## the documentation in build/docs: API, a page for each cause, notebooks
	$(BIN)/python docs/build.py

wheel: $(READY)  ## the package in dist
	$(BIN)/python -m pip wheel -q --no-deps -w dist .

older: VERSION ?= 2.6.0
older:  ## the tests with an older torch, the oldest that nanlab takes: make older VERSION=2.9.1
	$(PYTHON) -m venv build/torch-$(VERSION)
	build/torch-$(VERSION)/bin/python -m pip install -q torch==$(VERSION) -e '.[lab,test]'
	build/torch-$(VERSION)/bin/python -m pytest -q --ignore=tests/browser

clean:  ## remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find nanlab tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# torch comes first and alone: pip's own configuration may choose its build (CPU or CUDA), and what follows keeps it.
$(TORCH): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nanlab needs Python 3.11 or newer, got " + sys.version.split()[0] + "; try: make PYTHON=python3.12")'
	@echo "nanlab: making an environment in $(VENV), once; three parts, some minutes in all"
	@$(PYTHON) -m venv $(VENV)
	@echo "nanlab: 1 of 3, PyTorch"
	@$(BIN)/python -m pip install -q -c constraints.txt torch
	@touch $@

$(READY): $(TORCH) pyproject.toml constraints.txt
	@echo "nanlab: 2 of 3, JupyterLab and what else pyproject.toml names"
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[lab,test,dev,docs]'
	@echo "nanlab: 3 of 3, compiling the kernels, so that the first watch need not"
	@$(BIN)/python -c 'from nanlab.stats import load_early; load_early().join()'
	@touch $@
