# SPDX-License-Identifier: Apache-2.0
"""Caches in pages: the views and row numbers with which one `sparse_copy` moves pages, tokens or heads of any layers.

Engines keep the pages of a cache in one of three layouts. Whatever both sides have, all layers move in one call::

    host, device = PagedCache(k_host, "page_first"), PagedCache(k_device, "layer_first")
    sparse_copy(
        device.views("page"), host.views("page"), device.index("page", device_pages), host.index("page", host_pages)
    )
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = ["PagedCache"]

Layout = Literal["layer_first", "page_first", "page_head"]
Piece = Literal["page", "token", "head"]

_DIMENSIONS = {
    "layer_first": ("layers", "pages", "page_size"),
    "page_first": ("pages", "layers", "page_size"),
    "page_head": ("pages", "heads", "page_size", "layers"),
}
_PIECES = ("page", "token", "head")


class PagedCache:
    """A tensor that holds the pages of all layers.

    Moving in larger pieces is faster: take "page" where both sides have a page of a layer in one piece, "token" where
    they have a token, "head" where one of them is "page_head". Pieces of both sides must have the same shape, up to
    trailing dimensions that a `view` makes equal.

    Args:
        pool (Tensor): Contiguous. "layer_first": `[layers, pages, page_size, *row]`; "page_first":
            `[pages, layers, page_size, *row]`, with `row` as `(heads, *dim)` if heads are to be moved by themselves;
            "page_head": `[pages, heads, page_size, layers, *dim]`.
        layout (str): Which of them.

    Attributes:
        layers (int): Number of layers.
        pages (int): Number of pages.
        page_size (int): Tokens in a page.
        heads (int): Heads of a token; 1 where its row has one dimension or none.

    Raises:
        TypeError: `pool` is no tensor.
        ValueError: The layout is unknown, or the tensor is not contiguous or has too few dimensions.
    """

    def __init__(self, pool: Tensor, layout: Layout) -> None:
        if not isinstance(pool, Tensor):
            raise TypeError(f"PagedCache: expected pool to be a tensor, got {type(pool).__name__}")
        if layout not in _DIMENSIONS:
            raise ValueError(f"PagedCache: expected layout to be one of {', '.join(_DIMENSIONS)}, got {layout!r}")
        names = _DIMENSIONS[layout]
        if pool.dim() < len(names):
            raise ValueError(
                f"PagedCache: expected pool to have at least {len(names)} dimensions ({', '.join(names)}), "
                f"got {pool.dim()}"
            )
        if not pool.is_contiguous():
            raise ValueError(f"PagedCache: expected pool to be contiguous, got strides {pool.stride()}")
        sizes = dict(zip(names, pool.shape, strict=False))
        row = pool.shape[len(names) :]
        self.pool = pool
        self.layout = layout
        self.layers = sizes["layers"]
        self.pages = sizes["pages"]
        self.page_size = sizes["page_size"]
        self.heads = sizes.get("heads", row[0] if len(row) > 1 else 1)

    def views(self, piece: Piece, layers: Sequence[int] | None = None) -> list[Tensor]:
        """Returns one component of `sparse_copy` for each layer; `index` numbers its rows.

        Args:
            piece (str): What a row is: a "page" of a layer `[page_size, *row]`, a "token" `[*row]` or a "head" of a
                token `[*dim]`.
            layers (sequence of int or None): Which layers, in this order; None: all.

        Raises:
            ValueError: The piece is unknown or does not lie in one piece in this layout, or a layer does not exist.
        """
        self._check(piece)
        chosen = range(self.layers) if layers is None else layers
        for layer in chosen:
            if not 0 <= layer < self.layers:
                raise ValueError(f"PagedCache: expected layers to be in [0, {self.layers}), got {layer}")
        return [self._view(piece, layer) for layer in chosen]

    def index(self, piece: Piece, ids: Tensor) -> Tensor:
        """Returns the rows of `views` for pages or tokens, the same for every layer.

        Args:
            piece (str): As for `views`.
            ids (Tensor `[n]`, int32 or int64): Page numbers if the piece is a page, else token numbers: page *
                page_size + place in the page. Negative ones, such as padding, stay negative, which `sparse_copy` skips.

        Returns:
            Tensor: int64, `[n]`; for heads `[n * heads]`: all heads of the first token, then those of the next.

        Raises:
            TypeError: `ids` is no tensor of int32 or int64.
            ValueError: The piece is unknown, or does not lie in one piece in this layout.
        """
        self._check(piece)
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
            got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise TypeError(f"PagedCache: expected ids to be a tensor of int32 or int64, got {got}")
        ids = ids.to(torch.int64)
        if piece == "page":
            return ids
        page, place = ids // self.page_size, ids % self.page_size
        if piece == "token":
            rows = page * self._page_stride() + place
            return torch.where(ids < 0, -1, rows)
        head = torch.arange(self.heads, device=ids.device)
        if self.layout == "page_head":
            rows = (page.view(-1, 1) * self.heads + head) * self.page_size + place.view(-1, 1)
        else:
            rows = (page * self._page_stride() + place).view(-1, 1) * self.heads + head
        return torch.where(ids.view(-1, 1) < 0, -1, rows).view(-1)

    def tokens(self, pages: Tensor) -> Tensor:
        """Returns the numbers of all tokens of some pages, `[n * page_size]`; a negative page gives negative ones."""
        place = torch.arange(self.page_size, device=pages.device)
        tokens = pages.to(torch.int64).view(-1, 1) * self.page_size + place
        return torch.where(pages.view(-1, 1) < 0, -1, tokens).view(-1)

    def _page_stride(self) -> int:
        """Tokens from a page of a layer to the next in memory."""
        return self.page_size * (self.layers if self.layout == "page_first" else 1)

    def _view(self, piece: Piece, layer: int) -> Tensor:
        pool = self.pool
        if self.layout == "page_head":
            # Layers lie innermost: a row for each page, head and token, of which a layer has a part.
            return pool.view(-1, *pool.shape[3:])[:, layer]
        if piece == "page":
            return pool[layer] if self.layout == "layer_first" else pool[:, layer]
        row = pool.shape[3:] if piece == "token" else pool.shape[4:]
        per_token = self.heads if piece == "head" else 1
        if self.layout == "layer_first":
            return pool[layer].view(self.pages * self.page_size * per_token, *row)
        # All rows of all layers, from the first one of this layer on.
        count = self.pages * self.layers * self.page_size * per_token
        return pool.view(count, *row)[layer * self.page_size * per_token :]

    def _check(self, piece: str) -> None:
        if piece not in _PIECES:
            raise ValueError(f"PagedCache: expected piece to be one of {', '.join(_PIECES)}, got {piece!r}")
        if self.layout == "page_head" and piece != "head":
            raise ValueError(
                f"PagedCache: expected piece to be head in the layout page_head, where layers lie within a token, "
                f"got {piece}"
            )
        if self.layout != "page_head" and piece == "head" and self.pool.dim() < 5:
            raise ValueError(
                "PagedCache: expected rows of heads and their dimensions to move heads, "
                f"got rows of shape {tuple(self.pool.shape[3:])}"
            )
