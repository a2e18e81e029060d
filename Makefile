# Everything from a clone with nothing but Python 3.11, pip and make:
#   make demo   watch a federation train, methods compared in a table and a picture
#   make test   lint, types, tests
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
# One thread a process: tests run in parallel, and results do not depend on the number of threads.
TESTS  := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types unit slow smoke realdata flower browser coverage bench study studies docs notebooks package lowest graph mutants soak chaos fuzz clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make the virtual environment

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,flower]'
	@touch $(STAMP)

demo: $(STAMP) ## Run the quickstart: digits, 40 very different clients
	$(BIN)/muster quickstart

test: lint types unit ## Lint, types and tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(TESTS)

# Those of the documentation are run by `make docs`.
slow: $(STAMP) ## The tests that take longer (kill and resume, chaos, every method end to end)
	$(TESTS) -m slow --ignore tests/docs

smoke: $(STAMP) ## Every table and figure of the five papers, as small as can be (minutes)
	rm -rf build/smoke
	$(BIN)/muster reproduce --all --scale smoke --workspace build/smoke

realdata: $(STAMP) ## The tests on real data sets (MUSTER_DATA names their folder)
	$(TESTS) -m realdata

# One after the other: tests share federations of seven processes each.
flower: $(STAMP) ## The tests that need the extra `flower`
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m flower

browser: $(STAMP) ## The tests of the live page and of the built site in Chromium (skipped where there is none)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser

# The tests of `make unit`, two fifths slower; which lines were not run is in build/coverage.
coverage: $(STAMP) ## The same tests with coverage; fails below the floor in pyproject.toml
	COVERAGE_FILE=build/coverage.data $(TESTS) --cov --cov-report=term --cov-report=html:build/coverage

bench: $(STAMP) ## Measure speed against bare PyTorch and other systems (needs a quiet machine, minutes)
	$(BIN)/python benchmarks/engine.py

# Reliability, measured: docs/reliability.md. All three are drawn from a seed and bounded.
soak: $(STAMP) ## 20,000 rounds of a tiny model: memory, time a round, size of the store (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python tools/soak.py

chaos: $(STAMP) ## Kills, stops, restarts and full disks over runs, sweeps, page and federation (15 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python tools/chaos/chaos.py

fuzz: $(STAMP) ## Almost valid files and messages, wherever Muster reads what others wrote (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python tools/fuzz/fuzz.py

# Of one study: `make study NAME=simprox`. Runs are kept in the workspace `runs`: what is complete is skipped.
study: $(STAMP) ## Run what is missing of a study in studies/ (NAME=…; needs its data in MUSTER_DATA)
	@test -n "$(wildcard studies/$(NAME)/*.toml)" || { echo "NAME is one of: $(notdir $(patsubst %/,%,$(wildcard studies/*/)))"; exit 2; }
	@set -e; for sweep in studies/$(NAME)/*.toml; do $(BIN)/muster sweep "$$sweep"; done

studies: $(STAMP) ## Run what is missing of all studies (hours)
	@set -e; for sweep in studies/*/*.toml; do $(BIN)/muster sweep "$$sweep"; done

# Tests first: they leave the tutorials that they ran for the site, which then runs none of them again.
docs: $(STAMP) ## Run the tutorials and every example of the pages, check links, build the site (build/site) without a warning
	$(TESTS) tests/docs -m "slow or not slow"
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -j 2 -b html -W --keep-going -q docs build/site
	$(BIN)/python tools/doc_blocks.py

notebooks: $(STAMP) ## Run the four tutorials and keep them as notebooks (build/notebooks)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/docs/test_tutorials.py -m slow

package: $(STAMP) ## Build wheel and sdist, install the wheel in a fresh environment, use it outside the clone
	$(BIN)/python tools/check_package.py

# Libraries that are not in the list come from the usual environment, through a path file. The tests are of the parts
# that lean on libraries most.
LOWEST := build/lowest
lowest: $(STAMP) ## Tests with the lowest versions of libraries that are allowed
	$(BIN)/python -m venv --clear $(LOWEST)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  $$($(LOWEST)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/libraries.pth
	grep -v '^torch==' constraints-lowest.txt > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $(LOWEST)/lowest.txt
	PYTHONPATH=$(CURDIR)/src OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 --dist worksteal \
	  tests/core tests/config tests/data tests/heterogeneity tests/results tests/report

MUTANTS := build/mutants
mutants: $(STAMP) ## Plant random bugs and count those that tests notice (75 minutes at most)
	$(BIN)/python -m venv --clear $(MUTANTS)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  $$($(MUTANTS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/libraries.pth
	$(MUTANTS)/bin/python -m pip install --quiet --disable-pip-version-check 'cosmic-ray>=8.7'
	PYTHONPATH=src OMP_NUM_THREADS=1 $(MUTANTS)/bin/python tools/mutants.py

graph: $(STAMP) ## Draw the rooms of the package and their imports (docs/contributing/rooms.md)
	$(BIN)/python tools/draw_rooms.py

clean: ## Remove caches and build products (not the environment)
	rm -rf build dist *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
