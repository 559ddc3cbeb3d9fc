# SPDX-License-Identifier: Apache-2.0
"""The keyword `cores`: checked everywhere, of no effect on the CPU, a constant of a graph."""

import pytest
import torch
from cases import CASES
from checks import assert_same
from graphs import BACKENDS, compile_counted, generated_code, operators_of
from pointer_cases import PTR_CASES
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_offload

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled"),
]
ids = lambda case: case.name  # noqa: E731


def copy(sample, **keywords):
    torch_offload.sparse_copy(
        sample.dst, sample.src, sample.dst_index, sample.src_index, count=sample.count, **keywords
    )


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_the_same_bytes(case):
    got, want = case.make(), case.make()
    copy(got, cores=3)
    copy(want)
    assert_same(got, want)


@pytest.mark.parametrize("case", PTR_CASES, ids=ids)
def test_the_same_bytes_by_addresses(case):
    got, want = case.make(), case.make()
    torch_offload.sparse_copy_ptrs(*got.tables(), status=got.status, cores=3)
    torch_offload.sparse_copy_ptrs(*want.tables(), status=want.status)
    assert torch.equal(got.status, want.status)
    assert all(torch.equal(a, b) for a, b in zip(got.buffers, want.buffers, strict=True))


def by_rows(cores):
    dst = torch.zeros(3, 2)
    torch_offload.sparse_copy(dst, torch.ones(3, 2), cores=cores)
    return dst


def by_addresses(cores):
    table = torch.zeros(3, dtype=torch.int64)
    return torch_offload.sparse_copy_ptrs(table, table.clone(), table.clone(), torch.tensor(0), cores=cores)


CALLS = [
    pytest.param(by_rows, "sparse_copy", id="rows"),
    pytest.param(by_addresses, "sparse_copy_ptrs", id="addresses"),
]
WRONG = [
    (0, ValueError, "a number of cores from 1, got 0"),
    (-3, ValueError, "a number of cores from 1, got -3"),
    (2**31, ValueError, "a number of cores from 1, got 2147483648"),
    (2**70, ValueError, "a number of cores from 1"),
    (True, TypeError, "an int or None, got True"),
    (2.0, TypeError, "an int or None, got 2.0"),
    ("8", TypeError, "an int or None, got '8'"),
    (torch.tensor(8), TypeError, "an int or None, got tensor"),
]


@pytest.mark.parametrize(("call", "name"), CALLS)
@pytest.mark.parametrize(("value", "error", "text"), WRONG, ids=lambda value: str(value)[:20])
def test_wrong_values(value, error, text, call, name):
    with pytest.raises(error, match=f"^{name}: expected cores to be {text}") as info:
        call(value)
    assert type(info.value) is error
    with FakeTensorMode(), pytest.raises(error, match=f"^{name}: expected cores to be {text}"):
        call(value)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_wrong_values_given_to_the_operators(device):
    dst, table = torch.zeros(3, 2, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    count, status = torch.zeros(1, dtype=torch.int64, device=device), torch.full((4,), 7, device=device)
    ops = torch.ops.offload
    with pytest.raises(ValueError, match=r"^sparse_copy: expected cores to be a number of cores from 1, got 0"):
        ops._sparse_copy_cores([dst], [dst.clone()], None, None, None, 0)
    with pytest.raises(ValueError, match=r"^sparse_copy: expected cores to be a number of cores from 1, got -1"):
        ops._sparse_copy_1(dst, dst.clone(), None, None, None, cores=-1)
    with pytest.raises(ValueError, match=r"^sparse_copy_ptrs: expected cores to be a number of cores from 1, got 0"):
        ops._sparse_copy_ptrs_cores(table, table.clone(), table.clone(), count, status, 0)


def test_gradients_are_refused_and_versions_bumped():
    dst, src = torch.zeros(3, 2), torch.ones(3, 2, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"^sparse_copy: expected src not to require grad"):
        torch_offload.sparse_copy(dst, src, cores=2)
    before = dst._version
    torch_offload.sparse_copy(dst, src.detach(), cores=2)
    assert dst._version == before + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled(backend):
    def function(dst, other, src, index, cores):
        torch_offload.sparse_copy([dst, other[0], other[1]], [src] * 3, src_index=index, cores=cores)

    compiled, counter = compile_counted(function, backend)
    src = torch.arange(20.0).view(10, 2)
    for cores in (4, 4, 8):
        dst, other = torch.zeros(3, 2), torch.zeros(2, 3, 2)
        compiled(dst, other, src, torch.tensor([7, -1, 2]), cores)
        want = torch.stack([src[7], torch.zeros(2), src[2]])
        assert torch.equal(dst, want) and torch.equal(other, torch.stack([want, want]))
    assert counter.frame_count == 2  # it is a constant of the graph


def test_a_graph_holds_the_number_and_copies_nothing():
    def function(dst, src, index):
        torch_offload.sparse_copy(dst, src, src_index=index, cores=5)

    code = generated_code(function, torch.zeros(3, 2), torch.ones(9, 2), torch.tensor([1, 2, 3]))
    assert operators_of(code) == ["_sparse_copy_1"]
    assert "None, 5, other_dst=None" in code
    assert "empty_strided" not in code


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_by_addresses(backend):
    def function(src_ptrs, dst_ptrs, lengths, count, status):
        torch_offload.sparse_copy_ptrs(src_ptrs, dst_ptrs, lengths, count, status=status, cores=5)

    compiled, _ = compile_counted(function, backend)
    src, dst = torch.tensor([41]), torch.tensor([0])
    status = torch.zeros(4, dtype=torch.int64)
    table = lambda value: torch.tensor([value])  # noqa: E731
    compiled(table(src.data_ptr()), table(dst.data_ptr()), table(8), table(1), status)
    assert (dst.item(), status.tolist()) == (41, [1, 0, 0, -1])
