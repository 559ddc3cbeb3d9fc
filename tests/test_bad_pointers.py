# SPDX-License-Identifier: Apache-2.0
"""Wrong tables, counts and status tensors of sparse_copy_ptrs: typed errors; neither memory nor status is written."""

import re
from collections.abc import Callable

import pytest
import torch
from cases import Builder
from checks import ToMeta, unchanged
from pointer_cases import PtrSample, ranges, sample_of
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_offload

TABLES = ["src_ptrs", "dst_ptrs", "lengths"]
ARGUMENTS = [*TABLES, "count", "status"]


def good() -> PtrSample:
    b = Builder(seed=81)
    lengths = [9, 17, 5]
    return sample_of(b, *ranges(b, lengths), lengths)


def call_wrapper(sample: PtrSample) -> None:
    torch_offload.sparse_copy_ptrs(*sample.tables(), status=sample.status)


def call_operator(sample: PtrSample) -> None:
    torch.ops.offload.sparse_copy_ptrs.default(*sample.args())


CALLS = [call_wrapper, call_operator]


def check_refused(sample: PtrSample, error: type[Exception], match: str) -> None:
    for call in CALLS:
        with unchanged(*sample.buffers, *sample.args()), pytest.raises(error, match=match) as info:
            call(sample)
        assert type(info.value) is error


def spoiled(argument: str, value: torch.Tensor) -> PtrSample:
    sample = good()
    setattr(sample, argument, value)
    return sample


STRUCTURE: dict[str, tuple[str, Callable[[], torch.Tensor], type[Exception], str]] = {}


def bad(name: str, argument: str, tensor: torch.Tensor, error: type[Exception], text: str) -> None:
    STRUCTURE[f"{argument}_{name}"] = (argument, lambda: tensor.clone(), error, text)


for _argument in ARGUMENTS:
    _length = {"count": 1, "status": 4}.get(_argument, 3)
    _allowed = {"lengths": "Int or Long", "count": "Int or Long", "status": "Long"}.get(_argument, "Long or UInt64")
    for _dtype, _name in (
        (torch.uint8, "Byte"),
        (torch.bool, "Bool"),
        (torch.float64, "Double"),
        (torch.int16, "Short"),
        (torch.int32, "Int"),
        (torch.uint64, "UInt64"),
    ):
        if _name not in _allowed:
            _zeros = torch.zeros(_length, dtype=_dtype)
            bad(_name, _argument, _zeros, TypeError, f"have dtype {_allowed}, got {_name}")
    if _argument != "count":
        for _shape in ((), (3, 1), (1, 3)):
            _zeros = torch.zeros(_shape, dtype=torch.int64)
            bad(f"of_shape_{_shape}", _argument, _zeros, ValueError, f"have 1 dimension, got {len(_shape)}")


for _argument, _length, _text in (
    ("dst_ptrs", 2, "have the length of src_ptrs, 3, got 2"),
    ("dst_ptrs", 0, "have the length of src_ptrs, 3, got 0"),
    ("lengths", 4, "have the length of src_ptrs, 3, got 4"),
    ("lengths", 0, "have the length of src_ptrs, 3, got 0"),
    ("count", 0, "have one element, got 0"),
    ("count", 2, "have one element, got 2"),
    ("status", 3, "have 4 elements, got 3"),
    ("status", 5, "have 4 elements, got 5"),
):
    bad(f"of_length_{_length}", _argument, torch.zeros(_length, dtype=torch.int64), ValueError, _text)

STRUCTURE["status_expanded"] = (
    "status",
    lambda: torch.zeros(1, dtype=torch.int64).expand(4),
    ValueError,
    "have elements that do not overlap each other, got stride 0",
)


@pytest.mark.parametrize("kind", STRUCTURE)
def test_structure(kind):
    argument, make, error, text = STRUCTURE[kind]
    check_refused(spoiled(argument, make()), error, rf"sparse_copy_ptrs: expected {argument} to {text}")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", STRUCTURE)
