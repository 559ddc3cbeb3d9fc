# SPDX-License-Identifier: Apache-2.0
"""What torchair hands to the graph engine for our operators: types, names, edges, and no copy of a cache.

A stand-in takes the place of the engine, for a whole process: these tests have processes of their own.
"""

import pytest
import torch
from graph_engine_support import Engine, names, of_type, reaches_output
from npu_support import DEVICE, own_process

import torch_offload

COPIES = ("TensorMove", "Identity", "Assign", "ViewCopy", "AsStrided")


class Tensors:
    """Pairs of rows, an index of 20 and a count, on the device."""

    def __init__(self, components=1, *, shape=(20, 24), rows=50, dtype=torch.float32):
        self.dst = [torch.zeros(shape, dtype=dtype, device=DEVICE) for _ in range(components)]
        self.src = [torch.zeros(rows, *shape[1:], dtype=dtype, device=DEVICE) for _ in range(components)]
        self.index = torch.zeros(20, dtype=torch.int64, device=DEVICE)
        self.count = torch.zeros(1, dtype=torch.int32, device=DEVICE)

    def args(self):
        return (*self.dst, *self.src, self.index, self.count)


def call(*args):
    pairs = len(args) // 2 - 1
    *rows, index, count = args
    torch_offload.sparse_copy(rows[:pairs], rows[pairs:], src_index=index, count=count)
    return rows[0] + 1


def inputs_of(op):
    return {name: edge for name, edge in zip(names(op.input_desc), op.input, strict=True) if edge}


def one_to_four_components_are_one_operator(engine):
    for components in range(1, 5):
        graph = engine.convert(call, *Tensors(components).args())
        (op,) = of_type(graph, "OffloadSparseCopy")
        sides = [f"{side}{c}" for side in ("dst", "src") for c in range(components)]
        assert names(op.input_desc) == [*sides, "dst_index", "src_index", "count"]
        assert names(op.output_desc) == sides[:components]
        assert list(inputs_of(op)) == [*sides, "src_index", "count"]  # no dst_index
        assert all(edge.endswith("_1:0") for edge in inputs_of(op).values()), "straight from the graph's inputs"
        assert not of_type(graph, *COPIES)
        assert reaches_output(graph, op)
        assert [op.attr[name].i for name in ("dst_rows", "src_rows", "cores")] == [-1, -1, -1]


def five_components_are_two_operators(engine):
    graph = engine.convert(call, *Tensors(5).args())
    ops = of_type(graph, "OffloadSparseCopy")
    assert [names(op.output_desc) for op in ops] == [["dst0", "dst1", "dst2", "dst3"], ["dst0"]]
    assert not of_type(graph, *COPIES)
    assert all(reaches_output(graph, op) for op in ops)


def destinations_of_one_storage_are_an_operator_each(engine):
    tensors = Tensors(2)
    tensors.dst = list(torch.zeros(2, 20, 24, device=DEVICE))
    graph = engine.convert(call, *tensors.args())
    ops = of_type(graph, "OffloadSparseCopy")
    assert [names(op.output_desc) for op in ops] == [["dst0"], ["dst0"]]
    assert not of_type(graph, *COPIES)
    assert all(reaches_output(graph, op) for op in ops)


def two_copies_with_a_read_between_stay_in_order(engine):
    """Each call on the same destination moves it: torchair drops the copy only where nobody else reads."""
    tensors, other = Tensors(), Tensors()

    def twice(dst, first, second, index, count):
        torch_offload.sparse_copy(dst, first, src_index=index, count=count)
        between = dst + 1
        torch_offload.sparse_copy(dst, second, src_index=index, count=count)
        return between, dst * 2

    graph = engine.convert(twice, *tensors.dst, *tensors.src, *other.src, tensors.index, tensors.count)
    first, second = of_type(graph, "OffloadSparseCopy")
    moves = {op.name: op for op in of_type(graph, "TensorMove")}
    assert moves[inputs_of(second)["dst0"].partition(":")[0]].input == [f"{first.name}:0"]
    (read,) = of_type(graph, "Add")
    assert read.input[0] == f"{first.name}:0"
    assert len(moves) == 2
    assert all(reaches_output(graph, op) for op in (first, second))


def dynamic_shapes(engine):
    graph = engine.convert(call, *Tensors(2).args(), dynamic=True)
    (op,) = of_type(graph, "OffloadSparseCopy")
    assert names(op.output_desc) == ["dst0", "dst1"]
    assert not of_type(graph, *COPIES)
    assert reaches_output(graph, op)


