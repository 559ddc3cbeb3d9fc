# SPDX-License-Identifier: Apache-2.0
"""sparse_copy on views: strides, permuted and expanded rows, components that share a storage or bytes, no rows."""

import pytest
import torch
from cases import Builder, Sample
from checks import check_sparse_copy, num_threads


def indices(b: Builder, dst_rows: int, src_rows: int, n: int) -> list[torch.Tensor]:
    return [b.index(b.shuffled(dst_rows, n)), b.index(b.drawn(src_rows, n))]


VIEWS = {
    "dense": lambda b: b.rows(24, (6, 8), torch.int16),
    "gap": lambda b: b.rows(24, (6, 8), torch.int16, gap=5),
    "offset": lambda b: b.rows(24, (6, 8), torch.int16, offset=7),
    "rows_of_a_slice": lambda b: b.rows(40, (6, 8), torch.int16)[9:33],
    "every_other_row": lambda b: b.rows(48, (6, 8), torch.int16)[1::2],
    "layer": lambda b: b.rows(24, (3, 6, 8), torch.int16)[:, 1],
    "layer_of_layers": lambda b: b.rows(24, (2, 3, 6, 8), torch.int16)[:, 1, 2],
    "column_block": lambda b: b.rows(24, (9 * 48,), torch.int16)[:, 48 * 3 : 48 * 4].unflatten(1, (6, 8)),
    "second_of_two": lambda b: b.rows(2, (24, 6, 8), torch.int16)[1],
    "unit_dimensions": lambda b: b.rows(24, (6, 8), torch.int16).unsqueeze(1).unsqueeze(-1),
}


@pytest.mark.parametrize("src_view", VIEWS)
@pytest.mark.parametrize("dst_view", VIEWS)
def test_views(dst_view, src_view):
    def make() -> Sample:
        b = Builder(seed=11)
        dst, src = VIEWS[dst_view](b), VIEWS[src_view](b)
        if dst.dim() != src.dim():  # unit dimensions on one side: give the other side its shape
            dst, src = (t if t.dim() == 5 else t.unsqueeze(1).unsqueeze(-1) for t in (dst, src))
        return b.sample([dst], [src], *indices(b, 24, 24, 15))

    check_sparse_copy(make)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 3, 2, 1), (0, 3, 1, 2)])
def test_rows_permuted_alike(order):
    def make() -> Sample:
        b = Builder(seed=12)
        dst = b.rows(9, (3, 4, 5), torch.float16, gap=4).permute(order)
        src = b.rows(11, (3, 4, 5), torch.float16, offset=3).permute(order)
        assert not dst[0].is_contiguous()
        return b.sample([dst], [src], *indices(b, 9, 11, 7))

    check_sparse_copy(make)


def test_channels_last_rows():
    def make() -> Sample:
        b = Builder(seed=13)
        dst = b.rows(9, (4, 5, 3), torch.uint8).permute(0, 3, 1, 2)
        src = b.rows(11, (4, 5, 3), torch.uint8).permute(0, 3, 1, 2)
        assert dst.is_contiguous(memory_format=torch.channels_last)
        return b.sample([dst], [src], *indices(b, 9, 11, 7))

    check_sparse_copy(make)


@pytest.mark.parametrize("rows", [1, 2, 77])
def test_expanded_source(rows):
    def make() -> Sample:
        b = Builder(seed=14)
        return b.sample([b.rows(9, (33,))], [b.rows(1, (33,)).expand(rows, 33)], *indices(b, 9, rows, 7))

    check_sparse_copy(make)


def test_source_rows_that_overlap_each_other():
    """A sliding window over the source: rows may share bytes where they are only read."""

    def make() -> Sample:
        b = Builder(seed=15)
        src = b.buffer(100).unfold(0, 33, 2)
        return b.sample([b.rows(9, (33,))], [src], *indices(b, 9, len(src), 7))

    check_sparse_copy(make)


def test_one_row_with_any_stride():
    """The stride of a dimension of one row says nothing."""

    def make() -> Sample:
        b = Builder(seed=16)
        dst, src = b.rows(1, (33,)), b.rows(1, (33,))
        return b.sample(
            [dst.as_strided((1, 33), (0, 1), dst.storage_offset())],
            [src.as_strided((1, 33), (7, 1), src.storage_offset())],
            b.index([0]),
            b.index([0]),
        )

    check_sparse_copy(make)


@pytest.mark.parametrize("components", [1, 2, 3, 4, 5, 16, 183])
def test_number_of_components(components):
    def make() -> Sample:
        b = Builder(seed=components)
        dst = [b.rows(13, (1 + c % 7 * 3,), [torch.uint8, torch.int32][c % 2]) for c in range(components)]
        src = [b.rows(17, (1 + c % 7 * 3,), [torch.uint8, torch.int32][c % 2]) for c in range(components)]
        return b.sample(dst, src, *indices(b, 13, 17, 9))

    check_sparse_copy(make)


