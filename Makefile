# Everything that users and CI run. `make demo` and `make test` set up what they need.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
export MAX_JOBS ?= 2
# Run by hand or by CI, pip should not ask anything nor talk about its own version.
export PIP_DISABLE_PIP_VERSION_CHECK = 1

SOURCES := setup.py pyproject.toml $(wildcard csrc/*.* csrc/*/*.*)
PYTHON_DIRS := torch_offload tests benchmarks examples setup.py
CPP_FILES = $(shell git ls-files 'csrc/*.cpp' 'csrc/*.h' 'tests/*.cpp' 'tests/*.h' 'tests/*.c' 'benchmarks/*.cpp')

.PHONY: demo test test-python test-cpp lint format sanitize bench build clean

demo: build  ## decode over a real text with the cache in a host pool
	$(BIN)/python examples/dsa_decode.py

test: test-cpp test-python  ## everything

test-python: build
	$(BIN)/python -m pytest -q

test-cpp:
	$(MAKE) -C tests/cpp test

sanitize:  ## the C++ tests under AddressSanitizer with UBSan, and under ThreadSanitizer
	$(MAKE) -C tests/cpp asan tsan

bench: build  ## print the measured ratios
	$(BIN)/python benchmarks/bench_sparse_copy.py
	$(BIN)/python benchmarks/bench_host_pool.py

lint: build
	$(BIN)/ruff check $(PYTHON_DIRS)
	$(BIN)/ruff format --check $(PYTHON_DIRS)
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/codespell csrc torch_offload tests benchmarks examples README.md Makefile

format: build
	$(BIN)/ruff check --fix $(PYTHON_DIRS)
	$(BIN)/ruff format $(PYTHON_DIRS)
	$(BIN)/clang-format -i $(CPP_FILES)

build: $(VENV)/.built

# torch first and by itself: the exact version keeps pip from fetching another build of it, and the extension is
# compiled against the torch that it will run with (hence no build isolation).
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q torch==2.13.0 numpy "setuptools>=77" wheel ninja
	$(BIN)/pip install -q --no-build-isolation -e '.[test,lint,plot]'
	touch $@

$(VENV)/.built: $(VENV)/.installed $(SOURCES)
	$(BIN)/pip install -q --no-build-isolation --no-deps -e .
	touch $@

clean:
	rm -rf build dist *.egg-info torch_offload/*.so
