"""Gives inputs and outputs of a graph other names: an exporter may refuse names that Triton and ONNX take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tritonbatch.errors import ExportRejected
from tritonbatch.export.onnx_file import graphs_within

if TYPE_CHECKING:
    import onnx


def rename_tensors(proto: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Rename tensors of the graph in place, from the keys of *names* to their values.

    Raises:
        ExportRejected: A new name is taken inside the graph.
    """
    taken = {name for graph in graphs_within(proto.graph) for name in _names(graph)} - set(names)
    clash = sorted(taken & set(names.values()))
    if clash:
        raise ExportRejected(
            f"the name {clash[0]!r} is taken inside the exported graph, expected one that is free; choose another"
        )
    for graph in graphs_within(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            value.name = names.get(value.name, value.name)
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output
