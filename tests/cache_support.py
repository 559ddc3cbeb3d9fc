# SPDX-License-Identifier: Apache-2.0
"""What the tests of ResidentCache share: host rows, selections of tokens, the check of every slot."""

from __future__ import annotations

import torch
from torch import Tensor

import torch_offload
from torch_offload import ResidentCache

TOKENS, REQUESTS, SLOTS, TOP_K = 300, 3, 48, 32


def host_layers(layers: int, device: torch.device | str | None = None) -> list[list[Tensor]]:
    """The rows of some layers in a pool, two components each."""
    pool = torch_offload.HostPool(4 << 20, device=device)
    generator = torch.Generator().manual_seed(layers)
    shapes = ((REQUESTS * TOKENS, 16), torch.bfloat16), ((REQUESTS * TOKENS, 3, 2), torch.uint8)
    result = []
    for _ in range(layers):
        rows = [pool.empty(shape, dtype=dtype) for shape, dtype in shapes]
        for component in rows:
            component.view(torch.uint8).random_(generator=generator)
        result.append(rows)
    return result


def table() -> Tensor:
    """Each request has rows of its own on the host: a block of one row for each token."""
    return torch.arange(REQUESTS * TOKENS).view(REQUESTS, TOKENS)


def topk(seed: int) -> Tensor:
    """The tokens of a step, with padding and one that may be named twice."""
    generator = torch.Generator().manual_seed(seed // 3)  # near the step before, most times
    rows = torch.stack([torch.randperm(TOKENS, generator=generator)[:TOP_K] for _ in range(REQUESTS)])
    rows[:, seed % TOP_K] = torch.tensor([seed % TOKENS, -1, -5])
    return rows


def assert_holds(cache: ResidentCache, layer: int, wanted: Tensor, slots: Tensor) -> None:
    """Checks that every slot of the layer holds the bytes of its token."""
    slots = slots.cpu()
    for rows, host in zip((rows.cpu() for rows in cache.rows(layer)), cache.host[layer], strict=True):
        assert rows.shape == (REQUESTS, SLOTS, *host.shape[1:]) and rows.dtype == host.dtype
        for r in range(REQUESTS):
            valid = wanted[r] >= 0
            assert (slots[r][~valid] == -1).all()
            got = rows[r, slots[r][valid].long()]
            expected = host[r * TOKENS + wanted[r][valid]]
            assert torch.equal(got.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))
