# Everything a newcomer needs: `make demo` and `make test`; both set up first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Tests mostly wait for servers; more at once than cores would only make each slower.
TEST_PROCESSES ?= 3

# GPU=1 takes onnxruntime-gpu and TensorRT instead of the CPU build of ONNX Runtime.
EXTRAS := $(if $(GPU),gpu,cpu),models,dev

.PHONY: help setup system demo test bench-client bench-generator bench-gate format clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) .triton/ready system  ## Make .venv, the .triton runtime and, as root, install the system packages

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "tritonbatch needs Python 3.11 or later; $(PYTHON) is older: run make PYTHON=python3.12 …"; exit 2; }
	@test -x $(BIN)/python3 || $(PYTHON) -m venv .venv
	$(BIN)/python3 -m pip install -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

.triton/ready: $(STAMP) server/tritonbatch/server/provision.py
	$(BIN)/python3 -m tritonbatch.server.provision .triton
	@touch $@

# The browser test needs Chromium. Without root the test is skipped and says so; with CI=true its absence is an error.
system:
	@command -v chromium >/dev/null || ./.ci/system-packages

demo: setup  ## Export two models, serve three variants of each, load them, print the verdict and write the report
	@$(BIN)/tritonbatch demo

test: setup  ## Lint, type-check and run every test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python3 -m pytest -n $(TEST_PROCESSES) --dist loadfile

bench-client: setup  ## CPU per call of the client beside raw tritonclient, paired in one run
	@$(BIN)/python3 benchmarks/client_cpu.py

bench-generator: setup  ## The load generator beside perf_analyzer: CPU per request, agreement, schedule error
	@$(BIN)/python3 benchmarks/generator.py

bench-gate: setup  ## The gate on a real server: ten unchanged reruns, and one that is 10 % slower
	@$(BIN)/python3 benchmarks/gate_check.py

format: $(STAMP)  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove what setup and runs made (.venv, .triton, runs, built weights)
	rm -rf .venv .triton runs test-artifacts dist model_repository/*/[0-9]* model_repository/*/set-aside model_repository/*/*.npz
