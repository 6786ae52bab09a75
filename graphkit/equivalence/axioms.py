"""The table of axioms: when a node is equal to something plainer, and how exactly.

Each is a function of a node that is applied to terms. It returns the term in normal form; a text where it nearly held,
which says what was missing; or None where it has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from onnx import TensorProto, helper

from graphkit.dtypes import FLOATS, HALVES, INTEGERS, inline_array
from graphkit.equivalence import cutting, flat
from graphkit.equivalence.application import Application, Result
from graphkit.equivalence.movement import JOINED, expands_to
from graphkit.equivalence.spelling import OF_KERNEL
from graphkit.equivalence.terms import Term, without_reshape
from graphkit.graph.operator_traits import BROADCASTING, UNARY
from graphkit.ops.tensor import Dims, dims_product
from graphkit.shapes import Expr, const, lower
from graphkit.symbolic.expr import Call, Symbol


class Axiom(Struct, frozen=True):
    """An equality that holds wherever its function returns a term: the docstring of that says it."""

    name: str
    operators: frozenset[str] | None  # the nodes that it is about; None for all
    function: Callable[[Application], Result]

    @classmethod
    def of(cls, name: str, operators: str, function: Callable[[Application], Result]) -> Axiom:
        """Return the axiom of some operators, whose names are words."""
        return cls(name, frozenset(operators.split()), function)


def take_input(app: Application) -> Result:
    """Identity gives its input."""
    return None if app.node.proto.overload == OF_KERNEL else app.arg(0)


def fill_dims(app: Application) -> Result:
    """ConstantOfShape repeats a number."""
    value = app.node.attr("value", TensorProto)
    array = np.zeros(1, np.float32) if value is None else inline_array(value)
    if array is None or array.size != 1 or (value is not None and value.data_type > TensorProto.COMPLEX128):
        return None
    return app.tools.movement.expand(app.tools.constants.of_array(array.reshape(()), app.dtype), app.shape)


def read_dims(app: Application) -> Result:
    """A Shape depends on dims alone, those included that are not known."""
    source = app.operand(0).shape
    rank = len(source)
    start, end = app.attr("start", 0), app.attr("end", rank)
    dims = source[max(start + rank, 0) if start < 0 else start : max(end + rank, 0) if end < 0 else end]
    return app.tools.terms.make("Shape", dims, (), app.dtype, (const(len(dims)),))


def merge_reshapes(app: Application) -> Result:
    """Reshapes are known by their output dims."""
    source = app.operand(0)
    if app.node.op_type == "Reshape" and not copies_zeros(app, source.shape):
        return "a dim of 0 in its target would copy another one"
    return app.tools.movement.reshape(source, app.shape)


def copies_zeros(app: Application, dims: Dims) -> bool:
    """Whether a Reshape gives its target's dims where they are 0 too, which copies the dim at that place.

    Where the target is not known, the dims of the output are: it is these, -1, or a 0 that copies.
    """
    if app.arg(1) is None or app.attr("allowzero", 0):
        return True  # an attribute, as before opset 5, has numbers
    known = app.elements_of(app.operand(1))
    target = app.shape if known is None else known
    may_be_zero = [(axis, dim) for axis, dim in enumerate(target) if dim.constant is None and lower(dim) < 1]
    if len(may_be_zero) == 1 and _fails_with_zero(dims, target, may_be_zero[0][0]):
        return True
    # a 0 behind the axes of the input has nothing to copy, so that the Reshape fails
    return all(axis >= len(dims) or _is_zero_with(dims[axis], dim) for axis, dim in may_be_zero)


def _fails_with_zero(dims: Dims, target: Sequence[Expr], axis: int) -> bool:
    """Whether a Reshape fails where its target is 0 along an axis, and would copy a dim there.

    That is so for a quotient `n // m` where the other dims times `n` are all elements times `m`: it is 0 where n is
    less than m, and then the other dims alone are more than all elements.
    """
    atom = target[axis].atom
    if not isinstance(atom, Call) or atom.op != "//" or axis >= len(dims):
        return False
    (dividend, divisor), count = atom.args, dims_product(dims)
    return lower(count) >= 1 and dims_product([*target[:axis], *target[axis + 1 :]]) * dividend == count * divisor


def _is_zero_with(dim: Expr, other: Expr) -> bool:
    if any(dim * abs(times) == other for _, times in other.terms):
        return True
    return isinstance(other.atom, Symbol) and dim.substitute({other.atom.name: 0}) == 0


def merge_transposes(app: Application) -> Result:
    """Transposes compose; one that moves only 1s is a Reshape."""
    source = app.operand(0)
    rank = len(source.shape)
    perm = app.attr("perm", ()) if "perm" in app.node.attributes else tuple(range(rank))[::-1]
    return app.tools.movement.transpose(source, perm) if sorted(perm) == list(range(rank)) else None


BY_SIZES = "Expand by sizes"  # which axes it repeats depends on these


def merge_expands(app: Application) -> Result:
    """Expands are known by their output dims, or else by the sizes that are not those of the axes anyway."""
    source = app.operand(0)
    if expands_to(source.shape, app.shape):
        return app.tools.movement.expand(source, app.shape)
    if (sizes := app.elements_of(app.operand(1))) is None or len(sizes) < len(source.shape):
        return "along which axes it repeats depends on sizes"
    own = (const(1),) * (len(sizes) - len(source.shape)) + source.shape
    plain = tuple(const(1) if size == dim else size for size, dim in zip(sizes, own, strict=True))
    return app.tools.terms.make(BY_SIZES, plain, (source,), app.dtype, app.dims)


def repeat_axes(app: Application) -> Result:
    """Repeat each axis as an Expand of an axis before it, which is merged with it afterwards."""
    source, counts = app.operand(0), app.elements(1)
    if len(counts) != len(source.shape):
        return None
    apart = tuple(dim for size in source.shape for dim in (const(1), size))
    repeated = tuple(dim for pair in zip(counts, source.shape, strict=True) for dim in pair)
    if any(lower(count) < 0 for count in counts) or dims_product(repeated) != dims_product(app.shape):
        return "how often it repeats is not known"
    move = app.tools.movement
    return move.reshape(move.expand(move.reshape(source, apart), repeated), app.shape)


def join_parts(app: Application) -> Result:
    """Nested Concats are one, empty parts have nothing, and copies along an axis of 1 are an Expand."""
    parts = [term for term in app.args if term is not None]
    ranks = {len(part.shape) for part in parts}
    axis = app.node.attr("axis", int) if app.opset >= 4 else app.attr("axis", 1)
    if len(ranks) != 1 or axis is None:
        return None
    return app.tools.movement.concat(parts, app.axis(axis, ranks.pop()), app.dims)


def drop_zero_states(app: Application) -> Result:
    """An initial state of zeros may be left out; of an RNN onnxruntime leaves out the product with it, NaN included."""
    recurrent, constants = app.operand(2), app.tools.constants
    array = constants.array(recurrent) if recurrent.is_constant else None
    if app.node.op_type == "RNN" and (array is None or not np.isfinite(array).all()):
        return None
    args = list(app.args)
    for index, term in enumerate(args):
        if index in (5, 6) and term is not None and constants.is_all(term, 0.0):
            args[index] = None
    return None if args == list(app.args) else app.make_term(app.node.operator, args, app.dims)


def drop_cast(app: Application) -> Result:
    """A Cast to the same dtype gives its input."""
    source = app.operand(0)
    return source if app.dtype and source.dtype == app.dtype else None


# What leaves a number as it is, -0 and NaN included: x + 0 would turn -0 into 0, so that only -0 is neutral.
RIGHT = {"Mul": 1.0, "Div": 1.0, "Add": -0.0, "Sub": 0.0, "And": 1.0, "Or": 0.0}


def drop_neutral(app: Application) -> Result:
    """X * 1, x / 1, x - 0, x + -0, x and true are x; so is x + 0 where the sign of zeros is lost."""
    left, right, op, constants = app.operand(0), app.operand(1), app.node.op_type, app.tools.constants
    if app.dtype not in (*INTEGERS, 1, 10, 11):
        return None
    for kept, gone in ((left, right), (right, left)) if op not in ("Div", "Sub") else ((left, right),):
        is_sum = op in ("Add", "Sub") and (not app.has_sign or (op == "Add" and constants.has_no_minus_zero(kept)))
        numbers = (0.0, -0.0) if is_sum and not app.has_sign else (0.0, RIGHT[op]) if is_sum else (RIGHT[op],)
        if any(constants.is_all(gone, number) for number in numbers):
            is_known = expands_to(kept.shape, app.shape)
            return app.tools.movement.expand(kept, app.shape) if is_known else "its dims are not known"
    return None


def swap_branches(app: Application) -> Result:
    """Choose by what is negated, the other way round, where there is no -0, which one of the branches loses."""
    is_signed = app.has_sign and app.dtype in (*FLOATS, *HALVES)
    if is_signed and not all(map(app.tools.constants.has_no_minus_zero, app.args[1:])):
        return None
    condition = app.operand(0)
    if (inner := without_reshape(condition)) is None or inner.op != "Not" or inner.args[0] is None:
        return None
    negated = app.tools.movement.reshape(inner.args[0], condition.shape)
    return flat.merge_elementwise(replace(app, args=[negated, *app.args[:0:-1]]))


# Axioms of forms that targets accept: quotients, and signs that move from a tensor into its table.


def divide_one(app: Application) -> Result:
    """Divide 1 by what a Reciprocal is of."""
    if app.dtype not in FLOATS:
        return None
    one = app.tools.constants.of_array(np.ones((), FLOATS[app.dtype]), app.dtype)
    return flat.apply_elementwise(app, "Div", [one, app.operand(0)], app.shape)


def move_signs(app: Application) -> Result:
    """Let the table that scales joined parts have the signs of those that are negated, as in a rotation."""
    if app.dtype not in FLOATS:
        return None
    for scaled, table in ((app.operand(0), app.operand(1)), (app.operand(1), app.operand(0))):
        if scaled.dims is None or table.dims is None or (found := _without_signs(app, scaled)) is None:
            continue
        plain, factors = found
        pairs = zip(table.dims[::-1], factors.shape[::-1], strict=False)
        if len(table.dims) < factors.ndim or any(sign not in (1, dim) for dim, sign in pairs):
            return "its table is the same for all parts"  # it would have other dims with their signs
        signs = app.tools.constants.of_array(factors, app.dtype)
        signed = flat.apply_elementwise(app, "Mul", [table, signs], table.dims)
        return None if signed is None else flat.apply_elementwise(app, "Mul", [plain, signed], app.shape)
    return None


def _without_signs(app: Application, term: Term) -> tuple[Term, np.ndarray] | None:
    """Return joined parts without their signs, and the signs, with dims that broadcast; None where none is negated."""
    move, inner = app.tools.movement, without_reshape(term)
    if inner is None or inner.op != "Concat" or inner.attributes != JOINED:
        return None
    joined = move.joined_parts(term)
    axis, listed = joined or (1, [part for part in inner.args if part is not None])
    plain, numbers = list[Term](), list[int]()  # the parts without their signs, and the sign of each element of them
    for part in listed:
        bare, length = without_reshape(part), part.shape[axis].constant
        if length is None or bare is None:
            return None
        source = bare.args[0] if bare.op == "Neg" else None
        plain.append(part if source is None else move.reshape(source, part.shape))
        numbers += [1 if source is None else -1] * length
    if -1 not in numbers:
        return None
    signs = np.array(numbers, helper.tensor_dtype_to_np_dtype(app.dtype))
    if joined is not None:
        return move.concat(plain, axis, term.shape), signs.reshape(-1, *[1] * (len(term.shape) - axis - 1))
    repeated = _repeat_signs(signs, inner.shape[2].constant, term.shape)
    return None if repeated is None else (move.reshape(move.concat(plain, 1, inner.shape), term.shape), repeated)


def _repeat_signs(signs: np.ndarray, behind: int | None, dims: Dims) -> np.ndarray | None:
    """Return the signs of interleaved parts along the last axes: those whose elements they repeat evenly along."""
    count, sizes = 1, list[int]()
    for dim in dims[::-1]:
        if not behind or not dim.constant:
            return None
        sizes.insert(0, dim.constant)
        count *= dim.constant
        if count % (len(signs) * behind) == 0:
            array = np.tile(np.repeat(signs, behind), count // (len(signs) * behind)).reshape(sizes)
            for axis in range(array.ndim):  # dims of 1 along which its elements are the same, without leading ones
                first = array.take([0], axis)
                array = first if (array == first).all() else array
            sizes = list(array.shape)
            return array.reshape(sizes[next((axis for axis, size in enumerate(sizes) if size != 1), len(sizes)) :])
    return None


BY_ELEMENT = frozenset({*UNARY, *BROADCASTING})
FIRST_AXIOMS: tuple[Axiom, ...] = (  # before those of exact arithmetic, too
    Axiom.of("identity", "Identity", take_input),
    Axiom("constants run once", None, flat.run_constants),
    Axiom.of("neutral", "Add Sub Mul Div And Or", drop_neutral),
)
AXIOMS: tuple[Axiom, ...] = (
    *FIRST_AXIOMS,
    Axiom.of("filled", "ConstantOfShape", fill_dims),
    Axiom.of("shape", "Shape", read_dims),
    Axiom.of("reshape", "Reshape Squeeze Unsqueeze Flatten", merge_reshapes),
    Axiom.of("transpose", "Transpose", merge_transposes),
    Axiom.of("expand", "Expand", merge_expands),
    Axiom.of("tile", "Tile", repeat_axes),
    Axiom.of("cut", "Slice", cutting.cut_axes),
    Axiom.of("strides", "Slice", cutting.cut_strides),
    Axiom.of("split", "Split", cutting.cut_part),
    Axiom.of("gather one", "Gather", cutting.gather_one),
    Axiom.of("lookup", "Gather", flat.look_up_rows),
    Axiom.of("grid", "GatherND", cutting.read_box),
    Axiom.of("concat", "Concat", join_parts),
    Axiom.of("cast", "Cast", drop_cast),
    Axiom.of("count", "Range", cutting.count_up),
    Axiom.of("shifted count", "Add", cutting.shift_count),
    Axiom.of("signs", "Mul", move_signs),
    Axiom.of("reciprocal", "Reciprocal", divide_one),
    Axiom.of("inverted", "Where", swap_branches),
    Axiom("elementwise", BY_ELEMENT, flat.merge_elementwise),
    Axiom.of("product", "MatMul MatMulInteger", flat.multiply_matrices),
    Axiom.of("sequence at", "SequenceAt", cutting.take_element),
    Axiom.of("pad", "Pad", cutting.pad_axes),
    Axiom.of("zero states", "LSTM GRU RNN", drop_zero_states),
    Axiom.of("scatter", "ScatterND", cutting.WRITES["ScatterND"]),
    Axiom.of("scatter of elements", "ScatterElements", cutting.WRITES["ScatterElements"]),
    Axiom.of("tensor scatter", "TensorScatter", cutting.WRITES["TensorScatter"]),
    Axiom.of("quantize", "DynamicQuantizeLinear QuantizeLinear DequantizeLinear", flat.quantize_list),
    Axiom.of("rows", "Softmax LogSoftmax LayerNormalization RMSNormalization", flat.work_on_rows),
    Axiom.of("row sums", "ReduceSum ReduceMean ReduceMax ReduceMin ReduceL2 ReduceProd", flat.reduce_rows),
    Axiom.of("row places", "ArgMax ArgMin", flat.reduce_rows),
)
