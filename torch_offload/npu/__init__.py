# SPDX-License-Identifier: Apache-2.0
"""The NPU part: comes into force together with torch_npu."""

from torch_offload.npu.loading import attach, load

__all__ = ["attach", "load"]
