# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (the graph is printed by torch)
"""The graph that compilers receive, as torch 2.13 prints it; EXPECTTEST_ACCEPT=1 writes it anew."""

import expecttest
import torch
from torch import Tensor
from torch._dynamo.testing import AotEagerAndRecordGraphs, normalize_gm

from torch_offload import sparse_copy


def pages(*shape: int) -> Tensor:
    return torch.rand(*shape)


def test_traced_graph_of_two_groups():
    torch._dynamo.reset()
    backend = AotEagerAndRecordGraphs()
    kv = pages(2, 8, 4)

    @torch.compile(backend=backend, fullgraph=True)
    def function(kv, other, src, index, count):
        sparse_copy([kv[0], kv[1], other], src, index, None, count=count)

    function(kv, pages(8, 2), [pages(9, 4), pages(9, 4), pages(9, 2)], torch.tensor([1, 4]), torch.tensor([2]))
    (graph,) = backend.fw_graphs
    expecttest.assert_expected_inline(
        normalize_gm(graph.print_readable(print_output=False)),
        """\
class <lambda>(torch.nn.Module):
    def forward(self, arg0_1: "f32[2, 8, 4]", arg1_1: "f32[8, 2]", arg2_1: "f32[9, 4]", arg3_1: "f32[9, 4]", arg4_1: "f32[9, 2]", arg5_1: "i64[2]", arg6_1: "i64[1]"):
        select_1: "f32[8, 4]" = torch.ops.aten.select.int(arg0_1, 0, 1)

        auto_functionalized_v2 = torch.ops.higher_order.auto_functionalized_v2(torch.ops.offload._sparse_copy_1.default, src0 = arg2_1, dst_index = arg5_1, src_index = None, count = arg6_1, dst_rows = None, src_rows = None, cores = None, other_dst = [select_1, arg1_1], other_src = [arg3_1, arg4_1], _dst0_base_index = 0, _dst0_size = (8, 4), _dst0_stride = (4, 1), _dst0_storage_offset = 0, _all_bases = [arg0_1]);  arg2_1 = select_1 = None
        getitem_1: "f32[2, 8, 4]" = auto_functionalized_v2[1];  auto_functionalized_v2 = None
        auto_functionalized_v2_1 = torch.ops.higher_order.auto_functionalized_v2(torch.ops.offload._sparse_copy_2.default, src0 = arg3_1, src1 = arg4_1, dst_index = arg5_1, src_index = None, count = arg6_1, dst_rows = None, src_rows = None, cores = None, other_dst = None, other_src = None, _dst0_base_index = 0, _dst0_size = (8, 4), _dst0_stride = (4, 1), _dst0_storage_offset = 32, _dst1_base_index = 1, _all_bases = [getitem_1, arg1_1]);  arg3_1 = arg4_1 = arg5_1 = arg6_1 = getitem_1 = None
        getitem_3: "f32[2, 8, 4]" = auto_functionalized_v2_1[1]
        getitem_4: "f32[8, 2]" = auto_functionalized_v2_1[2];  auto_functionalized_v2_1 = None
        copy_: "f32[2, 8, 4]" = torch.ops.aten.copy_.default(arg0_1, getitem_3);  arg0_1 = getitem_3 = copy_ = None
        copy__1: "f32[8, 2]" = torch.ops.aten.copy_.default(arg1_1, getitem_4);  arg1_1 = getitem_4 = copy__1 = None
        return ()
""",
    )
