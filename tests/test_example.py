# SPDX-License-Identifier: Apache-2.0
"""The main job, in a small configuration: examples/dsa_decode.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_offload

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ["--context", "600", "--steps", "3", "--layers", "2", "--top-k", "64"]


def run(*arguments):
    command = [sys.executable, str(EXAMPLES / "dsa_decode.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import dsa_decode

    return dsa_decode


@pytest.mark.parametrize("mode", [[], ["--compile"]], ids=["eager", "compiled"])
def test_every_step_equals_the_resident_cache(mode, tmp_path):
    figures_file = tmp_path / "figures.json"
    result = run(*SMALL, *mode, "--json", str(figures_file))
    assert result.returncode == 0, result.stderr
    assert "3 steps x 2 layers, all bit-identical" in result.stdout
    figures = json.loads(figures_file.read_text())
    assert figures["rows_per_step"] == 2 * 64
    assert figures["bytes_per_step"] == 2 * 64 * (512 + 64) * 2
    assert figures["device_buffer_bytes"] == 64 * (512 + 64) * 2
    assert figures["pool"]["used"] >= 2 * 603 * (512 + 64) * 2
    assert figures["pool"]["live_blocks"] == 4
    assert len(figures["step_seconds"]) == 3


@pytest.mark.parametrize("mode", [[], ["--compile"]], ids=["eager", "compiled"])
def test_rows_that_stay_resident_need_not_move(mode, tmp_path):
    figures_file = tmp_path / "figures.json"
    result = run(*SMALL, *mode, "--steps", "6", "--resident-slots", "128", "--json", str(figures_file))
    assert result.returncode == 0, result.stderr
    assert "6 steps x 2 layers, all bit-identical" in result.stdout
    assert "128 slots a layer" in result.stdout
    figures = json.loads(figures_file.read_text())
    assert figures["moved"][0] == 2 * 64  # nothing is resident at first
    assert sum(figures["moved"]) < 6 * 2 * 64
    assert figures["hit_rate"] == pytest.approx(1 - sum(figures["moved"]) / (6 * 2 * 64))
    assert figures["device_buffer_bytes"] == 2 * 128 * (512 + 64) * 2


def test_plot(tmp_path):
    result = run(*SMALL, "--plot", str(tmp_path / "steps.png"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


# A wrong copy of each kind: whether it fetches or appends, the component, and what the check must say.
WRONG_COPIES = {
    "fetched latent": (True, 0, "step 0, layer 0: expected the latent rows of the resident decoder"),
    "fetched rope": (True, 1, "step 0, layer 0: expected the rotary rows of the resident decoder"),
    "appended latent": (False, 0, "step 0, layer 0: expected the appended latent row of the resident decoder"),
    "appended rope": (False, 1, "step 0, layer 0: expected the appended rotary row of the resident decoder"),
}


@pytest.mark.parametrize("which", WRONG_COPIES)
def test_one_wrong_byte_is_found(which, example, monkeypatch):
    fetch, component, message = WRONG_COPIES[which]
    right = torch_offload.sparse_copy

    def wrong(dst, src, dst_index=None, src_index=None, **options):
        right(dst, src, dst_index, src_index, **options)
        if fetch and src_index is not None:
            dst[component][13].view(torch.uint8)[5] ^= 1
        if not fetch and dst_index is not None and len(dst_index) == 1:
            dst[component][int(dst_index)].view(torch.uint8)[5] ^= 1

    monkeypatch.setattr(torch_offload, "sparse_copy", wrong)
    with pytest.raises(SystemExit, match=message):
        example.main(SMALL)


def test_a_fetch_left_out_in_a_later_step_is_found(example, monkeypatch):
    right, fetches = torch_offload.sparse_copy, 0

    def lazy(dst, src, dst_index=None, src_index=None, **options):
        nonlocal fetches
        fetches += src_index is not None
        if src_index is None or fetches != 4:
            right(dst, src, dst_index, src_index, **options)

    monkeypatch.setattr(torch_offload, "sparse_copy", lazy)
    with pytest.raises(SystemExit, match="step 1, layer 1: expected the latent rows of"):
        example.main(SMALL)


def test_wrong_arithmetic_is_found(example, monkeypatch):
    class Damaged(example.OffloadedDecoder):
        def layer_step(self, *args):
            after, *others = super().layer_step(*args)
            return after.nextafter(after + 1), *others

    monkeypatch.setattr(example, "OffloadedDecoder", Damaged)
    with pytest.raises(SystemExit, match="step 0, layer 0: expected the attention of"):
        example.main(SMALL)


def test_a_wrong_selection_is_found(example, monkeypatch):
    class Damaged(example.OffloadedDecoder):
        def layer_step(self, layer, host, index_keys, *others):
            index_keys[5] += 1000
            return super().layer_step(layer, host, index_keys, *others)

    monkeypatch.setattr(example, "OffloadedDecoder", Damaged)
    with pytest.raises(SystemExit, match="step 0, layer 0: expected the selection of"):
        example.main(SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "no_such_file"], "--text: expected a readable file, got no_such_file"),
        (["--top-k", "601"], "--top-k: expected at most the 600 tokens of --context, got 601"),
        (["--steps", "0"], "--steps: expected at least 1, got 0"),
        (["--resident-slots", "63"], "--resident-slots: expected 0, or from --top-k (64) to 32767, got 63"),
        (["--threads", "-1"], "--threads: expected at least 0, got -1"),
    ],
)
def test_bad_arguments(arguments, message):
    result = run(*SMALL, *arguments)
    assert result.returncode != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_text_that_is_too_short(tmp_path):
    text = tmp_path / "short.txt"
    text.write_bytes(b"x" * 602)
    result = run(*SMALL, "--text", str(text))
    assert result.returncode != 0
    assert "--text: expected at least 603 bytes (--context and --steps), got 602" in result.stderr
