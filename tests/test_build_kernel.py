# SPDX-License-Identifier: Apache-2.0
"""`python -m torch_offload.build_kernel`: the command lines of CANN's compiler, what is kept, what is said."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compiler_stand_in import StandIn, clean_environment

from torch_offload.npu import device_code
from torch_offload.npu.device_code import TARGETS, KernelBuildError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def cann(tmp_path, monkeypatch):
    cann = StandIn(tmp_path)
    for name, value in cann.environment.items():
        monkeypatch.setenv(name, value)
    return cann


def command_line(*arguments, **variables):
    """Runs the command where only the given variables say where CANN is; returns exit code, output, errors."""
    command = [sys.executable, "-m", "torch_offload.build_kernel", *map(str, arguments)]
    done = subprocess.run(command, env=clean_environment(**variables), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_command_lines(target, cann, tmp_path):
    path, now = device_code.build(target, tmp_path / "out")
    assert now
    assert path == tmp_path / "out" / device_code.file_name(target)
    compiling, linking = cann.calls()
    source = device_code.source_folder() / "sparse_copy.cpp"
    *first, output = compiling
    assert first == [
        *("bisheng", "-c", "--asc-aicore-lang", "--aicore-only", f"--npu-arch={target}", "-std=c++17", "-O3"),
        *(f"-I{source.parent}", str(source), "-o"),
    ]
    assert linking[:-1] == ["ld.lld", "-m", "aicorelinux", "-Ttext=0", output, "-static", "-o"]
    assert path.read_bytes()[:4] == b"\x7fELF"


def test_it_is_compiled_once(cann, tmp_path):
    path, _ = device_code.build("dav-2201", tmp_path)
    before = path.stat().st_mtime_ns
    cann.calls()
    assert device_code.build("dav-2201", tmp_path) == (path, False)
    assert cann.calls() == []
    assert path.stat().st_mtime_ns == before
    assert device_code.build("dav-2201", tmp_path, force=True) == (path, True)
    assert len(cann.calls()) == 2


def test_another_compiler_compiles_again(cann, tmp_path, monkeypatch):
    device_code.build("dav-2201", tmp_path)
    monkeypatch.setenv("STAND_IN_VERSION", "a stand-in, version 2")
    assert device_code.build("dav-2201", tmp_path)[1]
    assert not device_code.build("dav-2201", tmp_path)[1]


def test_a_damaged_note_compiles_again(cann, tmp_path):
    path, _ = device_code.build("dav-2201", tmp_path)
    path.with_suffix(".json").write_text("{")
    assert device_code.build("dav-2201", tmp_path)[1]


def test_other_sources_have_another_name(cann, tmp_path):
    sources = tmp_path / "sources"
    shutil.copytree(device_code.source_folder(), sources)
    assert device_code.source_id(sources) == device_code.source_id()
    with (sources / "sparse_copy_tables.h").open("a") as file:
        file.write("// changed\n")
    assert device_code.source_id(sources) != device_code.source_id()
    changed, _ = device_code.build("dav-2201", tmp_path, sources=sources)
    original, _ = device_code.build("dav-2201", tmp_path)
    assert changed.name != original.name


def test_a_compiler_that_fails_leaves_nothing(cann, tmp_path, monkeypatch):
    monkeypatch.setenv("STAND_IN_REFUSES", "aicorelinux")
    with pytest.raises(
        KernelBuildError, match=r"expected '.*ld.lld -m .*' to succeed, got exit code 1: error: 'aicore"
    ):
        device_code.build("dav-2201", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_another_target(cann, tmp_path):
    with pytest.raises(ValueError, match="expected target to be one of dav-2201, dav-3510, got 'dav-1980'"):
        device_code.build("dav-1980", tmp_path)


@pytest.mark.parametrize(("tools", "missing"), [([], "bisheng"), (["bisheng"], "ld.lld")])
def test_a_cann_without_its_compiler(tools, missing, tmp_path):
    environment = StandIn(tmp_path, tools=tools).environment
    code, _, said = command_line("--output", tmp_path, **environment)
    assert code == 1
    assert f"expected {missing} in CANN's toolkit, got none below {tmp_path / 'cann'}" in said
    assert "install the toolkit package of CANN" in said


def test_without_cann(tmp_path):
    code, _, said = command_line("--output", tmp_path)
    assert code == 1
    assert "expected ASCEND_HOME_PATH to name the folder of CANN's toolkit, got nothing; source the set_env.sh" in said
    assert "Traceback" not in said


def test_command_builds_for_all_chips(cann, tmp_path):
    out = tmp_path / "out"
    code, said, errors = command_line("--output", out, **cann.environment)
    assert (code, errors) == (0, "")
    names = {device_code.file_name(target) for target in TARGETS}
    assert {path.name for path in out.iterdir() if path.suffix == ".o"} == names
    assert said.count("built: ") == 2
    code, said, _ = command_line("--output", out, **cann.environment)
    assert said.count("up to date: ") == 2
    code, said, _ = command_line("--output", out, "--force", "--target", "dav-3510", **cann.environment)
    assert said == f"built: {out / device_code.file_name('dav-3510')} for Atlas A5\n"


def test_command_with_a_compiler_that_does_not_know_the_youngest_chip(cann, tmp_path):
    variables = cann.environment | {"STAND_IN_REFUSES": "dav-3510"}
    code, said, errors = command_line("--output", tmp_path / "out", **variables)
    assert code == 0
    assert "dav-2201" in said and "dav-3510" not in said
    assert "not built: dav-3510 (Atlas A5): torch_offload: expected" in errors
    code, _, errors = command_line("--output", tmp_path / "out", "--target", "dav-3510", **variables)
    assert code == 1
    assert "'dav-3510' is not known here" in errors


def test_where_it_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    package, cache = device_code.folders()
    assert package == Path(device_code.__file__).parent
    assert cache == tmp_path / "torch_offload"
    monkeypatch.setattr(os, "access", lambda path, mode: path != package)
    assert device_code.default_folder() == cache
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert device_code.folders()[1] == tmp_path / "home" / ".cache" / "torch_offload"


# At installation: setup.py with its compilation of the extensions left out.

SETUP = """
import os, runpy, sys
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import importlib.util
found = importlib.util.find_spec
class Spec:
    submodule_search_locations = ["/nowhere/torch_npu"]
