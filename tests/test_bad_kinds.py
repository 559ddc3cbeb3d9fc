# SPDX-License-Identifier: Apache-2.0
"""Tensors that are not plain memory, tensors elsewhere, tensors of autograd, and things that are no tensors."""

import numpy as np
import pytest
import torch
from cases import Builder, Sample
from checks import call_operator, call_wrapper, check_refused, fake, unchanged

import torch_offload

pytestmark = pytest.mark.filterwarnings("ignore:.*(prototype|beta state|quantized tensor creation functions).*")

SHAPE = (6, 8)


def good(dtype: torch.dtype = torch.float32) -> Sample:
    b = Builder(seed=71)
    return b.sample([b.rows(6, (8,), dtype)], [b.rows(6, (8,), dtype)], b.index([1, 2]), b.index([3, 0]), b.index([2]))


def replaced(argument: str, value: object, dtype: torch.dtype = torch.float32) -> Sample:
    sample = good(dtype)
    setattr(sample, argument, [value] if argument in ("dst", "src") else value)
    return sample


def named(argument: str) -> str:
    return rf"{argument}\[0\]" if argument in ("dst", "src") else argument


ARGUMENTS = ["dst", "src", "dst_index", "src_index", "count"]


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=layout)


KINDS = {
    "coordinates": (lambda: torch.eye(6, 8).to_sparse(), "layout Sparse"),
    "coordinates_of_rows": (lambda: torch.eye(6, 8).to_sparse(1), "layout Sparse"),
    "csr": (lambda: torch.eye(6, 8).to_sparse_csr(), "layout SparseCsr"),
    "csc": (lambda: torch.eye(6, 8).to_sparse_csc(), "layout SparseCsc"),
    "bsr": (lambda: torch.eye(6, 8).to_sparse_bsr((2, 2)), "layout SparseBsr"),
    "bsc": (lambda: torch.eye(6, 8).to_sparse_bsc((2, 2)), "layout SparseBsc"),
    "mkldnn": (lambda: torch.randn(SHAPE).to_mkldnn(), "layout Mkldnn"),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "layout nested"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
        "layout nested",
    ),
    "zero": (lambda: torch._efficientzerotensor(SHAPE), "zero tensor"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.zeros(SHAPE), 1.0, 0, torch.qint8), "quantized dtype"),
}


@pytest.mark.parametrize("call", [call_wrapper, call_operator])
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind, argument, call):
    make, text = KINDS[kind]
    sample = replaced(argument, make())
    with unchanged(*sample.buffers), pytest.raises(TypeError, match=rf"expected {named(argument)} to be a .*{text}"):
        call(sample)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("argument", ["dst", "src"])
def test_conjugate_view(argument, dtype):
    """Its bytes are not its values: a copy of bits would drop the conjugation."""
    sample = good(dtype)
    view = getattr(sample, argument)[0].conj()
    assert view.is_conj()
    setattr(sample, argument, [view])
    check_refused(sample, TypeError, rf"expected {named(argument)} to be a plain tensor, got a conjugate view")


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_negative_view(argument):
    sample = good()
    value = getattr(sample, argument)
    view = torch._neg_view(value[0] if isinstance(value, list) else value)
    assert view.is_neg()
    setattr(sample, argument, [view] if isinstance(value, list) else view)
    for call in (call_wrapper, call_operator):
        with (
            unchanged(*sample.buffers),
            pytest.raises(TypeError, match=rf"expected {named(argument)} to be a plain tensor, got a negative view"),
        ):
            call(sample)


@pytest.mark.parametrize("argument", ["dst", "src"])
def test_imaginary_part_of_a_conjugate_view(argument):
    """Where negative views come from in ordinary code; it is dense in its rows' pairs, too."""
    complex_rows = torch.randn(6, 8, dtype=torch.complex64).conj()
    view = complex_rows.imag
    assert view.is_neg()
    with pytest.raises(TypeError, match=rf"expected {named(argument)} .*negative view"):
        call_wrapper(replaced(argument, view))


def test_resolved_views_are_plain():
    dst, src = torch.zeros(6, 8, dtype=torch.complex64), torch.randn(6, 8, dtype=torch.complex64)
    torch_offload.sparse_copy(dst, src.conj().resolve_conj())
    assert torch.equal(dst, src.conj())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32], ids=str)
@pytest.mark.parametrize("argument", ["dst", "src"])
def test_lazy_views_without_data(argument, dtype):
    with fake(good(dtype)) as sample:
        tensor = getattr(sample, argument)[0]
        setattr(sample, argument, [tensor.conj() if dtype.is_complex else torch._neg_view(tensor)])
        with pytest.raises(TypeError, match="plain tensor"):
            call_wrapper(sample)


