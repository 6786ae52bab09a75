"""Axioms of operators that work row by row: axes that all arguments share are one; Expands that broadcasting makes go.

An elementwise node on [batch, sequence, width] is one on [batch*sequence*width], shaped back afterwards; beside a bias
of [width] it is one on [batch*sequence, width]. So is a product with a matrix, a Softmax or a normalisation over the
last axis, a sum over it, and a lookup. onnxruntime computes them in just this way: bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx
from msgspec.structs import replace
from onnx import TensorProto, numpy_helper

from graphkit.dtypes import BITS, FLOATS, HALVES
from graphkit.equivalence import movement
from graphkit.equivalence.application import Application, Result
from graphkit.equivalence.spelling import OF_KERNEL
from graphkit.equivalence.terms import MAX_ARRAY, Term, without_reshape
from graphkit.graph.declared_types import shape_text
from graphkit.graph.operator_traits import (
    EXTREMES,
    IN_ORDER,
    PLACED,
    PLACED_IN_DOUBLE,
    RANDOM,
    SWAPPING,
    UNARY,
    broadcasts_inputs,
    copied_inputs,
    operator_set,
)
from graphkit.ops.tensor import Dims, dims_product
from graphkit.runtime.isolation import shared_isolation
from graphkit.runtime.session import run_models
from graphkit.shapes import Expr, const, lower

# What gives no more elements than a few for each one that it reads, and how many decides its data.
SELECTING = operator_set("Compress NonZero Unique NonMaxSuppression")


def run_constants(app: Application) -> Result:
    """Return the output of a node of constants as a constant term."""
    if not app.args or app.node.bodies or app.node.operator in RANDOM or app.node.domain not in ("", "com.microsoft"):
        return None
    if app.node.proto.overload == OF_KERNEL:
        return None  # a kernel runs what the node gives
    args = app.args[: len(app.node.inputs)]  # what was an attribute is one for the run
    if any(term is not None and not term.is_constant for term in args):
        return None
    found = [None if term is None else app.tools.constants.array(term) for term in args]
    if any(array is None and term is not None for array, term in zip(found, args, strict=True)):
        return None
    arrays = [array for array in found if array is not None]
    if not arrays or sum(array.nbytes for array in arrays) > MAX_ARRAY:
        return "its constants are too large to run it"
    count, bits = None if app.dims is None else dims_product(app.dims).constant, BITS.get(app.dtype)
    is_small = count is not None and bits is not None and count * bits <= 8 * MAX_ARRAY
    if not is_small and (app.dims is not None or app.node.operator not in SELECTING):
        return "what it gives may be too large to run it"
    if (result := _run_node(app, found)) is None:
        return None
    of_computed = any(term is not None and app.tools.constants.is_computed(term) for term in args)
    is_copied = bool(copied_inputs(app.node)) or app.node.is_op("Constant", "ConstantOfShape", "Neg")
    return app.tools.constants.of_array(result, app.dtype, is_computed=of_computed or not is_copied)


def _run_node(app: Application, arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    node = deepcopy(app.node.proto)
    del node.input[:]
    node.input.extend("" if array is None else f"i{index}" for index, array in enumerate(arrays))
    del node.output[:]
    node.output.extend(f"o{index}" if value else "" for index, value in enumerate(app.node.outputs))
    tensors = [numpy_helper.from_array(a, f"i{index}") for index, a in enumerate(arrays) if a is not None]
    output = onnx.helper.make_empty_tensor_value_info(f"o{app.index}")
    graph = onnx.helper.make_graph([node], "constants", [], [output], tensors)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in app.node.scope.opsets.items()]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with shared_isolation() as process:
        (found,) = run_models(process, [(proto.SerializeToString(), [{}])])
    result = None if isinstance(found, str) or isinstance(found[0], str) else found[0][0]
    if not isinstance(result, np.ndarray) or result.dtype == object or result.nbytes > MAX_ARRAY:
        return None
    return result if onnx.helper.np_dtype_to_tensor_dtype(result.dtype) == app.dtype else None


ONE = const(1)
ODD = {"BitCast", "CastLike", "Identity", "RegexFullMatch", "Affine", "ParametricSoftplus", "Scale", "ScaledTanh"}
BOUNDED = {"HardSigmoid", "HardSwish", "Relu"}  # by Max, where onnxruntime runs the body that ONNX has for them:
OF_BODIES = 18  # the version in which it does so for float16
COMPUTED: Mapping[str, Callable[..., np.ndarray]] = {"Where": np.where, "Mul": np.multiply}  # of constants


def merge_elementwise(app: Application) -> Result:
    """Merge axes that all arguments have, or all but those that broadcast there; repeat the result, not arguments."""
    op = app.node.operator
    is_placed = _is_placed(app) and (not app.is_real or op == "Cast")
    is_one = app.dims is not None and dims_product(app.dims) == 1  # one number, of whatever rank
    if is_placed and op == "Pow" and not is_one and not (app.dims and lower(app.dims[-1]) > 1):
        return "its last axis may be 1, where onnxruntime computes it otherwise"
    if not app.has_sign:
        return _by_element(app, is_placed and op not in EXTREMES)
    if is_placed and op in EXTREMES and any(term is None or term.dims != app.dims for term in app.args):
        return "which of two zeros it gives depends on dims"
    if op == "Where" and not _loses_first(app):  # which branch keeps its -0 depends on sizes
        return app.make_term("Where of these dims", app.args, app.dims)
    if op in BOUNDED and app.dtype in HALVES and app.opset == OF_BODIES:
        return "which of two zeros it gives depends on dims, where onnxruntime computes it by Max"
    return _by_element(app, is_placed)


def apply_elementwise(app: Application, op: str, args: Sequence[Term | None], dims: Dims | None) -> Term | None:
    """Return the normal form of another elementwise operator, on terms of a node."""
    arrays = [app.tools.constants.array(arg) for arg in args if arg is not None and arg.is_constant]
    constants = [array for array in arrays if array is not None]
    if op in COMPUTED and len(constants) == len(args):
        with np.errstate(over="ignore", invalid="ignore"):
            return app.tools.constants.of_array(COMPUTED[op](*constants), app.dtype)
    found = merge_elementwise(app.other_operator(op, 9 if op == "Where" else 7, args, dims))
    return found if isinstance(found, Term) else None


def _by_element(app: Application, is_placed: bool) -> Result:
    op, move = app.node.operator, app.tools.movement
    is_unary = op in UNARY and op not in ODD
    if not is_unary and not broadcasts_inputs(app.node):
        return None
    count = 1 if is_unary else len(app.args)
    operands = [app.operand(index) for index in range(count)]
    terms = operands if is_placed else [move.without_expand(term) for term in operands]
    if (finer := _with_finer_axis(app, operands)) is not None:
        found = _by_element(finer, is_placed)
        return move.reshape(found, app.shape) if isinstance(found, Term) else found
    if (natural := _broadcast_dims([term.shape for term in terms], app.shape)) is None:
        return "which dims broadcast depends on sizes"
    is_whole = _strip_ones(natural) == _strip_ones(app.shape)
    if not is_whole and not movement.expands_to(natural, app.shape):
        return f"its dims are {shape_text(app.shape)}, and those of its inputs make {shape_text(natural)}"
    groups = movement.group_axes([term.shape for term in terms], natural)
    flats = [move.reshape(term, movement.merge_grouped_dims(term.shape, natural, groups)) for term in terms]
    parts = [move.without_leading_ones(term) for term in flats]
    if op in SWAPPING:
        parts.sort(key=lambda term: term.number)
    args, merged = [*parts, *app.args[count:]], movement.merge_grouped_dims(natural, natural, groups)
    run = run_constants(replace(app, args=args, dims=merged))
    made = run if isinstance(run, Term) else app.make_term(op, args, merged)
    return move.reshape(made, app.shape) if is_whole else move.expand(move.reshape(made, natural), app.shape)


def _loses_first(app: Application) -> bool:
    """Whether a Where of floats makes 0 of -0 in its first branch at all sizes, or there is no -0.

    onnxruntime takes the first branch, 0 where that is not chosen, and the second one where the result is 0. It does so
    the other way round where the second one is one number along the last axes, and the first is not.
    """
    if app.dtype not in (*FLOATS, *HALVES):
        return True
    if app.dims is None or any(term is None or term.dims is None for term in app.args):
        return False
    if all(map(app.tools.constants.has_no_minus_zero, app.args[1:])):
        return True
    chosen = [_broadcast_dims((app.operand(0).shape, app.operand(at).shape), app.dims) for at in (1, 2)]
    first, second = (None if dims is None else _strip_ones(dims) for dims in chosen)
    if second is None or second == _strip_ones(app.dims):
        return second is not None
    return first is not None and first[-1:] == second[-1:] and lower(first[-1]) > 1


def _is_placed(app: Application) -> bool:
    """Whether the bits of what a node computes depend on where an element stands."""
    op = app.node.operator
    if op in EXTREMES and app.dtype in FLOATS:
        return sum(not app.tools.constants.has_no_zero(arg) for arg in app.args) > 1
    if op == "Cast" and app.dtype == TensorProto.UINT32:  # of numbers that it cannot hold
        return (source := app.arg(0)) is None or source.dtype in FLOATS or not source.dtype
    return op in PLACED and (op not in PLACED_IN_DOUBLE or app.dtype != TensorProto.FLOAT)


def _with_finer_axis(app: Application, operands: Sequence[Term]) -> Application | None:
    """Return the node with an axis as two where an argument repeats along the first of them, as a Tile does."""
    for term in operands:
        if (fine := _repeated_axes(app, term)) is None:
            continue
        rank, dims = len(app.shape) - len(term.shape), app.shape
        split = [[dim] if old == 1 else new for dim, old, new in zip(dims[rank:], term.shape, fine, strict=True)]
        runs = [[dim] for dim in dims[:rank]] + split
        args = [_split_axes(app, each, runs) for each in operands]
        if None not in args and any(len(run) > 1 for run in runs):
            return replace(app, args=[*args, *app.args[len(args) :]], dims=tuple(dim for run in runs for dim in run))
    return None


def _repeated_axes(app: Application, term: Term) -> list[list[Expr]] | None:
    """Return the axes that each axis of a term is made of, if it repeats along one of these."""
    if term.is_constant:
        return app.tools.constants.periods(term)
    inner = without_reshape(term)
    if inner is term or inner is None or inner.op != "Expand" or inner.dims is None:
        return None
    if (aligned := movement.align_dims(term.shape, inner.dims)) is None:
        return None
    fine, axes, _ = aligned
    return [[fine[part] for part in parts] or [ONE] for parts in axes]


def _split_axes(app: Application, term: Term, runs: Sequence[Sequence[Expr]]) -> Term | None:
    """Return a term with the axes that each axis is made of; None where its dims are neither those nor 1."""
    dims: list[Expr] = []
    for dim, run in zip(term.shape, runs[len(runs) - len(term.shape) :], strict=True):
        if dim not in (1, dims_product(run)):
            return None
        dims += [ONE] * len(run) if dim == 1 else run
    return app.tools.movement.reshape(term, tuple(dims))


def _strip_ones(dims: Dims) -> Dims:
    return dims[movement.leading_ones(dims) :]


def _broadcast_dims(shapes: Sequence[Dims], whole: Dims) -> Dims | None:
    """Return the dims that dims broadcast to: one that all others are, but for 1s, or else that of the whole."""
    rank, found = max(map(len, shapes)), list[Expr]()
    for axis in range(-rank, 0):
        dims = {shape[axis] for shape in shapes if len(shape) >= -axis} - {ONE}
        if len(dims) > 1 and len(whole) < -axis:
            return None
        found.append(whole[axis] if len(dims) > 1 else next(iter(dims), ONE))
    return tuple(found)


def multiply_matrices(app: Application) -> Result:
    """Multiply [rows, inner] with a matrix, and [batches, rows, inner] with as many; equal batch axes are one."""
    left, right = app.operand(0), app.operand(1)
    if len(left.shape) < 2 or len(right.shape) < 2 or any(term and term.dims != () for term in app.args[2:]):
        return None
    left = _without_expand(app, left, right) or left  # of batches that the other operand has
    bare = _without_expand(app, right, left)
    # A right operand whose batches are all 1 is multiplied with the rows of all batches at once, which rounds
    # otherwise. So its Expand goes only where another batch axis is never 1.
    if bare is not None and (app.is_real or any(lower(dim) > 1 for dim in bare.shape[:-2])):
        right = bare
    move, batches = app.tools.movement, [left.shape[:-2], right.shape[:-2]]
    if (natural := _broadcast_dims(batches, ())) is None or natural != app.shape[:-2]:
        return "which of its batches broadcast depends on sizes"
    rows, inner, columns = *left.shape[-2:], right.shape[-1]
    is_lifted = len(left.shape) < len(right.shape)
    if all(dim == 1 for dim in batches[1]) and not is_lifted:  # onnxruntime takes all rows at once
        total = dims_product(left.shape[:-1])
        flats = [move.reshape(left, (total, inner)), move.reshape(right, (inner, columns)), *app.args[2:]]
        return move.reshape(app.make_term(app.node.operator, flats, (total, columns)), app.shape)
    groups = movement.group_axes(batches, natural)
    merged = [movement.merge_grouped_dims(batch, natural, groups) for batch in batches]
    flats = [move.reshape(left, (*merged[0], rows, inner)), move.reshape(right, (*merged[1], inner, columns))]
    is_each = is_lifted and not any(lower(dim) > 1 for dim in batches[1])  # nor where the right batches are all 1
    op = f"{app.node.operator} of each batch" if is_each else app.node.operator
    made = app.make_term(
        op, [*flats, *app.args[2:]], (*movement.merge_grouped_dims(natural, natural, groups), rows, columns)
    )
    return move.reshape(made, app.shape)


def _without_expand(app: Application, term: Term, other: Term) -> Term | None:
    """Return a term without the Expand of batches that another one has, None where it has none."""
    bare, offset = app.tools.movement.without_expand(term), len(term.shape) - len(other.shape)
    if bare is term or term.is_constant:
        return None
    for axis, (dim, whole) in enumerate(zip(bare.shape, term.shape, strict=True)):
        if dim != whole and not (offset <= axis < len(term.shape) - 2 and other.shape[axis - offset] == whole):
            return None
    return bare


def work_on_rows(app: Application) -> Result:
    """Take a Softmax or a normalisation over the last axis row by row."""
    first, is_softmax = app.operand(0), app.node.op_type.endswith("Softmax")
    default = -1 if app.node.op_type == "LayerNormalization" or app.opset >= 13 else 1
    axis = app.axis(app.attr("axis", default), len(first.shape))
    is_over_all = default == 1 and is_softmax  # axes from one on
    if axis != len(first.shape) - 1 and not is_over_all:
        return "it is over another axis than the last"
    if app.shape != first.dims or any(term and len(term.dims or "..") > 1 for term in app.args[1:]):
        return "its scale is no list"
    rows = dims_product(first.shape[:axis]), dims_product(first.shape[axis:])
    is_the_same = is_softmax and app.dtype not in HALVES  # of rows, in all versions
    key = tuple(each for each in app.attributes if each[0] not in ("axis", "" if is_the_same else None))  # type: ignore[index]
    args = (app.tools.movement.reshape(first, rows), *app.args[1:])
    made = app.tools.terms.make(f"{app.node.operator} of rows", (*key, app.index), args, app.dtype, rows)
    return app.tools.movement.reshape(made, app.shape)


def reduce_rows(app: Application) -> Result:
    """Reduce the last axis row by row, and shape the result afterwards."""
    first, finds_place = app.operand(0), app.node.is_op("ArgMax", "ArgMin")
    axes, rank = [app.attr("axis", 0)] if finds_place else app.listed_numbers("axes"), len(first.shape)
    if not rank or axes not in ([-1], [rank - 1]):
        return "it is over another axis than the last"
    rows = dims_product(first.shape[:-1])
    flat = app.tools.movement.reshape(first, (rows, first.shape[-1]))
    is_all = rank == 1 and app.node.operator not in IN_ORDER
    op = f"{app.node.operator} of {'all' if is_all else 'rows'}"
    last = [app.attr("select_last_index", 0)] if finds_place else []
    key = (*(app.attributes[:1] if first.dtype in HALVES else ()), *last, app.index)
    return app.tools.movement.reshape(app.tools.terms.make(op, key, (flat,), app.dtype, (rows,)), app.shape)


def quantize_list(app: Application) -> Result:
    """Quantize a tensor as one list of elements, with one scale."""
    first = app.operand(0)
    if any(term is not None and term.dims != () for term in app.args[1:]):
        return None
    flat = app.tools.movement.reshape(first, (dims_product(first.shape),))
    made = app.make_term(app.node.operator, (flat, *app.args[1:]), app.shape if app.index else flat.dims)
    return made if app.index else app.tools.movement.reshape(made, app.shape)


def look_up_rows(app: Application) -> Result:
    """Look rows up by a list of indices: a Gather from the first axis, whose other axes are one."""
    table, indices, move = app.operand(0), app.operand(1), app.tools.movement
    if app.attr("axis", 0) != 0 or not table.shape or not indices.shape:
        return None
    count, width = dims_product(indices.shape), dims_product(table.shape[1:])
    flat = move.reshape(table, (table.shape[0], width)), move.reshape(indices, (count,))
    return move.reshape(app.tools.terms.make("Gather of rows", (), flat, app.dtype, (count, width)), app.shape)
