PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# For `pipefail`.
SHELL := bash
STAMP := $(VENV)/.installed
# One torch thread in each test process: the processes share the cores among themselves.
TEST_WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(len(os.sched_getaffinity(0)), 8))" 2>/dev/null || echo 2)

# Where this is set, every process that a test starts compiles the whole package anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test test-long test-browser test-documents test-slow test-gpu lint types imports unit wheel bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
		{ echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(STAMP)

demo: setup
	@$(BIN)/warp demo

test: setup lint types imports unit

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports --no-logo

unit: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(TEST_WORKERS) --dist=worksteal -m "not browser and not slow and not long and not documents"

# Whole commands, and the tests that take longest; the last outcome is in tests/long-outcome.txt.
test-long: setup
	@set -o pipefail; OMP_NUM_THREADS=1 $(BIN)/pytest -n $(TEST_WORKERS) --dist=worksteal -m "long and not documents" \
		-vv --no-header | tee tests/long-outcome.txt

# Debian's Chromium is installed where none is.
CHROMIUM = $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

test-browser: setup
	@if [ -z "$(CHROMIUM)" ]; then \
		command -v apt-get >/dev/null || { echo "Chromium is not installed; install it, then run this again" >&2; exit 2; }; \
		sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); $$sudo apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; fi
	OMP_NUM_THREADS=1 $(BIN)/pytest -m browser tests/browser

# Every command of the README and of docs/, as a user would type it.
test-documents: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(TEST_WORKERS) -m documents tests/test_documents.py

# Kills and clusters: minutes. The last outcome is in tests/slow-outcome.txt.
test-slow: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ray]"
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow tests -vv | tee tests/slow-outcome.txt

# Tests marked `gpu`, and captured work beside plain and beside another version (BESIDE=OTHER/src), on a machine with a
# GPU. GPU_PYTHON=python3 takes an interpreter that has torch, scikit-learn, pytest and hypothesis, and no .venv is made.
# The last outcome is in tests/gpu-outcome.txt; times also in OUT, this folder unless given.
GPU_PYTHON ?= $(BIN)/python
OUT ?= .

test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),setup)
	@$(GPU_PYTHON) -c "import sys, torch; torch.cuda.is_available() or sys.exit('torch sees no GPU here')"
	@set -o pipefail; export PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH}; failed=0; \
		{ $(GPU_PYTHON) -m pytest -m gpu -vv --no-header -p no:cacheprovider $$(grep -rlE "mark\.gpu" tests) || failed=1; \
		$(GPU_PYTHON) benchmarks/gpu_check.py --out $(OUT)/gpu-check $(if $(BESIDE),--beside $(BESIDE)) || failed=1; \
		exit $$failed; } 2>&1 | tee tests/gpu-outcome.txt

wheel: setup
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

bench: setup
	$(BIN)/python benchmarks/peers.py

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
