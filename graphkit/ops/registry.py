"""The shape rules of all operators, by operator (with its domain unless that is the default one), and new ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import numpy as np
from onnx import TensorProto

from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.graph.operator_traits import join_tables
from graphkit.ops import (
    classical_ml,
    control_and_sequences,
    data_movement,
    elementwise_and_reduction,
    indexing,
    matmul_and_attention,
    spatial,
    tensor_creation,
)
from graphkit.ops.rule_context import InferenceContext, Rule, UnknownError
from graphkit.ops.tensor import Tensor
from graphkit.symbolic.algebra import upper
from graphkit.symbolic.expr import TooComplexError

RULES: dict[str, Rule] = join_tables(
    classical_ml.RULES,
    control_and_sequences.RULES,
    data_movement.RULES,
    elementwise_and_reduction.RULES,
    indexing.RULES,
    matmul_and_attention.RULES,
    spatial.RULES,
    tensor_creation.RULES,
)

SIGNATURE = "a rule takes an InferenceContext and returns a Tensor, or a list with one for each output of its node"
Registered = TypeVar("Registered", bound=Rule)
_forget: list[Callable[[], None]] = []


def forget_on_registration(forget: Callable[[], None]) -> None:
    """Call a function whenever a rule is registered, because earlier results no longer hold."""
    _forget.append(forget)


def register_rule(op_type: str, domain: str = "", *, replace: bool = False) -> Callable[[Registered], Registered]:
    """Return a decorator that registers a function as the shape rule of an operator.

    The rule is called for each node of the operator. It reads dims, elements and attributes from its context, notes
    there the relations that must hold for the node to run, and raises `UnknownError` with a reason for unknown facts.

    Args:
        op_type: The operator, such as "CDist".
        domain: Its domain; "" is that of ONNX itself.
        replace: Whether the rule may replace another one, such as when a notebook's cell runs again.

    Raises:
        UsageError: The operator has a rule already, or the name is not text.

    Example:
        >>> from graphkit.shapes import InferenceContext, Tensor, register_rule
        >>> @register_rule("CDist", domain="com.mine")
        ... def pairwise_distances(ctx: InferenceContext) -> Tensor:
        ...     (rows, left), (columns, right) = ctx.dims(0), ctx.dims(1)
        ...     ctx.same(left, right, "the coordinates of both inputs")
        ...     return Tensor(ctx.tensor(0).dtype, (rows, columns))
    """
    if not isinstance(op_type, str) or not op_type:
        raise UsageError(f'{op_type!r:.80} is not an operator - write `@register_rule("CDist", domain="com.mine")`')
    operator = f"{domain}.{op_type}" if domain not in ("", "ai.onnx") else op_type

    def register(rule: Registered) -> Registered:
        if operator in RULES and not replace:
            raise UsageError(f"{operator} has a shape rule already - pass `replace=True` to put this one in its place")
        if not callable(rule):
            raise UsageError(f"the shape rule for {operator} is not a function - {SIGNATURE}")
        RULES[operator] = _check_rule(operator, rule)
        for forget in _forget:
            forget()
        return rule

    return register


def _check_rule(operator: str, rule: Rule) -> Rule:
    @wraps(rule)
    def checked_rule(ctx: InferenceContext) -> list[Tensor]:
        def fault(problem: str) -> ModelError:
            said, hint = f"the shape rule for {operator} {problem}", f"correct the rule: {SIGNATURE}"
            return ModelError(said, file=ctx.engine.model.file, node=ctx.node.path, hint=hint)

        try:
            results = rule(ctx)
        except (GraphkitError, TooComplexError, UnknownError):
            raise
        except Exception as error:  # the code of others may raise anything
            raise fault(f"raised {type(error).__name__}: {error!s:.300}") from error
        tensors = list(results) if isinstance(results, (list, tuple)) else [results]
        if len(tensors) < len(ctx.node.outputs):
            raise fault(f"returned {len(tensors)} of {len(ctx.node.outputs)} outputs")
        for index, tensor in enumerate(tensors):
            if problem := _result_problem(tensor):
                raise fault(f"returned output {index} {problem}")
        return tensors

    return checked_rule


def _result_problem(tensor: object) -> str:
    """Return why an object cannot be a rule's description of an output, "" where it can."""
    if not isinstance(tensor, Tensor):
        return f"as {type(tensor).__name__}, not as a Tensor"
    if tensor.dtype not in TensorProto.DataType.values():
        return f"with the dtype {tensor.dtype!r:.80}, which is not a TensorProto.DataType"
    if tensor.dims is not None and any(upper(dim) < 0 for dim in tensor.dims):
        return f"with dims below 0: [{', '.join(map(str, tensor.dims))}]"
    data = tensor.data if tensor.may_have_data else None
    if data is not None and (not isinstance(data, np.ndarray) or data.dtype != object or data.shape != tensor.sizes()):
        return "with elements that are not an array of objects with its dims"
    return ""
