# SPDX-License-Identifier: Apache-2.0
"""The example's main job on an NPU: every step equals the resident cache, bit by bit."""

import subprocess
import sys

import npu_support as support

EXAMPLE = support.TESTS.parent / "examples" / "dsa_decode.py"


def test_decode():
    arguments = ["--device", "npu", "--context", "600", "--steps", "3", "--layers", "2", "--top-k", "64"]
    command = [sys.executable, str(EXAMPLE), *arguments]
    env = support.sim_cann.environment(PYTHONSAFEPATH=None)  # the example imports modules beside it
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "3 steps x 2 layers, all bit-identical" in done.stdout
