# SPDX-License-Identifier: Apache-2.0
"""Stands for the graph engine behind torchair: keeps what torchair hands over, and runs nothing.

For a process of its own: it replaces functions of torchair's native module.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

OPERATORS = ("OffloadSparseCopy", "OffloadSparseCopyPtrs")


class NotRun(Exception):
    """Raised in place of a run: the graph has been loaded and compiled."""


class Engine:
    """Graphs in the order in which they were loaded, parsed from the bytes that GE would get."""

    def __init__(self) -> None:
        import torchair
        from torchair._ge_concrete_graph import ge_ir_pb2
        from torchair.core import _backend, _torchair

        self.torchair: ModuleType = torchair
        self.graphs: list[Any] = []
        engine = self

        class Graph:
            def __init__(self, name: str = "") -> None:
                del name

            def load(self, graph: Any, options: Any = None) -> None:
                del options
                model = ge_ir_pb2.ModelDef()
                model.ParseFromString(graph.SerializeToString())
                engine.graphs.append(model.graph[0])

            def compile(self) -> None:
                pass

            def run(self, *args: Any) -> None:
                raise NotRun

        _backend.TorchNpuGraph = Graph
        _torchair.InitializeGraphEngine = lambda options: None
        _torchair.FinalizeGraphEngine = lambda: None
        _torchair.InitDeviceStdoutChannel = lambda device: None
        _torchair.check_cann_compat = lambda *args: ""
        _torchair.get_registered_ir_def = lambda name: ("SUCCESS" if name in OPERATORS else "ERROR", [], [], [])

    def convert(self, call: Any, *args: torch.Tensor, dynamic: bool | None = False) -> Any:
        """The graph that a compiled call becomes."""
        torch._dynamo.reset()
        config = self.torchair.CompilerConfig()
        config.mode = "max-autotune"
        backend = self.torchair.get_npu_backend(compiler_config=config)
        before = len(self.graphs)
        try:
            with torch.no_grad():
                torch.compile(call, backend=backend, fullgraph=True, dynamic=dynamic)(*args)
        except NotRun:
            pass
        assert len(self.graphs) == before + 1
        return self.graphs[-1]


def of_type(graph: Any, *types: str) -> list[Any]:
    return [op for op in graph.op if op.type in types]


def names(descriptions: Any) -> list[str]:
    return [description.name for description in descriptions]


def reaches_output(graph: Any, op: Any) -> bool:
    """Whether the graph's output needs the operator, through data or control edges."""
    by_name = {node.name: node for node in graph.op}
    seen, left = set(), [node for node in graph.op if node.type == "NetOutput"]
    while left:
        node = left.pop()
        if node.name in seen:
            continue
        seen.add(node.name)
        left += [by_name[edge.rpartition(":")[0]] for edge in node.input if edge]
    return op.name in seen
