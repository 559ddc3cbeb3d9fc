# SPDX-License-Identifier: Apache-2.0
"""What the example is checked against: a decoder that keeps everything on the device, in plain torch."""

from __future__ import annotations

import functools
from typing import Any

import torch
from dsa_model import CACHE_DTYPE, INDEX_KEY, LATENT, ROPE, Cache, Layer, attend, cache_rows, select
from torch import Tensor


class ResidentDecoder:
    """The same decoder with everything on the device, in plain torch.

    Args:
        layers (int): Number of layers.
        capacity (int): Tokens that the cache can hold.
        top_k (int): Rows that attention reads.
        device (torch.device): Where everything lies.
    """

    def __init__(self, layers: int, capacity: int, top_k: int, device: torch.device) -> None:
        self.top_k = top_k
        on_device = functools.partial(torch.zeros, device=device)
        self.caches = [new_cache(on_device, capacity) for _ in range(layers)]
        self.index_keys = [on_device(capacity, INDEX_KEY, dtype=CACHE_DTYPE) for _ in range(layers)]

    def layer_step(self, layer: Layer, cache: Cache, index_keys: Tensor, hidden: Tensor, position: Tensor):
        """One token through one layer.

        Returns:
            The next hidden state `[1, HIDDEN]`, the selected rows `[top_k]`, and what stands in them.
        """
        at = position.view(1)
        append(cache, index_keys, at, *cache_rows(layer, hidden, at))
        selected = select(layer, hidden, index_keys, position, self.top_k)
        rows = Cache(cache.latent.index_select(0, selected), cache.rope.index_select(0, selected))
        return attend(layer, hidden, position, rows.latent, rows.rope), selected, rows


def append(cache: Cache, index_keys: Tensor, at: Tensor, latent: Tensor, rope: Tensor, index_key: Tensor) -> None:
    """Puts the rows of the tokens `at` into a resident cache."""
    cache.latent.index_copy_(0, at, latent)
    cache.rope.index_copy_(0, at, rope)
    index_keys.index_copy_(0, at, index_key)


def new_cache(make, rows: int) -> Cache:
    """Returns the cache of one layer, made by a function like `torch.empty`."""
    return Cache(make((rows, LATENT), dtype=CACHE_DTYPE), make((rows, ROPE), dtype=CACHE_DTYPE))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Compares bytes, so that NaN equals itself and -0.0 is not 0.0."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def find_difference(
    ours: tuple[Tensor, Tensor, Cache],
    expected: tuple[Tensor, Tensor, Cache],
    model: Any,
    resident: ResidentDecoder,
    number: int,
    position: Tensor,
) -> str | None:
    """Compares all that one step did in one layer, in the order in which it happened; names the first difference."""
    at = position.view(1)
    host, kept = model.host[number], resident.caches[number]
    (after, selected, rows), (expected_after, expected_selected, expected_rows) = ours, expected
    on_host = at.to(host.latent.device)
    pairs = {
        "appended latent row": (host.latent[on_host].to(at.device), kept.latent[at]),
        "appended rotary row": (host.rope[on_host].to(at.device), kept.rope[at]),
        "appended indexer key": (model.index_keys[number][at], resident.index_keys[number][at]),
        "selection": (selected, expected_selected),
        "latent rows": (rows.latent, expected_rows.latent),
        "rotary rows": (rows.rope, expected_rows.rope),
        "attention": (after, expected_after),
    }
    return next((name for name, (a, b) in pairs.items() if not same_bits(a, b)), None)
