# SPDX-License-Identifier: Apache-2.0
"""Decodes over a real text with the KV cache in host memory, and proves every step.

The cache of every layer lives in a `HostPool`. Each step, in each layer: the new token's rows are appended to the host,
the indexer scores all tokens and selects the best, one `sparse_copy` moves their rows (latent and rotary keys) into one
small buffer, and attention reads that buffer. Only the indexer's keys and the buffer stay on the device. On an NPU the
pool is registered with the device, whose kernels then read and write it.

Every layer of every step is checked: a second decoder with the same weights keeps everything resident and uses plain
torch. What both append, select, read and make of it must be the same bits. It exists for that check alone.

The text's first bytes are the context. Their rows are computed without attention among them (each token by itself,
layer by layer): what matters here is that the cache is full of distinct rows. The bytes behind the context are then
decoded one by one, each fed to the model as it stands in the text.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import sysconfig
import time
from pathlib import Path

# Threads that wait for each other sleep instead of spinning: where other programs use the cores too, spinning threads
# keep the one that they wait for from running. OpenMP reads it when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from dsa_check import ResidentDecoder, append, find_difference, new_cache
from dsa_model import CACHE_DTYPE, INDEX_KEY, LATENT, ROPE, Cache, Decoder, Layer, attend, cache_rows, mix, select
from report import note_progress, plot_steps, print_table, size
from torch import Tensor

import torch_offload

PREFILL_CHUNK = 4096


class OffloadedDecoder:
    """The decoder with its cache in a host pool.

    Args:
        decoder (Decoder): Weights.
        capacity (int): Tokens that the cache can hold.
        top_k (int): Rows that attention reads.
        device (torch.device): Where the arithmetic runs.
        slots (int): Rows of each layer that stay on the device from step to step; 0: all are fetched at every step.
    """

    def __init__(self, decoder: Decoder, capacity: int, top_k: int, device: torch.device, slots: int) -> None:
        self.decoder = decoder
        self.top_k = top_k
        self.device = device
        layers = len(decoder.layers)
        row_bytes = (LATENT + ROPE) * CACHE_DTYPE.itemsize
        # A little more than the rows, because each block is rounded up to the alignment.
        self.pool = torch_offload.HostPool(layers * (capacity * row_bytes + 4096), device=device, name="kv_cache")
        on_device = functools.partial(torch.zeros, device=device)
        self.host = [new_cache(self.pool.empty, capacity) for _ in range(layers)]
        self.index_keys = [on_device(capacity, INDEX_KEY, dtype=CACHE_DTYPE) for _ in range(layers)]
        self.buffer = new_cache(on_device, top_k)
        self.copy_seconds = 0.0
        self.moved: list[int] = []  # rows, a number for each step
        self.resident = None
        if slots:
            self.resident = torch_offload.ResidentCache(
                [(cache.latent, cache.rope) for cache in self.host],
                requests=1,
                slots=slots,
                top_k=top_k,
                device=device,
            )
            self.request = torch.zeros(1, dtype=torch.int64, device=device)

    def prefill(self, tokens: Tensor, resident: ResidentDecoder) -> None:
        """Fills the caches of all layers, its own and the resident ones, with the rows of the context `[tokens]`."""
        for begin in range(0, len(tokens), PREFILL_CHUNK):
            end = min(begin + PREFILL_CHUNK, len(tokens))
            positions = torch.arange(begin, end, device=self.device)
            hidden = self.decoder.embed(tokens[positions])
            for number, layer in enumerate(self.decoder.layers):
                latent, rope, index_key = cache_rows(layer, hidden, positions)
                host = self.host[number]
                torch_offload.sparse_copy([host.latent, host.rope], [latent, rope], dst_index=positions)
                self.index_keys[number][begin:end] = index_key
                append(resident.caches[number], resident.index_keys[number], positions, latent, rope, index_key)
                hidden = hidden + mix(layer, hidden)

    def layer_step(
        self, layer: Layer, host: Cache, index_keys: Tensor, hidden: Tensor, position: Tensor, number: int | None = None
    ):
        """One token through one layer, reading the cache in host memory; `number` is the layer's, if rows stay.

        Returns:
            The next hidden state `[1, HIDDEN]`, the selected rows `[top_k]`, and what stands in them.
        """
        latent, rope, index_key = cache_rows(layer, hidden, position.view(1))
        torch_offload.sparse_copy([host.latent, host.rope], [latent, rope], dst_index=position.view(1))
        index_keys.index_copy_(0, position.view(1), index_key)
        selected = select(layer, hidden, index_keys, position, self.top_k)
        rows = self.fetch(host, selected, number)
        return attend(layer, hidden, position, rows.latent, rows.rope), selected, rows

    def fetch(self, host: Cache, selected: Tensor, number: int | None) -> Cache:
        """Returns the selected rows of all components on the device: the job of this package."""
        if torch.compiler.is_compiling():
            return self._fetch(host, selected, number)
        wait(self.device)
        start = time.perf_counter()
        rows = self._fetch(host, selected, number)
        wait(self.device)
        self.copy_seconds += time.perf_counter() - start
        return rows

    def _fetch(self, host: Cache, selected: Tensor, number: int | None) -> Cache:
        if number is None:
            buffer = self.buffer
            torch_offload.sparse_copy([buffer.latent, buffer.rope], [host.latent, host.rope], src_index=selected)
            return buffer
        slots = self.resident.fetch(number, selected.view(1, -1), self.request)
        latent, rope = self.resident.rows(number)
        return Cache(latent[0].index_select(0, slots[0]), rope[0].index_select(0, slots[0]))

    def note_moved(self) -> None:
        """Notes how many rows the step that ends here has moved."""
        layers = len(self.host)
        total = layers * self.top_k * (len(self.moved) + 1) if self.resident is None else self.resident.stats().misses
        self.moved.append(total - sum(self.moved))


def wait(device: torch.device) -> None:
    """Waits for an accelerator; the CPU is never ahead."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def decode(
    model: OffloadedDecoder, resident: ResidentDecoder, text: Tensor, context: int, steps: int, *, compiled: bool
) -> list[float]:
    """Decodes `steps` tokens behind the context; returns the seconds of each step, without its check.

    Raises:
        SystemExit: A step differs from the resident decoder's.
    """
    layer_step, check_step = model.layer_step, resident.layer_step
    if compiled:
        # Both: to compile one of them would compare inductor's rounding with eager's.
        # Where rows stay on the device, a graph belongs to one layer.
        torch._dynamo.config.recompile_limit = max(8, len(model.decoder.layers) + 1)
        layer_step = torch.compile(layer_step, fullgraph=True)
        check_step = torch.compile(check_step, fullgraph=True)
    step_seconds = []
    begin = time.perf_counter()
    for step in range(steps):
        position = torch.tensor(context + step, device=model.device)
        hidden = model.decoder.embed(text[context + step : context + step + 1])
        expected_hidden = hidden.clone()
        seconds = 0.0
        for number, layer in enumerate(model.decoder.layers):
            start = time.perf_counter()
            which = None if model.resident is None else number
            ours = layer_step(layer, model.host[number], model.index_keys[number], hidden, position, which)
            wait(model.device)
            seconds += time.perf_counter() - start
            expected = check_step(
                layer, resident.caches[number], resident.index_keys[number], expected_hidden, position
            )
            difference = find_difference(ours, expected, model, resident, number, position)
            if difference is not None:
                raise SystemExit(
                    f"step {step}, layer {number}: expected the {difference} of the resident decoder, got others"
                )
            hidden, expected_hidden = ours[0], expected[0]
        step_seconds.append(seconds)
        model.note_moved()
        note_progress(step + 1, steps, time.perf_counter() - begin)
    return step_seconds


