# SPDX-License-Identifier: Apache-2.0
"""What planning costs: plan_residency against the same rules in vectorized torch and in plain sequential C++.

Every step keeps a share of the tokens of the step before and selects others for the rest. The last column is the share
of planning in what it saves: gathering all selected rows with `torch.index_select(out=)`, in the same run. Before
anything is timed, the three must agree on every slot and every loaded row.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from pathlib import Path

import torch
from compiled import load
from timing import machine, measure
from torch import Tensor

from torch_offload import HostPool, new_residency_plan, new_residency_state, plan_residency

ROOT = Path(__file__).resolve().parent.parent
ROWS, ROW_BYTES = 2_000_000, 1152
STEPS = 64


class Ours:
    """plan_residency."""

    def __init__(self, requests: int, slots: int, top_k: int) -> None:
        self.state = new_residency_state(requests, slots)
        self.plan = new_residency_plan(requests, top_k)
        self.ids = torch.arange(requests)

    def step(self, topk: Tensor) -> None:
        """Plans one step."""
        plan_residency(topk, self.ids, self.state, self.plan)

    def loaded(self) -> tuple[Tensor, Tensor]:
        """Returns the rows that the last step loads, and the slot of every token."""
        count = int(self.plan.misses)
        return self.plan.src_index[:count], self.plan.slots


class Torch:
    """The same rules, all requests at once; its map has an entry for each token of the context."""

    def __init__(self, requests: int, slots: int, top_k: int, context: int) -> None:
        self.slot_of = torch.full((requests, context + 1), -1)  # the last entry takes what is to be forgotten
        self.tokens = torch.full((requests, slots), context)
        self.order = torch.arange(slots).repeat(requests, 1)

    def step(self, topk: Tensor) -> None:
        """Plans one step."""
        topk = topk.long()
        slots = self.slot_of.gather(1, topk)
        missed = slots < 0
        count = missed.sum(1, keepdim=True)
        used = torch.zeros_like(self.order, dtype=torch.bool)
        used.scatter_(1, slots.clamp(min=0), ~missed)
        hit_zero = (slots == 0).any(1)  # padding of the scatter above
        used[:, 0] = hit_zero
        # Unused slots first, each group as it was; victims are the first of them.
        order = self.order.gather(1, used.gather(1, self.order).to(torch.uint8).argsort(dim=1, stable=True))
        victims = order.gather(1, (missed.cumsum(1) - 1).clamp(min=0))
        slots = torch.where(missed, victims, slots)
        evicted = torch.where(missed, self.tokens.gather(1, victims), self.slot_of.shape[1] - 1)
        self.slot_of.scatter_(1, evicted, -1)
        self.slot_of.scatter_(1, topk, slots)
        self.tokens.scatter_(1, slots, topk)
        # Victims move behind the other unused ones.
        place = torch.arange(order.shape[1])
        rank = (place >= count).to(torch.uint8) + used.gather(1, order)
        group = torch.where(rank == 0, 1, torch.where(rank == 1, 0, 2))
        self.order = order.gather(1, group.argsort(dim=1, stable=True))
        self.missed, self.slots = missed, slots
        mask = missed.view(-1)
        self.src_index = topk.view(-1)[mask]
        self.dst_index = (slots + torch.arange(len(topk)).view(-1, 1) * self.order.shape[1]).view(-1)[mask]

    def loaded(self) -> tuple[Tensor, Tensor]:
        """Returns the rows that the last step loads, and the slot of every token."""
        return self.src_index, self.slots


class Sequential:
    """Plain C++, one thread."""

    def __init__(self, library: ctypes.CDLL, requests: int, slots: int, top_k: int) -> None:
        self.library = library
        self.planner = ctypes.c_void_p(library.new_planner(requests, slots))
        self.out = torch.empty((requests, top_k), dtype=torch.int32)
        self.src, self.dst = (
            torch.empty(requests * top_k, dtype=torch.int64),
            torch.empty(requests * top_k, dtype=torch.int64),
        )
        self.misses = 0

    def step(self, topk: Tensor) -> None:
        """Plans one step."""
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (topk, self.out, self.src, self.dst)]
        self.misses = self.library.plan(self.planner, pointers[0], topk.shape[1], *pointers[1:])

    def loaded(self) -> tuple[Tensor, Tensor]:
        """Returns the rows that the last step loads, and the slot of every token."""
        return self.src[: self.misses], self.out

    def close(self) -> None:
        """Gives the memory back."""
        self.library.delete_planner(self.planner)


def build_sequential() -> ctypes.CDLL:
    """Compiles the C++ planner."""
    library = load("sequential_planner.cpp")
    library.new_planner.restype = ctypes.c_void_p
    library.plan.restype = ctypes.c_int64
    return library


def selections(requests: int, top_k: int, context: int, hit_rate: float) -> list[Tensor]:
    """Steps that keep a share of the tokens before; `[requests, top_k]` int32 each, no token twice."""
    kept = round(top_k * hit_rate)
    steps = []
    rows = torch.stack([torch.randperm(context)[:top_k] for _ in range(requests)])
    for _ in range(STEPS):
        fresh = []
        for row in rows:
            others = torch.ones(context, dtype=torch.bool)
            others[row] = False
            candidates = others.nonzero().view(-1)
            chosen = candidates[torch.randint(len(candidates), (4 * (top_k - kept) + 64,))].unique()
            chosen = chosen[torch.randperm(len(chosen))][: top_k - kept]
            fresh.append(torch.cat([row[torch.randperm(top_k)[:kept]], chosen])[torch.randperm(top_k)])
        rows = torch.stack(fresh)
        steps.append(rows.to(torch.int32))
    return steps


def run_one(library: ctypes.CDLL, source: Tensor, args: argparse.Namespace, case: tuple) -> dict[str, object]:
    """Measures one configuration."""
    requests, slots, hit_rate, context = case
    steps = selections(requests, args.top_k, context, hit_rate)
    planners = {
        "plan_residency": Ours(requests, slots, args.top_k),
        "torch": Torch(requests, slots, args.top_k, context),
        "sequential": Sequential(library, requests, slots, args.top_k),
    }
    for step in steps:
        for planner in planners.values():
            planner.step(step)
        (src, slots_of), *others = (planner.loaded() for planner in planners.values())
        for name, (other_src, other_slots) in zip(("torch", "sequential C++"), others, strict=True):
            if not (torch.equal(src, other_src) and torch.equal(slots_of, other_slots.to(torch.int32))):
                raise SystemExit(f"bench_residency: plan_residency and {name} disagree")
    rows = torch.randint(ROWS, (STEPS, args.top_k))
    gathered = torch.empty((args.top_k, ROW_BYTES), dtype=torch.uint8)
    done = dict.fromkeys(planners, 0)

    def runner(name: str):
        def run(_: int) -> None:
            planners[name].step(steps[done[name] % STEPS])
            done[name] += 1

        return run

    sides = {name: runner(name) for name in planners}
    sides["gather"] = lambda i: torch.index_select(source, 0, rows[i % STEPS], out=gathered)
    timings = measure(sides, seconds=args.seconds)
    planners["sequential"].close()
    ours = timings["plan_residency"].median
    return {
        "requests": requests,
        "slots": slots,
        "hit_rate": hit_rate,
        "context": context,
        "us_per_request": ours * 1e6 / requests,
        "ratio": {name: timings[name].median / ours for name in ("torch", "sequential")},
        "share_of_gather": ours / requests / timings["gather"].median,
        "seconds": {name: timing.record() for name, timing in timings.items()},
    }


def main() -> int:
    """Runs the benchmark and prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each configuration (default %(default)s)")
    parser.add_argument("--top-k", type=int, default=2048, help="(default %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="torch's intra-op threads (default: torch's own)")
    parser.add_argument("--seed", type=int, default=0, help="(default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="4096 slots, 90 %% hits and the short context only")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    library = build_sequential()
    source = HostPool(ROWS * ROW_BYTES).empty((ROWS, ROW_BYTES), dtype=torch.uint8).fill_(1)
    cases = [(requests, 4096, 0.9, 65_536) for requests in (1, 16, 64)]
    if not args.quick:
        cases += [(r, c, h, 65_536) for r in (1, 16, 64) for c in (4096, 8192) for h in (0.5, 0.9, 0.99)]
        cases += [(requests, 4096, 0.9, 1_048_576) for requests in (1, 16)]
        cases = list(dict.fromkeys(cases))
    results = []
    for case in cases:
        results.append(run_one(library, source, args, case))
        if not args.json:
            print_row(results[-1], header=len(results) == 1)
    if args.json:
        json.dump({"machine": machine(), "results": results}, sys.stdout, indent=2)
        print()
    else:
        print("\n" + "\n".join(f"{key}: {value}" for key, value in machine().items()))
    return 0


def print_row(result: dict, *, header: bool) -> None:
    """Prints one line of the table."""
    if header:
        print(f"{'requests':>8} {'slots':>6} {'hits':>5} {'context':>9} {'us/request':>11} {'spread':>7} "
              f"{'torch':>8} {'C++':>7} {'of a gather':>12}")  # fmt: skip
    spread = result["seconds"]["plan_residency"]["spread"]
    print(f"{result['requests']:8} {result['slots']:6} {result['hit_rate']:5.0%} {result['context']:9} "
          f"{result['us_per_request']:11.2f} {spread:7.0%} {result['ratio']['torch']:7.1f}x "
          f"{result['ratio']['sequential']:6.2f}x {result['share_of_gather']:12.1%}", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
