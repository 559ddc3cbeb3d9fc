# SPDX-License-Identifier: Apache-2.0
"""Device code is found and loaded at the first use; what is said where there is none, or one for another chip."""

import os
import subprocess
import sys
from pathlib import Path

import npu_support as support
import pytest
import torch
from compiler_stand_in import StandIn, clean_environment

import torch_offload
from torch_offload.npu import device_code

pytestmark = support.simulator

KERNELS = (support.sim_cann.BUILD / "kernels").resolve()
MODEL_OBJECTS = [KERNELS / f"{name}.o" for name in ("core", "race_checker", "global_memory", "launch")]


def build(tmp_path, *arguments):
    """Device code in the user's cache below `tmp_path`, made by the stand-in of CANN's compiler."""
    cann = StandIn(tmp_path, objects=MODEL_OBJECTS)
    output = tmp_path / "torch_offload"
    command = [sys.executable, "-m", "torch_offload.build_kernel", "--output", str(output), *arguments]
    done = subprocess.run(
        command, env=clean_environment(**cann.environment), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return output


def in_process(body, tmp_path, *arguments, **settings):
    settings = {"TORCH_OFFLOAD_NPU_KERNEL": None, "XDG_CACHE_HOME": tmp_path} | settings
    support.own_process(**settings)(body)(*arguments)


def copy():
    src = torch.arange(64.0).reshape(4, 16)
    dst = torch.zeros(2, 16).npu()
    torch_offload.sparse_copy(dst, src.npu(), src_index=torch.tensor([3, 1]).npu())
    assert torch.equal(dst.cpu(), src[[3, 1]])
    status = torch_offload.sparse_copy_ptrs(*(torch.zeros(0, dtype=torch.int64).npu() for _ in range(3)), dst_count())
    assert status.cpu().tolist() == [0, 0, 0, -1]


def dst_count():
    return torch.zeros(1, dtype=torch.int64).npu()


def test_what_the_command_builds_is_found_and_runs(tmp_path):
    build(tmp_path)
    in_process(copies_with_the_cache, tmp_path)
    in_process(copies_with_the_cache, tmp_path, SIM_SOC="Ascend950PR_9599", ASCENDC_SIM_UB_BYTES=253952)


def copies_with_the_cache():
    copy()
    target = "dav-3510" if "950" in os.environ.get("SIM_SOC", "") else "dav-2201"
    path = support._C_npu.kernel_file(target)
    assert path == str(Path(os.environ["XDG_CACHE_HOME"]) / "torch_offload" / device_code.file_name(target))


def test_it_is_found_without_a_new_process(tmp_path):
    in_process(builds_after_a_failure, tmp_path, str(tmp_path))


def builds_after_a_failure(tmp_path):
    with pytest.raises(RuntimeError, match="expected device kernels for Ascend910B2"):
        copy()
    build(Path(tmp_path), "--target", "dav-2201")
    copy()


def fails(*texts):
    with pytest.raises(RuntimeError) as info:
        copy()
    for text in (*texts, "python -m torch_offload.build_kernel"):
        assert text in str(info.value), info.value


def test_none(tmp_path):
    name = device_code.file_name("dav-2201")
    in_process(fails, tmp_path, f"expected device kernels for Ascend910B2, {name} in ", "/torch_offload, got none; run")


def test_for_another_chip(tmp_path):
    build(tmp_path, "--target", "dav-3510")
    other = device_code.file_name("dav-3510")
    in_process(fails, tmp_path, device_code.file_name("dav-2201"), f"got {other} (for other chips or of other sources)")


def test_of_other_sources(tmp_path):
    output = build(tmp_path, "--target", "dav-2201")
    right = output / device_code.file_name("dav-2201")
    right.rename(output / "kernels-dav-2201-000000000000.o")
    in_process(fails, tmp_path, right.name, "got kernels-dav-2201-000000000000.o (for other chips or of other sources)")


def test_named_file_for_another_chip(tmp_path):
    path = build(tmp_path, "--target", "dav-3510") / device_code.file_name("dav-3510")
    text = f"expected device kernels for Ascend910B2 (dav-2201), got {path}, built for another chip"
    in_process(fails, tmp_path, text, TORCH_OFFLOAD_NPU_KERNEL=path)