def read_text(path: str | None, least: int) -> Tensor:
    """Returns the bytes of a file, or of the sources of Python's standard library, as int64 `[least]`.

    Raises:
        SystemExit: The file cannot be read or is too short.
    """
    if path is not None:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise SystemExit(f"--text: expected a readable file, got {path}: {error.strerror}") from None
    else:
        data = b""
        for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            if len(data) >= least:
                break
            data += source.read_bytes()
    if len(data) < least:
        raise SystemExit(f"--text: expected at least {least} bytes (--context and --steps), got {len(data)}")
    return torch.frombuffer(bytearray(data[:least]), dtype=torch.uint8).to(torch.int64)


def report(model: OffloadedDecoder, args: argparse.Namespace, step_seconds: list[float]) -> dict[str, object]:
    """Returns the figures of a run."""
    layers = len(model.decoder.layers)
    row_bytes = (LATENT + ROPE) * CACHE_DTYPE.itemsize
    # The first step compiles or warms up.
    timed = step_seconds[1:] or step_seconds
    moved = sum(model.moved)
    wanted = args.steps * layers * args.top_k
    capacity = args.context + args.steps
    held = [model.buffer] if model.resident is None else [Cache(*model.resident.rows(n)) for n in range(layers)]
    buffer_bytes = sum(cache.latent.nbytes + cache.rope.nbytes for cache in held)
    index_bytes = sum(keys.nbytes for keys in model.index_keys)
    stats = model.pool.stats()
    return {
        "checked": f"{args.steps} steps x {layers} layers, all bit-identical to a resident decoder",
        "steps": args.steps,
        "layers": layers,
        "compiled": args.compile,
        "tokens_per_s": len(timed) / sum(timed),
        "rows_per_step": moved / args.steps,
        "bytes_per_step": moved * row_bytes / args.steps,
        "hit_rate": 1 - moved / wanted,
        "bytes_saved": (wanted - moved) * row_bytes,
        "moved": model.moved,
        "copy_gb_per_s": None if args.compile else moved * row_bytes / model.copy_seconds / 1e9,
        "copy_share": None if args.compile else model.copy_seconds / sum(step_seconds),
        "device_cache_bytes": buffer_bytes + index_bytes,
        "device_buffer_bytes": buffer_bytes,
        "full_cache_bytes": layers * capacity * row_bytes + index_bytes,
        "pool": {
            "capacity": stats.capacity,
            "used": stats.used,
            "free": stats.free,
            "peak": stats.peak,
            "live_blocks": stats.live_blocks,
            "page_size": stats.page_size,
            "device_registered": stats.device_registered,
        },
        "step_seconds": step_seconds,
    }


