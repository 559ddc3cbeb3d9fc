# SPDX-License-Identifier: Apache-2.0
"""The simulated CANN runtime, from Python: counters, settings, injected faults, device memory, processes.

Import it in a process that runs on the simulator (`tests/sim_cann/run python ...`); `available()` tells.
"""

import contextlib
import ctypes
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("SIM_CANN_BUILD", HERE.parents[1] / "build" / "sim_cann"))

_U64, _PTR, _STR, _INT = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_SIGNATURES = {
    "simCounterGet": (_U64, [_STR]),
    "simCountersReset": (None, []),
    "simCountersText": (_U64, [_STR, _U64]),
    "simSet": (_INT, [_STR, _STR]),
    "simSettingsText": (_U64, [_STR, _U64]),
    "simFailCall": (None, [_STR, _U64, _INT, _INT]),
    "simFailClear": (None, []),
    "simLiveDeviceBytes": (_U64, [_INT]),
    "simLiveHostBytes": (_U64, []),
    "simLiveRegistrations": (_U64, []),
    "simTranslate": (_PTR, [_U64, _U64, _INT]),
    "simDescribeAddress": (None, [_U64, _U64, _STR, _U64]),
}


def _load():
    try:
        library = ctypes.CDLL("libascendcl.so")  # as torch_npu finds it: the same library, not a second one
    except OSError:
        return None
    if not hasattr(library, "simCounterGet"):
        return None  # a real CANN
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()


def available() -> bool:
    """Whether this process runs on the simulator."""
    return lib is not None


def _text(function) -> str:
    size = function(None, 0)
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = function(buffer, size)
        if needed <= size:
            return buffer.value.decode()
        size = needed


# ---- counters


def count(name: str) -> int:
    """How often a runtime call was made, or any other counter: `aclrtMalloc`, `kernel.NAME.runs`, ..."""
    return lib.simCounterGet(name.encode())


def counters(prefix: str = "") -> dict[str, int]:
    """All counters that are not 0 and whose name begins with `prefix`."""
    pairs = (line.rsplit(" ", 1) for line in _text(lib.simCountersText).splitlines())
    return {name: int(value) for name, value in pairs if name.startswith(prefix)}


def reset_counters() -> None:
    lib.simCountersReset()


@contextlib.contextmanager
def counting():
    """Yields a dict that holds, after the block, what every counter grew by in it."""
    before, grown = counters(), {}
    yield grown
    after = counters()
    grown.update({name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)})


# ---- settings


def settings() -> dict[str, str]:
    return {line.split("\t")[0]: line.split("\t")[1] for line in _text(lib.simSettingsText).splitlines()}


def setting(name: str, value) -> None:
    """Changes a setting (`SIM_...`, README.md has the table) while the process runs."""
    problem = lib.simSet(name.encode(), str(value).encode())
    if problem:
        reasons = {1: "there is no such setting", 2: "fixed once the process runs", 3: f"bad value {value!r}"}
        raise ValueError(f"{name}: {reasons[problem]}")


@contextlib.contextmanager
def changed(**values):
    """Settings for the length of a block: `with sim_cann.changed(SIM_DELAY_US=50000): ...`."""
    before = settings()
    for name, value in values.items():
        setting(name, value)
    try:
        yield
    finally:
        for name in values:
            setting(name, before[name])


# ---- injected faults


def fail_call(function: str, nth: int = 1, code: int = 507899, and_later: bool = False) -> None:
    """The nth call of `function` from now on returns `code`; `kernel`, `kernel.NAME`: the run of a kernel."""
    lib.simFailCall(function.encode(), nth, code, int(and_later))


def clear_failures() -> None:
    lib.simFailClear()


@contextlib.contextmanager
def failing(function: str, nth: int = 1, code: int = 507899, and_later: bool = False):
    fail_call(function, nth, code, and_later)
    try:
        yield
    finally:
        clear_failures()


# ---- memory


def live_device_bytes(device: int = 0) -> int:
    return lib.simLiveDeviceBytes(device)


def live_host_bytes() -> int:
    """Bytes of aclrtMallocHost and its variants."""
    return lib.simLiveHostBytes()


def live_registrations() -> int:
    return lib.simLiveRegistrations()


def translate(address: int, size: int = 1, write: bool = False):
    """Where the host finds device memory, or None if a kernel may not touch it."""
    return lib.simTranslate(address, size, int(write))


def describe(address: int, size: int = 1) -> str:
    buffer = ctypes.create_string_buffer(400)
    lib.simDescribeAddress(address, size, buffer, len(buffer))
    return buffer.value.decode()


def read(address: int, size: int) -> bytes:
    """The bytes of device memory, without a runtime call. Synchronize first."""
    view = translate(address, size)
    if view is None:
        raise ValueError(describe(address, size))
    return ctypes.string_at(view, size)


def write(address: int, data: bytes) -> None:
    view = translate(address, len(data), write=True)
    if view is None:
        raise ValueError(describe(address, len(data)))
    ctypes.memmove(view, data, len(data))


# ---- other processes


def environment(**variables) -> dict[str, str]:
    """The environment for a process on the simulator, with these variables (None removes one)."""
    env = {**os.environ, **{k: str(v) for k, v in variables.items() if v is not None}}
    for name in [k for k, v in variables.items() if v is None]:
        env.pop(name, None)
    version = re.match(r"(\d+)\.(\d+)", env.get("SIM_CANN_VERSION") or "8.5.0")
    older = version is not None and tuple(map(int, version.groups())) < (8, 5)
    paths = [p for p in env.get("LD_LIBRARY_PATH", "").split(":") if p and not p.startswith(str(BUILD))]
    env["LD_LIBRARY_PATH"] = ":".join([str(BUILD / "plain" / ("lib-8.1" if older else "lib")), *paths])
    env["PYTHONPATH"] = ":".join(filter(None, [str(HERE), env.get("PYTHONPATH", "")]))
    return env


def run_python(code: str, *, timeout: float = 300, **variables) -> subprocess.CompletedProcess:
    """Runs Python code in a process of its own on the simulator, with the given settings."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=timeout, check=False
    )


def own_process(*, exit_code: int = 0, writes: str = "", **variables):
    """Decorator: the test runs in a process of its own on the simulator, with these settings.

    The process has to end with `exit_code` (minus a number: with that signal) and to have written `writes`.
    Arguments of the test (parametrize) reach it by their repr. The function itself is `.body`.
    """

    def decorate(body):
        path = Path(sys.modules[body.__module__].__file__)
        code = (
            "import importlib.util, sys\n"
            f"sys.path.insert(0, {str(path.parent)!r})\n"
            f"spec = importlib.util.spec_from_file_location({path.stem!r}, {str(path)!r})\n"
            "module = importlib.util.module_from_spec(spec)\n"
            f"sys.modules[{path.stem!r}] = module\n"
            "spec.loader.exec_module(module)\n"
        )

        @functools.wraps(body)
        def test(*args, **kwargs):
            call = f"test = module.{body.__name__}\ngetattr(test, 'body', test)(*{args!r}, **{kwargs!r})\n"
            done = run_python(code + call, **variables)
            written = f"{done.stdout}\n{done.stderr}"
            assert done.returncode == exit_code, f"exit code {done.returncode}\n{written}"
            assert writes in written, f"expected {writes!r} in\n{written}"

        test.body = body
        return test

    return decorate
