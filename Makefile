# All tasks of a developer. Every target makes what it needs first: Python >= 3.11 and make are enough.
#   make PYTHON=python3.13 VENV=.venv-3.13 test     another Python, in another environment
#   make test ARGS="-k fence -x"                    arguments for pytest
#   make sim SEEDS=2000
#   make chaos SECONDS=900

PYTHON ?= python3
VENV   ?= .venv
SEEDS  ?= 200
TIMES  ?= 20
LOOPS  ?= 2
SECONDS ?= 3600
ARGS   ?=

BIN   := $(VENV)/bin
# Named after PYTHON, so that another one makes a new environment.
READY := $(VENV)/.ready-$(notdir $(PYTHON))
LOCK  := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
         --no-header --no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade)

.DEFAULT_GOAL := help
.PHONY: help demo test repeat check check-format check-lint check-types check-imports check-style check-prose collect docs bench sim chaos proto lock setup format
.DELETE_ON_ERROR:

help:  ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY)  ## Start a small cluster on this machine and show a failover.
	@$(BIN)/roost demo

test: $(READY)  ## Run all tests and examples (ARGS="-k word" for some).
	@$(BIN)/python tools/components.py
	@$(BIN)/python tools/test.py $(ARGS)

repeat: $(READY)  ## Run tests TIMES=20 times under LOOPS=2 busy loops (ARGS="tests/failover").
	@TIMES=$(TIMES) LOOPS=$(LOOPS) $(BIN)/python -m tools.repeat $(ARGS)

check: check-format check-lint check-types check-imports check-style check-prose  ## Check format, lint, types, imports, style and prose; changes nothing.
	@echo "check: all good"

check-format: $(READY)
	@echo "check: format (ruff format)"
	@$(BIN)/ruff format --check --quiet --diff .

check-lint: $(READY)
	@echo "check: lint (ruff check)"
	@$(BIN)/ruff check --quiet .

check-types: $(READY)
	@echo "check: types (mypy --strict)"
	@$(BIN)/mypy --no-error-summary

check-imports: $(READY)
	@echo "check: imports (import-linter)"
	@$(BIN)/lint-imports --no-logo

check-style: $(READY)
	@echo "check: size budgets, names, docstrings (tests/test_style.py)"
	@$(BIN)/python -m pytest -q -n 0 --no-header tests/test_style.py

check-prose: $(READY)
	@echo "check: prose, links, generated pages (tests/test_prose.py)"
	@$(BIN)/python -m pytest -q -n 0 --no-header tests/test_prose.py

collect: $(READY)  ## Import all tests, as the first run of the tests on a machine does.
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --collect-only -qq -n 0 > /dev/null

docs: $(READY)  ## Write the generated pages of docs/reference from the code.
	@$(BIN)/python -m tools.reference

format: $(READY)  ## Format the code.
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

bench: $(READY)  ## Measure placements, commits and requests on this machine.
	@$(BIN)/roost bench

sim: $(READY)  ## Run the fault simulator over many seeds (SEEDS=200).
	@$(BIN)/roost sim faults --seeds $(SEEDS)

chaos: $(READY)  ## Run jobs on real servers under real faults, on every store (SECONDS=3600 each).
	@$(BIN)/roost lab chaos --seconds $(SECONDS)

proto: $(READY)  ## Generate src/roost/wire from proto/ (the result is committed).
	@$(BIN)/python tools/proto.py

lock: $(READY)  ## Write the hashed locks from pyproject.toml (UPGRADE=1 for newer versions).
	@$(LOCK) pyproject.toml -o requirements.lock
	@$(LOCK) pyproject.toml --extra dev -c requirements.lock -o requirements-dev.lock
	@! grep -n '://' requirements.lock requirements-dev.lock
	@echo "lock: requirements.lock requirements-dev.lock"

setup: $(READY)  ## Create the virtual environment.

$(READY): requirements-dev.lock pyproject.toml
	@$(PYTHON) tools/setup.py $(VENV) $@
