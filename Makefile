# One door: what a person, the pre-commit hook and CI run is the same.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test prove check format docs clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP)  ## Make .venv and install the pinned dependencies

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (make PYTHON=python3.12 ...)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup  ## Train the built-in demo on this machine, nothing downloaded
	$(BIN)/cohort train

test: setup  ## Run the tests (a sample of every claim)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not prove and not gpu' -n 2 --dist loadfile

prove: setup  ## Re-run every figure of docs/results.md in full (about three hours and forty minutes on two cores)
	$(BIN)/python -m pytest -m 'prove and not gpu' --durations=20
	$(BIN)/python benchmarks/prove.py

check: setup  ## Lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## Write the generated pages and the picture of the house from the code
	$(BIN)/python -m cohort.observe.metrics
	$(BIN)/python -m cohort.recipe.page
	$(BIN)/python -m cohort.rewards.page
	$(BIN)/python -m cohort.rewards.gym.page > docs/gym-tasks.md
	$(BIN)/python tests/house.py

clean:  ## Remove the environment and caches; runs stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache build dist
