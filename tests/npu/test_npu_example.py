# SPDX-License-Identifier: Apache-2.0
"""The example's main job on an NPU: every step equals the resident cache, bit by bit."""

import json
import subprocess
import sys

import npu_support as support
import pytest

EXAMPLE = support.TESTS.parent / "examples" / "dsa_decode.py"


@pytest.mark.parametrize("slots", [0, 128])
def test_decode(slots, tmp_path):
    arguments = ["--device", "npu", "--context", "600", "--steps", "3", "--layers", "2", "--top-k", "64"]
    arguments += ["--resident-slots", str(slots), "--json", str(tmp_path / "figures.json")]
    command = [sys.executable, str(EXAMPLE), *arguments]
    env = support.sim_cann.environment(PYTHONSAFEPATH=None)  # the example imports modules beside it
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "3 steps x 2 layers, all bit-identical" in done.stdout
    moved = json.loads((tmp_path / "figures.json").read_text())["moved"]
    assert moved[0] == 2 * 64
    assert (sum(moved) < 3 * 2 * 64) == (slots > 0)
