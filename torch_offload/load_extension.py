# SPDX-License-Identifier: Apache-2.0
"""Imports the compiled module, or says in one ImportError what is missing, what was found and how to repair it."""

from __future__ import annotations

import importlib
import re
import sysconfig
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

INSTALL = "pip install --no-build-isolation --force-reinstall --no-deps torch_offload"


def load_extension() -> None:
    """Imports torch, then `torch_offload._C`, which registers the operators.

    Raises:
        ImportError: torch is missing or of another version than the one that `_C` was compiled against, or `_C`
            is missing or does not load.
    """
    required = _required_torch()
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"torch_offload: expected torch {required}.* to be installed, got '{error}'; "
            f"install it with: pip install 'torch=={required}.*'"
        ) from error
    if not f"{torch.__version__}.".startswith(f"{required}."):
        raise ImportError(
            f"torch_offload: expected torch {required}.*, which the extension was compiled against, got torch "
            f"{torch.__version__}; either install that torch (pip install 'torch=={required}.*') or a torch_offload "
            f"for this one ({INSTALL})"
        )
    try:
        importlib.import_module("torch_offload._C")
    except ImportError as error:
        found = sorted(path.name for path in Path(__file__).parent.glob("*.so*"))
        raise ImportError(
            f"torch_offload: expected the compiled modules _C{sysconfig.get_config_var('EXT_SUFFIX')} and "
            f"liboffload.so, compiled for torch {torch.__version__}, beside {Path(__file__).parent}/__init__.py, got "
            f"{', '.join(found) or 'neither'} and the error '{error}'; build them with: {INSTALL} (in a clone of the "
            "repository: make build)"
        ) from error


def _required_torch() -> str:
    """The release of torch, like "2.13", that the package was built for."""
    try:
        requirements = requires("torch_offload") or []
    except PackageNotFoundError as error:
        raise ImportError(
            "torch_offload: expected the package to be installed, got a directory of sources alone; install it with: "
            "pip install --no-build-isolation -e ."
        ) from error
    matches = (re.fullmatch(r"torch\s*==\s*([\d.]+)\.\*", requirement) for requirement in requirements)
    return next(match[1] for match in matches if match)
