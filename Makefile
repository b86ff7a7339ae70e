# The four things one does here. Each sets up what it needs first; a second run starts at once.
#   make chat ARGS='-p "What is 2^10?"'    make test ARGS='-k store'    make lint    make bench
# PYTHON chooses the interpreter (3.11 or newer), VENV the environment's folder.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
NEEDS := 'import sys; sys.exit(sys.version_info < (3, 11))'

.PHONY: chat test lint bench
.DEFAULT_GOAL := chat

chat: $(VENV)/.installed
	@$(BIN)/cedagent chat --pull $(ARGS)

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(VENV)/.installed
	@$(BIN)/cedagent bench --pull $(ARGS)

$(BIN)/python:
	@$(PYTHON) -c $(NEEDS) || { echo "cedagent needs Python 3.11 or newer; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) (once)." >&2
	@$(PYTHON) -m venv $(VENV) >&2

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing cedagent and its dependencies (once; PyTorch is large)." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . >&2
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing cedagent with the tools for its tests (once)." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' >&2
	@touch $@ $(VENV)/.installed
