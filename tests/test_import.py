# SPDX-License-Identifier: Apache-2.0
"""Importing works in any order, or gives one ImportError that says what is missing, what was found and the fix."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_offload

PACKAGE = Path(torch_offload.__file__).parent
REGISTERED = "assert torch.ops.offload.sparse_copy.default and torch_offload.sparse_copy"


# An editable install would find the compiled module wherever it lies.
FORGET_THE_CLONE = "import sys; sys.meta_path = [f for f in sys.meta_path if '__editable__' not in f.__module__]"


def run_python(program: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program; what lies in `directory` is imported rather than what is installed."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=120)


def import_error(program: str, path: Path | None = None) -> str:
    """The last line of the failing program: the whole message, on one line."""
    result = run_python(program, path)
    assert result.returncode == 1
    (*_, last) = result.stderr.strip().splitlines()
    assert last.startswith("ImportError: torch_offload: expected "), result.stderr
    return last


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A directory with the package's Python files, but no compiled module."""
    shutil.copytree(PACKAGE, tmp_path / "torch_offload", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


@pytest.mark.parametrize("order", ["import torch_offload, torch", "import torch, torch_offload"])
def test_order_of_imports(order: str, tmp_path: Path):
    result = run_python(f"{order}; {REGISTERED}", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_another_version_of_torch():
    message = import_error("import torch; torch.__version__ = '2.12.1+cpu'; import torch_offload")
    assert "expected torch 2.13.*" in message and "got torch 2.12.1+cpu" in message
    assert "pip install 'torch==2.13.*'" in message


@pytest.mark.parametrize("version", ["2.130.0", "2.1", "3.0.0a0+git1234", "12.13.0"])
def test_versions_are_compared_by_their_parts(version: str):
    assert f"got torch {version};" in import_error(
        f"import torch; torch.__version__ = {version!r}; import torch_offload"
    )


def test_no_torch():
    message = import_error("import sys; sys.modules['torch'] = None; import torch_offload")
    assert "expected torch 2.13.*" in message and "pip install 'torch==2.13.*'" in message


def test_no_compiled_module(sources: Path):
    message = import_error(f"{FORGET_THE_CLONE}; import torch_offload", sources)
    assert "got neither" in message and "_C.cpython-" in message
    assert str(sources) in message and torch.__version__ in message and "pip install" in message


def test_compiled_module_of_another_python(sources: Path):
    (sources / "torch_offload" / "_C.cpython-38-x86_64-linux-gnu.so").touch()
    assert "got _C.cpython-38-x86_64-linux-gnu.so" in import_error(f"{FORGET_THE_CLONE}; import torch_offload", sources)


def test_compiled_module_that_does_not_load(sources: Path):
    (extension,) = PACKAGE.glob("_C.*.so")
    (sources / "torch_offload" / extension.name).write_bytes(b"no library")
    assert extension.name in import_error(f"{FORGET_THE_CLONE}; import torch_offload", sources)


def test_core_library_is_missing(sources: Path):
    (extension,) = PACKAGE.glob("_C.*.so")
    shutil.copy(extension, sources / "torch_offload")
    assert "liboffload.so" in import_error(f"{FORGET_THE_CLONE}; import torch_offload", sources)


def test_not_installed(sources: Path):
    program = (
        "import importlib.metadata as m\n"
        "def missing(name): raise m.PackageNotFoundError(name)\n"
        "m.requires = m.version = missing\n"
        "import torch_offload"
    )
    assert "expected the package to be installed" in import_error(program, sources)


COPY = """
import torch, torch_offload
rows = torch.zeros(2, 2)
torch_offload.sparse_copy(rows, torch.arange(12.0).view(6, 2), src_index=torch.tensor([4, 1]))
assert rows.tolist() == [[8.0, 9.0], [2.0, 3.0]]
assert torch_offload.HostPool(4096).empty(3).numel() == 3
"""


def test_nothing_is_compiled_at_run_time(tmp_path: Path):
    """Neither a compiler nor ninja nor a place to write is needed, so there is no lock to wait for."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".cache").write_text("no folder can be made here")
    home.chmod(0o500)
    env = {"PATH": "", "HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    running = [
        subprocess.Popen([sys.executable, "-c", COPY], env=env, cwd="/", stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    assert [path.name for path in home.iterdir()] == [".cache"]