importlib.util.find_spec = lambda name, package=None: Spec if name == "torch_npu" else found(name, package)
from torch.utils.cpp_extension import BuildExtension
BuildExtension.run = lambda self: None
sys.argv = ["setup.py", *{arguments!r}]
runpy.run_path("setup.py", run_name="__main__")
"""


def setup(tmp_path, *arguments, **variables):
    code = SETUP.format(arguments=[str(argument) for argument in arguments])
    environment = clean_environment(**{"USE_NPU": ""} | variables)
    # Its own copy: setuptools leaves folders behind where it runs.
    clone = tmp_path / "clone"
    if not clone.exists():
        clone.mkdir()
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, clone)
        for name in ("torch_offload", "op_kernel"):
            shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("*.so", "*.o", "__pycache__"))
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=clone, capture_output=True, text=True, check=False)


def built(tmp_path):
    return sorted(path.name for path in (tmp_path / "lib" / "torch_offload" / "npu").glob("kernels-*.o"))


def test_installation_compiles_what_the_compiler_knows(cann, tmp_path):
    done = setup(
        tmp_path, "build_ext", "--build-lib", tmp_path / "lib", STAND_IN_REFUSES="dav-3510", **cann.environment
    )
    assert done.returncode == 0, done.stderr
    assert built(tmp_path) == [device_code.file_name("dav-2201")]
    assert "device code compiled for dav-2201 (Atlas A2 and A3)" in done.stdout
    assert "warning: device code not compiled: dav-3510 (Atlas A5)" in done.stderr


def test_installation_without_cann_compiles_nothing(tmp_path):
    done = setup(tmp_path, "build_ext", "--build-lib", tmp_path / "lib", USE_NPU="1")
    assert done.returncode == 0, done.stderr
    assert built(tmp_path) == []


@pytest.mark.parametrize(("use", "code"), [("", 0), ("1", 1)])
def test_installation_with_a_compiler_that_fails(use, code, cann, tmp_path):
    variables = cann.environment | {"STAND_IN_REFUSES": "-O3", "USE_NPU": use}
    done = setup(tmp_path, "build_ext", "--build-lib", tmp_path / "lib", **variables)
    assert done.returncode == code, done.stderr
    assert "'-O3' is not known here" in done.stderr
    assert built(tmp_path) == []


def test_installation_leaves_no_device_code_of_other_sources(cann, tmp_path):
    folder = tmp_path / "lib" / "torch_offload" / "npu"
    folder.mkdir(parents=True)
    (folder / "kernels-dav-2201-000000000000.o").touch()
    done = setup(tmp_path, "build_ext", "--build-lib", tmp_path / "lib", **cann.environment)
    assert done.returncode == 0, done.stderr
    assert built(tmp_path) == sorted(map(device_code.file_name, TARGETS))


def test_installation_ships_the_sources(tmp_path):
    done = setup(tmp_path, "build_py", "--build-lib", tmp_path / "lib")
    assert done.returncode == 0, done.stderr
    shipped = tmp_path / "lib" / "torch_offload" / "op_kernel"
    assert {path.suffix for path in shipped.iterdir()} == {".h", ".cpp"}
    assert device_code.source_id(shipped) == device_code.source_id(ROOT / "op_kernel")


def test_note_names_no_place_of_the_machine(cann, tmp_path):
    path, _ = device_code.build("dav-2201", tmp_path)
    note = path.with_suffix(".json").read_text()
    assert str(tmp_path) not in note and str(ROOT) not in note
    assert json.loads(note)["compiler"] == "a stand-in, version 1"