@pytest.mark.parametrize("layers", [61])
def test_layers_of_one_page_first_pool(layers):
    """183 components whose destinations share three storages and whose sources share one."""
    shapes = [(16,), (4,), (3,)]

    def make() -> Sample:
        b = Builder(seed=17)
        pools = [b.rows(13, (layers, *shape)) for shape in shapes]
        host = b.rows(17, (layers, sum(shape[0] for shape in shapes)))
        dst = [pool[:, layer] for layer in range(layers) for pool in pools]
        src = [part for layer in range(layers) for part in host[:, layer].split([16, 4, 3], dim=1)]
        return b.sample(dst, src, *indices(b, 13, 17, 9))

    check_sparse_copy(make)


@pytest.mark.parametrize("threads", [1, 16])
def test_interleaved_components(threads):
    """K beside V in one row of one buffer, with bytes between that are neither's."""

    def make() -> Sample:
        b = Builder(seed=18)
        dst, src = b.rows(3000, (700,)), b.rows(3500, (700,))
        parts = [slice(0, 512), slice(515, 643), slice(650, 699)]
        return b.sample([dst[:, p] for p in parts], [src[:, p] for p in parts], *indices(b, 3000, 3500, 2500))

    with num_threads(threads):
        check_sparse_copy(make)


def overlapping_components(kind: str, row_bytes: int) -> Sample:
    b = Builder(seed=19)
    rows, entries = 40, 1 + (3 << 20) // row_bytes
    base = b.rows(rows + 8, (row_bytes,))
    shifted = base.as_strided((rows, row_bytes), (row_bytes, 1), base.storage_offset() + row_bytes // 2)
    dst = {
        "same": [base[:rows], base[:rows], base[:rows]],
        "shifted_by_rows": [base[:rows], base[3 : rows + 3], base[1 : rows + 1]],
        "shifted_by_half_a_row": [base[:rows], shifted],
        "inside": [base[:rows], base[:rows, row_bytes // 4 : row_bytes // 2]],
        "around": [base[:rows, row_bytes // 4 : row_bytes // 2], base[:rows]],
    }[kind]
    src = [b.rows(50, tuple(tensor.shape[1:])) for tensor in dst]
    return b.sample(dst, src, b.index(b.drawn(rows, entries)), b.index(b.drawn(50, entries)))


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("row_bytes", [640, 300_000])
@pytest.mark.parametrize("kind", ["same", "shifted_by_rows", "shifted_by_half_a_row", "inside", "around"])
def test_last_of_overlapping_components_wins(kind, row_bytes, threads):
    with num_threads(threads):
        check_sparse_copy(lambda: overlapping_components(kind, row_bytes))


EMPTY = {
    "no_rows_either_side": lambda b: ([b.rows(0, (33,))], [b.rows(0, (33,))], b.index([]), b.index([])),
    "no_rows_no_index": lambda b: ([b.rows(0, (33,))], [b.rows(0, (33,))]),
    "no_source_rows_all_skipped": lambda b: ([b.rows(5, (33,))], [b.rows(0, (33,))], b.index([3]), b.index([-1])),
    "no_destination_rows_all_skipped": lambda b: ([b.rows(0, (33,))], [b.rows(5, (33,))], b.index([-1]), b.index([3])),
    "no_bytes": lambda b: ([b.rows(5, (0,))], [b.rows(5, (0,))]),
    "no_bytes_in_the_middle": lambda b: ([b.rows(5, (3, 0, 4))], [b.rows(5, (3, 0, 4))], b.index([3]), b.index([1])),
    "empty_index": lambda b: ([b.rows(5, (33,))], [b.rows(5, (33,))], b.index([]), b.index([])),
    "count_zero": lambda b: ([b.rows(5, (33,))], [b.rows(5, (33,))], b.index([9]), b.index([9]), b.index([0])),
    "count_zero_without_index": lambda b: ([b.rows(5, (33,))], [b.rows(5, (33,))], None, None, b.index([0])),
    "all_skipped": lambda b: ([b.rows(5, (33,))], [b.rows(5, (33,))], b.index([-1, -1]), b.index([-1, -1])),
    "null_pointers": lambda b: ([torch.empty(0, 33)], [torch.empty(0, 33)]),
    "null_with_offset": lambda b: ([torch.empty(3)[3:]], [torch.empty(3)[3:]], b.index([]), b.index([])),
    "null_source": lambda b: ([b.rows(5, ())], [torch.empty(0, dtype=torch.uint8)], b.index([-1]), b.index([0])),
    "empty_rows_share_the_buffer": lambda b: (lambda t: ([t[2:2]], [t], b.index([]), b.index([])))(b.rows(5, (33,))),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_nothing_to_copy(kind):
    def make() -> Sample:
        b = Builder(seed=20)
        return b.sample(*EMPTY[kind](b))

    got = check_sparse_copy(make)
    for a, b in zip(got.tensors(), make().tensors(), strict=True):
        assert torch.equal(a, b)


def test_null_component_among_others():
    def make() -> Sample:
        b = Builder(seed=21)
        dst = [b.rows(5, (33,)), torch.empty(5, 0, dtype=torch.uint8), b.rows(5, (7,))]
        src = [b.rows(6, (33,)), torch.empty(6, 0, dtype=torch.uint8), b.rows(6, (7,))]
        return b.sample(dst, src, *indices(b, 5, 6, 4))

    check_sparse_copy(make)
