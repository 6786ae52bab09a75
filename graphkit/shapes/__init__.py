"""The shape engine: every tensor's dims as integer expressions over the model's input dims."""

from graphkit.shapes.algebra import ceil_div, floor_div, maximum, minimum
from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.context import InferenceContext
from graphkit.shapes.declarations import Correction, Declarations, declarations
from graphkit.shapes.dim_spec import AS_DECLARED, Bounds, DimSpec
from graphkit.shapes.expr import Expr, const, symbol
from graphkit.shapes.infer import infer
from graphkit.shapes.node_view import UnknownError
from graphkit.shapes.notes import Finding
from graphkit.shapes.parse import parse
from graphkit.shapes.program import Program, program
from graphkit.shapes.registration import register_rule
from graphkit.shapes.relations import Relation, Requirement
from graphkit.shapes.results import Shapes
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
