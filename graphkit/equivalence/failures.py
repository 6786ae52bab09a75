"""Nodes of a rewritten model that may fail where the original does not: a proof of equal terms says nothing of them.

A node that runs in the original too, on the same terms, fails only where the original does. Any other one must be of a
kind that cannot fail on what is known of its inputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest

from msgspec.structs import replace
from onnx import TensorProto

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.equivalence import cutting
from graphkit.equivalence.application import Application, Reading, Run, version_of
from graphkit.equivalence.axioms import BY_SIZES, copies_zeros
from graphkit.equivalence.reader import broadcast_dims
from graphkit.equivalence.terms import Term
from graphkit.graph import operator_traits
from graphkit.graph.declared_types import declared_dims
from graphkit.graph.view import Node, Scope, follow_chain
from graphkit.ops.rule_context import UnknownError
from graphkit.ops.tensor import dims_product, is_known
from graphkit.shapes import const, lower, upper
from graphkit.symbolic.algebra import is_nonzero

# Whether a node runs at every size and for every input, by rules for each operator.

MAX_MADE = 1 << 30  # elements for which there is memory
APPROXIMATIONS = (b"none", b"tanh")
OF_INTEGERS = operator_traits.operator_set(
    "Abs Neg Sign Not BitwiseNot"
)  # onnxruntime has no kernels of others for integers


def cannot_fail(app: Application) -> bool:
    """Whether a node runs at every size and for every input."""
    op = app.node.operator
    try:
        if not _types_fit(app) or math.prod(max(1, lower(dim)) for dim in app.shape) > MAX_MADE:
            return False  # onnxruntime counts dims beside one of 0, too
        if op in ALWAYS:
            return True
        if op in operator_traits.UNARY and op not in ("Cast", "CastLike", "Clip", "RegexFullMatch", "BitCast"):
            texts = (attribute.s for attribute in app.node.attributes.values() if attribute.s)
            is_known = all(text in APPROXIMATIONS for text in texts)
            return is_known and len(app.args) == 1 and (op in OF_INTEGERS or _is_float(app))
        if operator_traits.broadcasts_inputs(app.node):
            return _always_broadcasts(app)
        lists = operator_traits.value_inputs(app.node) if op != "Range" else ()  # which takes numbers
        if op not in RULES or any(len(app.operand(at).shape) != 1 for at in lists):
            return False  # what has to be a list is none
        return RULES[op](app)
    except UnknownError:
        return False


def _types_fit(app: Application) -> bool:
    """Whether the dtypes of a sound node are such as its operator takes, and equal where they have to be."""
    if (schema := operator_traits.schema_of(app.node)) is None:
        return False
    given = app.args[: len(app.node.inputs)]  # attributes that are inputs in later versions stand behind them
    bound: dict[str, int] = {}
    for index, term in enumerate(given):
        if term is None:
            continue
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if term.dtype not in TensorProto.DataType.values():
            return False
        name = TensorProto.DataType.Name(term.dtype).lower()
        if f"tensor({name})" not in formal.types or bound.setdefault(formal.type_str, term.dtype) != term.dtype:
            return False
    return True


def _always_broadcasts(app: Application) -> bool:
    op, shapes = app.node.op_type, [app.operand(index).shape for index in range(len(app.args))]
    kinds = {term.dtype for term in app.args[op == "Where" :] if term is not None}
    if len(kinds) > 1 and op != "Pow":
        return False
    if op == "Mod" and bool(app.attr("fmod", 0)) != (kinds <= FLOATS.keys()):
        return False  # floats have no remainder of integers
    if op in ("Pow", "BitShift") and not kinds <= FLOATS.keys():
        return False
    divisors = app.elements(1) if op in ("Div", "Mod") and not kinds <= FLOATS.keys() else ()
    if any(lower(each) <= -1 <= upper(each) or not is_nonzero(each) for each in divisors):
        return False  # the least integer has no quotient by -1
    columns = zip_longest(*(shape[::-1] for shape in shapes), fillvalue=const(1))
    return all(len({dim for dim in column if dim != 1}) < 2 for column in columns)


def _is_as_large(app: Application) -> bool:
    """Whether the input has as many elements as the output, wherever the original runs."""
    return len({app.tools.required.expr(dims_product(dims)) for dims in (app.operand(0).shape, app.shape)}) == 1


def _always_squeezes(app: Application) -> bool:
    source, axes = app.operand(0).shape, app.listed_numbers("axes") or ()  # all dims of 1 where none are given
    dims = (source[app.axis(axis, len(source))] for axis in axes)
    return _is_as_large(app) and all(app.tools.required.expr(dim) == 1 for dim in dims)


def _always_unsqueezes(app: Application) -> bool:
    if (axes := app.listed_numbers("axes")) is None or not _is_as_large(app):
        return False
    return len(app.front_axes(axes, len(app.operand(0).shape) + len(axes))) == len(axes)


def _always_expands(app: Application) -> bool:
    source, target = app.operand(0).shape, app.elements(1)
    pairs = zip(source[::-1], target[::-1], strict=False)
    return all(lower(dim) >= 0 for dim in target) and all(dim == other or 1 in (dim, other) for dim, other in pairs)


def _always_slices(app: Application) -> bool:
    """Starts, ends, axes and steps must be lists of one length; of axes and steps more has to be known."""
    given = [index for index in range(1, 5) if app.arg(index) is not None]
    if app.opset < 10 or len(given) < 2 or len({len(app.elements(index)) for index in given}) > 1:
        return False
    app.front_axes([] if 3 not in given else app.numbers(3), len(app.operand(0).shape))
    return 4 not in given or 0 not in app.numbers(4)


def _always_gathers(app: Application) -> bool:
    source = app.operand(0).shape
    dim = source[app.axis(app.attr("axis", 0), len(source))]
    return all(lower(index + dim) >= 0 and upper(index - dim) < 0 for index in app.elements(1))


def _always_concatenates(app: Application) -> bool:
    operands, axis = [app.operand(index) for index in range(len(app.args))], app.node.attr("axis", int)
    ranks = {len(each.shape) for each in operands}
    if axis is None or len(ranks) != 1 or len({each.dtype for each in operands}) > 1:
        return False
    axis = app.axis(axis, ranks.pop())
    return len({(*each.shape[:axis], *each.shape[axis + 1 :]) for each in operands}) == 1


def _always_multiplies(app: Application) -> bool:
    left, right = app.operand(0).shape, app.operand(1).shape
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        return False
    return all(one == other or 1 in (one, other) for one, other in zip(left[-3::-1], right[-3::-1], strict=False))


def _multiplies_matrices(app: Application) -> bool:
    left, right = app.operand(0).shape, app.operand(1).shape
    bias = () if app.arg(2) is None else app.operand(2).shape
    if len(left) != 2 or len(right) != 2 or len(bias) > 2:
        return False
    if left[0 if app.attr("transA", 0) else 1] != right[1 if app.attr("transB", 0) else 0]:
        return False
    return all(dim in (1, whole) for dim, whole in zip(bias[::-1], app.shape[::-1], strict=False))


def _always_convolves(app: Application) -> bool:
    data, weight, group = app.operand(0).shape, app.operand(1).shape, app.attr("group", 1)
    if len(data) != len(weight) or len(data) < 3 or not group or min(app.attr("pads", ()) or (0,)) < 0:
        return False
    sizes = tuple(dim.constant or 0 for dim in weight[2:])
    if app.attr("kernel_shape", sizes) != sizes:
        return False
    if app.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER") and {*(app.attr("dilations", ()) or (1,))} != {1}:
        return False  # onnxruntime pads no dilated windows
    count = weight[0].constant
    is_fitting = count is not None and count % group == 0 and data[1] == weight[1] * group and is_biased(app)
    return is_fitting and all(lower(dim) >= 1 for dim in (*weight[2:], *app.shape[2:]))


def _always_splits(app: Application) -> bool:
    source, count = app.operand(0).shape, len(app.node.outputs)
    axis = app.axis(app.attr("axis", 0), len(source))
    if app.arg(1) is None:  # all parts are of one size
        size = source[axis].constant
        return size is not None and size % count == 0 and app.attr("num_outputs", count) == count
    sizes = app.numbers(1)
    return bool(sizes) and min(sizes) >= 0 and source[axis] == sum(sizes) and len(sizes) == len(app.node.outputs)


def _always_pads(app: Application) -> bool:
    """Whether it adds a number of elements along axes that are known; other modes need elements to copy."""
    if not app.operand(0).shape or app.opset < 11 or any(lower(each) < 0 for each in app.elements(1)):
        return False
    cutting.ends_by_axis(app)
    return app.attr("mode", "constant") == "constant" and (app.arg(2) is None or app.operand(2).dims == ())


def _always_ranges(app: Application) -> bool:
    """Start, limit and step are known: what an input holds may ask for more elements than there is memory for."""
    are_numbers = all(app.operand(index).dims == () and app.elements(index) for index in range(3))
    return are_numbers and is_nonzero(app.elements(2)[0]) and all(map(is_known, app.shape))


def _always_scatters(app: Application) -> bool:
    """A write that is known to lie in the tensor."""
    is_slots, data = app.node.op_type == "TensorScatter", app.operand(0)
    if is_slots and app.arg(2) is not None and app.operand(2).shape != data.shape[:1]:
        return False  # it has other rows to begin in than rows
    updates = app.operand(1 if is_slots else 2)
    return data.dtype == updates.dtype and isinstance(cutting.WRITES[app.node.op_type](app), Term)


def is_biased(app: Application) -> bool:
    """Whether the bias of a Conv has a number for each channel."""
    weight, bias = app.arg(1), app.arg(2)
    if weight is None or not weight.dims or bias is None:
        return bias is None
    return bias.dims == weight.dims[:1] and bias.dtype == weight.dtype


def _is_float(app: Application) -> bool:
    return app.operand(0).dtype in FLOATS


def _always_softmaxes(app: Application) -> bool:
    app.axis(app.attr("axis", -1 if app.opset >= 13 else 1), len(app.operand(0).shape))
    return _is_float(app)


def _always_transposes(app: Application) -> bool:
    rank = len(app.operand(0).shape)
    return "perm" not in app.node.attributes or sorted(app.attr("perm", ())) == list(range(rank))


def _always_reduces(app: Application) -> bool:
    axes, rank = app.listed_numbers("axes"), len(app.operand(0).shape)
    return axes is not None and _is_float(app) and all(-rank <= axis < rank for axis in axes)


def _always_finds_place(app: Application) -> bool:
    first = app.operand(0)
    axis = app.axis(app.attr("axis", 0), len(first.shape))
    return first.dtype in (TensorProto.FLOAT, TensorProto.DOUBLE) and lower(first.shape[axis]) >= 1


def _always_normalizes(app: Application) -> bool:
    first = app.operand(0)
    if not first.shape or app.attr("axis", -1) not in (-1, len(first.shape) - 1) or not _is_float(app):
        return False
    scales = [term for term in app.args[1:] if term is not None]
    is_scaled = all(term.dtype == first.dtype and term.dims == first.shape[-1:] for term in scales)
    return is_scaled and lower(first.shape[-1]) >= 1


ALWAYS = frozenset({"Identity", "Shape", "Size", "Constant"})
RULES: Mapping[str, Callable[[Application], bool]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), _always_softmaxes),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceL2"), _always_reduces),
    **dict.fromkeys(("ArgMax", "ArgMin"), _always_finds_place),
    **dict.fromkeys(cutting.WRITES, _always_scatters),
    "Cast": lambda app: {app.operand(0).dtype, app.dtype} <= {*INTEGERS, *FLOATS},
    "Clip": lambda app: (
        len({term.dtype for term in app.args if term}) == 1 and all(t is None or t.dims == () for t in app.args[1:])
    ),
    "Concat": _always_concatenates,
    "ConstantOfShape": lambda app: all(lower(each) >= 0 for each in app.elements(0)),
    "Conv": _always_convolves,
    "DynamicQuantizeLinear": _is_float,
    "Expand": _always_expands,
    "Flatten": lambda app: abs(app.attr("axis", 1)) <= len(app.operand(0).shape),
    "Gather": _always_gathers,
    "Gemm": _multiplies_matrices,
    "LayerNormalization": _always_normalizes,
    "MatMul": _always_multiplies,
    "Pad": _always_pads,
    "Range": _always_ranges,
    "Reshape": lambda app: _is_as_large(app) and copies_zeros(app, app.operand(0).shape) and _says_its_dims(app),
    "Slice": _always_slices,
    "Split": _always_splits,
    "Squeeze": _always_squeezes,
    "Transpose": _always_transposes,
    "Unsqueeze": _always_unsqueezes,
}

MAX_NAMED = 4
# Operators that fail by their core alone: by indices, whatever their shape, by the axes that are padded, or by sizes.
BY_CORE = {"Expand": BY_SIZES, "Gather": "Gather of rows", "Pad": "Pad"}
# Operators that fail by dtypes and dims alone, never by elements.
BY_DIMS = operator_traits.RECURRENT | operator_traits.operator_set(
    """
    MatMul MatMulInteger Gemm Conv Softmax LogSoftmax LayerNormalization RMSNormalization InstanceNormalization
    GroupNormalization BatchNormalization GlobalAveragePool MaxPool AveragePool Concat Transpose Trilu
    Einsum ArgMax ArgMin NonZero DynamicQuantizeLinear DequantizeLinear QuantizeLinear ConvTranspose
    ConvInteger
    """
)
BIASED = ("Conv", "ConvTranspose")
LENGTHS = 4  # the input of a recurrent node whose elements it checks all the same
# Operators that fail by the dtype and dims of their first input, and by the elements of the others.
BY_FIRST_DIMS = operator_traits.operator_set(
    """
    Reshape Expand Slice Split Squeeze Unsqueeze Flatten Gather GatherElements GatherND Pad Tile Resize TopK
    CumSum
    """
)


def new_failures(original: Reading, rewritten: Reading) -> list[str]:
    """Return the nodes of the rewritten model that may fail where the original runs, at most a few."""
    known = {(run.context, key) for run in original.runs for key in _failure_keys(run, is_original=True)}
    found: list[str] = []
    for run in rewritten.runs:
        contexts = [run.context[:count] for count in range(len(run.context) + 1)]
        keys = _failure_keys(run, is_original=False)
        is_known = any((context, key) in known for key in keys for context in contexts)
        if not is_known and not cannot_fail(run.application):
            found.append(f"{run.application.node.path} ({run.application.node.operator})")
    return found[:MAX_NAMED]


def _failure_keys(run: Run, *, is_original: bool) -> Iterator[object]:
    """Yield what the failures of a node depend on: it fails where one of the original does that has any of it."""
    app, op = run.application, run.application.node.operator
    # A Split fails where its parts are not of one size, as all are without sizes until 18.
    is_even = op == "Split" and app.arg(1) is None and version_of(app.node) < 18
    if is_original or not is_even:
        yield run.raw
    if is_even:
        yield run.raw, "even"
    if BY_CORE.get(op) == run.core.op:
        yield run.core
    if (kind := _failure_kind(app)) is not None:
        yield kind
    for kept in (
        ((), (5,), (6,)) if is_original and op in operator_traits.RECURRENT else ()
    ):  # without some of its initial states
        args = tuple(term if at < 5 or at in kept else None for at, term in enumerate(app.args))
        yield _failure_kind(replace(app, args=args))
    with suppress(UnknownError):
        if op == "Reshape" and copies_zeros(app, app.operand(0).shape) and (is_original or _says_its_dims(app)):
            yield op, app.operand(0).shape, app.shape
        if op == "Reshape" and app.numbers(1):  # one of -1 beside numbers fails where the elements leave a rest
            first, *numbers = sorted(app.numbers(1))
            if first == -1 and all(number > 0 for number in numbers):
                yield op, dims_product(app.operand(0).shape), math.prod(numbers)
        if op == "Gather" and (start := cutting.first_of_count(app.operand(1))) is not None:
            dim = app.operand(0).shape[app.axis(app.attr("axis", 0), len(app.operand(0).shape))]
            yield op, cutting.there_of(dim, start, app.operand(1).shape[0]), app.operand(1).shape[0]
        if op == "GatherND" and is_original and not isinstance(box := cutting.find_read(app), str):
            for axis, (_, there, length) in enumerate(box):  # which runs where all is there, or where nothing is read
                others = [size for place, size in enumerate(app.operand(0).shape) if place >= len(box)]
                others += [size for place, (*_, size) in enumerate(box) if place != axis]
                if all(lower(size) >= 1 for size in others):
                    yield "Gather", there, length


def _says_its_dims(app: Application) -> bool:
    """Whether the target of a Reshape is its dims, or has 0s that copy them, or one -1 beside dims that are never 0."""
    target, source, dims = app.elements(1), app.operand(0).shape, app.shape
    if len(target) != len(dims):
        return False
    zeros = [] if app.attr("allowzero", 0) else [axis for axis, dim in enumerate(target) if dim == 0]
    copied = {axis for axis in zeros if source[axis : axis + 1] == dims[axis : axis + 1]}
    others = [axis for axis, dim in enumerate(target) if dim != dims[axis] and axis not in copied]
    if not others:
        return True
    rest = [dim for axis, dim in enumerate(dims) if axis not in others]
    return len(others) == 1 and target[others[0]] == -1 and all(map(is_nonzero, rest))


def _failure_kind(app: Application) -> object:
    """Return all that the failures of a node depend on, None where elements of its inputs matter."""
    op = app.node.operator
    is_by_dims = op in BY_DIMS or op in operator_traits.UNARY or operator_traits.broadcasts_inputs(app.node)
    if not is_by_dims and op not in BY_FIRST_DIMS and op not in operator_traits.REDUCTIONS:
        return None
    if op in operator_traits.DIVIDING and app.dtype not in FLOATS:
        return None
    if op == "Split" and app.arg(1) is None:  # which fails by its version: see `_is_even`
        return None
    if operator_traits.broadcasts_inputs(app.node) and op != "Mod":  # which fails by its attribute, too
        return broadcast_dims(app.args)
    args: list[object] = []
    for index, term in enumerate(app.args[:2] if op in BIASED and is_biased(app) else app.args):
        if term is None or (index and not is_by_dims) or (op in operator_traits.RECURRENT and index == LENGTHS):
            args.append(term)
        elif term.dims is None or term.dtype in (0, TensorProto.STRING):
            return None
        else:
            args.append((term.dtype, term.dims))
    while args and args[-1] is None:
        args.pop()
    attributes = app.attributes
    if op == "AveragePool" and str(app.node.attr("auto_pad", "NOTSET"))[:4] != "SAME":  # whose versions fail alike
        attributes = tuple(each for each in attributes if each[0])  # type: ignore[index]
    return op, attributes, tuple(args)


# Faults of bodies that keep a model from being loaded or run as it says, though its terms are those of the original.
#
# onnxruntime loads many a model that ONNX does not allow, and then reads memory that nothing was written to, or takes a
# value of the graph around for one of the same name in a body.


def branch_faults(original: Reading, rewritten: Reading) -> Iterator[str]:
    """Yield the faults of the bodies that the rewritten model reads."""
    for reading in (original, rewritten):
        for scope in reading.model.graph.walk():  # a node may read what is around in the place of an initializer
            for around in follow_chain(scope.parent, lambda scope: scope.parent):
                for name in scope.values.keys() & around.values.keys():
                    if scope.values[name].kind == "initializer":
                        yield f"'{name}', an initializer of {scope.path}, has the name of a value around it"
        yield from _output_faults(reading)
    known = {index for _, index in _undeclared_counters(original)}
    for body, index in _undeclared_counters(rewritten):
        if index not in known:
            yield f"'{body.inputs[index].name}' of {body.path} has no declared dims, which onnxruntime asks for"
    conditions = {original.values[node.inputs[0]] for node in _if_nodes(original) if node.inputs and node.inputs[0]}
    for node in _if_nodes(rewritten):
        term = rewritten.values[node.inputs[0]] if len(node.inputs) == 1 and node.inputs[0] is not None else None
        is_one = term in conditions or (term is not None and term.dims is not None and dims_product(term.dims) == 1)
        if term is None or term.dtype != TensorProto.BOOL or not is_one:
            yield f"the condition of {node.path} is not one bool"
        for name, body in node.bodies.items():
            where, count = f"{name} of {node.path}", len(node.proto.output)
            if body.inputs:
                yield f"{where} has inputs"
            if len(body.outputs) != count:
                yield f"{where} has {len(body.outputs)} outputs, not {count}"
            outer = (value.name for value in body.outputs if value.scope is not body)
            yield from (f"{where} gives '{value}' of the graph around" for value in outer)
        for values in zip(*(body.outputs for body in node.bodies.values()), strict=False):
            terms = [rewritten.values[value] for value in values if value in rewritten.values]
            if len({term.dtype for term in terms if term.dtype}) > 1:
                yield f"the branches of {node.path} give other dtypes"


def _output_faults(reading: Reading) -> Iterator[str]:
    """Yield what bodies give twice, and inputs that they give as they are, where onnxruntime does not copy them.

    Nothing is written for what a Scan gives so, and a Loop counts up where its counter stands.
    """
    for node in reading.nodes:
        for name, body in node.bodies.items():
            where, shared = f"{name} of {node.path}", body.inputs if node.is_op("Scan") else body.inputs[:1]
            twice = [value.name for value, times in Counter(body.outputs).items() if times > 1]
            if node.is_op("If", "Scan"):
                yield from (f"{where} gives '{value}' twice" for value in twice)
            if node.is_op("Loop", "Scan"):
                same = (each.name for each in body.outputs if each in shared)
                yield from (f"{where} gives its input '{name}' as it is" for name in same)


def _undeclared_counters(reading: Reading) -> Iterator[tuple[Scope, int]]:
    """Yield the counters and conditions of Loops without declared dims."""
    for body in (body for node in reading.nodes if node.is_op("Loop") for body in node.bodies.values()):
        for index, value in enumerate(body.inputs[:2]):
            if declared_dims(value) is None:
                yield body, index


def _if_nodes(reading: Reading) -> list[Node]:
    return [node for node in reading.nodes if node.is_op("If")]
