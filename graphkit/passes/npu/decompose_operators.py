"""Spell nodes as compilers take them: Pow, Gelu, Einsum, normalizations by other operators, constants on the right."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from graphkit.dtypes import FLOATS
from graphkit.graph.new_nodes import RESHAPE_SINCE, make_concat, make_reshape
from graphkit.graph.operator_traits import NORMALIZATIONS, RESHAPING, SKIP_NORMALIZATIONS
from graphkit.graph.view import Node, Value
from graphkit.ops.tensor import Dims, dims_product
from graphkit.passes.shapes.simplify_reshape import reshape_spec
from graphkit.rewrite import ROUNDING, Builder, Editor, MatchFailure, NewNode, NodeInput, NodeRewrite, Rewrite
from graphkit.rewrite.edits import copy_node
from graphkit.rewrite.pattern import Number, Op, Pattern

ROOT = math.sqrt(2 / math.pi)
CUBIC = 0.044715
CONTRIB_GELU = "com.microsoft.Gelu"
NEAR = 1e-3  # how far exporters' sqrt(2), rounded to float16 or written with few digits, is off
MOST_APART = 2  # axes of the batch that a MatMul keeps; more become one
MAX_SIGNS = 1 << 20  # elements of a rotated tensor


class NegToMul(NodeRewrite):
    """Spell each Neg of floats as a Mul by -1, for targets without Neg.

    The results are equal, signed zeros too. Legality: the dtype is a float; the least integer has no opposite, and
    what a Neg of it gives differs between runtimes, so a Neg of integers is left.

    Before:

        agraph (float[2, 3] x) => (float[2, 3] y) {
            y = Neg (x)
        }

    After:

        agraph (float[2, 3] x) => (float[2, 3] y) <float[1] minus_one = {-1.0}> {
            y = Mul (x, minus_one)
        }
    """

    operators = ("Neg",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        data = node.operand(0)
        dtype, rank = editor.shapes[data].dtype, editor.shapes[data].rank
        if dtype not in FLOATS or rank is None:
            raise MatchFailure("it is not known to be a Neg of floats of a known rank")
        minus_one = editor.constant(np.full([1] * min(rank, 1), -1, FLOATS[dtype]), "minus_one")
        editor.replace(node, NewNode("Mul", [data, minus_one], [node.result().name], like=node))
        editor.note("Neg(s) spelled as Muls")


class PowToMul(NodeRewrite):
    """Spell a Pow by 2 or 3 as products, and drop a Pow by 1, for targets without Pow.

    onnxruntime computes such a Pow in this way too. Legality: the exponent is a constant whose elements are all the
    same and whose dims add none to the base's; the base is a float.

    Before:

        agraph (float[2, 3] x) => (float[2, 3] y) <float two = {2.0}> {
            y = Pow (x, two)
        }

    After:

        agraph (float[2, 3] x) => (float[2, 3] y) {
            y = Mul (x, x)
        }
    """

    operators = ("Pow",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        base, exponent = node.operand(0), editor.uniform(node.operand(1))
        if exponent not in (1, 2, 3):
            raise MatchFailure("its exponent is not a constant 1, 2 or 3")
        if editor.shapes[base].dtype not in FLOATS:
            raise MatchFailure("its base is not a float")
        if editor.shapes[base].dims is None or editor.shapes[base].dims != editor.shapes[node.result()].dims:
            raise MatchFailure("its exponent has dims that its base lacks")
        if exponent == 1:
            editor.bypass(node, base)
            editor.note("Pow(s) by 1 removed")
            return
        builder = Builder(editor, node)
        square = builder.add("Mul", base, base, role="square")
        if exponent == 3:
            builder.add("Mul", square, base)
        builder.replace()
        editor.note("Pow(s) spelled as Muls")


class ReciprocalToDiv(NodeRewrite):
    """Spell each Reciprocal as a Div of 1 by its input, for targets that take a root and the Div by it as one.

    The results are equal. Legality: the dtype is a float.

    Before:

        agraph (float[2, 3] x) => (float[2, 3] y) {
            y = Reciprocal (x)
        }

    After:

        agraph (float[2, 3] x) => (float[2, 3] y) <float one = {1.0}> {
            y = Div (one, x)
        }
    """

    operators = ("Reciprocal",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        data = node.operand(0)
        if (dtype := editor.shapes[data].dtype) not in FLOATS:
            raise MatchFailure("it is not known to be of floats")
        one = editor.constant(np.ones((), FLOATS[dtype]), "one")
        editor.replace(node, NewNode("Div", [one, data], [node.result().name], like=node))
        editor.note("Reciprocal(s) spelled as Divs")


class LayerNormToPrimitives(NodeRewrite):
    """Spell LayerNormalization as Sub, Mul, ReduceMean, Sqrt and Div, for targets without it.

    TFLite refuses a LayerNormalization in int16 because of its SQUARED_DIFFERENCE, which this spelling does without.
    RMSNormalization and SimplifiedLayerNormalization, which subtract no mean, are spelled out in the same way. So are
    those of onnxruntime that add a residual first. Results differ in the last digits.
    Legality: nothing reads the mean or the deviation; the computation is in the dtype of the tensor (`stash_type`), and
    its rank is known.

    Before:

        agraph (float[2, 4] x, float[4] s, float[4] b) => (float[2, 4] y) {
            y = LayerNormalization <axis = -1, epsilon = 0.5> (x, s, b)
        }

    After:

        agraph (float[2, 4] x, float[4] s, float[4] b) => (float[2, 4] y) <float[1] y_epsilon = {0.5}> {
            y_mean = ReduceMean <axes = [-1], keepdims = 1> (x)
            y_centred = Sub (x, y_mean)
            y_square = Mul (y_centred, y_centred)
            y_variance = ReduceMean <axes = [-1], keepdims = 1> (y_square)
            y_positive = Add (y_variance, y_epsilon)
            y_deviation = Sqrt (y_positive)
            y_normal = Div (y_centred, y_deviation)
            y_scaled = Mul (y_normal, s)
            y = Add (y_scaled, b)
        }
    """

    largest_error = 1e-5
    operators = tuple(sorted(NORMALIZATIONS | SKIP_NORMALIZATIONS))

    def edit_node(self, editor: Editor, node: Node) -> None:
        data = node.operand(0)
        dtype, rank = editor.shapes[data].dtype, editor.shapes[data].rank
        axis = node.axis(rank, -1)
        if rank is None or axis is None:
            raise MatchFailure("the rank of its data is not known")
        if dtype != (node.attr("stash_type", 1) or dtype):
            raise MatchFailure("it computes in another dtype than that of its data")
        if any(value is not None and (value.consumers or value.is_output) for value in node.outputs[1:3]):
            raise MatchFailure("its mean or deviation is in use")
        builder, axes, skips = Builder(editor, node), list(range(axis - rank, 0)), node.operator in SKIP_NORMALIZATIONS
        add = builder.add

        def mean(source: NodeInput, role: str) -> NodeInput:
            made = editor.make_numbered(node, "ReduceMean", source, axes, f"{builder.label}_axes", keepdims=1)
            return builder.append(made, role)

        epsilon = np.array([node.attr("epsilon", 1e-12 if skips else 1e-5)], tensor_dtype_to_np_dtype(dtype))
        least = builder.constant(epsilon, "epsilon")
        is_centred = node.op_type in ("LayerNormalization", "SkipLayerNormalization")
        source = _add_residual(builder, data, node.input(3 + is_centred)) if skips else data
        centred = add("Sub", source, mean(source, "mean"), role="centred") if is_centred else source
        variance = mean(add("Mul", centred, centred, role="square"), "variance")
        deviation = add("Sqrt", add("Add", variance, least, role="positive"), role="deviation")
        result = add("Div", centred, deviation, role="normal")
        if (scale := node.input(1 + skips)) is not None:
            result = add("Mul", result, scale, role="scaled")
        if is_centred and (bias := node.input(2 + skips)) is not None:
            add("Add", result, bias, role="shifted")
        builder.replace()
        editor.note(f"{node.op_type} node(s) spelled out")


def _add_residual(builder: Builder, data: Value, bias: Value | None) -> NodeInput:
    """Return the sum of the first inputs, and of a bias; it is an output of the node as well."""
    total = builder.add("Add", data, builder.node.operand(1), role="sum")
    if bias is not None:
        total = builder.add("Add", total, bias, role="biased")
    if (given := (*builder.node.outputs, *[None] * 4)[3]) is None:
        return total
    builder.nodes[-1] = NewNode("Add", builder.nodes[-1].inputs, [given.name])
    return given.name


X = Pattern()
MULTIPLIED = Op("Mul", X, Number(math.sqrt(0.5), NEAR))
SCALED = Op("Div", X, Number(math.sqrt(2), NEAR)) | MULTIPLIED
ERF = Op("Erf", SCALED, once=True)
SHIFTED = Op("Add", ERF, Number(1), once=True)
HALF = Op("Mul", X, Number(0.5)) | Op("Div", X, Number(2))
GELU = Op("Mul", SHIFTED, X | HALF) | Op("Mul", X, Op("Mul", SHIFTED, Number(0.5), once=True))


class DivideBeforeErf(NodeRewrite):
    """Divide by the root of 2 before an Erf where a Mul scales its data, as compilers do not know a Gelu otherwise.

    RKNN-Toolkit2 2.5.0 takes a Gelu in one layer from such a Div on, and leaves any other Erf on the CPU. The scale
    differs in its last digit. Legality: the factor is one number, near the root of a half.

    Before:

        agraph (float[2, 3] x) => (float[2, 3] y) <float factor = {0.70710678}> {
            a = Mul (x, factor)
            y = Erf (a)
        }

    After:

        agraph (float[2, 3] x) => (float[2, 3] y) <float[1] y_root = {1.4142135}> {
            y_scaled = Div (x, y_root)
            y = Erf (y_scaled)
        }
    """

    largest_error = 1e-6
    operators = ("Erf",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        match = MULTIPLIED.match(editor, node.operand(0))
        dtype = FLOATS.get(editor.shapes[node.operand(0)].dtype)
        if match is None or dtype is None or not editor.shapes[match[X]].rank:
            raise MatchFailure("it is no Erf of floats of some rank, times the root of a half")
        builder = Builder(editor, node)
        root = builder.constant(np.array([math.sqrt(2)], dtype), "root")
        builder.add("Erf", builder.add("Div", match[X], root, role="scaled"))
        builder.replace()
        editor.note("Erf(s) scaled by a Div")


class GeluToTanh(Rewrite):
    """Compute each Gelu by tanh in the place of erf: `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.

    This changes results: those of a Gelu by at most 4.8e-4, near x = 2.7 and x = -2.7. It runs only where it is asked
    for by name. A Gelu with an attribute `approximate` gets it set to `tanh`, that of com.microsoft is spelled out, and
    one that is spelled out gets a Tanh for its Erf. Legality: the Erf is of `x / sqrt(2)`, and all that reads it is an
    Add of 1, whose result is multiplied by x, or by half of x; any other Erf stays.

    Before:

        agraph (float[2, 3] x) => (float[2, 3] y)
        <float root = {1.41421356}, float one = {1.0}, float half = {0.5}> {
            a = Div (x, root)
            b = Erf (a)
            c = Add (b, one)
            d = Mul (x, c)
            y = Mul (d, half)
        }

    After:

        agraph (float[2, 3] x) => (float[2, 3] y)
        <float one = {1.0}, float half = {0.5}, float[1] b_cubic = {0.035677407}, float[1] b_linear = {0.7978846}> {
            b_square = Mul (x, x)
            b_scaled = Mul (b_square, b_cubic)
            b_factor = Add (b_scaled, b_linear)
            b_inner = Mul (x, b_factor)
            b_tanh = Tanh (b_inner)
            c = Add (b_tanh, one)
            d = Mul (x, c)
            y = Mul (d, half)
        }
    """

    largest_error = 4.8e-4

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Gelu"):
            if node.attr("approximate", "none") == "none" and node.outputs[0] is not None:
                made = NewNode("Gelu", node.inputs, [node.outputs[0].name], {"approximate": "tanh"}, like=node)
                editor.replace(node, made)
                editor.note("Gelu(s) computed by tanh")
        for node in editor.nodes(CONTRIB_GELU):
            _spell_gelu(editor, node)
        matches = [match for node in editor.nodes("Mul") if (match := GELU.match(editor, node.outputs[0])) is not None]
        gelus: dict[Value | None, Value] = {}
        for match in matches:
            x = editor.shapes[match[X]]
            if x.dims and x.dims == editor.shapes[match[SCALED]].dims and x.dtype in FLOATS:
                gelus[match[ERF]] = match[X]
        for node in editor.nodes("Erf"):
            out, builder = node.outputs[0], Builder(editor, node)
            if out is None or out not in gelus:
                editor.decline(node, "it is not the Erf of a Gelu")
            elif editor.replace_all_uses(out, _add_tanh(builder, gelus[out])):  # another name, for its elements differ
                editor.insert_before(node, *builder.nodes)
                editor.note("Gelu(s) computed by tanh")


def _spell_gelu(editor: Editor, node: Node) -> None:
    """Put nodes of onnx's own operators in the place of a Gelu of com.microsoft, which always takes erf."""
    x, out = node.input(0), node.outputs[0]
    if x is None or out is None or editor.shapes[x].dtype not in FLOATS or editor.shapes[x].rank in (None, 0):
        editor.decline(node, "it is not known to be a Gelu of floats of some rank")
        return
    builder = Builder(editor, node)
    tanh, dtype = _add_tanh(builder, x), FLOATS[editor.shapes[x].dtype]
    shifted = builder.add("Add", tanh, builder.constant(np.array([1], dtype), "one"), role="one_add")
    halved = builder.add("Mul", shifted, builder.constant(np.array([0.5], dtype), "half"), role="half_mul")
    builder.add("Mul", x, halved)
    builder.replace()
    editor.note("Gelu(s) computed by tanh")


def _add_tanh(builder: Builder, x: Value) -> str:
    dtype, add = FLOATS[builder.editor.shapes[x].dtype], builder.add
    cubic = builder.constant(np.array([ROOT * CUBIC], dtype), "cubic")
    linear = builder.constant(np.array([ROOT], dtype), "linear")
    scaled = add("Mul", add("Mul", x, x, role="square"), cubic, role="scaled")
    factor = add("Add", scaled, linear, role="factor")
    return add("Tanh", add("Mul", x, factor, role="inner"), role="tanh")


class MoveConstantsRight(NodeRewrite):
    """Make a constant the second input of each Add and Mul.

    Compilers match fixed spellings. Qualcomm's HTP compiler (onnxruntime-qnn 2.7.0) cannot finish a graph in which the
    weight of an RMS norm is on the left. The results are equal to the last bit, since both operators commute.

    Before:

        agraph (float[2, 4] x) => (float[2, 4] y) <float[4] weight = {1, 2, 3, 4}> {
            y = Mul (weight, x)
        }

    After:

        agraph (float[2, 4] x) => (float[2, 4] y) <float[4] weight = {1, 2, 3, 4}> {
            y = Mul (x, weight)
        }
    """

    operators = ("Add", "Mul")

    def edit_node(self, editor: Editor, node: Node) -> None:
        left, right = node.operand(0), node.operand(1)
        if left.is_constant and not right.is_constant:
            editor.set_inputs(node, {0: right, 1: left})
            editor.note("constant(s) moved to the right")


class WriteLayerNormDefaults(NodeRewrite):
    """Write out the axis and the epsilon of each LayerNormalization that leaves them to their defaults.

    RKNN-Toolkit2 2.5.0 does not build a model in which either is missing.

    Before:

        agraph (float[2, 4] x, float[4] s, float[4] b) => (float[2, 4] y) {
            y = LayerNormalization (x, s, b)
        }

    After:

        agraph (float[2, 4] x, float[4] s, float[4] b) => (float[2, 4] y) {
            y = LayerNormalization <axis = -1, epsilon = 1e-5> (x, s, b)
        }
    """

    operators = ("LayerNormalization",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        defaults = {"axis": -1, "epsilon": 1e-5}  # before opset 17 too, where the operator is onnxruntime's own
        if missing := {name: value for name, value in defaults.items() if name not in node.attributes}:
            editor.replace(node, copy_node(node, node.inputs, node.proto.output, **missing))
            editor.note("default(s) of LayerNormalization(s) written out", len(missing))


class EinsumToMatmul(NodeRewrite):
    """Replace an Einsum of two tensors by a MatMul, with Transposes and Reshapes where the axes are in another order.

    Sums may be added up in another order: the last digits of results may change.

    Legality: no axis occurs twice in one tensor, or in one tensor alone and not in the result; axes of the same name
    have the same length; the shapes can be written as constants.

    Before:

        agraph (float[N, 5, 2, 4] q, float[N, 6, 2, 4] k) => (float[N, 2, 5, 6] y) {
            y = Einsum <equation = "bqhd,bkhd->bhqk"> (q, k)
        }

    After:

        agraph (float[N, 5, 2, 4] q, float[N, 6, 2, 4] k) => (float[N, 2, 5, 6] y) {
            y_left = Transpose <perm: ints = [0, 2, 1, 3]> (q)
            y_right = Transpose <perm: ints = [0, 2, 3, 1]> (k)
            y = MatMul (y_left, y_right)
        }
    """

    largest_error = ROUNDING
    operators = ("Einsum",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        equation, values = node.attr("equation", ""), node.operands
        if not equation or len(values) != 2 or node.scope.opset() < RESHAPE_SINCE:
            raise MatchFailure("it is not of two tensors")
        dims = [editor.shapes[value].dims for value in values]
        if dims[0] is None or dims[1] is None or editor.shapes[values[0]].dtype not in FLOATS:
            raise MatchFailure("its dims are not known, or it is not of floats")
        if (named := _name_axes(equation.replace(" ", ""), (len(dims[0]), len(dims[1])))) is None:
            raise MatchFailure(f"its equation is not understood: {equation}")
        left, right, result = named
        in_one = set(result) - (set(left) & set(right))
        if any(len(set(axes)) < len(axes) for axes in named) or set(left) ^ set(right) != in_one:
            raise MatchFailure("an axis occurs twice in a tensor, or is summed up in one tensor alone")
        sizes = dict(zip(left, dims[0], strict=True))
        if any(sizes.setdefault(axis, dim) != dim for axis, dim in zip(right, dims[1], strict=True)):
            raise MatchFailure("axes of one name have other lengths")
        batch = "".join(axis for axis in result if axis in left and axis in right)
        total = "".join(axis for axis in left if axis in right and axis not in result)
        first, second = ("".join(axis for axis in result if axis in of and axis not in batch) for of in (left, right))
        lead = list(batch) if len(batch) <= MOST_APART else [batch]
        builder = Builder(editor, node)

        def transpose(value: NodeInput, axes: str, order: str, role: str) -> NodeInput:
            if axes == order:
                return value
            return builder.add("Transpose", value, role=role, perm=[axes.index(axis) for axis in order])

        def dims_of(groups: Sequence[str]) -> Dims:
            return tuple(dims_product(sizes[axis] for axis in group) for group in groups)

        def reshape(value: NodeInput, before: Sequence[str], after: Sequence[str], role: str) -> NodeInput:
            """Let each group of axes be one."""
            if dims_of(before) == dims_of(after):
                return value
            if (spec := reshape_spec(dims_of(before), dims_of(after))) is None:
                raise MatchFailure("its shapes cannot be written as constants")
            return builder.append(make_reshape(value, builder.integers(spec, f"{role}_shape")), f"{role}_shaped")

        def side(index: int, role: str, axes: str, *last: str) -> NodeInput:
            order = "".join((batch, *last))
            return reshape(transpose(node.inputs[index], axes, order, role), order, [*lead, *last], role)

        sides = side(0, "left", left, first, total), side(1, "right", right, total, second)
        product = builder.add("MatMul", *sides, role="product", like=node)
        axes = batch + first + second
        transpose(reshape(product, [*lead, first, second], axes, "apart"), axes, result, "turned")
        builder.replace()
        editor.note("Einsum(s) computed by a MatMul")


def _name_axes(equation: str, ranks: tuple[int, int]) -> tuple[str, str, str] | None:
    """Return a letter for each axis of both tensors and of the result, those of an ellipsis too."""
    inputs, arrow, result = equation.partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or (not arrow and "..." in inputs):
        return None
    if not arrow:
        result = "".join(sorted(axis for axis in set(inputs) - {","} if inputs.count(axis) == 1))
    free = [letter for letter in string.ascii_letters if letter not in equation]
    lengths = [len(term.replace("...", "")) if "..." in term else rank for term, rank in zip(terms, ranks, strict=True)]
    counts = [rank - length for rank, length in zip(ranks, lengths, strict=True)]  # of the axes of an ellipsis
    most = max(counts)
    if min(counts) < 0 or len(free) < most or any(count not in (0, most) for count in counts):
        return None
    filled = [term.replace("...", "".join(free[:count])) for term, count in zip(terms, counts, strict=True)]
    result = result.replace("...", "".join(free[:most]))
    letters = all(text.isascii() and (not text or text.isalpha()) for text in (*filled, result))
    if not letters or [len(term) for term in filled] != list(ranks):
        return None
    return filled[0], filled[1], result


class RotarySignToTable(NodeRewrite):
    """Move the Neg of a rotary embedding into its table: `Concat(-b, a) * sin` is `Concat(b, a) * (sin * [-1, 1])`.

    One small Mul by a constant is left for each table, which equal ones share, in the place of a Neg for each query and
    key; where the table is a constant, it folds into it. Interleaved halves, which get other dims after that, are
    rotated likewise. The results are equal to the last bit.

    Legality: nothing else reads what is rotated, from the Neg to the Mul; the dims are numbers, the dtype is a float;
    and the table with its signs has no more elements than what it multiplies.

    Before:

        agraph (float[1, 2, 3, 4] x, float[1, 1, 3, 4] cos, float[1, 1, 3, 4] sin) => (float[1, 2, 3, 4] y) {
            a, b = Split <axis = 3> (x)
            n = Neg (b)
            r = Concat <axis = -1> (n, a)
            xc = Mul (x, cos)
            rs = Mul (r, sin)
            y = Add (xc, rs)
        }

    After:

        agraph (float[1, 2, 3, 4] x, float[1, 1, 3, 4] cos, float[1, 1, 3, 4] sin) => (float[1, 2, 3, 4] y)
        <float[1, 1, 1, 4] sin_signs = {-1.0, -1.0, 1.0, 1.0}> {
            a, b = Split <axis = 3> (x)
            xc = Mul (x, cos)
            r_positive = Concat <axis = -1> (b, a)
            sin_signed = Mul (sin, sin_signs)
            rs = Mul (r_positive, sin_signed)
            y = Add (xc, rs)
        }
    """

    operators = ("Concat",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        sources = [_negated_tensor(value, node) for value in node.inputs]
        if not any(sources):
            return
        product, rotated = _reading_product(editor, node)
        joined, out = node.result(), product.result()
        if (table := next((value for value in product.operands if value is not rotated), None)) is None:
            raise MatchFailure("what it rotates is not multiplied by a table")
        signs = _sign_table(editor, node, joined, sources, rotated)
        before, after = editor.shapes[table].sizes(), editor.shapes[rotated].sizes()
        if before is None or after is None:
            raise MatchFailure(f"the dims of its table are not all numbers: {editor.shapes[table]}")
        if len(before) > len(after) or math.prod(np.broadcast_shapes(before, signs.shape)) > math.prod(after):
            raise MatchFailure("its table has more elements than what it rotates")
        made: list[NewNode] = []

        def reshape(source: NodeInput, dims: Sequence[int], base: str) -> NodeInput:
            name = editor.unique_name(f"{base}_positive")
            made.append(editor.make_reshape(source, dims, name))
            return name

        parts: list[NodeInput] = []
        for value, source in zip(node.operands, sources, strict=True):
            part, dims = value if source is None else source, editor.shapes[value].sizes()
            is_same = source is None or dims is None or editor.shapes[source].sizes() == dims
            parts.append(part if is_same or dims is None else reshape(part, dims, value.name))
        name = editor.unique_name(f"{joined.name}_positive")
        made.append(make_concat(parts, node.attr("axis", 0), name, like=node))
        result = name if rotated is joined else reshape(name, after, rotated.name)
        signed = editor.unique_name(f"{table.name}_signed")
        made.append(NewNode("Mul", [table, editor.constant(signs, f"{table.name}_signs")], [signed]))
        editor.replace(product, *made, NewNode("Mul", [result, signed], [out.name], like=product))
        editor.note("Neg(s) moved into the signs of a table")


def _negated_tensor(value: Value | None, concat: Node) -> Value | None:
    """Return the tensor that a Concat's input negates, with the same order of elements; None for no Neg."""
    while value is not None and value.producer is not None and len(value.consumers) == 1:
        node = value.producer
        if node.scope is not concat.scope or value in concat.scope.outputs:
            return None
        if node.is_op("Neg"):
            return node.input(0)
        value = node.input(0) if node.operator in RESHAPING else None
    return None


def _reading_product(editor: Editor, concat: Node) -> tuple[Node, Value]:
    """Return the Mul that reads a Concat, and the input of it that is the Concat with or without other dims."""
    value = concat.outputs[0]
    while value is not None:
        if len(value.consumers) != 1 or value.is_output:
            raise MatchFailure("what it rotates has other readers")
        node = value.consumers[0][0]
        if node.scope is not concat.scope or not editor.is_free(node):
            break
        if node.is_op("Mul"):
            return node, value
        value = node.outputs[0] if node.operator in RESHAPING and node.input(0) is value else None
    raise MatchFailure("what it rotates is not multiplied by a table")


def _sign_table(editor: Editor, concat: Node, joined: Value, sources: list[Value | None], rotated: Value) -> np.ndarray:
    """Return the sign of each rotated element, with dims of 1 where it is the same along an axis."""
    tensor, axis = editor.shapes[joined], concat.attr("axis", 0)
    dims, after = tensor.sizes(), editor.shapes[rotated].sizes()
    if dims is None or after is None or axis is None or not 0 < math.prod(dims) <= MAX_SIGNS:
        raise MatchFailure(f"the dims of what it rotates are not all numbers: {tensor}")
    if tensor.dtype not in FLOATS:
        raise MatchFailure("it does not rotate floats")
    signs = []
    for value, source in zip(concat.inputs, sources, strict=True):
        part = editor.shapes[value].sizes()
        if part is None or (source is not None and editor.shapes[source].sizes() is None):
            raise MatchFailure(f"the dims of what it rotates are not all numbers: {tensor}")
        signs.append(np.full(part, 1 if source is None else -1, tensor_dtype_to_np_dtype(tensor.dtype)))
    array = np.concatenate(signs, axis).reshape(after)
    for index in range(array.ndim):
        first = array.take([0], index)
        array = first if (array == first).all() else array
    return array