@pytest.mark.parametrize("call", [call_wrapper, call_operator])
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_meta_tensor_among_others(argument, call):
    sample = good()
    value = getattr(sample, argument)
    meta = value[0].to("meta") if isinstance(value, list) else value.to("meta")
    setattr(sample, argument, [meta] if isinstance(value, list) else meta)
    with unchanged(*sample.buffers), pytest.raises(ValueError, match=r"expected .* to be on device type meta, got cpu"):
        call(sample)


# Autograd.


@pytest.mark.parametrize("call", [call_wrapper, call_operator])
@pytest.mark.parametrize("argument", ["dst", "src"])
@pytest.mark.parametrize("kind", ["leaf", "computed", "parameter"])
def test_tensor_that_requires_grad(kind, argument, call):
    sample = good()
    sample.buffers = [buffer.clone() for buffer in sample.buffers]
    tensor = getattr(sample, argument)[0].nan_to_num()
    tensor = torch.nn.Parameter(tensor) if kind == "parameter" else tensor.requires_grad_()
    tensor = tensor * 2 if kind == "computed" else tensor
    setattr(sample, argument, [tensor])
    written = sample.dst[0].detach()
    with (
        unchanged(written),
        pytest.raises(NotImplementedError, match=rf"sparse_copy: expected {argument} not to require grad"),
    ):
        call(sample)
    for allowed in (torch.no_grad, torch.inference_mode):
        with allowed():
            call(sample)
    assert torch.equal(written[1], sample.src[0].detach()[3])


def test_tensor_that_requires_grad_without_data():
    with fake(good()) as sample:
        sample.src[0].requires_grad_()
        with pytest.raises(NotImplementedError, match="not to require grad"):
            call_wrapper(sample)


def test_grad_of_an_unrelated_component():
    sample = good()
    sample.dst.append(torch.zeros(6, 2))
    sample.src.append(torch.zeros(6, 2, requires_grad=True))
    check_refused(sample, NotImplementedError, "expected src not to require grad")


# Things that are no tensors.

NOT_TENSORS = {
    "int": 3,
    "str": "rows",
    "float": 1.5,
    "numpy": np.zeros((6, 8), dtype=np.float32),
    "list_of_int": [1, 2],
    "list_of_none": [None],
    "list_of_list": [[torch.zeros(6, 8)]],
    "tensor_and_int": [torch.zeros(6, 8), 3],
    "set": {1},
    "generator": (tensor for tensor in [torch.zeros(6, 8)]),
}


@pytest.mark.parametrize("kind", [*NOT_TENSORS, "None"])
@pytest.mark.parametrize("argument", ["dst", "src"])
def test_list_of_something_else(argument, kind):
    sample = good()
    value = NOT_TENSORS.get(kind)
    arguments = {"dst": sample.dst, "src": sample.src, argument: value}
    with (
        unchanged(*sample.buffers),
        pytest.raises(
            TypeError, match=rf"sparse_copy: expected {argument} to be a tensor or a list or tuple of tensors"
        ),
    ):
        torch_offload.sparse_copy(*arguments.values(), sample.dst_index, sample.src_index)


@pytest.mark.parametrize("kind", NOT_TENSORS)
@pytest.mark.parametrize("argument", ["dst_index", "src_index", "count"])
def test_table_of_something_else(argument, kind):
    sample = good()
    with (
        unchanged(*sample.buffers),
        pytest.raises(TypeError, match=rf"sparse_copy: expected {argument} to be a tensor or None, got "),
    ):
        torch_offload.sparse_copy(sample.dst, sample.src, **{argument: NOT_TENSORS[kind]})


def test_the_message_shows_the_value():
    with pytest.raises(TypeError, match=r"got 7 \(int\)"):
        torch_offload.sparse_copy(torch.zeros(2, 2), torch.zeros(2, 2), count=7)
    with pytest.raises(TypeError, match=r"got list of Tensor, NoneType"):
        torch_offload.sparse_copy([torch.zeros(2, 2), None], torch.zeros(2, 2))


def test_no_tensor_at_all():
    with pytest.raises(ValueError, match="expected dst to hold at least 1 tensor, got 0"):
        torch_offload.sparse_copy([], [])
    with pytest.raises(ValueError, match="expected dst to hold at least 1 tensor, got 0"):
        torch.ops.offload.sparse_copy([], [])


def test_count_by_position_is_refused():
    """The public signature has it by keyword only: a fifth tensor is nearly always a mistake."""
    sample = good()
    with pytest.raises(TypeError, match="positional"):
        torch_offload.sparse_copy(*sample.args())


def test_read_only_memory_is_not_a_destination():
    """Torch knows nothing of read-only arrays; a copy-on-write tensor gets memory of its own."""
    base = torch.zeros(4, 4)
    lazy = base._lazy_clone()
    torch_offload.sparse_copy(lazy, torch.ones(4, 4))
    assert not base.any()
    assert lazy.all()
