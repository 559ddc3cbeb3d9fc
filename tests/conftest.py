# SPDX-License-Identifier: Apache-2.0
import pytest
import torch


@pytest.fixture
def fresh_compiler():
    """Nothing compiled before, neither in this process nor on disk: caches do not know of our decomposition."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()
