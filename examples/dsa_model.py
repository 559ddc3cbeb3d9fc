# SPDX-License-Identifier: Apache-2.0
"""A small decoder in the shape of DeepSeek Sparse Attention, with seeded weights.

Each layer keeps three rows per token: a latent key of 512 (which is also the value) and a rotary key of 64, which
attention reads, and a key of 128 for the indexer, which scores all tokens so that attention need only read the best
`top_k`. Weights are random: the text that it would write is nonsense, the shapes and the traffic are real.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

LATENT = 512
ROPE = 64
INDEX_KEY = 128
HIDDEN = 512
HEADS = 8
INDEX_HEADS = 4
CACHE_DTYPE = torch.bfloat16


@dataclass
class Layer:
    """Weights of one layer, named after what they make of the hidden state."""

    latent: Tensor
    rope: Tensor
    index_key: Tensor
    query_latent: Tensor
    query_rope: Tensor
    index_query: Tensor
    index_weight: Tensor
    output: Tensor
    up: Tensor
    down: Tensor


@dataclass
class Cache:
    """Rows of one layer for every token: what attention reads, wherever it lies."""

    latent: Tensor
    rope: Tensor


class Decoder:
    """The weights and the arithmetic; it holds no cache.

    Args:
        layers (int): Number of layers.
        seed (int): Of the weights.
        device (torch.device or str): Where the arithmetic runs.
    """

    def __init__(self, layers: int, seed: int, device: torch.device | str) -> None:
        generator = torch.Generator().manual_seed(seed)

        def weight(rows: int, columns: int) -> Tensor:
            return (torch.randn(rows, columns, generator=generator) / rows**0.5).to(device)

        self.embedding = torch.randn(256, HIDDEN, generator=generator).to(device)
        self.layers = [
            Layer(
                latent=weight(HIDDEN, LATENT),
                rope=weight(HIDDEN, ROPE),
                index_key=weight(HIDDEN, INDEX_KEY),
                query_latent=weight(HIDDEN, HEADS * LATENT),
                query_rope=weight(HIDDEN, HEADS * ROPE),
                index_query=weight(HIDDEN, INDEX_HEADS * INDEX_KEY),
                index_weight=weight(HIDDEN, INDEX_HEADS),
                output=weight(HEADS * LATENT, HIDDEN),
                up=weight(HIDDEN, 2 * HIDDEN),
                down=weight(2 * HIDDEN, HIDDEN),
            )
            for _ in range(layers)
        ]

    def embed(self, tokens: Tensor) -> Tensor:
        """Returns the hidden states `[tokens, HIDDEN]` of bytes."""
        return self.embedding[tokens]


def cache_rows(layer: Layer, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns latent, rotary and indexer keys of tokens: `[tokens, 512]`, `[tokens, 64]`, `[tokens, 128]`."""
    state = functional.rms_norm(hidden, (HIDDEN,))
    rope = rotate(state @ layer.rope, positions)
    return (state @ layer.latent).to(CACHE_DTYPE), rope.to(CACHE_DTYPE), (state @ layer.index_key).to(CACHE_DTYPE)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of `[tokens, ..., 64]` at `[tokens]` positions."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angle = positions.to(torch.float32)[:, None] * frequency
    angle = angle.view(angle.shape[0], *[1] * (x.dim() - 2), half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def select(layer: Layer, hidden: Tensor, index_keys: Tensor, position: Tensor, top_k: int) -> Tensor:
    """Scores every token up to `position` with the indexer and returns the rows of the best, `[top_k]` int64."""
    state = functional.rms_norm(hidden, (HIDDEN,))
    query = (state @ layer.index_query).view(INDEX_HEADS, INDEX_KEY).to(CACHE_DTYPE)
    per_head = torch.relu(index_keys @ query.T).to(torch.float32)
    score = (per_head * (state @ layer.index_weight)).sum(1)
    future = torch.arange(index_keys.shape[0], device=score.device) > position
    return torch.topk(score.masked_fill(future, float("-inf")), top_k).indices


def attend(layer: Layer, hidden: Tensor, position: Tensor, latent: Tensor, rope: Tensor) -> Tensor:
    """Attends over the selected rows `[top_k, 512]` and `[top_k, 64]`; returns the next hidden state `[1, HIDDEN]`."""
    state = functional.rms_norm(hidden, (HIDDEN,))
    query_latent = (state @ layer.query_latent).view(HEADS, LATENT)
    query_rope = rotate((state @ layer.query_rope).view(1, HEADS, ROPE), position.view(1)).view(HEADS, ROPE)
    values = latent.to(torch.float32)
    score = query_latent @ values.T + query_rope @ rope.to(torch.float32).T
    weight = torch.softmax(score / (LATENT + ROPE) ** 0.5, dim=-1)
    hidden = hidden + (weight @ values).view(1, HEADS * LATENT) @ layer.output
    return hidden + mix(layer, hidden)


def mix(layer: Layer, hidden: Tensor) -> Tensor:
    """The layer's part that looks at one token only."""
    return functional.silu(functional.rms_norm(hidden, (HIDDEN,)) @ layer.up) @ layer.down
