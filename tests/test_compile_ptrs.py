# SPDX-License-Identifier: Apache-2.0
"""sparse_copy_ptrs in graphs: executed as often as called, in order, held by its status."""

from collections.abc import Callable

import pytest
import torch
from graphs import BACKENDS, compile_counted, generated_code, operators_of
from pointer_cases import PTR_CASES, PtrCase
from torch import Tensor

from torch_offload import sparse_copy_ptrs

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled"),
]

BACKEND = pytest.mark.parametrize("backend", BACKENDS)


def address(tensor: Tensor) -> Tensor:
    return torch.tensor([tensor.data_ptr()])


def cells(*values: int) -> list[Tensor]:
    """One number each, in memory of its own."""
    return [torch.tensor([value]) for value in values]


EIGHT_BYTES, ONE = torch.tensor([8]), torch.tensor([1])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@BACKEND
def test_every_case(backend: str, dynamic: bool):
    def function(*args: Tensor) -> None:
        sparse_copy_ptrs(*args[:4], status=args[4])

    def run(case: PtrCase, function: Callable) -> tuple[list[Tensor], Tensor]:
        sample = case.make()
        function(*sample.args())
        return sample.buffers, sample.status

    for case in PTR_CASES:
        torch._dynamo.reset()
        compiled, counter = compile_counted(function, backend, dynamic=dynamic)
        expected_buffers, expected_status = run(case, function)
        buffers, status = run(case, compiled)
        assert counter.frame_count == 1
        assert torch.equal(status, expected_status), case.name
        assert all(torch.equal(a, e) for a, e in zip(buffers, expected_buffers, strict=True)), case.name


@BACKEND
def test_every_call_is_executed_in_order(backend: str):
    """A -> b -> c -> d: a wrong order, or a call that is missing, leaves another number somewhere."""

    def function(a, b, c, d, status):
        for src, dst in ((a, b), (b, c), (c, d), (a, b)):
            sparse_copy_ptrs(src, dst, EIGHT_BYTES, ONE, status=status)

    memory = cells(1, 2, 3, 4)
    status = torch.zeros(4, dtype=torch.int64)
    compiled, counter = compile_counted(function, backend)
    compiled(*(address(cell) for cell in memory), status)
    assert [int(cell) for cell in memory] == [1, 1, 1, 1]
    assert status.tolist() == [1, 0, 0, -1]
    assert counter.frame_count == 1


@BACKEND
def test_statuses_of_their_own(backend: str):
    def function(a, b, c, first, second):
        sparse_copy_ptrs(a, b, EIGHT_BYTES, ONE, status=first)
        sparse_copy_ptrs(a, c, EIGHT_BYTES, ONE, status=second)

    memory = cells(1, 2, 3)
    statuses = torch.zeros(2, 4, dtype=torch.int64).unbind()
    compiled, _ = compile_counted(function, backend)
    compiled(*(address(cell) for cell in memory), *statuses)
    assert [int(cell) for cell in memory] == [1, 1, 1]
    assert [status.tolist() for status in statuses] == [[1, 0, 0, -1]] * 2


@BACKEND
def test_identical_calls_are_both_executed_in_a_training_graph(backend: str):
    def function(x, a, b, c, status):
        y = x * x
        sparse_copy_ptrs(a, b, EIGHT_BYTES, ONE, status=status)
        before = status.clone()
        sparse_copy_ptrs(b, c, EIGHT_BYTES, ONE, status=status)
        sparse_copy_ptrs(b, c, EIGHT_BYTES, ONE, status=status)
        return (y * 3).sum(), before

    memory = cells(1, 2, 3)
    status = torch.zeros(4, dtype=torch.int64)
    x = torch.tensor([2.0, 5.0], requires_grad=True)
    compiled, _ = compile_counted(function, backend)
    loss, before = compiled(x, *(address(cell) for cell in memory), status)
    loss.backward()
    assert x.grad.tolist() == [12.0, 30.0]
    assert [int(cell) for cell in memory] == [1, 1, 1]
    assert before.tolist() == status.tolist() == [1, 0, 0, -1]


def test_generated_code_calls_it_as_often_and_copies_nothing():
    def function(a, b, status):
        sparse_copy_ptrs(a, b, EIGHT_BYTES, ONE, status=status)
        sparse_copy_ptrs(b, a, EIGHT_BYTES, ONE, status=status)

    memory = cells(1, 2)
    code = generated_code(function, *(address(cell) for cell in memory), torch.zeros(4, dtype=torch.int64))
    assert operators_of(code) == ["sparse_copy_ptrs", "sparse_copy_ptrs"]
    assert "empty_strided" not in code and "cpp_fused" not in code


@BACKEND
def test_no_status_in_a_graph_is_an_error(backend: str):
    def function(a, b):
        sparse_copy_ptrs(a, b, EIGHT_BYTES, ONE)

    compiled, _ = compile_counted(function, backend)
    memory = cells(1, 2)
    with pytest.raises(Exception, match="expected status to be a tensor from outside the compiled graph"):
        compiled(*(address(cell) for cell in memory))


@BACKEND
def test_a_status_made_inside_and_dropped_deletes_the_call(backend: str):
    """Documented in the docstring: a graph keeps only what somebody can see."""

    def function(a, b, x):
        sparse_copy_ptrs(a, b, EIGHT_BYTES, ONE, status=torch.empty(4, dtype=torch.int64))
        return x + 1

    def returned(a, b):
        return sparse_copy_ptrs(a, b, EIGHT_BYTES, ONE, status=torch.empty(4, dtype=torch.int64))

    memory = cells(1, 2)
    compiled, _ = compile_counted(function, backend)
    compiled(*(address(cell) for cell in memory), torch.zeros(1))
    assert [int(cell) for cell in memory] == [1, 2]
    compiled, _ = compile_counted(returned, backend)
    assert compiled(*(address(cell) for cell in memory)).tolist() == [1, 0, 0, -1]
    assert [int(cell) for cell in memory] == [1, 1]


@BACKEND
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad_mode(mode: Callable, backend: str):
    def function(a, b, status):
        sparse_copy_ptrs(a, b, EIGHT_BYTES, ONE, status=status)

    with mode():
        memory = cells(1, 2)
        status = torch.zeros(4, dtype=torch.int64)
        compiled, _ = compile_counted(function, backend)
        compiled(*(address(cell) for cell in memory), status)
        assert int(memory[1]) == 1 and int(status[0]) == 1
