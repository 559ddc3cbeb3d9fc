# SPDX-License-Identifier: Apache-2.0
"""Brings the NPU kernels in as soon as torch_npu is there, and says what is missing where they cannot come.

The CPU works in any case: a problem with the NPU part is one warning at import, and an error once an NPU is asked for.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from torch_offload.npu import device_code

_TORCH_NPU = "torch_npu"
_TORCHAIR = "torch_npu.dynamo.torchair"  # `import torchair` comes to this
_EXTENSION = "torch_offload._C_npu"
_REBUILD = "USE_NPU=1 pip install --no-build-isolation --force-reinstall --no-deps torch_offload"

_refusals: list[torch.library.Library] = []  # kernels that only explain why there are none
_served: list[ModuleType] = []  # what pools with a device need


def attach() -> None:
    """Registers the NPU kernels now if torch_npu is imported, otherwise when it is; torchair's converters likewise."""
    if _TORCH_NPU in sys.modules:
        _load_or_refuse()
    else:
        sys.meta_path.insert(0, _Watcher(_TORCH_NPU, _load_or_refuse))
    if _TORCHAIR in sys.modules:
        _convert_for_torchair()
    else:
        sys.meta_path.insert(0, _Watcher(_TORCHAIR, _convert_for_torchair))


def load() -> ModuleType:
    """Returns the compiled NPU module; imports it, and torch_npu before it, if that has not happened.

    Raises:
        ImportError: torch_npu, CANN's libraries or the compiled module are missing, or CANN is too old. The message
            says which, what was found, and the remedy.
    """
    if _TORCH_NPU not in sys.modules and importlib.util.find_spec(_TORCH_NPU) is None:
        raise ImportError(
            "torch_offload: expected torch_npu to be installed, because an NPU is asked for, got none; install it with "
            f"pip install torch_npu=={torch.__version__.partition('+')[0]}, then rebuild this package: {_REBUILD}"
        )
    try:
        importlib.import_module(_TORCH_NPU)
    except Exception as error:  # torch_npu raises what comes: ImportError, OSError, RuntimeError
        raise ImportError(
            f"torch_offload: expected torch_npu to find CANN's libraries, got '{error}'; install CANN 8.1 or newer and "
            "source its set_env.sh before Python starts"
        ) from error
    if importlib.util.find_spec(_EXTENSION) is None:
        raise ImportError(
            "torch_offload: expected the compiled module _C_npu, got a package that was built without torch_npu; "
            f"rebuild it where torch_npu is installed: {_REBUILD}"
        )
    try:
        extension = importlib.import_module(_EXTENSION)
    except ImportError as error:
        raise ImportError(
            f"torch_offload: expected _C_npu to fit torch {torch.__version__} and the installed torch_npu, got "
            f"'{error}'; rebuild it: {_REBUILD}"
        ) from error
    extension.use_kernels([str(folder) for folder in device_code.folders()], device_code.source_id())
    try:
        extension.check_runtime()
    except RuntimeError as error:
        raise ImportError(str(error).partition("\n")[0]) from error
    if not _served:
        extension.serve_pools()
        # Registered after torch_npu's own function, so that it runs before that ends the runtime.
        atexit.register(extension.let_go_of_pools)
        _served.append(extension)
    return extension


def _load_or_refuse() -> None:
    try:
        load()
    except ImportError as error:
        warnings.warn(f"{error} (the CPU works)", RuntimeWarning, stacklevel=3)
        if _EXTENSION not in sys.modules:
            _refuse(str(error))


def _convert_for_torchair() -> None:
    from torch_offload.npu import graph_engine

    graph_engine.register(sys.modules[_TORCHAIR])


def _refuse(message: str) -> None:
    """Registers kernels that raise: without any, torch_npu would copy whole tensors to the CPU and back."""

    def kernel(*args: Any) -> None:
        raise RuntimeError(message)

    library = torch.library.Library("offload", "IMPL")
    listed = ("sparse_copy", "sparse_copy_ptrs", "_sparse_copy_cores", "_sparse_copy_ptrs_cores")
    for name in (*listed, *(f"_sparse_copy_{arity}" for arity in range(1, 5))):
        library.impl(name, kernel, "PrivateUse1")
    _refusals.append(library)


class _Watcher(MetaPathFinder):
    """Lets a module be found as usual, and makes a call once it is imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Afterwards(spec.loader, self._then)
        else:
            sys.meta_path.insert(0, self)
        return spec


class _Afterwards(Loader):
    """Another loader, and a call after the module has run."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then()
