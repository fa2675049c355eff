# Everything needs only Python 3.11 or later and make; each target installs what it lacks into .venv.

PYTHON ?= $(shell python3.11 -c 'print("python3.11")' 2>/dev/null || echo python3)
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt
OUT    ?= out
JOBS   ?= 2
SECONDS ?= 60
SEED   ?= 1
FAMILY ?= *
PYTEST := python -m pytest -n $(JOBS) --dist worksteal

# Where numbers are tested, and may differ in the last bit from one processor to another.
NUMERICAL := base measures transport metrics energies closed_forms fields steppers dynamics stability papers laws corpus fuzz

# One thread per process: small matrices gain nothing from more, and test workers share the cores already.
export OMP_NUM_THREADS = 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo quick test slow fuzz mutants test-cpus lowest lint format docs bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv/.dev: pyproject.toml constraints.txt
	@echo "installing otflow into .venv (the first time takes a few minutes)"
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[dev]'
	@touch $@

.venv/.docs: .venv/.dev
	$(PIP) -e '.[dev,docs]'
	@touch $@

.venv-lowest/.dev: pyproject.toml constraints.txt tests/lowest.py
	@echo "installing otflow and the oldest libraries it promises into .venv-lowest"
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python tests/lowest.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --disable-pip-version-check --quiet -c .venv-lowest/constraints.txt -e '.[dev]'
	@touch $@

demo: .venv/.dev  ## run the first experiment and write out/index.html
	$(BIN)/otflow reproduce attention-flows --out $(OUT)
	@echo "Open $(OUT)/index.html in a browser; figures and data are in $(OUT)/attention-flows/."

quick: .venv/.dev  ## the fast tests alone: the inner loop, about a minute
	$(BIN)/$(PYTEST) --quick

test: lint  ## lint, then every test that is not slow: doctests and README included
	$(BIN)/$(PYTEST)

slow: .venv/.dev  ## the slow tests, examples included; with SHARE=K/N, part K = 0, ..., N - 1 of them
	$(BIN)/$(PYTEST) -m slow $(if $(SHARE),--share $(SHARE))

fuzz: .venv/.dev  ## new cases for the fuzzer: SECONDS=60 SEED=1 FAMILY="*"; prints a script of every failure
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED) --family '$(FAMILY)'

mutants: .venv/.dev  ## break central lines one at a time and see that the tests notice (an hour)
	$(BIN)/python -m tests.mutants

lowest: .venv-lowest/.dev  ## the fast tests with the oldest libraries that pyproject.toml promises
	.venv-lowest/bin/$(PYTEST) --quick -W default

test-cpus: .venv/.dev  ## the numerical tests with the kernels of other processors
	JOBS=$(JOBS) .ci/cpus.sh $(BIN)/python $(addprefix tests/,$(NUMERICAL))

lint: .venv/.dev  ## ruff, formatting and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev  ## reformat and repair what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.docs  ## build docs/_build/html and check it, warnings are errors
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html
	@echo "Open docs/_build/html/index.html in a browser."

bench: .venv/.dev  ## run every script in benchmarks/
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

clean:  ## remove what was generated, .venv excepted
	rm -rf $(OUT) docs/_build docs/gallery docs/reference docs/sg_execution_times.rst
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
