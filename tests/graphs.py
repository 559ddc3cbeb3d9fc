# SPDX-License-Identifier: Apache-2.0
"""What the tests of compiled calls share: running both ways, and reading what inductor generated."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from reference import as_bytes
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code
from torch.utils._pytree import tree_leaves

BACKENDS = ("aot_eager", "inductor")


def assert_same_bytes(actual: Any, expected: Any) -> None:
    """Compares all the tensors of two structures, whatever their dtypes."""
    pairs = list(zip(tree_leaves(actual), tree_leaves(expected), strict=True))
    for position, (a, e) in enumerate(pairs):
        if isinstance(e, Tensor):
            assert a.shape == e.shape and a.dtype == e.dtype
            assert torch.equal(as_bytes(a), as_bytes(e)), f"tensor {position} differs"


def compile_counted(
    function: Callable[..., Any], backend: str, **options: Any
) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    """The function compiled as one graph, and the counter of its compilations."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, backend=counter, fullgraph=True, **options), counter


def assert_like_eager(
    function: Callable[..., Any],
    make: Callable[[], tuple[Any, ...]],
    backend: str,
    prepare: Callable[..., None] | None = None,
    **options: Any,
) -> None:
    """Compares results and arguments of one graph with those of an eager call, after both have written them.

    `make` gives equal arguments at each call; `prepare` may mark those of the graph.
    """
    expected, actual = make(), make()
    expected_result = function(*expected)
    compiled, counter = compile_counted(function, backend, **options)
    if prepare is not None:
        prepare(*actual)
    result = compiled(*actual)
    assert counter.frame_count == 1
    assert_same_bytes(actual, expected)
    assert_same_bytes(result, expected_result)


def generated_code(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    """The body of the function that inductor generates."""
    compiled = torch.compile(function, backend="inductor", fullgraph=True, **options)
    _, (code,) = run_and_get_code(compiled, *args)
    begin = code.index("def call(")
    return code[begin : code.index("\n\n", code.rindex("torch.ops.offload"))]


def operators_of(code: str) -> list[str]:
    """The names of our operators, in the order of their calls."""
    return re.findall(r"torch\.ops\.offload\.(\w+)\.default\(", code)


def assert_nothing_is_copied(code: str) -> None:
    """The generated code holds no allocation and no kernel but ours."""
    for line in code.splitlines():
        code_of_line = line.partition("#")[0]
        assert not re.search(r"empty_strided|clone|copy_\(|cpp_fused|torch\.ops\.aten|as_strided", code_of_line), line