def show(figures: dict, args: argparse.Namespace) -> None:
    """Prints the figures as a table."""
    pool = figures["pool"]
    host = (
        f"{size(pool['used'])} used in {pool['live_blocks']} blocks, {size(pool['free'])} free, "
        f"peak {size(pool['peak'])}, pages of {size(pool['page_size'])}"
    )
    host += ", registered with the device" if pool["device_registered"] else ""
    copy = "inside the compiled step"
    if figures["copy_gb_per_s"] is not None:
        copy = f"{figures['copy_gb_per_s']:.2f} GB/s, {figures['copy_share']:.0%} of the step"
    resident = "none: every selected row is fetched (--resident-slots keeps some)"
    if args.resident_slots:
        saved = f"{figures['bytes_saved'] / 1e6:.0f} MB not moved"
        resident = f"{args.resident_slots} slots a layer, {figures['hit_rate']:.1%} of the rows were there, {saved}"
    print_table(
        f"DSA decode, {args.context} tokens of context, top-k {args.top_k}, {'compiled' if args.compile else 'eager'}",
        [
            ("checked", figures["checked"]),
            ("speed", f"{figures['tokens_per_s']:.1f} tokens/s"),
            ("moved per step", f"{figures['rows_per_step']:.0f} rows, {figures['bytes_per_step'] / 1e6:.2f} MB"),
            ("resident", resident),
            ("copy", copy),
            (
                "device holds",
                f"{size(figures['device_cache_bytes'])} ({size(figures['device_buffer_bytes'])} of rows, "
                f"the rest are the indexer's keys) of a full cache of {size(figures['full_cache_bytes'])}",
            ),
            ("host pool", host),
        ],
    )


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", metavar="FILE", help="decode over its bytes (default: Python's standard library)")
    parser.add_argument("--context", type=int, default=32768, help="tokens before the first step (default %(default)s)")
    parser.add_argument("--steps", type=int, default=128, help="tokens to decode (default %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="(default %(default)s)")
    parser.add_argument("--top-k", type=int, default=2048, help="rows that attention reads (default %(default)s)")
    parser.add_argument(
        "--resident-slots",
        type=int,
        default=0,
        metavar="N",
        help="rows of each layer that stay on the device (0: none)",
    )
    parser.add_argument("--threads", type=int, default=0, help="torch's intra-op threads (default: torch's own)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default %(default)s)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "npu"], help="where the arithmetic runs")
    parser.add_argument("--compile", action="store_true", help="run the step under torch.compile(fullgraph=True)")
    parser.add_argument("--plot", metavar="FILE.png", help="draw rows moved and time per step")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args(argv)
    for name in ("context", "steps", "layers", "top_k"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected at least 1, got {getattr(args, name)}")
    if args.top_k > args.context:
        parser.error(f"--top-k: expected at most the {args.context} tokens of --context, got {args.top_k}")
    if args.resident_slots and not args.top_k <= args.resident_slots <= 32767:
        parser.error(
            f"--resident-slots: expected 0, or from --top-k ({args.top_k}) to 32767, got {args.resident_slots}"
        )
    if args.compile and args.device != "cpu":
        parser.error(f"--compile: expected --device cpu, got {args.device}")
    if args.threads < 0:
        parser.error(f"--threads: expected at least 0, got {args.threads}")
    return args


def main(argv: list[str] | None = None) -> int:
    """Runs the example."""
    args = parse_arguments(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        torch_offload.reset_status(args.device)
    except ImportError as error:
        raise SystemExit(f"--device {args.device}: {error}") from None
    device = torch.device(args.device)
    text = read_text(args.text, args.context + args.steps).to(device)
    with torch.no_grad():
        model = OffloadedDecoder(
            Decoder(args.layers, args.seed, device), len(text), args.top_k, device, args.resident_slots
        )
        print(f"filling the cache with {args.context} tokens in {args.layers} layers", file=sys.stderr)
        resident = ResidentDecoder(args.layers, len(text), args.top_k, device)
        model.prefill(text[: args.context], resident)
        step_seconds = decode(model, resident, text, args.context, args.steps, compiled=args.compile)
    torch_offload.check_status(device)
    figures = report(model, args, step_seconds)
    show(figures, args)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2))
    if args.plot:
        plot_steps(args.plot, model.moved, step_seconds, f"DSA decode over {args.context} tokens")
        print(f"  plot in {args.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
