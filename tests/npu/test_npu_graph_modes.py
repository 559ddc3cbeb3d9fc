# SPDX-License-Identifier: Apache-2.0
"""The graph modes of torch_npu: what eager gives, over replays with other counts and rows, with nothing cloned."""

from collections.abc import Callable

import npu_support as support
import pytest
import torch
from graph_steps import STEPS, Step, to_cpu, to_device
from npu_support import DEVICE, own_process
from torch import Tensor

import torch_offload

REPLAYS = 100
# Arguments that each step writes.
WRITTEN = {"separate": 2, "one_storage": 2, "five": 5, "empty": 1, "two_copies": 1, "pointers": 1}
COPIES = ("aclnnInplaceCopy", "aclnnCast", "aclrtMemcpy", "aclrtMemcpyAsync")


Call = Callable[[], tuple[Tensor, ...]]


def compiled(step: Step, backend: object, **options: object) -> Call:
    torch._dynamo.reset()
    call = torch.compile(step.call, backend=backend, fullgraph=True, dynamic=False, **options)
    return lambda: call(*step.args)


def eager(step: Step) -> Call:
    return lambda: step.call(*step.args)


def npugraph_ex(step: Step) -> Call:
    return compiled(step, "npugraph_ex", options={"clone_input": False})


def npugraph_ex_with_its_defaults(step: Step) -> Call:
    return compiled(step, "npugraph_ex")


def npugraphs(step: Step) -> Call:
    return compiled(step, "npugraphs")


def captured(step: Step) -> Call:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        results = step.call(*step.args)

    def replay():
        graph.replay()
        return results

    return replay


def reduce_overhead(step: Step) -> Call:
    import torchair

    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    config.debug.aclgraph.clone_input = False
    return compiled(step, torchair.get_npu_backend(compiler_config=config))


def counted(call: Callable[[], object]) -> dict[str, int]:
    torch.npu.synchronize()
    with support.sim_cann.counting() as calls:
        call()
        torch.npu.synchronize()
    return calls


def copies(calls: dict[str, int]) -> int:
    return sum(calls.get(name, 0) for name in COPIES)


def runs(calls: dict[str, int]) -> dict[str, int]:
    """How often each of our kernels has run."""
    found = {name.split(".")[1]: number for name, number in calls.items() if name.endswith(".runs")}
    return {name: number for name, number in found.items() if name.startswith("sparse_copy")}


def same_as_eager(
    name: str, mode: Callable[[Step], Call], replays: int = REPLAYS, *, rows_on_device: bool = False
) -> list[dict[str, int]]:
    """Runs a step in a mode and on the CPU; every call must leave the same bytes.

    Returns:
        What each call counted; the first one together with what was issued to make a graph.
    """
    found: list[dict[str, int]] = []
    with torch.no_grad(), torch_offload.HostPool(1 << 20, device=DEVICE) as pool:

        def to_pool(tensor: Tensor) -> Tensor:
            return pool.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)

        want, got = STEPS[name](to_cpu, to_cpu), STEPS[name](to_device, to_device if rows_on_device else to_pool)
        results: list[tuple[Tensor, ...]] = []
        calls: list[Call] = []
        made = counted(lambda: calls.append(mode(got)))
        for seed in range(replays):
            want.set(seed)
            got.set(seed)
            expected = want.state(want.call(*want.args))
            found.append(counted(lambda: results.append(calls[0]())))
            for a, b in zip(got.state(results.pop()), expected, strict=True):
                assert torch.equal(a, b), (name, seed)
            assert runs(found[-1]) == (got.calls if mode in (eager, captured) else got.traced), (name, seed)
        found[0] = {key: made.get(key, 0) + found[0].get(key, 0) for key in {*made, *found[0]}}
        calls.clear()
        torch.npu.synchronize()
    return found


def check_that_replays_run_kernels_alone(found: list[dict[str, int]]) -> None:
    """No copy is part of the graph, and a replay issues nothing: no launch, no copy, no allocation."""
    assert found[0]["aclmdlRICaptureBegin"] >= 1
    assert copies(found[0]) == 0, found[0]
    for calls in found[1:]:
        assert calls["aclmdlRIExecuteAsync"] == 1
        issued = ("aclnn", "aclrtMalloc", "aclrtMem", "aclrtLaunch", "aclmdlRICapture")
        assert not [key for key in calls if key.startswith(issued)], calls


@support.simulator
@pytest.mark.parametrize("name", STEPS)
def test_eager(npu, name):
    for calls in same_as_eager(name, eager, 10):
        assert copies(calls) == 0


@support.simulator
@pytest.mark.parametrize("name", STEPS)
def test_npugraph_ex(npu, name):
    check_that_replays_run_kernels_alone(same_as_eager(name, npugraph_ex))


@support.simulator
@pytest.mark.parametrize("name", STEPS)
def test_captured_by_hand(npu, name):
    check_that_replays_run_kernels_alone(same_as_eager(name, captured))


@support.simulator
def test_npugraph_ex_copies_the_tables_alone_where_it_clones_inputs(npu):
    """Its default: a replay copies what it only reads, here the index and the count, but not rows in a pool.

    Sources on the device are copied whole.
    """
    for rows_on_device, expected in ((False, 2), (True, 4)):
        found = same_as_eager("separate", npugraph_ex_with_its_defaults, 10, rows_on_device=rows_on_device)
        for calls in found[1:]:
            assert calls["aclmdlRIExecuteAsync"] == 1
            assert copies(calls) == expected


@support.simulator
def test_npugraph_ex_captures_again_for_another_destination(npu):
    """A written tensor is captured by its address."""
    place = to_device
    first, second = STEPS["two_copies"](place, place), STEPS["two_copies"](place, place)
    call = compiled(first, "npugraph_ex", options={"clone_input": False})
    captures = []
    with torch.no_grad():
        for step in (first, first, second, second):
            first.args = step.args
            step.set(1)
            captures.append("aclmdlRICaptureBegin" in counted(call))
    assert captures == [True, False, True, False]
    assert torch.equal(first.watched[0].cpu(), second.watched[0].cpu())


@support.simulator
@pytest.mark.parametrize("name", [name for name in STEPS if name != "pointers"])
def test_npugraphs_runs_without_a_graph_where_rows_are_on_the_host(npu, name):
    """Right, but torch_npu captures no graph that has CPU tensors, and clones each destination and copies it back."""
    for calls in same_as_eager(name, npugraphs, 10):
        assert "aclmdlRIExecuteAsync" not in calls
        assert copies(calls) >= WRITTEN[name]


@own_process()
def test_npugraphs_refuses_what_is_on_the_device_alone():
    """torch_npu's own message names the functionalized call, which its capture cannot take."""
    with pytest.raises(NotImplementedError, match="no rule registered for HigherOrderOperator auto_functionalized"):
        same_as_eager("pointers", npugraphs, 3)  # the first call only warms up


@own_process()
def test_reduce_overhead():
    """A process of its own: torchair and npugraph_ex define the same operators, the second one to be imported fails.

    torchair leaves a copy of each destination onto itself in the graph, which npugraph_ex drops.
    """
    for name in STEPS:
        found = same_as_eager(name, reduce_overhead, 20)
        for calls in found[1:]:
            assert calls["aclmdlRIExecuteAsync"] == 1
            assert not [key for key in calls if key.startswith(("aclnn", "aclrtMalloc", "aclrtLaunch"))], calls
        assert copies(found[0]) == WRITTEN[name], name