def unequal_rows_are_limits_of_every_operator(engine):
    tensors = Tensors(5)
    tensors.src[4] = torch.zeros(30, 24, device=DEVICE)
    graph = engine.convert(call, *tensors.args())
    limits = [[op.attr[name].i for name in ("dst_rows", "src_rows")] for op in of_type(graph, "OffloadSparseCopy")]
    assert limits == [[20, 30], [20, 30]]


def cores_are_an_attribute(engine):
    def limited(dst, src, index):
        torch_offload.sparse_copy(dst, src, src_index=index, cores=8)
        return dst + 1

    tensors = Tensors()
    (op,) = of_type(engine.convert(limited, *tensors.dst, *tensors.src, tensors.index), "OffloadSparseCopy")
    assert op.attr["cores"].i == 8


def pointers(engine):
    status = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    table, count = Tensors().index, Tensors().count

    def by_address(src_ptrs, dst_ptrs, lengths, count, status):
        torch_offload.sparse_copy_ptrs(src_ptrs, dst_ptrs, lengths, count, status=status)

    graph = engine.convert(by_address, table, table.clone(), table.clone(), count, status)
    (op,) = of_type(graph, "OffloadSparseCopyPtrs")
    assert names(op.input_desc) == ["src_ptrs", "dst_ptrs", "lengths", "count", "status"]
    assert names(op.output_desc) == ["status"]
    assert not of_type(graph, *COPIES)
    assert reaches_output(graph, op)


@own_process()
def test_conversions():
    """In one process, because each takes seconds to start."""
    engine = Engine()
    for convert in (
        one_to_four_components_are_one_operator,
        five_components_are_two_operators,
        destinations_of_one_storage_are_an_operator_each,
        two_copies_with_a_read_between_stay_in_order,
        dynamic_shapes,
        unequal_rows_are_limits_of_every_operator,
        cores_are_an_attribute,
        pointers,
    ):
        print(convert.__name__, flush=True)
        convert(engine)


@own_process()
def test_without_the_entry_every_destination_is_moved():
    """That the others find no TensorMove is our doing."""
    from torchair._ge_concrete_graph import graph_pass

    engine = Engine()
    graph_pass._get_output_to_input_ref_idx = lambda op: {}
    assert len(of_type(engine.convert(call, *Tensors(3).args()), "TensorMove")) == 3


@own_process()
def test_another_torchair_is_left_alone_with_a_warning():
    from torchair._ge_concrete_graph import graph_pass

    from torch_offload.npu import graph_engine

    def newer(op, graph):
        raise AssertionError((op, graph))

    graph_pass._get_output_to_input_ref_idx = newer
    with pytest.warns(RuntimeWarning, match="expected torchair's graph_pass._get_output_to_input_ref_idx"):
        graph_engine._let_copies_be_dropped()
    assert graph_pass._get_output_to_input_ref_idx is newer


def refused(error, message, *args, **options):
    """What a converter raises is wrapped by torchair and dynamo; it stays the cause."""
    with pytest.raises(Exception, match=message) as raised:
        Engine().convert(call, *args, **options)
    causes, cause = [], raised.value
    while cause is not None:
        causes.append(type(cause))
        cause = cause.__cause__ or cause.__context__
    assert error in causes, causes


@own_process()
def test_rows_on_the_host_are_refused():
    with torch_offload.HostPool(1 << 20, device=DEVICE) as pool:
        tensors = Tensors()
        tensors.src = [pool.empty((50, 24))]
        refused(ValueError, r"expected src\[0\] to be on an NPU in a graph of GE, .* pool.device_view", *tensors.args())


@own_process()
def test_several_dtypes_are_refused():
    tensors, other = Tensors(), Tensors(dtype=torch.int32)
    tensors.dst += other.dst
    tensors.src += other.src
    refused(TypeError, r"expected dst\[1\] to have the dtype of dst\[0\] in a graph of GE", *tensors.args())


@own_process()
def test_unequal_rows_of_unknown_number_are_refused():
    """By torchair, which knows no minimum of row counts: such a call takes static shapes."""
    tensors = Tensors(5)
    tensors.src[4] = torch.zeros(30, 24, device=DEVICE)
    refused(RuntimeError, "Failed to auto-generated converter for .*sym_min", *tensors.args(), dynamic=True)


@own_process()
def test_torchair_is_not_imported_by_us():
    import sys

    assert "torch_npu.dynamo.torchair" not in sys.modules
    assert "torch_offload.npu.graph_engine" not in sys.modules
