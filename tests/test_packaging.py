# SPDX-License-Identifier: Apache-2.0
"""The sdist and the wheel hold what they need and nothing else; the wheel works where nothing else is."""

import fnmatch
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
NOT_SOURCES = (".git", ".venv*", "build", "dist", "*.egg-info", "*.so", "*.o", "__pycache__", ".*_cache", ".hypothesis")

WHEEL = {
    "torch_offload/*.py",
    "torch_offload/*.pyi",
    "torch_offload/py.typed",
    "torch_offload/_C.*.so",
    "torch_offload/liboffload.so",
    "torch_offload/op_kernel/*.cpp",
    "torch_offload/op_kernel/*.h",
    "torch_offload/include/offload.h",
    "torch_offload-*.dist-info/METADATA",
    "torch_offload-*.dist-info/WHEEL",
    "torch_offload-*.dist-info/RECORD",
    "torch_offload-*.dist-info/top_level.txt",
    "torch_offload-*.dist-info/licenses/LICENSE",
}
SDIST = {
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "PKG-INFO",
    "README.md",
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    ".clang-format",
    "csrc/*.cpp",
    "csrc/*.h",
    "op_kernel/*",
    "op_host/*",
    "torch_offload/*.py",
    "torch_offload/*.pyi",
    "torch_offload/py.typed",
    "torch_offload.egg-info/*",
    "tests/*",
    "benchmarks/*",
    "examples/*",
}
SOURCES = (".cpp", ".h", ".c", ".py", ".pyi", ".typed")
NEVER = ("*.so", "*.o", "*.d", "*.pyc", "*__pycache__*", "*/build/*", ".venv*", "*.log")


def run(*command: object, cwd: Path, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run([str(word) for word in command], cwd=cwd, env=clean | env, capture_output=True, text=True)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    return result.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as in a fresh clone."""
    clone = tmp_path_factory.mktemp("fresh") / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*NOT_SOURCES))
    return clone


@pytest.fixture(scope="module")
def dist(clone: Path) -> Path:
    """The sdist, and the wheel that is built out of it."""
    dist = clone.parent / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, clone, cwd=clone.parent)
    return dist


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def sdist(dist: Path) -> Path:
    (sdist,) = dist.glob("*.tar.gz")
    return sdist


def matches(name: str, patterns: set[str] | tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def test_wheel_holds_what_it_needs_and_nothing_else(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if not matches(name, WHEEL)} == set()
    assert {pattern for pattern in WHEEL if not fnmatch.filter(names, pattern)} == set()
    sources = {
        str(path.relative_to(ROOT)) for path in (ROOT / "torch_offload").rglob("*") if path.suffix in (".py", ".pyi")
    }
    assert {name for name in names if name.endswith((".py", ".pyi"))} == sources
    assert wheel.name.startswith("torch_offload-") and "linux" in wheel.name


def test_sdist_holds_what_it_needs_and_nothing_else(sdist: Path):
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert all(member.isfile() or member.isdir() for member in members)
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert {name for name in names if not matches(name, SDIST) or matches(name, NEVER)} == set()
    for directory in ("csrc", "op_kernel", "op_host", "tests", "torch_offload", "benchmarks", "examples"):
        for path in (ROOT / directory).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if (
                path.is_file()
                and not matches(name, NEVER)
                and matches(path.suffix, (".cpp", ".h", ".c", ".py", ".pyi", ".typed"))
            ):
                assert name in names
    assert {"LICENSE", "README.md", "MANIFEST.in", "setup.py", "pyproject.toml", "Makefile"} <= names


def test_nothing_names_a_place_on_the_machine_that_built_it(wheel: Path, clone: Path):
    places = [str(clone.parent), str(ROOT), str(Path(torch.__file__).parents[1])]
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            assert not name.startswith("/") and ".." not in name
            content = archive.read(name)
            assert [place for place in places if place.encode() in content] == [], name


def test_metadata(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = fnmatch.filter(archive.namelist(), "*.dist-info/METADATA")
        metadata = archive.read(name).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Dist: torch==2.13.*\n" in metadata
    assert "Requires-Python: >=3.10" in metadata


PROGRAM = """
#include <string.h>

#include <offload.h>
int main(void) {
  offload_config_t config = OFFLOAD_CONFIG_INIT;
  config.capacity = 4096;
  void* block = 0;
  if (offload_init(&config) != 0 || offload_malloc(100, 0, &block) != 0) return 1;
  memset(block, 7, 100);
  return offload_free(block) != 0 || offload_uninit() != 0;
}
"""


def test_a_program_in_c_builds_against_the_wheel(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    package = tmp_path / "torch_offload"
    (tmp_path / "program.c").write_text(PROGRAM)
    flags = "-std=c11", "-Wall", "-Werror", f"-I{package}/include", f"-L{package}", f"-Wl,-rpath,{package}"
    run("cc", *flags, "program.c", "-loffload", "-o", "program", cwd=tmp_path)
    run(tmp_path / "program", cwd=tmp_path)


COPY = """
import sys, torch_offload, torch
assert torch_offload.__file__.startswith(sys.prefix), torch_offload.__file__
pool = torch.arange(12.0).view(6, 2)
rows = torch.zeros(2, 2)
torch_offload.sparse_copy(rows, pool, src_index=torch.tensor([4, 1]))
print(rows.tolist())
"""


def test_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path):
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    pip = sys.executable, "-m", "pip", "--python", python
    run(*pip, "install", "--no-index", "--no-deps", "--disable-pip-version-check", wheel, cwd=tmp_path)
    (site,) = environment.glob("lib/python*/site-packages")
    # What the wheel depends on is not fetched again but seen in the environment of this test.
    (site / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert run(python, "-c", COPY, cwd=elsewhere) == "[[8.0, 9.0], [2.0, 3.0]]\n"
