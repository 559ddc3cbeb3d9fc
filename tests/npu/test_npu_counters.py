# SPDX-License-Identifier: Apache-2.0
"""What the kernel does, counted by the simulator: the bounds that its design promises, through the whole operator."""

import json
import subprocess
import sys

import npu_support as support
import pytest

sys.path.insert(0, str(support.TESTS.parent / "benchmarks"))
import bench_npu_counters as bench

pytestmark = support.simulator
SHAPES = {shape.name: shape for shape in bench.SHAPES}


def counted(name, direction, cores):
    with support.simulated_kernels():  # gives the settings back that the benchmark changes
        return bench.run(SHAPES[name], direction, cores, bench.count_in_flight())


@pytest.fixture(autouse=True)
def device(npu):
    return npu


@pytest.mark.parametrize("cores", bench.CORES)
@pytest.mark.parametrize("direction", bench.DIRECTIONS)
def test_4096_rows_of_1152_bytes(direction, cores):
    result = counted("4096 x 1152 B", direction, cores)
    assert result.cores == cores
    assert result.scalar_global_loads <= 128
    assert result.bytes_over_payload <= 1.03
    assert result.heaviest_over_mean <= 1.05
    assert result.least_rows_in_flight >= 8
    assert result.shared_table_lines <= 48
    assert result.barriers == 0


@pytest.mark.parametrize("direction", bench.DIRECTIONS)
def test_few_large_rows_keep_all_cores_busy(direction):
    for name in ("3 x 1 MiB", "48 x 4 MiB"):
        result = counted(name, direction, 48)
        assert result.idle_cores == 0
        assert result.heaviest_over_mean <= 1.05


@pytest.mark.parametrize("direction", bench.DIRECTIONS)
def test_skipped_rows_cost_nothing(direction):
    assert counted("2048 x 1152 B, 95 % skipped", direction, 48).heaviest_over_mean <= 1.3


@pytest.mark.parametrize("direction", bench.DIRECTIONS)
def test_three_components_are_balanced(direction):
    result = counted("2048 x (1024 + 128 + 132) B", direction, 48)
    assert result.heaviest_over_mean <= 1.05
    assert result.bytes_over_payload <= 1.03


def run_benchmark(*arguments, **variables):
    command = [sys.executable, bench.__file__, *arguments]
    env = support.sim_cann.environment(**variables)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_benchmark_as_json():
    done = run_benchmark("--json", "--only", "97 x 656")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout[done.stdout.index("{") :])["results"]
    assert [(r["direction"], r["cores"]) for r in results] == [("H2D", 48), ("H2D", 8), ("D2H", 48), ("D2H", 8)]


def test_benchmark_as_table():
    done = run_benchmark("--only", "97 x 656")
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith("97 x 656 B") for line in done.stdout.splitlines()) == 4


def test_benchmark_elsewhere():
    done = run_benchmark(TORCH_OFFLOAD_NPU_KERNEL=None)
    assert done.returncode != 0
    assert "expected to run on the simulated CANN runtime, got none; use make bench-npu" in done.stderr


def test_planning_in_numbers():
    """Every plan is compared with the CPU's; no step reads a word of global memory by itself."""
    command = [sys.executable, str(support.TESTS.parent / "benchmarks" / "bench_npu_residency.py")]
    done = subprocess.run(
        command, env=support.sim_cann.environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.lstrip()[:1].isdigit()]
    assert len(rows) == 18
    assert {row[-1] for row in rows} == {"0"}
    scalar = {(slots, found): float(accesses) for _, slots, found, *_, accesses, _ in rows}
    for slots in (4096, 8192):  # O(top-k + slots)
        assert scalar[str(slots), "90%"] < 12 * 2048 + 3 * slots
