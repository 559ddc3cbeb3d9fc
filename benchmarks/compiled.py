# SPDX-License-Identifier: Apache-2.0
"""C++ sources of the benchmarks, compiled when they are needed."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def load(source: str) -> ctypes.CDLL:
    """Compiles a file of this folder into `build/` and loads it.

    Raises:
        SystemExit: There is no C++ compiler.
    """
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise SystemExit(f"{source}: expected a C++ compiler (c++) to be installed, got none")
    library = ROOT / "build" / Path(source).with_suffix(".so")
    library.parent.mkdir(exist_ok=True)
    flags = ["-std=c++20", "-O3", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(Path(__file__).with_name(source)), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))
