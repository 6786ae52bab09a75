"""Parts of a model to change, and hostile numbers, names and dims to put there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx

INTEGERS = (-1, 0, 1, 2, 3, 7, 64, 1025, -2, -(1 << 63), (1 << 63) - 1, 1 << 62, -(1 << 62), 1 << 31, 1 << 20, -7)
FLOATS = (0.0, -1.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e-40, 3e38, 2.0**63)
NAMES = (
    "", " ", "x", "batch", "seq", "past", "{}", "{x}", "{0}", "{:>3000000000}", "%s%n", "\x1b[31mred\x1b[0m", "\x07",
    "a\nb", "\r", "\u202etxet", "\x9b31m", "<script>alert(1)</script>", "`|*_[x](y)", '"); import os; ("', "${x}",
    "'", "\\", "/", "../x", "?0.x", "é", "\U0001f600", "n" * 5000, "\x00", "a::b", "a,b", "a=b", "[bold]",
    "constructor", "__proto__", "1", "None",
)  # fmt: skip
DIMS = (
    "batch", "seq", "past", "N", "past + seq", "batch*seq", "2*seq", "seq//2", "seq//0", "max(seq, past)", "-seq",
    "9" * 400, "((((seq))))", "(" * 300, "seq*seq*seq*seq*seq", "min(" * 50, "1", "?", "{}", "{seq}", "\x1b[2J",
    "s\nt", "a b", "n" * 5000, "",
)  # fmt: skip
OPERATORS = tuple(sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}))
Mutator = Callable[[random.Random, onnx.ModelProto], None]
Holder = onnx.GraphProto | onnx.FunctionProto


def graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """Return the main graph and all bodies."""
    found, pending = [model.graph], [model.graph.node, *(function.node for function in model.functions)]
    while pending:
        for node in pending.pop():
            for attribute in node.attribute:
                for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                    found.append(body)
                    pending.append(body.node)
    return found


def holders(model: onnx.ModelProto) -> list[Holder]:
    """Return all that has nodes."""
    return [holder for holder in [*graphs(model), *model.functions] if holder.node]


def some_node(rng: random.Random, model: onnx.ModelProto) -> onnx.NodeProto | None:
    """Return a node of any graph."""
    found = holders(model)
    return rng.choice(rng.choice(found).node) if found else None


def infos(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return all declared types."""
    return [info for graph in graphs(model) for info in (*graph.input, *graph.output, *graph.value_info)]


def tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return initializers and values of attributes."""
    found = [tensor for graph in graphs(model) for tensor in graph.initializer]
    nodes = [node for holder in holders(model) for node in holder.node]
    return found + [a.t for node in nodes for a in node.attribute if a.HasField("t")]


def value_names(model: onnx.ModelProto) -> list[str]:
    """Return the names of values anywhere in a model."""
    names = [name for holder in holders(model) for node in holder.node for name in (*node.input, *node.output)]
    return sorted({*names, *(info.name for info in model.graph.input)}) or ["x"]


def pick(rng: random.Random, items: Sequence[Any]) -> Any:
    """Return one, None where there is none."""
    return rng.choice(items) if items else None
