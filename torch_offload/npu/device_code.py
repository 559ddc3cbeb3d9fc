# SPDX-License-Identifier: Apache-2.0
"""Compiles the AscendC kernels with CANN's compiler, and says where the result lies.

A file of device code is for one target and belongs to one state of the sources, which its name says: what was built of
other sources is never loaded. `python -m torch_offload.build_kernel` and `setup.py` come here; the latter by the path
of this file, so it imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TARGETS = {"dav-2201": "Atlas A2 and A3", "dav-3510": "Atlas A5"}

SOURCE = "sparse_copy.cpp"  # includes the others
HOME = "ASCEND_HOME_PATH"

_PACKAGE = Path(__file__).resolve().parents[1]
# Places of the compiler and of its linker in the releases of CANN, relative to its folder.
_TOOL_FOLDERS = ("compiler/ccec_compiler/bin", "ccec_compiler/bin", "*-linux/ccec_compiler/bin", "bin", "*-linux/bin")


class KernelBuildError(RuntimeError):
    """Device code could not be compiled; the message says what is missing or what the compiler said."""


def source_folder() -> Path:
    """The folder of the kernels' sources: in the package, or beside it in a clone of the repository."""
    inside = _PACKAGE / "op_kernel"
    return inside if inside.is_dir() else _PACKAGE.parent / "op_kernel"


def source_id(sources: Path | None = None) -> str:
    """Names one state of the sources: equal for equal files."""
    digest = hashlib.sha256()
    for path in sorted((sources or source_folder()).glob("*")):
        if path.suffix in (".h", ".cpp"):
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def file_name(target: str, sources: Path | None = None) -> str:
    """The name of the device code of the sources for the target."""
    return f"kernels-{target}-{source_id(sources)}.o"


def folders() -> list[Path]:
    """Where device code is looked for: in the package, then in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return [_PACKAGE / "npu", (Path(cache) if cache else Path.home() / ".cache") / "torch_offload"]


def default_folder() -> Path:
    """Where device code goes: into the package, or into the user's cache where that cannot be written."""
    package, cache = folders()
    return package if os.access(package, os.W_OK) else cache


@dataclass(frozen=True)
class Toolchain:
    """CANN's compiler for device code."""

    compiler: Path
    linker: Path

    @staticmethod
    def find() -> Toolchain:
        """The tools of the CANN that `ASCEND_HOME_PATH` names.

        Raises:
            KernelBuildError: The variable is not set, or the tools are not there.
        """
        home = os.environ.get(HOME, "")
        if not home:
            raise KernelBuildError(
                f"torch_offload: expected {HOME} to name the folder of CANN's toolkit, got nothing; "
                "source the set_env.sh of CANN first"
            )
        places = [folder for pattern in _TOOL_FOLDERS for folder in sorted(Path(home).glob(pattern))]

        def tool(name: str) -> Path:
            found = [folder / name for folder in places if os.access(folder / name, os.X_OK)]
            if not found:
                raise KernelBuildError(
                    f"torch_offload: expected {name} in CANN's toolkit, got none below {home} (looked in "
                    f"{', '.join(_TOOL_FOLDERS)}); install the toolkit package of CANN, not the runtime alone"
                )
            return found[0]

        return Toolchain(tool("bisheng"), tool("ld.lld"))

    def commands(self, target: str, source: Path, output: Path) -> list[list[str]]:
        """The command lines that make device code of a source."""
        compiled = output.with_suffix(".dev.o")
        compile_options = ["-c", "--asc-aicore-lang", "--aicore-only", f"--npu-arch={target}", "-std=c++17", "-O3"]
        link_options = ["-m", "aicorelinux", "-Ttext=0", str(compiled), "-static"]
        return [
            [str(self.compiler), *compile_options, f"-I{source.parent}", str(source), "-o", str(compiled)],
            [str(self.linker), *link_options, "-o", str(output)],
        ]

    def version(self) -> str:
        """What the compiler calls itself."""
        return _run([str(self.compiler), "--version"])


def build(
    target: str, folder: Path | None = None, *, sources: Path | None = None, force: bool = False
) -> tuple[Path, bool]:
    """Compiles the kernels for a target, unless that has been done by the same compiler in the same way.

    Args:
        target (str): One of `TARGETS`.
        folder (Path): Where the file goes; `default_folder()` if None.
        sources (Path): Folder of the sources; those of the package if None.
        force (bool): Compile in any case.

    Returns:
        The file, and whether it was compiled now. It appears under its name only when it is complete.

    Raises:
        KernelBuildError: No compiler, or it failed.
        ValueError: Another target.
    """
    if target not in TARGETS:
        raise ValueError(f"build_kernel: expected target to be one of {', '.join(TARGETS)}, got '{target}'")
    sources = sources or source_folder()
    folder = folder or default_folder()
    tools = Toolchain.find()
    result = folder / file_name(target, sources)
    made_by = result.with_suffix(".json")
    how = {
        "compiler": tools.version(),
        "options": [command[1:] for command in tools.commands(target, Path(SOURCE), Path("kernels.o"))],
    }
    if not force and result.is_file() and made_by.is_file() and _read_json(made_by) == how:
        return result, False
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
        output = Path(scratch) / "kernels.o"
        for command in tools.commands(target, sources / SOURCE, output):
            _run(command)
        note = Path(scratch) / "kernels.json"
        note.write_text(json.dumps(how, indent=1) + "\n")
        os.replace(output, result)
        os.replace(note, made_by)
    return result, True


def build_all(folder: Path | None = None, *, force: bool = False) -> tuple[dict[str, tuple[Path, bool]], list[str]]:
    """Compiles for every target that the compiler knows: an older one does not know the younger chips.

    Returns:
        What `build` returned by target, and what was said where it failed.

    Raises:
        KernelBuildError: No compiler, or it failed for every target.
    """
    Toolchain.find()
    built: dict[str, tuple[Path, bool]] = {}
    failures: list[str] = []
    for target in TARGETS:
        try:
            built[target] = build(target, folder, force=force)
        except KernelBuildError as error:
            failures.append(f"{target} ({TARGETS[target]}): {error}")
    if not built:
        raise KernelBuildError("\n".join(failures))
    return built, failures


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_offload.build_kernel",
        description=f"Compiles the NPU kernels with the compiler of the CANN that {HOME} names.",
    )
    parser.add_argument("--target", choices=TARGETS, action="append", help="default: all that the compiler knows")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=f"default: {default_folder()}")
    parser.add_argument("--force", action="store_true", help="compile even if that has been done")
    options = parser.parse_args(arguments)
    try:
        if options.target:
            built = {target: build(target, options.output, force=options.force) for target in options.target}
        else:
            built, failures = build_all(options.output, force=options.force)
            for failure in failures:
                print(f"not built: {failure}", file=sys.stderr)
    except KernelBuildError as error:
        print(error, file=sys.stderr)
        return 1
    for target, (path, now) in built.items():
        print(f"{'built' if now else 'up to date'}: {path} for {TARGETS[target]}")
    return 0


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise KernelBuildError(f"torch_offload: expected {command[0]} to run, got '{error}'") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise KernelBuildError(
            f"torch_offload: expected '{' '.join(command)}' to succeed, got exit code {done.returncode}: {said}"
        )
    return done.stdout.strip()


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except ValueError:
        return None
