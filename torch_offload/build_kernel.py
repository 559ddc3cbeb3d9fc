# SPDX-License-Identifier: Apache-2.0
"""`python -m torch_offload.build_kernel` compiles the NPU kernels where the installation could not."""

import sys

from torch_offload.npu.device_code import main

if __name__ == "__main__":
    sys.exit(main())
