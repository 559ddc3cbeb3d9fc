# SPDX-License-Identifier: Apache-2.0
"""What an import says where something is missing, and that the CPU works all the same."""

import os
import subprocess
import sys
from pathlib import Path

import npu_support as support
import pytest
import torch

pytestmark = support.simulator
ROOT = Path(__file__).resolve().parents[2]

CPU_WORKS = """
import torch
dst = torch.zeros(3, 2)
torch_offload.sparse_copy(dst, torch.ones(3, 2))
assert dst.all()
assert torch_offload.status("cpu").copied == 0
"""


def run(code, **variables):
    """Runs the code without the simulator's libraries; None removes a variable."""
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "LD_LIBRARY_PATH": ""}
    env |= {name: str(value) for name, value in variables.items() if value is not None}
    for name in [name for name, value in variables.items() if value is None]:
        env.pop(name)
    command = [sys.executable, "-W", "always", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def raises(error, statement):
    """Code that prints the message of the error."""
    return f"try:\n    {statement}\nexcept {error} as error:\n    print('MESSAGE', error)\nelse:\n    assert False\n"


def message(output):
    lines = [line for line in output.splitlines() if line.startswith("MESSAGE")]
    assert len(lines) == 1, output
    return lines[0]


WITHOUT_TORCH_NPU = "import importlib.util, sys\nsys.modules['torch_npu'] = None\ndel sys.modules['torch_npu']\n"


def test_without_torch_npu():
    """An interpreter that does not find torch_npu."""
    hide = (
        "import importlib.util\nfound = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'torch_npu' else found(name, package)\n"
    )
    output = run(hide + "import torch_offload\n" + CPU_WORKS + raises("ImportError", "torch_offload.status('npu')"))
    assert "expected torch_npu to be installed, because an NPU is asked for, got none; install it" in message(output)
    assert "Warning" not in output


def test_without_cann():
    output = run("import torch_offload\n" + CPU_WORKS + raises("ImportError", "torch_offload.status('npu:0')"))
    assert "expected torch_npu to find CANN's libraries, got 'lib" in message(output)
    assert "source its set_env.sh before Python starts" in message(output)
    assert "Warning: torch_offload" not in output


def on_simulator(code, **variables):
    done = support.sim_cann.run_python(code, **variables)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


COPY = "torch_offload.sparse_copy(torch.zeros(3, 2).npu(), torch.ones(3, 2).npu())"


def test_with_a_cann_that_is_too_old():
    code = "import torch_offload\n" + CPU_WORKS
    code += raises("ImportError", "torch_offload.status('npu')") + raises("RuntimeError", COPY)
    output = on_simulator(code, SIM_CANN_VERSION="7.0.0")
    messages = [line for line in output.splitlines() if line.startswith("MESSAGE")]
    expected = "torch_offload: expected CANN 8.1 or newer, got CANN 7.0.0; install CANN 8.1 or newer"
    assert len(messages) == 2
    assert all(expected in line for line in messages)
    assert output.count("RuntimeWarning: " + expected) == 1
    assert "(the CPU works)" in output


@pytest.mark.parametrize("first", ["torch_offload", "torch_npu"])
@pytest.mark.parametrize("autoload", ["0", "1"])
def test_orders_of_import(first, autoload):
    second = {"torch_offload": "torch_npu", "torch_npu": "torch_offload"}[first]
    code = f"import torch, {first}\nimport {second}\n" + CPU_WORKS
    code += "dst = torch.zeros(3, 2).npu()\ntorch.ops.offload.sparse_copy([dst], [torch.ones(3, 2).npu()])\n"
    code += "assert dst.cpu().all()\nimport sys\nassert 'torch_offload._C_npu' in sys.modules\n"
    code += "assert not [f for f in sys.meta_path if getattr(f, '_name', None) == 'torch_npu'] or "
    code += f"{first == 'torch_npu' or autoload == '1'} is False\n"
    output = on_simulator(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert "Overriding" not in output
    assert "Warning: torch_offload" not in output


def test_a_package_without_the_npu_part():
    """Calls with NPU tensors say so, they do not copy whole tensors to the CPU."""
    hide = (
        "import importlib.util\nfound = importlib.util.find_spec\n"
        "importlib.util.find_spec = "
        "lambda name, package=None: None if name.endswith('_C_npu') else found(name, package)\n"
    )
    code = hide + "import torch_offload\n" + CPU_WORKS + raises("RuntimeError", COPY)
    output = on_simulator(code)
    assert "expected the compiled module _C_npu, got a package that was built without torch_npu" in message(output)
    assert "USE_NPU=1 pip install" in message(output)


def test_the_loaded_module_has_no_libraries_of_cann():
    """It links to torch_npu alone; what comes from CANN comes with that."""
    readelf = subprocess.run(
        ["readelf", "-d", support._C_npu.__file__], capture_output=True, text=True, check=True
    ).stdout
    needed = [line.partition("[")[2].rstrip("]") for line in readelf.splitlines() if "(NEEDED)" in line]
    assert "libtorch_npu.so" in needed
    assert not [name for name in needed if "ascend" in name or "acl" in name or "hccl" in name]


@pytest.mark.parametrize(("use", "text"), [("2", "expected USE_NPU to be 0, 1 or unset, got '2'"), ("1", "USE_NPU=1")])
def test_building_says_what_is_missing(use, text, tmp_path):
    """`setup.py` in an interpreter that does not find torch_npu."""
    code = (
        "import importlib.util, runpy, sys\nfound = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'torch_npu' else found(name, package)\n"
        f"sys.argv = ['setup.py', '--name']\nrunpy.run_path({str(ROOT / 'setup.py')!r}, run_name='__main__')\n"
    )
    env = {**os.environ, "USE_NPU": use}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode != 0
    assert text in done.stderr
    assert "torch_offload: expected" in done.stderr


def test_torch_is_the_one_that_the_package_was_built_for():
    assert torch.__version__.startswith("2.13.")
