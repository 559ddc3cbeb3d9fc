# SPDX-License-Identifier: Apache-2.0
"""The compiled module."""

def rows_overlap(
    begin_a: int,
    stride_a: int,
    rows_a: int,
    row_bytes_a: int,
    begin_b: int,
    stride_b: int,
    rows_b: int,
    row_bytes_b: int,
) -> bool:
    """Whether two sets of rows, given in bytes, share a byte."""