def test_structure_without_data(kind, call):
    argument, make, error, text = STRUCTURE[kind]
    sample = spoiled(argument, make())
    meta = PtrSample(*map(ToMeta(), sample.args()))
    with FakeTensorMode() as mode:
        fakes = PtrSample(*map(mode.from_tensor, sample.args()))
        with pytest.raises(error, match=rf"expected {argument} to {text}"):
            call(fakes)
    with pytest.raises(error, match=rf"expected {argument} to {text}"):
        call(meta)


@pytest.mark.parametrize("call", CALLS)
def test_what_is_right_is_accepted_without_data(call):
    call(PtrSample(*map(ToMeta(), good().args())))
    sample = good()
    with FakeTensorMode() as mode:
        call(PtrSample(*map(mode.from_tensor, sample.args())))


@pytest.mark.parametrize("value", [-1, 4, 1 << 31, (1 << 32) + 1, -(1 << 63)])
def test_count_outside_the_entries(value):
    sample = spoiled("count", torch.tensor(value))
    check_refused(sample, ValueError, rf"sparse_copy_ptrs: expected count to be in \[0, 3\], got {value}$")


@pytest.mark.parametrize("table", [*TABLES, "count"])
def test_status_inside_a_table(table):
    sample = good()
    both = torch.zeros(12, dtype=torch.int64)
    value = getattr(sample, table)
    both[3 : 3 + len(value)] = value
    setattr(sample, table, both[3 : 3 + len(value)])
    sample.status = both[:4]
    check_refused(sample, ValueError, rf"expected status not to overlap .* shared with {table}$")
    sample.status = both[6:10]
    call_wrapper(sample)
    assert sample.status.tolist() == [3, 0, 0, -1]


def test_status_that_interleaves_with_a_table():
    sample = good()
    both = torch.zeros(4, 2, dtype=torch.int64)
    both[:3, 1] = sample.lengths
    sample.lengths, sample.status = both[:3, 1], both[:, 0]
    call_wrapper(sample)
    assert both.tolist() == [[3, 9], [0, 17], [0, 5], [-1, 0]]


KINDS = {
    "coordinates": lambda: torch.eye(3, dtype=torch.int64).to_sparse(),
    "csr": lambda: torch.eye(3, dtype=torch.int64).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "negative": lambda: torch._neg_view(torch.zeros(4, dtype=torch.int64)),
    "conjugate": lambda: torch.zeros(4, dtype=torch.complex64).conj(),
    "meta": lambda: torch.zeros(3, dtype=torch.int64, device="meta"),
}


@pytest.mark.filterwarnings("ignore:.*(prototype|beta state).*")
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind, argument):
    sample = spoiled(argument, KINDS[kind]())
    error, text = {"meta": (ValueError, "on device type meta, got cpu")}.get(
        kind, (TypeError, f"expected {argument} to")
    )
    for call in CALLS:
        with unchanged(*sample.buffers), pytest.raises(error, match=re.escape(text)):
            call(sample)


@pytest.mark.filterwarnings("ignore:.*(prototype|beta state).*")
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_jagged(argument):
    sample = spoiled(argument, torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged))
    text = f"sparse_copy_ptrs: expected {argument} to be a strided tensor, got layout nested"
    with unchanged(*sample.buffers), pytest.raises(TypeError, match=text):
        call_wrapper(sample)


@pytest.mark.parametrize("argument", ARGUMENTS[:-1])
@pytest.mark.parametrize("value", [3, "x", [1, 2, 3], None], ids=str)
def test_no_tensor(argument, value):
    sample = spoiled(argument, value)
    with (
        unchanged(*sample.buffers),
        pytest.raises(TypeError, match=f"sparse_copy_ptrs: expected {argument} to be a tensor, got "),
    ):
        call_wrapper(sample)


@pytest.mark.parametrize("value", [3, [0, 0, 0, 0]], ids=str)
def test_status_is_no_tensor(value):
    with pytest.raises(TypeError, match="sparse_copy_ptrs: expected status to be a tensor or None, got "):
        call_wrapper(spoiled("status", value))


def test_no_status_while_compiling():
    sample = good()
    with pytest.raises(Exception, match="expected status to be a tensor from outside the compiled graph, got None"):
        torch.compile(torch_offload.sparse_copy_ptrs, backend="eager", fullgraph=True)(*sample.tables())
