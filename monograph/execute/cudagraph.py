"""The whole step as one CUDA graph: recorded once, replayed with a single launch.

A graph is recorded only if every node can be; otherwise the reasons are listed node by node. Nothing is skipped
silently: `auto` reports the reasons, `full` refuses to run.
"""

import torch
from torch import Tensor
from torch.fx import Node

from monograph.compat import READ_SIZE
from monograph.errors import ConfigError
from monograph.execute.program import Program, Sources
from monograph.graph.forms import Form
from monograph.graph.host_copy import FROM_HOST, TO_HOST
from monograph.graph.query import has_symbols, is_compute, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of

SHOWN = 8
"""Reasons an error shows; the report has all."""


def find_obstacles(graph: StepGraph, device: str = "cuda") -> list[str]:
    """Why a step cannot be recorded, one line for every node that stands in the way."""
    found = []
    for node in graph.nodes:
        reason = find_obstacle(node, device) if is_compute(node) else ""
        if reason:
            found.append(f"{tag_of(node).path or 'the step'}: {node.target}: {reason}")
    return found


def find_obstacle(node: Node, device: str) -> str:
    """Why this node cannot be part of a recording; empty when it can."""
    if node.target is READ_SIZE:
        return "reads a number on the host"
    if node.target in (TO_HOST, FROM_HOST):
        return "copies between the device and the host"
    values = [value_of(each) for each in (node, *node.all_input_nodes)]
    if any(has_symbols(value) for value in values):
        return "has a size that changes from step to step"
    result = value_of(node)
    if isinstance(result, Tensor | Form) and result.device.type != device:
        return f"runs on the {result.device.type}"
    return ""


def refuse(obstacles: list[str]) -> ConfigError:
    """The error of `full`."""
    more = f"; and {len(obstacles) - SHOWN} more" if len(obstacles) > SHOWN else ""
    return ConfigError(
        f"compile.cuda_graph is full, and {len(obstacles)} nodes of the step cannot be recorded",
        why="; ".join(obstacles[:SHOWN]) + more,
        do="--compile.cuda_graph auto, or remove what stands in the way (with experts: ep 1 and grouped_mm)",
    )


class CudaGraphProgram:
    """A program that is run once to warm up, recorded the second time, and replayed from then on."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.calls = 0
        self.recording: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream()

    def run(self, sources: Sources) -> None:
        """One call. What outputs are handed to must use fixed addresses: takers run only when recorded."""
        values = self.program.inputs.fill(sources)
        self.calls += 1
        if self.recording is None:
            self.warm_up(values) if self.calls == 1 else self.record(values)
        if self.recording is not None:
            self.recording.replay()

    def warm_up(self, values: list[Tensor]) -> None:
        """Run on the stream of the recording, so that its libraries are ready."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), torch.no_grad():
            self.program.module(*values)
        torch.cuda.current_stream().wait_stream(self.stream)

    def record(self, values: list[Tensor]) -> None:
        """Record without running: the replay that follows does the work."""
        self.recording = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.recording, stream=self.stream), torch.no_grad():
            self.program.module(*values)

    def close(self) -> None:
        """Drop the recording before the communicators inside of it are destroyed."""
        torch.cuda.synchronize()
        self.recording = None
        self.program.close()
