# SPDX-License-Identifier: Apache-2.0
"""sparse_copy moves bits: every dtype that torch has, NaN payloads and negative zeros included."""

import pytest
import reference
import torch
from cases import Builder, Sample
from checks import check_refused, check_sparse_copy

import torch_offload

ALL = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
QUANTIZED = [torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4]
PLAIN = [dtype for dtype in ALL if dtype not in QUANTIZED]

# Bytes that a copy through a number would change: quiet and signalling NaNs with payloads, -0.0, subnormals, bools that
# are neither 0 nor 1; as the ends of little-endian numbers of 1 to 16 bytes.
ENDS = ["ffff", "ff7f", "ffff", "0080", "f07f", "817f", "a17f", "c07f", "f8ff", "017c", "017e", "80ff", "0100", "02fe"]


def special_rows(tensor: torch.Tensor) -> None:
    """Fills a dense tensor with elements that end in `ENDS`; their other bytes stay as they are."""
    elements = reference.as_bytes(tensor).flatten(0, -2)
    for i, end in enumerate(ENDS):
        data = torch.tensor(list(bytes.fromhex(end)), dtype=torch.uint8)
        width = min(2, elements.shape[1])
        elements[i::17, -width:] = data[-width:]


def make_of(dtype: torch.dtype, *, special: bool) -> Sample:
    b = Builder(seed=31)
    dst, src = b.rows(20, (17, 3), dtype, offset=1, gap=2), b.rows(30, (17, 3), dtype)
    if special:
        special_rows(src)
    return b.sample([dst], [src], b.index(b.shuffled(20, 15)), b.index(b.drawn(30, 15)))


def test_the_dtypes_are_there():
    names = {str(dtype).removeprefix("torch.") for dtype in PLAIN}
    assert {"float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "bool", "complex32", "complex128", "uint16"} <= names
    assert {"uint64", "bits8", "bits16", "float4_e2m1fn_x2", "uint4", "int4"} <= names


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_bits_of_every_dtype(dtype, special):
    check_sparse_copy(lambda: make_of(dtype, special=special))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex128, torch.int64], ids=str)
def test_misaligned_elements(dtype):
    """Memory that other libraries hand out may begin anywhere."""
    for offset in (1, 3, 5, 7):
        memory = bytearray(range(256)) * 12
        dst = torch.frombuffer(memory, dtype=dtype, offset=offset, count=60).view(12, 5)
        src = torch.frombuffer(memory, dtype=dtype, offset=2000 + offset - 1, count=60).view(12, 5)
        index = torch.tensor([3, 0, 11])
        want = bytearray(memory)
        row = 5 * dtype.itemsize
        for i in index.tolist():
            to, of = offset + (11 - i) * row, 2000 + offset - 1 + i * row
            want[to : to + row] = memory[of : of + row]
        torch_offload.sparse_copy(dst, src, 11 - index, index)
        assert memory == want


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_another_dtype_of_the_same_size_is_refused(dtype):
    others = [other for other in PLAIN if other != dtype and other.itemsize == dtype.itemsize]
    b = Builder(seed=32)
    sample = b.sample([b.rows(4, (8,), dtype)], [b.rows(4, (8,), others[0] if others else torch.int64)])
    check_refused(sample, TypeError, r"sparse_copy: expected src\[0\] to have the dtype of dst, .*, got ")


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions.*")
@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_quantized_dtypes_are_refused(dtype):
    dst, src = (torch._empty_affine_quantized([4, 8], scale=1.0, zero_point=0, dtype=dtype) for _ in range(2))
    plain = torch.zeros(4, 8)
    for pair, side in (((dst, src), "dst"), ((plain, src), "src"), ((dst, plain), "dst")):
        with pytest.raises(TypeError, match=rf"sparse_copy: expected {side}\[0\] to be a plain tensor, got quantized"):
            torch_offload.sparse_copy(*pair)
