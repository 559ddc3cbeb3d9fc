# SPDX-License-Identifier: Apache-2.0
"""Builds the extensions; everything else about the package stands in pyproject.toml.

Environment:
    DEBUG=1     -O0 -g and assertions instead of -O3.
    SANITIZE    what to give to -fsanitize= (`make sanitize` gives address).
    USE_NPU     1: build the NPU part, and fail if torch_npu is missing; 0: do not; unset: if torch_npu is installed.
    ASCEND_HOME_PATH   CANN's folder (its set_env.sh sets it): compiles the device code of the NPU part, too.
    MAX_JOBS    compilers that run at once (torch.utils.cpp_extension reads it).
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

# Importing torch would import torch_npu, which needs CANN's libraries; compiling against its headers does not.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent
DEBUG = os.environ.get("DEBUG", "0") == "1"
SANITIZE = os.environ.get("SANITIZE", "")

# The torch-free core: no torch, Python or device header may be included by these files.
CORE_SOURCES = [
    "csrc/cpu/copy_ranges.cpp",
    "csrc/cpu/copy_rows.cpp",
    "csrc/cpu/resident_set.cpp",
    "csrc/cpu/row_loops.cpp",
    "csrc/host_pool/block_allocator.cpp",
    "csrc/host_pool/current_pool.cpp",
    "csrc/host_pool/default_pool.cpp",
    "csrc/host_pool/device_memory.cpp",
    "csrc/host_pool/host_pool.cpp",
    "csrc/host_pool/mapping.cpp",
    "csrc/host_pool/memory_info.cpp",
    "csrc/host_pool/pool_registry.cpp",
    "csrc/host_pool/prefault.cpp",
    "csrc/host_pool/process_generation.cpp",
    "csrc/host_pool/shared_pool.cpp",
    "csrc/host_pool/system_calls.cpp",
    "csrc/c_api/offload.cpp",
    "csrc/c_api/sparse_copy.cpp",
]

# For programs without Python; goes into `torch_offload/include`.
C_HEADER = "csrc/c_api/offload.h"

# The torch layer: operator registration, the argument contract, the CPU kernels, the Python bindings.
TORCH_SOURCES = [
    "csrc/op_registration.cpp",
    "csrc/residency_args.cpp",
    "csrc/sparse_copy_args.cpp",
    "csrc/tensor_checks.cpp",
    "csrc/overlap.cpp",
    "csrc/autograd.cpp",
    "csrc/eager_calls.cpp",
    "csrc/meta.cpp",
    "csrc/cpu/plan_residency.cpp",
    "csrc/cpu/sparse_copy.cpp",
    "csrc/python_bindings.cpp",
    "csrc/pool_bindings.cpp",
    "csrc/pool_tensors.cpp",
]

# The argument contract is compiled into both torch extensions: they share no symbols.
NPU_SOURCES = [
    "csrc/residency_args.cpp",
    "csrc/sparse_copy_args.cpp",
    "csrc/tensor_checks.cpp",
    "csrc/overlap.cpp",
    "csrc/npu/acl_api.cpp",
    "csrc/npu/host_allocator.cpp",
    "csrc/npu/host_memory.cpp",
    "csrc/npu/kernel_binary.cpp",
    "csrc/npu/launch.cpp",
    "csrc/npu/placement.cpp",
    "csrc/npu/plan_residency.cpp",
    "csrc/npu/platform.cpp",
    "csrc/npu/pool_backend.cpp",
    "csrc/npu/pool_views.cpp",
    "csrc/npu/python_bindings.cpp",
    "csrc/npu/registration.cpp",
    "csrc/npu/runtime.cpp",
    "csrc/npu/sparse_copy.cpp",
    "csrc/npu/sparse_copy_ptrs.cpp",
    "csrc/npu/status.cpp",
    "csrc/npu/stream_fence.cpp",
    "op_host/plan_residency_tiling.cpp",
    "op_host/sparse_copy_tiling.cpp",
]

COMPILE_ARGS = ["-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden", "-g0"]
COMPILE_ARGS += ["-O0", "-g3"] if DEBUG else ["-O3"]
SANITIZE_ARGS = [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer"] if SANITIZE else []
COMPILE_ARGS += SANITIZE_ARGS
# The sources of messages are given as in the repository and in torch, wherever they lay when they were compiled.
COMPILE_ARGS += [f"-ffile-prefix-map={ROOT.resolve()}/=", f"-ffile-prefix-map={Path(torch.__file__).parent}/=torch/"]

CORE = Extension(
    "torch_offload.liboffload",
    CORE_SOURCES,
    include_dirs=[str(ROOT / "csrc")],
    extra_compile_args=[*COMPILE_ARGS, "-DOFFLOAD_BUILDING_CORE"],
    extra_link_args=["-Wl,-soname,liboffload.so", "-pthread", *SANITIZE_ARGS],
    language="c++",
)
TORCH = CppExtension(
    "torch_offload._C",
    TORCH_SOURCES,
    include_dirs=[str(ROOT / "csrc")],
    # OpenMP as torch uses it: at::parallel_for runs serially in a file that is compiled without it.
    extra_compile_args=[*COMPILE_ARGS, "-fopenmp"],
    extra_link_args=["-Wl,-rpath,$ORIGIN", "-fopenmp", *SANITIZE_ARGS],
    libraries=["offload"],
)


def npu_extensions():
    """The NPU extension, against torch_npu's own headers; CANN need not be there. Its functions come with torch_npu."""
    use = os.environ.get("USE_NPU", "")
    if use not in ("", "0", "1"):
        sys.exit(f"torch_offload: expected USE_NPU to be 0, 1 or unset, got '{use}'")
    spec = None if use == "0" else importlib.util.find_spec("torch_npu")
    if spec is None:
        if use == "1":
            sys.exit(
                "torch_offload: expected torch_npu to be installed, because USE_NPU=1 asks for the NPU part, got none; "
                "install it (pip install torch_npu==2.13.0), or build without USE_NPU"
            )
        return []
    torch_npu = Path(spec.submodule_search_locations[0])
    return [
        CppExtension(
            "torch_offload._C_npu",
            NPU_SOURCES,
            include_dirs=[str(ROOT / "csrc")],
            extra_compile_args=[
                *COMPILE_ARGS,
                # Headers of others: their warnings are not ours.
                *(f"-isystem{torch_npu / path}" for path in ("include", "include/third_party/acl/inc")),
            ],
            extra_link_args=["-Wl,-rpath,$ORIGIN"],
            library_dirs=[str(torch_npu / "lib")],
            libraries=["torch_npu", "offload"],
        )
    ]


