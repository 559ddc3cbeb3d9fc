# SPDX-License-Identifier: Apache-2.0
"""Small decode steps for the graph modes: a plan, copies, arithmetic on what was copied.

A step's tensors stay; between calls only what its tables hold changes. The same step on the CPU says what must come
out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from npu_support import DEVICE
from torch import Tensor

import torch_offload

ROWS, SLOTS = 50, 20
WIDTHS = (24, 4, 130, 1, 7)
ONE, TWO = {"sparse_copy": 1}, {"sparse_copy": 2}


@dataclass
class Step:
    """A function of tensors, and its arguments.

    `watched` is what the calls write; `calls` says how often each kernel runs in one eager call, `traced` in one of a
    traced graph, where the list operator has become several.
    """

    call: Callable[..., tuple[Tensor, ...]]
    args: list[Tensor]
    index: Tensor
    count: Tensor
    watched: list[Tensor]
    calls: dict[str, int]
    traced: dict[str, int]
    limit: int = SLOTS
    keep: list[Tensor] = field(default_factory=list)

    def set(self, seed: int) -> None:
        """Other rows, another count; the destinations keep what the calls before left there."""
        draw = torch.Generator().manual_seed(seed)
        count = int(torch.randint(0, self.limit + 1, (1,), generator=draw))
        index = torch.randint(-1, ROWS, self.index.shape, generator=draw)
        index[count:] = 10_000  # never looked at
        self.index.copy_(index)
        self.count.fill_(count)

    def state(self, results: tuple[Tensor, ...]) -> list[Tensor]:
        return [tensor.cpu().clone() for tensor in (*results, *self.watched)]


Place = Callable[[Tensor], Tensor]


def to_device(tensor: Tensor) -> Tensor:
    return tensor.to(DEVICE)


def to_cpu(tensor: Tensor) -> Tensor:
    return tensor.clone()


def _sources(number: int, host: Place) -> list[Tensor]:
    draw = torch.Generator().manual_seed(7)
    return [host(torch.randn(ROWS, width, generator=draw)) for width in WIDTHS[:number]]


def _tables(place: Place, length: int = SLOTS) -> tuple[Tensor, Tensor]:
    return place(torch.zeros(length, dtype=torch.int64)), place(torch.zeros(1, dtype=torch.int32))


def separate(place: Place, host: Place) -> Step:
    """K and V."""
    k, v = (place(torch.zeros(SLOTS, width)) for width in WIDTHS[:2])
    index, count = _tables(place)

    def call(k, v, k_host, v_host, index, count):
        torch_offload.sparse_copy([k, v], [k_host, v_host], src_index=index, count=count)
        return k * 2 + 1, v + 1

    return Step(call, [k, v, *_sources(2, host), index, count], index, count, [k, v], ONE, ONE)


def one_storage(place: Place, host: Place) -> Step:
    """K and V are halves of one tensor."""
    kv = place(torch.zeros(2, SLOTS, WIDTHS[0]))
    index, count = _tables(place)

    def call(k, v, k_host, v_host, index, count):
        torch_offload.sparse_copy([k, v], [k_host, v_host], src_index=index, count=count)
        return (k + v,)

    rows = torch.randn(2, ROWS, WIDTHS[0], generator=torch.Generator().manual_seed(7))
    sources = [host(half) for half in rows]
    return Step(call, [kv[0], kv[1], *sources, index, count], index, count, [kv], ONE, TWO)


def five(place: Place, host: Place) -> Step:
    """More components than one operator of a graph takes, and destination rows in another order."""
    dst = [place(torch.zeros(SLOTS, width)) for width in WIDTHS]
    index, count = _tables(place)
    slots = place(torch.arange(SLOTS).flip(0).to(torch.int32))

    def call(a, b, c, d, e, f, g, h, i, j, slots, index, count):
        torch_offload.sparse_copy([a, b, c, d, e], [f, g, h, i, j], slots, index, count=count)
        return a * 2, e + 1

    args = [*dst, *_sources(5, host), slots, index, count]
    return Step(call, args, index, count, dst, ONE, TWO)


def empty(place: Place, host: Place) -> Step:
    """No entries: nothing is launched, the arithmetic goes on."""
    k = place(torch.full((SLOTS, WIDTHS[0]), 3.0))
    index, count = _tables(place, 0)

    def call(k, k_host, index, count):
        torch_offload.sparse_copy(k, k_host, src_index=index, count=count)
        return (k * 2,)

    return Step(call, [k, *_sources(1, host), index, count], index, count, [k], {}, {}, limit=0)


def two_copies(place: Place, host: Place) -> Step:
    """What is read between two copies is what the first one left."""
    k = place(torch.zeros(SLOTS, WIDTHS[0]))
    index, count = _tables(place)
    first = _sources(1, host)[0]
    second = host(torch.arange(float(ROWS * WIDTHS[0])).view(ROWS, WIDTHS[0]))

    def call(k, first, second, index, count):
        torch_offload.sparse_copy(k, first, src_index=index, count=count)
        between = k * 2
        torch_offload.sparse_copy(k, second, src_index=index, count=count)
        return between, k + 1

    return Step(call, [k, first, second, index, count], index, count, [k], TWO, TWO)


def pointers(place: Place, host: Place) -> Step:
    """`sparse_copy_ptrs`: lengths and count change, its status is read in the graph."""
    del host  # addresses of host memory are another test's
    rows, dst = place(_sources(1, to_cpu)[0]), place(torch.zeros(SLOTS, WIDTHS[0]))
    pitch = WIDTHS[0] * rows.element_size()
    src_ptrs = place(rows.data_ptr() + torch.arange(SLOTS) * pitch)
    dst_ptrs = place(dst.data_ptr() + torch.arange(SLOTS).flip(0) * pitch)
    lengths, count = _tables(place)
    status = place(torch.zeros(4, dtype=torch.int64))

    def call(src_ptrs, dst_ptrs, lengths, count, status):
        torch_offload.sparse_copy_ptrs(src_ptrs, dst_ptrs, lengths, count, status=status)
        return (status + 1,)

    args = [src_ptrs, dst_ptrs, lengths, count, status]
    runs = {"sparse_copy_ptrs": 1, "sparse_copy_ptrs_status": 1}
    return Step(call, args, lengths, count, [dst, status], runs, runs, keep=[rows])


STEPS = {step.__name__: step for step in (separate, one_storage, five, empty, two_copies, pointers)}
