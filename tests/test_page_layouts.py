# SPDX-License-Identifier: Apache-2.0
"""Transfers between layouts of pages, one call each, against loops over pages, tokens, heads and layers."""

import itertools

import pytest
import torch
from torch import Tensor

from torch_offload import HostPool, sparse_copy
from torch_offload.layouts import PagedCache

LAYERS, PAGES, SIZE, HEADS, DIM = 3, 7, 4, 2, 5
SHAPES = {
    "layer_first": (LAYERS, PAGES, SIZE, HEADS, DIM),
    "page_first": (PAGES, LAYERS, SIZE, HEADS, DIM),
    "page_head": (PAGES, HEADS, SIZE, LAYERS, DIM),
}


def make(layout: str, seed: int, pool: HostPool | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randperm(LAYERS * PAGES * SIZE * HEADS * DIM, generator=generator).to(torch.int32)
    tensor = (
        torch.empty(SHAPES[layout], dtype=torch.int32)
        if pool is None
        else pool.empty(SHAPES[layout], dtype=torch.int32)
    )
    return tensor.copy_(values.view(SHAPES[layout]))


def head(cache: Tensor, layout: str, layer: int, page: int, token: int, number: int) -> Tensor:
    """The place of one head, by plain indexing."""
    if layout == "layer_first":
        return cache[layer, page, token, number]
    if layout == "page_first":
        return cache[page, layer, token, number]
    return cache[page, number, token, layer]


def expected_after(dst: Tensor, src: Tensor, layouts, pairs, layers) -> Tensor:
    out = dst.clone()
    for layer, (to, of), token, number in itertools.product(layers, pairs, range(SIZE), range(HEADS)):
        if to >= 0 and of >= 0:
            head(out, layouts[0], layer, to, token, number).copy_(head(src, layouts[1], layer, of, token, number))
    return out


def pieces_of(layouts) -> list[str]:
    return ["head"] if "page_head" in layouts else ["page", "token", "head"]


CASES = [
    (layouts, piece)
    for layouts in itertools.product(SHAPES, repeat=2)
    for piece in pieces_of(layouts)
]  # fmt: skip


@pytest.mark.parametrize("layers", [None, [1], [2, 0]], ids=["all", "one", "two"])
@pytest.mark.parametrize(("layouts", "piece"), CASES)
def test_pages_move_as_in_a_loop(layouts, piece, layers):
    """In both directions, since every pair of layouts is there; padded pages are negative on either side."""
    pool = HostPool(1 << 20, huge_pages="never")
    dst, src = make(layouts[0], 1), make(layouts[1], 2, pool)
    pairs = [(5, 0), (-1, 3), (2, 6), (0, -1), (3, 3)]
    to, of = (torch.tensor(side) for side in zip(*pairs, strict=True))
    expected = expected_after(dst, src, layouts, pairs, range(LAYERS) if layers is None else layers)
    ours, theirs = PagedCache(dst, layouts[0]), PagedCache(src, layouts[1])
    ids = (to, of) if piece == "page" else (ours.tokens(to), theirs.tokens(of.int()))
    sparse_copy(
        ours.views(piece, layers), theirs.views(piece, layers), ours.index(piece, ids[0]), theirs.index(piece, ids[1])
    )
    assert torch.equal(dst, expected)


@pytest.mark.parametrize("layouts", list(itertools.product(SHAPES, repeat=2)))
def test_single_tokens(layouts):
    dst, src = make(layouts[0], 3), make(layouts[1], 4)
    to, of = torch.tensor([27, 0, -1, 9], dtype=torch.int32), torch.tensor([3, 26, 5, -7])
    expected = dst.clone()
    for (i, j), layer, number in itertools.product([(27, 3), (0, 26)], range(LAYERS), range(HEADS)):
        place = head(expected, layouts[0], layer, i // SIZE, i % SIZE, number)
        place.copy_(head(src, layouts[1], layer, j // SIZE, j % SIZE, number))
    ours, theirs = PagedCache(dst, layouts[0]), PagedCache(src, layouts[1])
    sparse_copy(ours.views("head"), theirs.views("head"), ours.index("head", to), theirs.index("head", of))
    assert torch.equal(dst, expected)


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_rows_of_one_dimension(layout):
    """Latent rows have no heads: `[..., page_size, width]`, or one number a token."""
    for row in ((6,), ()):
        shape = (*SHAPES[layout][:3], *row)
        src = torch.arange(torch.Size(shape).numel()).view(shape)
        dst = torch.zeros_like(src)
        cache, copy = PagedCache(src, layout), PagedCache(dst, layout)
        assert cache.heads == 1
        tokens = torch.tensor([13, 2])
        sparse_copy(
            copy.views("token"), cache.views("token"), copy.index("token", tokens), cache.index("token", tokens)
        )
        for layer, token in itertools.product(range(LAYERS), range(PAGES * SIZE)):
            at = (layer, token // SIZE) if layout == "layer_first" else (token // SIZE, layer)
            wanted = src[at][token % SIZE] if token in (13, 2) else torch.zeros_like(src[at][token % SIZE])
            assert torch.equal(dst[at][token % SIZE], wanted)


def test_views_are_views():
    cache = make("page_first", 5)
    for piece in ("page", "token", "head"):
        for view in PagedCache(cache, "page_first").views(piece):
            assert view.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()


def test_compiled():
    dst, src = make("layer_first", 6), make("page_head", 7)
    ours, theirs = PagedCache(dst, "layer_first"), PagedCache(src, "page_head")
    pairs = [(1, 2), (4, 0)]
    expected = expected_after(dst, src, ("layer_first", "page_head"), pairs, range(LAYERS))

    @torch.compile(fullgraph=True)
    def move(to, of):
        to, of = ours.tokens(to), theirs.tokens(of)
        sparse_copy(ours.views("head"), theirs.views("head"), ours.index("head", to), theirs.index("head", of))

    move(torch.tensor([1, 4]), torch.tensor([2, 0]))
    assert torch.equal(dst, expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: PagedCache(None, "layer_first"), TypeError, "pool to be a tensor, got NoneType"),
        (lambda: PagedCache(torch.zeros(1, 2, 3, 4), "token_first"), ValueError, "layout to be one of .*'token_first'"),
        (lambda: PagedCache(torch.zeros(1, 2), "page_first"), ValueError, r"at least 3 dimensions \(pages, .*got 2"),
        (lambda: PagedCache(torch.zeros(2, 3, 4).mT, "page_first"), ValueError, "pool to be contiguous"),
        (lambda: PagedCache(torch.zeros(2, 3, 4), "page_first").views("row"), ValueError, "piece to be one of"),
        (lambda: PagedCache(torch.zeros(2, 3, 4), "page_first").views("head"), ValueError, "rows of heads"),
        (lambda: PagedCache(make("page_head", 0), "page_head").views("page"), ValueError, "piece to be head"),
        (lambda: PagedCache(make("page_head", 0), "page_head").views("head", [3]), ValueError, r"in \[0, 3\), got 3"),
        (lambda: PagedCache(torch.zeros(2, 3, 4), "page_first").index("page", [1]), TypeError, "got list"),
        (lambda: PagedCache(torch.zeros(2, 3, 4), "page_first").index("page", torch.zeros(1)), TypeError, "float32"),
    ],
)  # fmt: skip
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
