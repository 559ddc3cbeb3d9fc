# SPDX-License-Identifier: Apache-2.0
"""Faults and limits of PyTorch inside our range: a test that fails here says that PyTorch has changed."""

import subprocess
import sys

import pytest
import torch
from graphs import assert_like_eager, compile_counted
from torch import Tensor
from torch._inductor.exc import InductorError

from torch_offload import sparse_copy

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled"),
]

INDEX = torch.tensor([1, 3]), torch.tensor([0, 1])


def pages(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def from_a_clone(dst, dst_index, src_index):
    sparse_copy(dst, dst.clone(), dst_index, src_index)


def typed_views(raw, k_src, scale_src, dst_index, src_index):
    k = raw[:32].view(torch.bfloat16).view(4, 4)
    scale = raw[32:].view(torch.float32).view(4, 1)
    sparse_copy([k, scale], [k_src, scale_src], dst_index, src_index)


def clone_arguments() -> tuple:
    return pages(4, 3), *INDEX


def typed_arguments() -> tuple:
    return torch.arange(48, dtype=torch.uint8), pages(4, 4).bfloat16(), pages(4, 1), *INDEX


def test_source_that_is_a_clone_of_the_destination():
    assert_like_eager(from_a_clone, clone_arguments, "aot_eager")


@pytest.mark.xfail(reason="pytorch/pytorch#198031: inductor removes the clone as a no-op", raises=InductorError)
def test_source_that_is_a_clone_of_the_destination_in_inductor():
    assert_like_eager(from_a_clone, clone_arguments, "inductor")


def test_typed_views_of_a_raw_buffer_inside_the_graph():
    assert_like_eager(typed_views, typed_arguments, "aot_eager")


@pytest.mark.xfail(reason="inductor writes a copy of the raw buffer and loses the other rows", raises=AssertionError)
def test_typed_views_of_a_raw_buffer_inside_the_graph_in_inductor():
    assert_like_eager(typed_views, typed_arguments, "inductor")


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_typed_views_of_one_storage_as_inputs_are_refused(backend: str):
    raw, k_src, scale_src, *index = typed_arguments()
    views = [raw[:32].view(torch.bfloat16).view(4, 4), raw[32:].view(torch.float32).view(4, 1)]
    compiled, _ = compile_counted(sparse_copy, backend)
    with pytest.raises(Exception, match="does not yet handle input mutations on views with different dtypes"):
        compiled(views, [k_src, scale_src], *index)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_destination_cut_to_an_unbacked_row_count_is_refused():
    def function(dst, src, mask):
        taken = src[mask]
        sparse_copy(dst[: taken.shape[0]], taken)

    compiled, _ = compile_counted(function, "aot_eager")
    with pytest.raises(Exception, match="Could not guard on data-dependent expression"):
        compiled(pages(8, 3), pages(8, 3), torch.tensor([True, False] * 4))


def test_inductor_lacks_the_lowering_that_we_add():
    """When this fails, torch_offload/inductor_fixes.py can go."""
    program = (
        "import torch, torch._inductor.lowering as lowering\n"
        "print(torch.ops.aten.sym_storage_offset.default in lowering.lowerings)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
