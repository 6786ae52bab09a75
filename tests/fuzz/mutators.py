"""Changes that make a model wrong, odd or hostile, each in one place, all drawn from a seed.

A mutator takes a random generator and a model, and changes the model; one that finds nothing to change leaves it.
"""

from __future__ import annotations

import random

import onnx
from mutate_graphs import (
    add_node,
    change_arity,
    change_body,
    change_function,
    change_operator,
    change_version,
    copy_info,
    drop_info,
    drop_node,
    grow_chain,
    grow_constant,
    grow_inputs,
    rename_info,
    rename_node,
    rename_value,
    repeat_node,
    rewire_input,
    rewire_output,
    swap_nodes,
)
from mutate_types import (
    add_attribute,
    change_attribute,
    change_dim,
    change_initializers,
    change_kind,
    change_rank,
    change_tensor,
    change_type,
    drop_attribute,
)
from parts import Mutator

__all__ = ["MUTATORS", "Mutator", "mutate"]

MUTATORS: tuple[Mutator, ...] = (
    change_dim, change_rank, change_type, change_attribute, change_kind, drop_attribute, add_attribute, drop_node,
    repeat_node, swap_nodes, change_operator, rename_node, rewire_input, rewire_output, change_arity, add_node,
    grow_chain, grow_inputs, grow_constant, rename_value, rename_info, copy_info, drop_info, change_tensor,
    change_initializers, change_body, change_function, change_version,
)  # fmt: skip


def mutate(rng: random.Random, base: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with one to six changes."""
    model = onnx.ModelProto()
    model.CopyFrom(base)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 6))):
        rng.choice(MUTATORS)(rng, model)
    return model
