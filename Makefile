# Each target makes the environment it needs. Choose another interpreter with, say, PYTHON=python3.13.

PYTHON  ?= python3
WORKERS ?= 2
SMOKE   ?= tests/test_api.py
SLOW    ?=

MINOR   := import sys; print("%d.%d" % sys.version_info[:2])
VERSION := $(shell $(PYTHON) -c '$(MINOR)' 2>/dev/null)

# A pyenv shim is found but does not run unless its version is selected: then take the version's own python.
ifeq ($(VERSION),)
  PREFIX := $(shell pyenv prefix $(patsubst python%,%,$(PYTHON)) 2>/dev/null)
  ifneq ($(PREFIX),)
    override PYTHON := $(PREFIX)/bin/python
    VERSION := $(shell $(PYTHON) -c '$(MINOR)' 2>/dev/null)
  endif
endif

# One environment an interpreter version, so that several live side by side.
ENV := .venv/$(VERSION)
BIN := $(ENV)/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test slow laws test-statistics smoke check format docs bench clean interpreter

help:  ## list the targets
	@echo "make <target> [PYTHON=python3.13]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(ENV)/ready-run  ## sample the Lotka-Volterra posterior into runs/demo
	@rm -rf runs/demo
	@$(BIN)/tightrope run lotka-volterra --chains 4 --seed 1 --out runs/demo

test: $(ENV)/ready-dev  ## run the tests, in WORKERS processes
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=20

slow: $(ENV)/ready-dev  ## run the tests that take long: posteriors, random models, kills, sweeps, NumPyro
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow $(SLOW)

laws: $(ENV)/ready-dev  ## run the test of exact stationarity for all kernels, and all mutants: a quarter of an hour
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m laws

test-statistics: $(ENV)/ready-dev  ## run the tests of the law of whole runs: calibration, joint tests, a million draws
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m statistics

smoke: $(ENV)/ready-dev  ## run a few fast tests, SMOKE
	@$(BIN)/python -m pytest -q $(SMOKE)

check: $(ENV)/ready-dev  ## lint, formatting, types, and imports that point downward
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python tools/check_imports.py

format: $(ENV)/ready-dev  ## put the code into the form that check asks for
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(ENV)/ready-docs  ## build the documentation into build/docs, every example run
	@$(BIN)/python -m sphinx -q -W --keep-going -d build/docs-read docs build/docs
	@echo "build/docs/index.html"

bench: $(ENV)/ready-run  ## time Tightrope beside NumPyro
	@$(BIN)/python benchmarks/lotka_volterra.py

clean:  ## remove the environments, the caches and the demo
	@rm -rf .venv build dist runs/demo .mypy_cache .pytest_cache .ruff_cache
	@find src tests tools -name __pycache__ -prune -exec rm -rf {} +

interpreter:  ## say which Python is used, or fail if there is none
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { echo "Tightrope needs Python 3.11 or newer; $(PYTHON) is $(or $(VERSION),not to be found)."; \
	      echo "Name another one: make <target> PYTHON=python3.13"; exit 1; } >&2
	@echo "Python $(VERSION), $(PYTHON)"

# Made anew only when the requirements change.
EXTRAS_dev   := [dev]
EXTRAS_docs  := [docs]

$(ENV)/ready-%: pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory interpreter
	@echo "Installing into $(ENV): a minute or two, this once."
	@$(PYTHON) -m venv $(ENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.$(EXTRAS_$*)'
	@touch $@
