# Everything that users and CI run. `make demo` and `make test` set up what they need.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
NPU_VENV ?= .venv-npu
NPU_BIN := $(NPU_VENV)/bin
export MAX_JOBS ?= 2
# Run by hand or by CI, pip should not ask anything nor talk about its own version.
export PIP_DISABLE_PIP_VERSION_CHECK = 1

SOURCES := setup.py pyproject.toml $(wildcard csrc/*.* csrc/*/*.* op_host/* op_kernel/*)
PYTHON_DIRS := torch_offload tests benchmarks examples setup.py
CPP_FILES = $(shell git ls-files 'csrc/*.cpp' 'csrc/*.h' 'tests/*.cpp' 'tests/*.h' 'tests/*.c' 'benchmarks/*.cpp')

.PHONY: demo demo-npu bench-npu test test-python test-cpp test-simulator test-npu test-npu-hardware build build-npu simulator \
    lint format sanitize sanitize-python sanitize-simulator bench clean

demo: build  ## decode over a real text with the cache in a host pool
	$(BIN)/python examples/dsa_decode.py

demo-npu: build-npu simulator  ## the same with the cache of a simulated NPU
	$(ON_SIMULATOR) $(NPU_BIN)/python examples/dsa_decode.py --device npu --context 4096 --steps 16

# Threads of a test wait asleep: on a shared machine spinning ones keep the one that they wait for from running.
test-python test-npu: export OMP_WAIT_POLICY ?= passive

test: test-cpp test-python test-simulator test-npu  ## everything: the core, the CPU, the NPU part on a simulated runtime

test-python: build
	$(BIN)/python -m pytest -q --ignore=tests/npu

test-cpp:
	$(MAKE) -j $(MAX_JOBS) -C tests/cpp test
	$(MAKE) -j $(MAX_JOBS) -C tests/op_host test

test-npu: build-npu simulator  ## torch_npu and our kernels on the simulated runtime
	PYTHONSAFEPATH=1 $(ON_SIMULATOR) $(NPU_BIN)/pytest -q -n $(MAX_JOBS) tests/npu

test-simulator: simulator  ## the simulated runtime, the kernels on the AscendC model, and faults that must be caught
	$(MAKE) -C tests/sim_cann test PYTHON=$(abspath $(NPU_BIN)/python)
	$(MAKE) -j $(MAX_JOBS) -C tests/sim_cann/ascendc test
	$(MAKE) -C tests/sim_cann/ascendc mutants

# In an environment of CANN, with the package built and its kernels compiled: whatever `python` that is.
NPU_PYTHON ?= python3
test-npu-hardware:  ## the same tests on a real NPU, less what only the simulator can do
	$(NPU_PYTHON) -m pytest -q -m "not simulator" tests/npu

sanitize: sanitize-python  ## the C++ tests under AddressSanitizer with UBSan, and under ThreadSanitizer
	$(MAKE) -j $(MAX_JOBS) -C tests/cpp sanitize

# How Python programs end, with our libraries built for AddressSanitizer; torch is not, and leaks are its own. libstdc++
# must be there when the sanitizer begins, or it knows no exceptions.
SANITIZED := build/asan/lib
sanitize-python: build  ## the ends of Python programs under AddressSanitizer
	SANITIZE=address $(BIN)/python setup.py -q build --build-base build/asan --build-lib $(SANITIZED)
	PYTHONSAFEPATH=1 PYTHONPATH=$(SANITIZED) ASAN_OPTIONS=detect_leaks=0 \
	    LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	    $(BIN)/python -m pytest -q -p no:cacheprovider tests/test_pool_exit.py

sanitize-simulator: simulator  ## the same of the simulated runtime and of the kernels on the AscendC model
	$(MAKE) -C tests/sim_cann asan tsan PYTHON=$(abspath $(NPU_BIN)/python)
	$(MAKE) -C tests/sim_cann/ascendc asan tsan

bench: build  ## print the measured ratios
	$(BIN)/python benchmarks/bench_sparse_copy.py
	$(BIN)/python benchmarks/bench_overhead.py
	$(BIN)/python benchmarks/bench_row_sizes.py --quick
	$(BIN)/python benchmarks/bench_host_pool.py
	$(BIN)/python benchmarks/bench_residency.py

bench-npu: build-npu simulator  ## print what the NPU kernels do, counted on the simulated runtime
	PYTHONSAFEPATH=1 $(ON_SIMULATOR) $(NPU_BIN)/python benchmarks/bench_npu_counters.py
	PYTHONSAFEPATH=1 $(ON_SIMULATOR) $(NPU_BIN)/python benchmarks/bench_npu_residency.py

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

# torch first and by itself: the exact version keeps pip from fetching another build of it.
$(VENV)/.torch:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q torch==2.13.0 numpy "setuptools>=77" wheel ninja
	touch $@

# Without build isolation: the extension is compiled against the torch that it will run with.
$(VENV)/.built: $(VENV)/.torch $(SOURCES)
	$(BIN)/pip install -q --no-build-isolation -e '.[test,lint,plot]'
	touch $@

# The NPU part has an environment of its own, because torch imports torch_npu wherever that is installed. The package
# is installed there, not linked: both environments would compile into the same files. Folders of one's own
# (build_base) for what is compiled, too.
ON_SIMULATOR = SIM_CANN_BUILD=build/sim_cann TORCH_OFFLOAD_NPU_KERNEL=$(SIM_KERNEL) tests/sim_cann/run
SIM_KERNEL := $(abspath build/sim_cann/kernels/sparse_copy_kernels.so)

build-npu: $(NPU_VENV)/.built

$(NPU_VENV)/.installed: pyproject.toml Makefile
	test -x $(NPU_BIN)/python || $(PYTHON) -m venv $(NPU_VENV)
	$(NPU_BIN)/pip install -q torch==2.13.0 numpy pyyaml protobuf "setuptools>=77" wheel ninja \
	    'pytest==9.*' 'pytest-xdist==3.*' 'expecttest==0.3.*' 'hypothesis==6.*'
	$(NPU_BIN)/pip install -q --no-deps torch_npu==2.13.0
	touch $@

$(NPU_VENV)/.built: $(NPU_VENV)/.installed $(SOURCES) $(wildcard torch_offload/*.py torch_offload/*/*.py)
	@mkdir -p build/npu
	printf '[build]\nbuild_base = build/npu\n' > build/npu/config
	USE_NPU=1 DIST_EXTRA_CONFIG=build/npu/config $(NPU_BIN)/pip install -q --no-build-isolation --no-deps \
	    --force-reinstall .
	touch $@

simulator: $(NPU_VENV)/.installed  ## the simulated runtime and the kernels built for it
	$(MAKE) -C tests/sim_cann PYTHON=$(abspath $(NPU_BIN)/python)
	$(MAKE) -C tests/sim_cann/ascendc binary BUILD=$(dir $(SIM_KERNEL))

clean:
	rm -rf build dist *.egg-info torch_offload/*.so
