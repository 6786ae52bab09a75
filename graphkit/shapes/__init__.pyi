from .algebra import ceil_div, floor_div, maximum, minimum
from .bounds import lower, upper
from .corrected_declarations import Correction, Declarations, declarations
from .expr import Expr, const, symbol
from .graph_inputs import AS_DECLARED, Bounds, DimSpec
from .infer import infer
from .inferred_shapes import Shapes
from .parse_dims import parse
from .program import Program, program
from .relations import Relation, Requirement
from .rule_context import Finding, InferenceContext, UnknownError
from .rule_registration import register_rule
from .tensor import Ratio, Tensor, is_known

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
