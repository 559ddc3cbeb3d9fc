# SPDX-License-Identifier: Apache-2.0
"""A compiled call that becomes several operators still writes nothing when an index is beyond any component."""

import pytest
import torch

import torch_offload


def copy(dst, src, index):
    torch_offload.sparse_copy(dst, src, index, index)


def separate(components, short_side):
    dst = [torch.zeros(10 + c, 3) for c in range(components)]
    src = [torch.rand(10 + c, 3) for c in range(components)]
    short = dst if short_side == "dst" else src
    short[-1] = short[-1][:7].clone()
    return dst, src


def of_one_storage(components, short_side):
    dst = list(torch.zeros(components, 10, 3))
    src = [torch.rand(10, 3) for _ in range(components)]
    short = dst if short_side == "dst" else src
    short[-1] = short[-1][:7]
    return dst, src


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("short_side", ["dst", "src"])
@pytest.mark.parametrize(("make", "components"), [(separate, 5), (separate, 6), (of_one_storage, 2)])
def test_nothing_is_written_when_the_last_component_is_too_short(backend, dynamic, short_side, make, components):
    torch._dynamo.reset()
    compiled = torch.compile(copy, fullgraph=True, backend=backend, dynamic=dynamic)
    dst, src = make(components, short_side)
    with pytest.raises(
        IndexError, match=rf"{short_side}_index\[1\] to be negative or below the 7 rows of {short_side}"
    ):
        compiled(dst, src, torch.tensor([1, 8]))
    assert all(bool((tensor == 0).all()) for tensor in dst)
    good = torch.tensor([6, 2])
    compiled(dst, src, good)
    for to, of in zip(dst, src, strict=True):
        assert torch.equal(to[good], of[good])
