# SPDX-License-Identifier: Apache-2.0
import os
import tempfile

# What torch keeps on disk does not know of our decomposition: each run of the tests begins with nothing.
_compiled = tempfile.TemporaryDirectory(prefix="compiled-", ignore_cleanup_errors=True)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _compiled.name

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture
def fresh_compiler():
    """Nothing compiled before, neither in this process nor on disk: caches do not know of our decomposition."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()
