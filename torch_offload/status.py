# SPDX-License-Identifier: Apache-2.0
"""What the operators have recorded on a device: mistakes that the host could not see when it called."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_offload.npu import load

__all__ = ["SparseCopyStatus", "check_status", "reset_status", "status"]


@dataclass(frozen=True)
class SparseCopyStatus:
    """What the calls on one device have done since `reset_status`, replays of graphs included.

    An entry counts once, however many tensors the call copies.

    Attributes:
        copied: Entries whose rows were copied.
        skipped: Entries with a negative index on either side.
        out_of_range: Entries that named a row beyond the tensors; nothing was written for them.
        first_bad: The smallest position, in its call's index tensors, of an entry that was out of range, or -1.
        clamped_counts: Calls whose `count` was outside of `[0, n]`; the nearest number in it was taken.
        clamped_count: The last such count, or one of them if several streams had one.
        refused_requests: Requests that `plan_residency` refused.
        refusal: Which row of its call one of them was, and why: the row times 256 plus a number from 1 to 4.
    """

    copied: int
    skipped: int
    out_of_range: int
    first_bad: int
    clamped_counts: int = 0
    clamped_count: int = 0
    refused_requests: int = 0
    refusal: int = 0


# By PlanResidencyRefusal.
_REFUSALS = {
    1: "a token beyond its block table, or from 2^31 - 1",
    2: "more distinct tokens than slots",
    3: "a token whose entry of the block table is no block",
    4: "a state that no step has left behind",
}


def status(device: torch.device | str | int) -> SparseCopyStatus:
    """Waits for the device, then returns what has been recorded on it since the last `reset_status`.

    On the CPU mistakes raise at once and nothing is recorded: there all numbers are 0 and `first_bad` is -1, so that
    the same code runs everywhere. Not to be called inside a graph capture, nor while another thread launches.

    Args:
        device (torch.device, str or int): An NPU, or the CPU. Without a number: the current NPU.

    Raises:
        ValueError: Another kind of device.
        ImportError: An NPU is asked for where its software is missing.
    """
    index = _npu_index("status", device)
    if index is None:
        return SparseCopyStatus(0, 0, 0, -1)
    torch.accelerator.synchronize(index)
    return SparseCopyStatus(*load().read_status(index))


def check_status(device: torch.device | str | int) -> None:
    """Waits for the device and raises if a mistake has been recorded on it since `reset_status`.

    Args:
        device (torch.device, str or int): As for `status`.

    Raises:
        IndexError: An index was beyond the rows.
        ValueError: A `count` was outside of `[0, n]`, or `plan_residency` refused a request (and every index was
            right), or another kind of device.
        ImportError: An NPU is asked for where its software is missing.
    """
    found = status(device)
    clamped = f"{found.clamped_counts} counts outside of [0, n], such as {found.clamped_count}"
    if found.out_of_range:
        raise IndexError(
            f"sparse_copy: expected indices below the row counts on {device}, got {found.out_of_range} beyond them, "
            f"the first at position {found.first_bad} of its index tensors"
            + (f", and {clamped}" if found.clamped_counts else "")
        )
    if found.clamped_counts:
        raise ValueError(f"sparse_copy: expected count to be in [0, n] on {device}, got {clamped}")
    if found.refused_requests:
        row, reason = divmod(found.refusal, 256)
        raise ValueError(
            f"plan_residency: expected requests without a mistake on {device}, got {found.refused_requests} refused, "
            f"among them row {row}: {_REFUSALS[reason]}"
        )


def reset_status(device: torch.device | str | int) -> None:
    """Waits for the device and forgets what has been recorded on it. Does nothing on the CPU.

    Args:
        device (torch.device, str or int): As for `status`.

    Raises:
        ValueError: Another kind of device.
        ImportError: An NPU is asked for where its software is missing.
    """
    index = _npu_index("reset_status", device)
    if index is not None:
        torch.accelerator.synchronize(index)
        load().reset_status(index)


def _npu_index(function: str, device: torch.device | str | int) -> int | None:
    """The number of the NPU, or None for the CPU."""
    if isinstance(device, int) or str(device).partition(":")[0] == "npu":
        load()  # torch does not know the name before
    found = torch.device(device)
    if found.type == "cpu":
        return None
    if found.type != "npu":
        raise ValueError(f"{function}: expected device to be an NPU or the CPU, got '{found}'")
    count = torch.accelerator.device_count()
    index = torch.accelerator.current_device_index() if found.index is None else found.index
    if index >= count:
        raise ValueError(f"{function}: expected device to be one of {count} NPUs, got '{found}'")
    return index
