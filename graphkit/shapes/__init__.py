"""The shape engine: every tensor's dims as integer expressions over the model's input dims."""

import graphkit.shapes.related_dims  # noqa: F401 - it enters what `input_dims` asks of nodes
from graphkit.shapes.algebra import ceil_div, floor_div, maximum, minimum
from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.corrected_declarations import Correction, Declarations, declarations
from graphkit.shapes.expr import Expr, const, symbol
from graphkit.shapes.graph_inputs import AS_DECLARED, Bounds, DimSpec
from graphkit.shapes.infer import infer
from graphkit.shapes.inferred_shapes import Shapes
from graphkit.shapes.parse_dims import parse
from graphkit.shapes.program import Program, program
from graphkit.shapes.relations import Relation, Requirement
from graphkit.shapes.rule_context import Finding, InferenceContext, UnknownError
from graphkit.shapes.rule_registration import register_rule
from graphkit.shapes.tensor import Ratio, Tensor, is_known

__all__ = [
    "AS_DECLARED",
    "Bounds",
    "Correction",
    "Declarations",
    "DimSpec",
    "Expr",
    "Finding",
    "InferenceContext",
    "Program",
    "Ratio",
    "Relation",
    "Requirement",
    "Shapes",
    "Tensor",
    "UnknownError",
    "ceil_div",
    "const",
    "declarations",
    "floor_div",
    "infer",
    "is_known",
    "lower",
    "maximum",
    "minimum",
    "parse",
    "program",
    "register_rule",
    "symbol",
    "upper",
]
