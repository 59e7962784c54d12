PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Neighbours in one process, which share what they prepare; who has nothing left takes from the other.
PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal
# One thread each: two workers with two threads each would wait for one another.
export OMP_NUM_THREADS := 1
# Tests start many processes: each starts faster from compiled modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check bench faults faults-flower format clean

help:  ## list these commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

setup: $(READY)  ## make the environment in .venv

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "protofed needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	@echo "installing (a minute or two; torch is large) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## train one federation on the built-in digits, about two minutes
	$(BIN)/protofed run --data digits-mini --method fedavg --rounds 20
	@echo "next: $(BIN)/protofed methods, $(BIN)/protofed run --help, README.md"

test: $(READY)  ## run the tests but the long ones (a few minutes on two cores)
	$(PYTEST) -m 'not long'

test-all: $(READY)  ## run every test (a quarter of an hour on two cores)
	$(PYTEST)

check: $(READY)  ## format, lint, types, dependencies, then every test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/deptry src
	$(MAKE) test-all

bench: $(READY)  ## measure against a plain loop, Flower and others (idle machine, one to two hours)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks

faults: $(READY)  ## kill, starve and damage runs, and count what is lost (ten minutes)
	$(BIN)/python -m faults
	$(BIN)/python -m faults --docs

faults-flower: $(READY)  ## kill and stop the processes of a real federation (most of an hour)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[flower]'
	$(BIN)/python -m faults_flower
	$(BIN)/python -m faults_flower --docs

format: $(READY)  ## bring the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and caches; runs/ stays
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
