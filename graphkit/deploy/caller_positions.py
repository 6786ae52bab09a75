"""Positions that a caller gives with a prompt, from which later steps count on: those of pictures among text."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from graphkit.errors import UsageError
from graphkit.graph.roles import declared_rank
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.new_interface import NewInput, with_interface
from graphkit.shapes import infer


def takes_positions(first: Model) -> bool:
    """Whether the caller of a first step says where the tokens stand, as counting them does not tell.

    So it is where positions have planes, such as height and width beside time, and where the caller makes the mask for
    each pair of tokens: a picture before a text may see all of itself.
    """
    positions = first.roles.first("positions")
    masks = [mask for mask in first.roles.all("mask") if declared_rank(mask) == 4]
    return positions is not None and not first.roles.pasts and bool(masks or declared_rank(positions) == 3)


def count_on_positions(first: Model, step: Model) -> tuple[Model, Model]:
    """Return decoders of which the first takes positions from its caller, and later ones count on from these."""
    given, read = (model.roles.first("positions") for model in (first, step))
    dims = (infer(step)[read].dims or ()) if read is not None else ()
    if given is None or read is None or not dims or dims[-1].constant != 1 or len(dims) != declared_rank(given):
        raise UsageError(
            f"{first.name}: it takes positions from its caller, and {step.name} takes none of one token to count on "
            "from them - export both as one decoder"
        )
    return _with_next(first, given, f"next_{read.name}"), _with_next(step, read, f"next_{read.name}")


def _with_next(model: Model, positions: Value, name: str) -> Model:
    """Return a model that gives what comes behind the last of its positions, [batch, 1] or [planes, batch, 1]."""
    tensor, at, one = infer(model)[positions], f"{name}_at", f"{name}_one"
    dims, kind = tensor.dims or (), helper.tensor_dtype_to_np_dtype(tensor.dtype)
    numbers = {one: np.array([1], kind), at: np.array([-1])}
    nodes = [NewNode("Constant", [], [key], {"value": numpy_helper.from_array(each)}) for key, each in numbers.items()]
    nodes.append(NewNode("Gather", [positions.name, at], [f"{name}_last"], {"axis": len(dims) - 1}))
    if dims[-1].constant == 1:
        nodes, last = nodes[:1], positions.name
    else:
        last = f"{name}_last"
    nodes.append(NewNode("Add", [last, one], [name]))
    return with_interface(model, {}, {name: NewInput(name, tensor.dtype, (*dims[:-1], 1))}, (), nodes)
