# SPDX-License-Identifier: Apache-2.0
"""A folder that looks like CANN's toolkit, whose compiler forwards to g++ and the model of AscendC.

What it makes are device binaries of the simulated runtime (`tests/sim_cann`), once they are linked with the model.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent
MODEL = TESTS / "sim_cann" / "ascendc"

_SCRIPT = f"""#!{sys.executable}
import json, os, re, subprocess, sys
arguments = sys.argv[1:]
with open(os.environ["STAND_IN_LOG"], "a") as log:
    print(json.dumps([os.path.basename(sys.argv[0]), *arguments]), file=log)
if arguments == ["--version"]:
    print(os.environ.get("STAND_IN_VERSION", "a stand-in, version 1"))
    sys.exit(0)
refused = os.environ.get("STAND_IN_REFUSES")
if refused and any(refused in argument for argument in arguments):
    sys.exit(f"error: '{{refused}}' is not known here")
output = arguments[arguments.index("-o") + 1]
inputs = [a for a in arguments if a.endswith((".cpp", ".o")) and a != output]
text = None
if os.path.basename(sys.argv[0]) == "bisheng":
    kernels = re.findall(r"__global__ __aicore__ void (\\w+)", open(inputs[0]).read())
    text = f'#include "{{inputs[0]}}"\\n' + "".join(f"ASCENDC_SIM_KERNEL({{name}})\\n" for name in kernels)
    options = ["-std=c++17", "-fPIC", "-I{MODEL}", "-I{TESTS.parent}", "-x", "c++", "-c", "-"]
    options += [a for a in arguments if a.startswith("-I")]
else:
    options = ["-shared", *inputs, *filter(None, os.environ.get("STAND_IN_OBJECTS", "").split(":"))]
sys.exit(subprocess.run(["g++", *options, "-o", output], input=text, text=True).returncode)
"""


class StandIn:
    """CANN's toolkit in a folder; `environment` is what a process needs to use it."""

    def __init__(self, folder: Path, *, tools: Sequence[str] = ("bisheng", "ld.lld"), objects: Sequence[Path] = ()):
        self.home = folder / "cann"
        self.log = folder / "calls.jsonl"
        binaries = self.home / "compiler" / "ccec_compiler" / "bin"
        binaries.mkdir(parents=True)
        for tool in tools:
            (binaries / tool).write_text(_SCRIPT)
            (binaries / tool).chmod(0o755)
        self.environment = {
            "ASCEND_HOME_PATH": str(self.home),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # torch_npu would look for more of CANN
            "STAND_IN_LOG": str(self.log),
            "STAND_IN_OBJECTS": ":".join(map(str, objects)),
        }

    def calls(self) -> list[list[str]]:
        """The command lines so far that did not only ask for the version, and forgets them."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [call for call in map(json.loads, lines) if call[1:] != ["--version"]]


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment of this process without CANN, with these variables."""
    return {name: value for name, value in os.environ.items() if name != "ASCEND_HOME_PATH"} | variables
