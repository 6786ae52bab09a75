"""The shape engine: every tensor's dims as integer expressions over the model's input dims."""

from importlib import import_module
from typing import TYPE_CHECKING

from graphkit.ops.registry import register_rule
from graphkit.ops.rule_context import Finding, InferenceContext, UnknownError
from graphkit.ops.tensor import Ratio, Tensor, is_known
from graphkit.shapes.corrected_declarations import Correction, Declarations, declarations
from graphkit.shapes.graph_inputs import AS_DECLARED, Bounds, DimSpec
from graphkit.shapes.infer import infer
from graphkit.shapes.inferred_shapes import Shapes
from graphkit.shapes.input_dims import parse
from graphkit.symbolic.algebra import Relation, Requirement, ceil_div, floor_div, lower, maximum, minimum, upper
from graphkit.symbolic.expr import Expr, const, symbol

if TYPE_CHECKING:
    from graphkit.shapes.shape_program import Program, program

__all__ = [
    "AS_DECLARED", "Bounds", "Correction", "Declarations", "DimSpec", "Expr", "Finding", "InferenceContext",
    "Program", "Ratio", "Relation", "Requirement", "Shapes", "Tensor", "UnknownError", "ceil_div", "const",
    "declarations", "floor_div", "infer", "is_known", "lower", "maximum", "minimum", "parse", "program",
    "register_rule", "symbol", "upper",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import the shape program when it is first used."""
    if name not in ("Program", "program"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module("graphkit.shapes.shape_program"), name)
