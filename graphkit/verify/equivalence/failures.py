"""Nodes of a rewritten model that may fail where the original does not: a proof of equal terms says nothing of them.

A node that runs in the original too, on the same terms, fails only where the original does. Any other one must be of a
kind that cannot fail on what is known of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from onnx import TensorProto

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.graph.cache_entries import RECURRENT
from graphkit.graph.operator_traits import DIVIDING, REDUCTIONS, UNARY, broadcasts_inputs, operator_set
from graphkit.ops.tensor import Dims, is_known
from graphkit.shapes import Expr, lower, upper
from graphkit.symbolic.algebra import is_nonzero
from graphkit.verify.equivalence import cutting as writing
from graphkit.verify.equivalence.application import Application, Reading, Run, version_of
from graphkit.verify.equivalence.axioms import copies_zeros
from graphkit.verify.equivalence.cutting import ends_by_axis
from graphkit.verify.equivalence.movement import count_elements
from graphkit.verify.equivalence.reader import broadcast_dims
from graphkit.verify.equivalence.terms import Term

__all__ = ["new_failures"]

# Whether a node runs at every size and for every input, by rules for each operator.


MAX_MADE = 1 << 30  # elements for which there is memory
APPROXIMATIONS = (b"none", b"tanh")
OF_INTEGERS = operator_set("Abs Neg Sign Not BitwiseNot")  # onnxruntime has no kernels of others for integers


def cannot_fail(app: Application) -> bool:
    """Whether a node runs at every size and for every input."""
    op = app.node.operator
    if app.dims is None or not _types_fit(app):
        return False
    if math.prod(max(1, lower(dim)) for dim in app.dims) > MAX_MADE:  # onnxruntime counts dims beside one of 0, too
        return False
    if op in ALWAYS:
        return True
    if op in UNARY and op not in ("Cast", "CastLike", "Clip", "RegexFullMatch", "BitCast"):
        texts = (attribute.s for attribute in app.node.attributes.values() if attribute.s)
        is_known = all(text in APPROXIMATIONS for text in texts)
        return is_known and len(app.args) == 1 and (op in OF_INTEGERS or _is_float(app))
    if broadcasts_inputs(app.node):
        return _always_broadcasts(app)
    rule = RULES.get(op)
    lists = [index for index in LISTS.get(op, ()) if index < len(app.args)]
    if any((dims := _dims_of(app, index)) is None or len(dims) != 1 for index in lists):
        return False  # what has to be a list is none
    return rule is not None and rule(app)


def _types_fit(app: Application) -> bool:
    """Whether the attributes and inputs of a node are such as its operator takes, and dtypes equal that have to be."""
    schema = version_of(app.node)[1]
    if schema is None or not app.node.attributes.keys() <= schema.attributes.keys():
        return False
    given = app.args[: len(app.node.inputs)]  # attributes that are inputs in later versions stand behind them
    if not schema.min_input <= len(given) <= schema.max_input:
        return False
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


def _dims_of(app: Application, index: int) -> Dims | None:
    term = app.arg(index)
    return None if term is None else term.dims


def _always_broadcasts(app: Application) -> bool:
    shapes = [None if term is None else term.dims for term in app.args]
    known = [shape for shape in shapes if shape is not None]
    kinds = {term.dtype for term in app.args[app.node.op_type == "Where" :] if term is not None}
    if len(known) < len(shapes) or (len(kinds) > 1 and app.node.op_type != "Pow"):
        return False
    if app.node.op_type == "Mod" and bool(app.attr("fmod", 0)) != (kinds <= FLOATS.keys()):
        return False  # floats have no remainder of integers
    if app.node.op_type in ("Div", "Mod", "Pow", "BitShift") and not kinds <= FLOATS.keys():
        divisors = app.elements(1)
        if app.node.op_type in ("Pow", "BitShift") or divisors is None or not all(map(_always_divides, divisors)):
            return False
    rank = max(map(len, known))
    for axis in range(1, rank + 1):
        if len({shape[-axis] for shape in known if len(shape) >= axis and shape[-axis] != 1}) > 1:
            return False
    return True


def _always_divides(divisor: Expr) -> bool:
    """Whether integers may be divided by a number: the least one of a dtype has no quotient by -1."""
    return is_nonzero(divisor) and not lower(divisor) <= -1 <= upper(divisor)


def _always_reshapes(app: Application) -> bool:
    source, target = _dims_of(app, 0), app.elements(1)
    if source is None or target is None or app.dims is None or not _is_as_large(app, source):
        return False
    if not copies_zeros(app, source):
        return False
    if len(target) != len(app.dims) or any(
        each not in (-1, 0, dim) for each, dim in zip(target, app.dims, strict=True)
    ):
        return False  # a number below -1 at some size
    free = [index for index, element in enumerate(target) if element == -1]
    others = [dim for index, dim in enumerate(app.dims) if index not in free]
    return len(free) < 2 and (not free or all(is_nonzero(dim) for dim in others))


def _always_squeezes(app: Application) -> bool:
    source, axes = _dims_of(app, 0), _known_axes(app)
    if source is None or app.dims is None or not _is_as_large(app, source):
        return False
    if axes is None:
        return app.arg(1) is None and "axes" not in app.node.attributes  # all dims of 1
    listed = [app.axis(axis, len(source)) for axis in axes]
    return all(axis is not None and app.tools.required.expr(source[axis]) == 1 for axis in listed)


def _known_axes(app: Application) -> Sequence[int] | None:
    return app.numbers(1) if app.arg(1) is not None else app.attr("axes", tuple)


def _is_as_large(app: Application, source: Dims) -> bool:
    """Whether a tensor has as many elements as the output, wherever the original runs."""
    counts = [app.tools.required.expr(count_elements(dims)) for dims in (source, app.dims or ())]
    return counts[0] == counts[1]


def _always_unsqueezes(app: Application) -> bool:
    source, axes = _dims_of(app, 0), _known_axes(app)
    if source is None or axes is None or app.dims is None or not _is_as_large(app, source):
        return False
    listed = [app.axis(axis, len(source) + len(axes)) for axis in axes]
    return None not in listed and len(set(listed)) == len(listed)


def _always_expands(app: Application) -> bool:
    source, target = _dims_of(app, 0), app.elements(1)
    if source is None or target is None:
        return False
    if any(lower(dim) < 0 for dim in target):
        return False
    return all(dim == other or 1 in (dim, other) for dim, other in zip(source[::-1], target[::-1], strict=False))


def _always_slices(app: Application) -> bool:
    """Starts, ends, axes and steps must be lists of one length; of axes and steps more has to be known."""
    lists = [app.elements(index) for index in (1, 2, 3, 4) if app.arg(index) is not None]
    if app.node.scope.opset() < 10 or any(each is None for each in lists) or len(lists) < 2:
        return False
    if len({len(each) for each in lists if each is not None}) > 1 or any(
        len(dims) != 1 for index in (3, 4) if (dims := _dims_of(app, index)) is not None
    ):
        return False
    source, axes, steps = _dims_of(app, 0), app.numbers(3), app.numbers(4)
    if source is None or (app.arg(3) is not None and axes is None) or (app.arg(4) is not None and steps is None):
        return False
    listed = [app.axis(axis, len(source)) for axis in axes or ()]
    return None not in listed and len(set(listed)) == len(listed) and 0 not in (steps or ())


def _always_gathers(app: Application) -> bool:
    source, indices = _dims_of(app, 0), app.elements(1)
    axis = None if source is None else app.axis(app.attr("axis", 0), len(source))
    if source is None or axis is None or indices is None:
        return False
    return all(_is_index(index, source[axis]) for index in indices)


def _is_index(index: Expr, dim: Expr) -> bool:
    return lower(index + dim) >= 0 and upper(index - dim) < 0


def _always_concatenates(app: Application) -> bool:
    shapes = [None if term is None else term.dims for term in app.args]
    kinds = {term.dtype for term in app.args if term is not None}
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or not known or len(kinds) > 1 or len({len(shape) for shape in known}) > 1:
        return False
    axis = app.axis(app.attr("axis", int), len(known[0]))
    if axis is None:
        return False
    return len({(*shape[:axis], *shape[axis + 1 :]) for shape in known}) == 1


def _always_multiplies(app: Application) -> bool:
    left, right = _dims_of(app, 0), _dims_of(app, 1)
    if left is None or right is None or len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        return False
    pairs = zip(left[-3::-1], right[-3::-1], strict=False)
    return all(one == other or 1 in (one, other) for one, other in pairs)


def _multiplies_matrices(app: Application) -> bool:
    left, right = _dims_of(app, 0), _dims_of(app, 1)
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return False
    left = left[::-1] if app.attr("transA", 0) else left
    right = right[::-1] if app.attr("transB", 0) else right
    bias = () if app.arg(2) is None else _dims_of(app, 2)
    if bias is None or app.dims is None or len(bias) > 2 or left[-1] != right[0]:
        return False
    return all(dim in (1, whole) for dim, whole in zip(bias[::-1], app.dims[::-1], strict=False))


def _always_convolves(app: Application) -> bool:
    data, weight, group = _dims_of(app, 0), _dims_of(app, 1), app.attr("group", 1)
    if data is None or weight is None or app.dims is None or len(data) != len(weight) or len(data) < 3 or not group:
        return False
    count = weight[0].constant
    kernel = app.attr("kernel_shape", tuple)
    if kernel is not None and [*kernel] != [dim.constant for dim in weight[2:]]:
        return False
    if min(app.attr("pads", ()) or (0,)) < 0:
        return False
    if app.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER") and {*(app.attr("dilations", ()) or (1,))} != {1}:
        return False  # onnxruntime pads no dilated windows
    if any(lower(dim) < 1 for dim in weight[2:]):
        return False
    is_fitting = count is not None and count % group == 0 and data[1] == weight[1] * group
    return is_fitting and is_biased(app) and all(lower(dim) >= 1 for dim in app.dims[2:])


def _always_splits(app: Application) -> bool:
    source, sizes = _dims_of(app, 0), app.numbers(1)
    axis = None if source is None else app.axis(app.attr("axis", 0), len(source))
    if source is None or axis is None or sizes is None:
        return False
    return min(sizes) >= 0 and source[axis] == sum(sizes) and len(sizes) == len(app.node.outputs)


def _always_pads(app: Application) -> bool:
    """Whether it adds a number of elements along axes that are known; other modes need elements to copy."""
    source, around = _dims_of(app, 0), app.elements(1)
    if not source or around is None or app.node.scope.opset() < 11 or any(lower(each) < 0 for each in around):
        return False
    if app.attr("mode", "constant") != "constant" or (app.arg(2) is not None and _dims_of(app, 2) != ()):
        return False
    return ends_by_axis(app, around, len(source)) is not None


def _always_casts(app: Application) -> bool:
    term = app.arg(0)
    plain = {*INTEGERS, *FLOATS}
    return term is not None and term.dtype in plain and app.dtype in plain


def _always_ranges(app: Application) -> bool:
    """Start, limit and step are known: what an input holds may ask for more elements than there is memory for."""
    step = app.elements(2)
    are_known = all(_dims_of(app, index) == () and app.elements(index) is not None for index in range(3))
    return step is not None and are_known and is_nonzero(step[0]) and all(map(is_known, app.dims or ()))


def _always_scatters(app: Application) -> bool:
    """A write that is known to lie in the tensor."""
    kinds = {term.dtype for term in (app.arg(0), app.arg(2 if app.node.op_type == "ScatterND" else 1)) if term}
    is_nd, data = app.node.op_type == "ScatterND", _dims_of(app, 0)
    if not is_nd and app.arg(2) is not None and (data is None or _dims_of(app, 2) != data[:1]):
        return False  # it has other rows to begin in than rows
    write = writing.write_box if is_nd else writing.write_slots
    return len(kinds) == 1 and isinstance(write(app), Term)


def _always_fills(app: Application) -> bool:
    """The dims that are asked for are known, and no size makes one of them negative."""
    asked = app.elements(0)
    return asked is not None and all(lower(each) >= 0 for each in asked)


def is_biased(app: Application) -> bool:
    """Whether the bias of a Conv has a number for each channel."""
    weight, bias = app.arg(1), app.arg(2)
    if weight is None or not weight.dims or bias is None:
        return bias is None
    return bias.dims == weight.dims[:1] and bias.dtype == weight.dtype


def _always_clips(app: Application) -> bool:
    kinds = {term.dtype for term in app.args if term is not None}
    return len(kinds) == 1 and all(term is None or term.dims == () for term in app.args[1:])


def _is_float(app: Application) -> bool:
    term = app.arg(0)
    return term is not None and term.dtype in FLOATS


def _always_softmaxes(app: Application) -> bool:
    source, default = _dims_of(app, 0), -1 if app.node.scope.opset() >= 13 else 1
    return source is not None and app.axis(app.attr("axis", default), len(source)) is not None and _is_float(app)


def _always_flattens(app: Application) -> bool:
    source, axis = _dims_of(app, 0), app.attr("axis", 1)
    return source is not None and axis is not None and -len(source) <= axis <= len(source)


def _always_transposes(app: Application) -> bool:
    source, perm = _dims_of(app, 0), app.attr("perm", tuple)
    if source is None or "perm" not in app.node.attributes:
        return source is not None
    return perm is not None and sorted(perm) == list(range(len(source)))


def _always_reduces(app: Application) -> bool:
    term, given = app.arg(0), app.attr("axes", tuple)
    axes = app.numbers(1) if app.arg(1) is not None else given
    if term is None or term.dims is None or term.dtype not in FLOATS or axes is None:
        return False
    return all(app.axis(axis, len(term.dims)) is not None for axis in axes)


def _always_normalizes(app: Application) -> bool:
    term, axis = app.arg(0), app.attr("axis", -1)
    if term is None or not term.dims or axis not in (-1, len(term.dims) - 1) or term.dtype not in FLOATS:
        return False
    if lower(term.dims[-1]) < 1:
        return False
    return all(arg is None or (arg.dtype == term.dtype and arg.dims == term.dims[-1:]) for arg in app.args[1:])


ALWAYS = frozenset({"Identity", "Shape", "Size", "Constant"})
LISTS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Tile": (1,), "Split": (1,), "Slice": (1, 2),
    "Pad": (1, 3), "Squeeze": (1,), "Unsqueeze": (1,), "ReduceSum": (1,), "ReduceMean": (1,), "ReduceL2": (1,),
}  # fmt: skip
RULES: Mapping[str, Callable[[Application], bool]] = {
    "Clip": _always_clips,
    "Softmax": _always_softmaxes,
    "Flatten": _always_flattens,
    "Transpose": _always_transposes,
    "DynamicQuantizeLinear": _is_float,
    "LogSoftmax": _always_softmaxes,
    "ReduceSum": _always_reduces,
    "ReduceMean": _always_reduces,
    "ReduceL2": _always_reduces,
    "LayerNormalization": _always_normalizes,
    "Reshape": _always_reshapes,
    "Squeeze": _always_squeezes,
    "Unsqueeze": _always_unsqueezes,
    "Expand": _always_expands,
    "Slice": _always_slices,
    "Gather": _always_gathers,
    "Concat": _always_concatenates,
    "MatMul": _always_multiplies,
    "Gemm": _multiplies_matrices,
    "Conv": _always_convolves,
    "Split": _always_splits,
    "Pad": _always_pads,
    "Cast": _always_casts,
    "Range": _always_ranges,
    "ScatterND": _always_scatters,
    "TensorScatter": _always_scatters,
    "ConstantOfShape": _always_fills,
}


MAX_NAMED = 4
# Operators that fail by their core alone: by indices, however they are shaped, or by the axes that are padded.
BY_CORE = {"Gather": "Gather of rows", "Pad": "Pad"}
# Operators that fail by dtypes and dims alone, never by elements.
BY_DIMS = operator_set(
    """
    MatMul MatMulInteger Gemm Conv Softmax LogSoftmax LayerNormalization RMSNormalization InstanceNormalization
    GroupNormalization BatchNormalization GlobalAveragePool MaxPool AveragePool Concat Transpose Trilu
    LSTM GRU RNN Einsum ArgMax ArgMin NonZero DynamicQuantizeLinear DequantizeLinear QuantizeLinear ConvTranspose
    ConvInteger
    """
)
BIASED = ("Conv", "ConvTranspose")
LENGTHS = 4  # the input of a recurrent node whose elements it checks all the same
# Operators that fail by the dtype and dims of their first input, and by the elements of the others.
BY_FIRST_DIMS = operator_set(
    """
    Reshape Expand Slice Split Squeeze Unsqueeze Flatten Gather GatherElements GatherND Pad Tile Resize TopK
    CumSum
    """
)


def new_failures(original: Reading, rewritten: Reading) -> list[str]:
    """Return the nodes of the rewritten model that may fail where the original runs, at most a few."""
    known: set[tuple[object, object]] = {(run.context, run.raw) for run in original.runs if not _is_even(run)}
    known |= {(run.context, key) for run in original.runs if _is_even(run) for key in (run.raw, (run.raw, "even"))}
    known |= {(run.context, run.core) for run in original.runs if _is_by_core(run)}
    known |= {(run.context, _without_states(run)) for run in original.runs if run.application.node.op_type in RECURRENT}
    known |= {(run.context, key) for run in original.runs if (key := _failure_kind(run.application)) is not None}
    known |= {(run.context, key) for run in original.runs if (key := _reshape_dims(run.application)) is not None}
    found: list[str] = []
    for run in rewritten.runs:
        if not _is_known(run, known) and not cannot_fail(run.application):
            found.append(f"{run.application.node.path} ({run.application.node.operator})")
            if len(found) == MAX_NAMED:
                break
    return found


def _is_known(run: Run, known: set[tuple[object, object]]) -> bool:
    raw = (run.raw, "even") if _is_even(run) else run.raw
    keys = [raw, _failure_kind(run.application), run.core if _is_by_core(run) else None]
    dims = _reshape_dims(run.application)
    keys += [dims] if dims is not None and _says_its_dims(run.application) else []
    return any((run.context[:count], key) in known for count in range(len(run.context) + 1) for key in keys if key)


def _is_even(run: Run) -> bool:
    """Whether a node is a Split that fails where its parts are not of one size, as all are without sizes until 18."""
    app = run.application
    return app.node.operator == "Split" and app.arg(1) is None and version_of(app.node)[0] < 18


def _reshape_dims(app: Application) -> object:
    """Return the dims that a Reshape reads and gives, where it gives them at all sizes, however its target says so."""
    source = app.arg(0)
    if app.node.operator != "Reshape" or source is None or source.dims is None or app.dims is None:
        return None
    return ("Reshape", source.dims, app.dims) if copies_zeros(app, source.dims) else None


def _says_its_dims(app: Application) -> bool:
    """Whether the target of a Reshape is its dims, or has 0s that copy them, or one -1 beside dims that are never 0."""
    target, source = app.elements(1), app.arg(0)
    if target is None or app.dims is None or source is None or source.dims is None or len(target) != len(app.dims):
        return False
    copied = {
        axis
        for axis, dim in enumerate(target)
        if dim == 0 and not app.attr("allowzero", 0) and source.dims[axis : axis + 1] == app.dims[axis : axis + 1]
    }
    others = [axis for axis, dim in enumerate(target) if dim != app.dims[axis] and axis not in copied]
    if not others:
        return True
    rest = [dim for axis, dim in enumerate(app.dims) if axis not in others]
    return len(others) == 1 and target[others[0]] == -1 and all(lower(dim) >= 1 for dim in rest)


def _without_states(run: Run) -> object:
    """Return the terms that the failures of a recurrent node depend on when its initial states are left out."""
    return _failure_kind(replace(run.application, args=run.application.args[:5]))


def _is_by_core(run: Run) -> bool:
    return BY_CORE.get(run.application.node.operator) == run.core.op


def _failure_kind(app: Application) -> object:
    """Return all that the failures of a node depend on, None where elements of its inputs matter."""
    op = app.node.operator
    is_by_dims = op in BY_DIMS or op in UNARY or broadcasts_inputs(app.node)
    if not is_by_dims and op not in BY_FIRST_DIMS and op not in REDUCTIONS:
        return None
    if op in DIVIDING and app.dtype not in FLOATS:
        return None
    if op == "Split" and app.arg(1) is None:  # which fails by its version: see `_is_even`
        return None
    if broadcasts_inputs(app.node) and op != "Mod":  # which fails by its attribute, too
        return broadcast_dims(app.args)
    args: list[object] = []
    for index, term in enumerate(app.args[:2] if op in BIASED and is_biased(app) else app.args):
        if term is None or (index and not is_by_dims) or (op in RECURRENT and index == LENGTHS):
            args.append(term)
        elif term.dims is None or term.dtype in (0, TensorProto.STRING):
            return None
        else:
            args.append((term.dtype, term.dims))
    while args and args[-1] is None:
        args.pop()
    attributes = app.attributes
    if op == "AveragePool" and not str(app.attr("auto_pad", "NOTSET")).startswith("SAME"):  # whose versions fail alike
        attributes = tuple(each for each in attributes if each[0])  # type: ignore[index]
    return op, attributes, tuple(args)
