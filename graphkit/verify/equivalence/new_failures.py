"""Nodes of a rewritten model that may fail where the original does not: a proof of equal terms says nothing of them.

A node that runs in the original too, on the same terms, fails only where the original does. Any other one must be of a
kind that cannot fail on what is known of its inputs.
"""

from __future__ import annotations

from dataclasses import replace

from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.graph.operator_traits import DIVIDING, REDUCTIONS, UNARY, broadcasts_inputs, operator_set
from graphkit.graph.recurrent_states import RECURRENT
from graphkit.shapes import lower
from graphkit.verify.equivalence.application import Application, version_of
from graphkit.verify.equivalence.axioms import copies_zeros
from graphkit.verify.equivalence.cannot_fail import cannot_fail, is_biased
from graphkit.verify.equivalence.reading import Reading, Run
from graphkit.verify.equivalence.value_facts import broadcast_dims

__all__ = ["new_failures"]

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