def load_device_code():
    """torch_offload/npu/device_code.py, without the package around it, which needs its compiled modules."""
    spec = importlib.util.spec_from_file_location("device_code", ROOT / "torch_offload" / "npu" / "device_code.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build_device_code(folder):
    """The kernels for every target that CANN's compiler knows. Without them the package works on the CPU.

    They can be compiled later, so a failure is a warning, unless USE_NPU=1 insists on the NPU part.
    """
    device_code = load_device_code()
    for stale in folder.glob("kernels-*"):
        stale.unlink()
    try:
        built, failures = device_code.build_all(folder)
    except device_code.KernelBuildError as error:
        if os.environ.get("USE_NPU") == "1":
            sys.exit(str(error))
        built, failures = {}, [str(error)]
    for failure in failures:
        print(f"torch_offload: warning: device code not compiled: {failure}", file=sys.stderr)
    for target in built:
        print(f"torch_offload: device code compiled for {target} ({device_code.TARGETS[target]})")


class BuildPython(build_py):
    """Adds the sources of the device code, so that it can be compiled after the installation."""

    def run(self):
        super().run()
        if not getattr(self, "editable_mode", False):
            shutil.rmtree(Path(self.build_lib, "torch_offload", "op_kernel"), ignore_errors=True)
            only_sources = shutil.ignore_patterns(".*")
            shutil.copytree(ROOT / "op_kernel", Path(self.build_lib, "torch_offload", "op_kernel"), ignore=only_sources)


class Build(BuildExtension):
    """`liboffload.so` under its plain name with its C header, `_C` linked to it, device code where CANN is."""

    def run(self):
        super().run()
        npu = next((ext for ext in self.extensions if ext.name == "torch_offload._C_npu"), None)
        if npu is not None and os.environ.get("ASCEND_HOME_PATH"):
            build_device_code(Path(self.get_ext_fullpath(npu.name)).parent / "npu")

    def get_ext_filename(self, fullname):
        filename = super().get_ext_filename(fullname)
        if fullname.rpartition(".")[2] == "liboffload":
            return str(Path(filename).with_name("liboffload.so"))
        return filename

    def build_extension(self, ext):
        if ext is not CORE:
            ext.library_dirs.append(str(Path(self.get_ext_fullpath(CORE.name)).parent))
        super().build_extension(ext)
        if ext is CORE:
            include = Path(self.get_ext_fullpath(CORE.name)).parent / "include"
            self.mkpath(str(include))
            self.copy_file(str(ROOT / C_HEADER), str(include))


if sys.platform != "linux":
    sys.exit("torch_offload: expected to be built on Linux, got " + sys.platform)

setup(ext_modules=[CORE, TORCH, *npu_extensions()], cmdclass={"build_ext": Build, "build_py": BuildPython})
