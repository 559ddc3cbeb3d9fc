# SPDX-License-Identifier: Apache-2.0
"""Fake and meta tensors are refused with the type of error that real ones give; nothing reads data."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_offload import sparse_copy, sparse_copy_ptrs


def empty(*shape: int, device: str | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, device=device, dtype=dtype)


def call_on(dst: str, src: str, index: str, count: str, components: int = 1) -> None:
    table = torch.empty(3, dtype=torch.int64, device=index)
    sparse_copy(
        [empty(8, 4, device=dst) for _ in range(components)],
        [empty(9, 4, device=src) for _ in range(components)],
        table,
        table,
        count=torch.empty(1, dtype=torch.int32, device=count),
    )


@pytest.mark.parametrize("components", [1, 5])
@pytest.mark.parametrize(
    "devices",
    [
        ("cpu", "cpu", "cpu", "cpu"),
        ("meta", "meta", "meta", "meta"),
        ("cuda", "cuda", "cuda", "cuda"),
        ("cuda", "cpu", "cuda", "cuda"),  # from a host pool
        ("cpu", "cuda", "cuda", "cpu"),  # into it
        ("cuda", "cpu", "cpu", "cpu"),
        ("xpu:1", "cpu", "xpu:1", "xpu:1"),
    ],
    ids=",".join,
)
def test_one_accelerator_beside_host_memory(devices: tuple[str, ...], components: int):
    with FakeTensorMode():
        call_on(*devices, components)


@pytest.mark.parametrize("components", [1, 5])
@pytest.mark.parametrize(
    ("devices", "refused"),
    [
        (("cuda", "xpu", "cuda", "cuda"), "src[0] to be on cuda:0 or in host memory, got xpu:0"),
        (("cuda:0", "cuda:1", "cuda:0", "cuda:0"), "src[0] to be on cuda:0 or in host memory, got cuda:1"),
        (("cpu", "cuda:1", "cuda:0", "cpu"), "dst_index to be on cuda:1 or in host memory, got cuda:0"),
        (("cuda", "cuda", "cuda", "xpu"), "count to be on cuda:0 or in host memory, got xpu:0"),
        (("meta", "cpu", "meta", "meta"), "src[0] to be on meta, got cpu"),
        (("cpu", "meta", "cpu", "cpu"), "dst[0] to be on meta, got cpu"),
        (("cpu", "cpu", "meta", "cpu"), "dst[0] to be on meta, got cpu"),
        (("cuda", "cuda", "cuda", "meta"), "count to be on cuda:0 or in host memory, got meta"),
    ],
    ids=str,
)
def test_mixed_devices_are_refused(devices: tuple[str, ...], refused: str, components: int):
    with FakeTensorMode(), pytest.raises(ValueError) as error:
        call_on(*devices, components)
    assert str(error.value) == f"sparse_copy: expected {refused}"


@pytest.mark.parametrize("devices", [("meta", "cpu", "cpu", "cpu"), ("cpu", "cpu", "cpu", "meta")], ids=",".join)
def test_real_tensors_mixed_with_meta_are_refused_alike(devices: tuple[str, ...]):
    with pytest.raises(ValueError, match=r"sparse_copy: expected .* to be on"):
        call_on(*devices)


@pytest.mark.parametrize("argument", range(5))
def test_pointer_tables_are_on_one_device(argument: int):
    def call() -> None:
        devices = ["cpu"] * 5
        devices[argument] = "cuda"
        sizes = zip((3, 3, 3, 1, 4), devices, strict=True)
        *tables, status = (torch.empty(n, dtype=torch.int64, device=device) for n, device in sizes)
        sparse_copy_ptrs(*tables, status=status)

    with FakeTensorMode(), pytest.raises(ValueError, match=r"sparse_copy_ptrs: expected .* to be on .* like status"):
        call()


def overlapping() -> None:
    pool = empty(12, 4)
    sparse_copy(pool[:6], pool[4:10])


def overlapping_in_the_second_group() -> None:
    pool = empty(12, 4)
    sparse_copy([empty(6, 4) for _ in range(4)] + [pool[:6]], [pool[4:10]] + [empty(6, 4) for _ in range(4)])


def of_a_pointer_table(**changes: Tensor) -> None:
    tables = {name: torch.empty(3, dtype=torch.int64) for name in ("src_ptrs", "dst_ptrs", "lengths")}
    tables |= {"count": torch.empty(1, dtype=torch.int64), "status": torch.empty(4, dtype=torch.int64)}
    sparse_copy_ptrs(**(tables | changes))


INDEX = torch.int64
MISTAKES: dict[str, Callable[[], None]] = {
    "row_shape": lambda: sparse_copy(empty(8, 4), empty(8, 5)),
    "row_shape_of_second_group": lambda: sparse_copy([empty(8, 4)] * 2, [empty(8, 4), empty(8, 5)]),
    "dtype": lambda: sparse_copy(empty(8, 4), empty(8, 4, dtype=torch.float16)),
    "rank": lambda: sparse_copy(empty(8, 4), empty(8)),
    "no_dimension": lambda: sparse_copy(empty(), empty()),
    "no_dimension_in_two_groups": lambda: sparse_copy(list(empty(2).unbind()), list(empty(2).unbind())),
    "no_component": lambda: sparse_copy([], []),
    "components_unequal": lambda: sparse_copy([empty(8, 4)], [empty(8, 4)] * 2),
    "row_counts": lambda: sparse_copy(empty(8, 4), empty(9, 4)),
    "row_counts_of_two_groups": lambda: sparse_copy([empty(8, 4) for _ in range(5)], [empty(8, 4)] * 4 + [empty(7, 4)]),
    "index_dtype": lambda: sparse_copy(empty(8, 4), empty(8, 4), empty(3)),
    "index_rank": lambda: sparse_copy(empty(8, 4), empty(8, 4), empty(3, 1, dtype=INDEX)),
    "index_lengths": lambda: sparse_copy(empty(8, 4), empty(8, 4), empty(3, dtype=INDEX), empty(4, dtype=INDEX)),
    "count_dtype": lambda: sparse_copy(empty(8, 4), empty(8, 4), count=empty(1)),
    "count_size": lambda: sparse_copy(empty(8, 4), empty(8, 4), count=empty(2, dtype=INDEX)),
    "sparse": lambda: sparse_copy(torch.sparse_coo_tensor(size=(8, 4)), empty(8, 4)),
    "sparse_src": lambda: sparse_copy(empty(8, 4), torch.sparse_coo_tensor(size=(8, 4))),
    "conjugate": lambda: sparse_copy(empty(8, 4, dtype=torch.cfloat).conj(), empty(8, 4, dtype=torch.cfloat)),
    "negative": lambda: sparse_copy(empty(8, 4), torch._neg_view(empty(8, 4))),
    "row_not_dense": lambda: sparse_copy(empty(8, 4, 2)[:, :, 0], empty(8, 4)),
    "rows_expanded": lambda: sparse_copy(empty(1, 4).expand(8, 4), empty(8, 4)),
    "overlap": overlapping,
    "overlap_in_the_second_group": overlapping_in_the_second_group,
    "requires_grad": lambda: sparse_copy(empty(8, 4), empty(8, 4).requires_grad_()),
    "no_tensor": lambda: sparse_copy(empty(8, 4), None),
    "no_tensor_in_list": lambda: sparse_copy([empty(8, 4)], [None]),
    "no_tensor_as_count": lambda: sparse_copy(empty(8, 4), empty(8, 4), count=3),
    "ptrs_dtype": lambda: of_a_pointer_table(src_ptrs=empty(3)),
    "ptrs_lengths_dtype": lambda: of_a_pointer_table(lengths=empty(3, dtype=torch.uint64)),
    "ptrs_unequal": lambda: of_a_pointer_table(dst_ptrs=empty(4, dtype=INDEX)),
    "ptrs_rank": lambda: of_a_pointer_table(dst_ptrs=empty(3, 1, dtype=INDEX)),
    "ptrs_count_size": lambda: of_a_pointer_table(count=empty(2, dtype=INDEX)),
    "ptrs_status_size": lambda: of_a_pointer_table(status=empty(3, dtype=INDEX)),
    "ptrs_status_dtype": lambda: of_a_pointer_table(status=empty(4, dtype=torch.int32)),
    "ptrs_no_tensor": lambda: of_a_pointer_table(count=3),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_fake_and_meta_raise_what_eager_raises(name: str):
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as eager:
        MISTAKES[name]()
    with FakeTensorMode(), pytest.raises(Exception) as fake:
        MISTAKES[name]()
    with torch.device("meta"), pytest.raises(Exception) as meta:
        MISTAKES[name]()
    assert fake.type is eager.type and meta.type is eager.type
    rule = str(eager.value).partition(", got")[0]
    assert rule.startswith("sparse_copy") and str(meta.value).startswith(rule)
    if "second_group" not in name and "two_groups" not in name:  # those count from the first of their own operator
        assert str(fake.value).startswith(rule)


def test_unknown_data_is_never_read():
    """Index values, `count` and addresses of fake tensors do not exist: reading one is an error."""
    with FakeTensorMode():
        index = torch.empty(3, dtype=INDEX)
        sparse_copy(empty(8, 4), empty(9, 4), index, index, count=torch.empty((), dtype=INDEX))
        of_a_pointer_table()
