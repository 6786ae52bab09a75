"""Make a decode step faster: the logits of the last tokens alone, their weight as it lies, products of two axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field
from onnx import TensorProto

from graphkit.graph.declared_types import declared_dims
from graphkit.graph.names import names_in
from graphkit.graph.new_nodes import make_slice
from graphkit.graph.operator_traits import (
    LOOKUPS,
    NORMALIZATIONS,
    REDUCTIONS,
    SOFTMAXES,
    UNARY,
    broadcasts_inputs,
    is_elementwise,
    operator_set,
    requested_shape,
)
from graphkit.graph.view import Node, Value, chain_end, connected_groups
from graphkit.model import Model
from graphkit.ops.axes import FREE, Layout, find_layout
from graphkit.ops.rule_context import UnknownError
from graphkit.ops.tensor import Dims
from graphkit.passes.shapes.simplify_reshape import reshape_spec
from graphkit.rewrite import ROUNDING, Declined, Editor, MatchFailure, NewNode, NodeInput, Outcome, Pass, Rewrite
from graphkit.rewrite.edits import copy_node
from graphkit.rewrite.new_interface import NewInput, with_interface
from graphkit.shapes import const, symbol

KEPT = "logits_kept"  # the input; the dim of the logits is called so too
TOKENS = 1  # the axis
END = 2**63 - 1
PRODUCTS = operator_set("MatMul") | operator_set("MatMulNBits", "com.microsoft")
SINCE = 13  # Squeeze takes its axes as an input, and Softmax works along one axis
WIDE = 8  # columns for each row: with fewer, the packed matrix is read as fast or faster
LARGE = 16 * 2**20  # bytes: a smaller matrix may stay in the caches of a processor
AXIS = 1  # of `[batch, 1, width]`
LAST = {-1: -1, 2: 1}  # the last of three axes, as it counts among two
ALONG_LAST = SOFTMAXES | NORMALIZATIONS  # by default


class KeepLastLogits(Pass):
    """Give the logits of the last tokens alone: as many as the new input `logits_kept` says, all of them for 0.

    A prompt needs the logits of its last token, and those of all tokens are often the largest tensor of the model: 2.1
    GB for 2,047 tokens of Gemma 3 270M, and half of the time. The Slice goes in front of the product that makes logits
    of the hidden state, so that the others are not computed.

    Legality: the output that holds the logits is [batch, tokens, vocabulary]. It comes from a product with a matrix by
    nodes that treat each token alike and that nothing else reads.

    Before:

        agraph (float[N, L, 4] x, float[4, 6] w) => (float[N, L, 6] logits) {
            y = MatMul (x, w)
            logits = Tanh (y)
        }

    After:

        agraph (float[N, L, 4] x, float[4, 6] w, int64[1] logits_kept) => (float[N, logits_kept, 6] logits)
        <int64[1] "int/max" = {9223372036854775807}, int64[1] "int/1" = {1}> {
            first_kept = Neg (logits_kept)
            x_kept = Slice (x, first_kept, "int/max", "int/1")
            y_kept = MatMul (x_kept, w)
            logits = Tanh (y_kept)
        }
    """

    changes_interface = True

    def run(self, model: Model) -> Outcome:
        logits, editor = model.roles.logits, Editor(model)
        dims = editor.shapes[logits].dims
        if logits is None or dims is None or len(dims) != 3:
            return _decline_model(model, "no output is known to be logits, [batch, tokens, vocabulary]")
        if KEPT in names_in(model.scopes):
            return _decline_model(model, f"'{KEPT}' is a name in it already")
        if not (nodes := _find_head(editor, logits)):
            return _decline_model(model, "its logits are not known to be a product that treats each token alike")
        (product, index), *_ = nodes
        source = product.operand(index)  # nodes behind the product give fewer tokens, under other names
        first, kept = editor.unique_name("first_kept"), editor.unique_name(f"{source.name}_kept")
        end, axes = editor.integers([END], "int/max"), editor.integers([TOKENS], f"int/{TOKENS}")
        made = [NewNode("Neg", [KEPT], [first]), make_slice(source, first, end, axes, out=kept)]
        for node, place in nodes:
            read: list[NodeInput] = list(node.inputs)
            read[place], out = kept, node.result()
            kept = out.name if out is logits else editor.unique_name(f"{out.name}_kept")
            made.append(copy_node(node, read, [kept]))
            editor.replace(node, *made)
            made = []
        inputs = {KEPT: NewInput(KEPT, TensorProto.INT64, (const(1),), "for how many of the last tokens; 0 for all")}
        declared = NewInput(logits.name, editor.shapes[logits].dtype, (dims[0], symbol(KEPT), dims[2]))
        result = with_interface(editor.result(), inputs, {logits.name: declared})
        return Outcome(result, ("logits of the last tokens alone",))


def _decline_model(model: Model, reason: str) -> Outcome:
    return Outcome(model, declined=(Declined(model.name, reason),))


def _find_head(editor: Editor, logits: Value) -> list[tuple[Node, int]]:
    """Return the nodes from the product to the logits, each with the input that holds the tokens; none if unknown."""
    path: list[tuple[Node, int]] = []
    value = logits
    while (node := value.producer) is not None:
        index = _tokens_at(node, editor)
        is_read_alone = not value.consumers if value is logits else editor.only_reader(value) is not None
        if index is None or not is_read_alone:
            break
        path.insert(0, (node, index))
        if node.operator in PRODUCTS:
            return path
        value = node.operand(index)
    return []


def _tokens_at(node: Node, editor: Editor) -> int | None:
    """Return which input of a node holds the tokens, where each token of its output follows from that token alone."""
    dims, whole = [editor.shapes[value].dims for value in node.inputs], editor.shapes[node.outputs[0]].dims
    if whole is None or len(whole) != 3 or node.scope is not editor.model.graph or len(node.outputs) != 1:
        return None
    if node.operator in PRODUCTS:
        is_matrix = node.op_type != "MatMul" or len(dims[1] or ()) == 2
        return 0 if is_matrix and _has_tokens(dims[0], whole) else None
    if node.operator in UNARY:
        return 0 if _has_tokens(dims[0], whole) else None
    if not broadcasts_inputs(node):
        return None
    holding = [at for at, each in enumerate(dims) if each is None or (len(each) > 1 and each[-2] != 1)]
    return holding[0] if len(holding) == 1 and _has_tokens(dims[holding[0]], whole) else None


def _has_tokens(dims: Dims | None, whole: Dims) -> bool:
    return dims is not None and len(dims) == 3 and dims[:2] == whole[:2]


@dataclass(frozen=True)
class UnpackLogitsWeight(Rewrite):
    """Give the matrix that makes logits a leading axis of 1.

    A decode step reads each of its weights once, and the matrix of the logits is often the largest. onnxruntime packs a
    matrix of two axes when it opens a model, into panels of some columns, and a step reads one panel after the other. A
    matrix of three axes stays as it lies, and a product of one row reads several of its rows at a time: a wide one 1.1
    to 1.4 times as fast, and without the memory of a packed copy. Where a product has several rows the packed matrix is
    at least twice as fast: this is for models that run one sequence at a time.

    The sums are the same, but a kernel may add them up in another order: the last digits of results may change.

    Legality: the matrix is a constant that nothing else reads. It is float32, and has at least `wide` columns for each
    row and `large` bytes. The logits are declared as those of one token, or of as many as `logits_kept` says.

    Before:

        agraph (float[N, 1, 1] x) => (float[N, 1, 8] logits) <float[1, 8] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
            logits = MatMul (x, w)
        }

    After `unpack-logits-weight{large=0}`:

        agraph (float[N, 1, 1] x) => (float[N, 1, 8] logits)
        <float[1, 1, 8] w_unpacked = {1, 2, 3, 4, 5, 6, 7, 8}> {
            logits = MatMul (x, w_unpacked)
        }

    Attributes:
        wide: The fewest columns for each row.
        large: The fewest bytes.
    """

    largest_error = ROUNDING

    wide: int = WIDE
    large: int = LARGE

    def edit(self, editor: Editor) -> None:
        logits = editor.model.roles.logits
        if logits is None or (declared_dims(logits) or ())[1:2] not in ((1,), (KEPT,)):
            return

        def before(value: Value) -> Value | None:
            """Return the one tensor that a value is made of with constants, and not by a product."""
            node = value.producer
            sources = [each for each in node.operands if each.constant is None] if node is not None else []
            return sources[0] if len(sources) == 1 and node is not None and not node.is_op("MatMul") else None

        product = chain_end(logits, before).producer
        if product is not None and product.is_op("MatMul") and product.scope.opset() >= SINCE:
            with editor.matching(product):
                weight, dims = product.operand(1), editor.shapes[product.operand(0)].dims
                tensor = weight.constant
                if tensor is None or len(tensor.dims) != 2 or tensor.data_type != TensorProto.FLOAT:
                    raise MatchFailure
                rows, columns = tensor.dims
                if columns < self.wide * rows or 4 * rows * columns < self.large:
                    raise MatchFailure  # it does not pay to read it as it lies
                if weight.is_output or len(weight.consumers) > 1:
                    raise MatchFailure(f"'{weight.name}' is read elsewhere too")
                if dims is None or len(dims) < 2:
                    raise MatchFailure("how many axes its other operand has is not known")
                made = TensorProto()
                made.CopyFrom(tensor)
                made.dims.insert(0, 1)
                name = editor.tensor(made, f"{weight.name}_unpacked")
                if len(dims) > 2:
                    editor.set_inputs(product, {1: name})
                else:
                    result = product.result().name
                    raised, first = editor.unique_name(f"{result}_raised"), editor.integers([0], "first_axis")
                    of_three_axes = NewNode("MatMul", [product.operand(0), name], [raised], like=product)
                    editor.replace(product, of_three_axes, NewNode("Squeeze", [raised, first], [result]))
                editor.note("matrix of logits given a third axis, so that onnxruntime does not pack it")


class SqueezeTokenAxis(Rewrite):
    """Let nodes work on `[batch, width]` where they work on `[batch, 1, width]`.

    onnxruntime makes one Gemm of a MatMul and the Add of its bias where both have two axes, and saves an Add for each
    weight of a decode step. Without its fusions the results are equal to the last bit.

    Legality: the axis before the last is 1 at all legal sizes, and the nodes treat it as they treat a batch:
    elementwise, products with a matrix, norms and reductions along the last axis, rows of a table, and Reshapes. Where
    others give or read such a tensor, a Squeeze or Unsqueeze stands; a region that has no more products with a bias
    than it needs of those stays.

    Before:

        agraph (float[N, 1, 8] x, float[8, 8] w, float[8, 8] v) => (float[N, 1, 8] y)
        <float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}> {
            a = MatMul (x, w)
            c = Add (a, b)
            d = MatMul (c, v)
            e = Add (d, b)
            f = MatMul (e, w)
            y = Add (f, b)
        }

    After:

        agraph (float[N, 1, 8] x, float[8, 8] w, float[8, 8] v) => (float[N, 1, 8] y)
        <float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}, int64[1] token_axis = {1}> {
            x_squeezed = Squeeze (x, token_axis)
            a_squeezed = MatMul (x_squeezed, w)
            c_squeezed = Add (a_squeezed, b)
            d_squeezed = MatMul (c_squeezed, v)
            e_squeezed = Add (d_squeezed, b)
            f_squeezed = MatMul (e_squeezed, w)
            y_squeezed = Add (f_squeezed, b)
            y = Unsqueeze (y_squeezed, token_axis)
        }
    """

    def edit(self, editor: Editor) -> None:
        for scope in editor.scopes:
            nodes = scope.nodes if scope.opset() >= SINCE else ()
            plans = {node: plan for node in nodes if (plan := _plan_node(editor, node)) is not None}

            def neighbours(node: Node, plans: Mapping[Node, _Plan] = plans) -> Iterator[Node | None]:
                yield from (value.producer for value in plans[node].squeezed)
                readers = (reader for reader, _ in node.result().consumers if reader in plans)
                yield from (reader for reader in readers if node.result() in plans[reader].squeezed)

            for group in connected_groups(plans, neighbours):
                region = _Region(editor, {node: plans[node] for node in group})
                if region.products > len(region.entries) + len(region.exits):
                    region.write()
                    editor.note("node(s) freed of a token axis of 1", len(region.plans))


class _Plan(Struct, frozen=True):
    """How a node works without the axis."""

    squeezed: tuple[Value, ...]  # its inputs that lose the axis; the others are read as they are
    attributes: Mapping[str, Any] = field(default_factory=dict)  # the attributes that change
    constants: Mapping[int, Sequence[int]] = field(default_factory=dict)  # the integer inputs that change, by index


class _Region(Struct):
    """Connected nodes that can work without the axis."""

    editor: Editor
    plans: Mapping[Node, _Plan]  # how each does, in graph order
    entries: set[Value] = field(default_factory=set)  # values with the axis that other nodes give
    exits: set[Value] = field(default_factory=set)  # values of the region that something reads with the axis
    # the Reshapes that read a value of the region, and the shape with which they do so without the axis
    readers: dict[Node, Sequence[int]] = field(default_factory=dict)
    products: int = 0  # how many products with a bias there are

    def __post_init__(self) -> None:
        for node, plan in self.plans.items():
            self.entries.update(value for value in plan.squeezed if value.producer not in self.plans)
            readers = node.result().consumers if node.is_op("MatMul") else ()
            if len(readers) == 1 and readers[0][0].is_op("Add"):
                bias = readers[0][0].operand(1 - readers[0][1]).constant
                self.products += bias is not None and len(bias.dims) == 1
            if node.result().is_output:
                self.exits.add(node.result())
            for reader, index in node.result().consumers:
                if reader in self.plans and node.result() in self.plans[reader].squeezed:
                    continue
                spec = None  # the shape with which a Reshape reads its source without the axis
                is_reshape = requested_shape(reader) is not None and index == 0 and not reader.attr("allowzero", 0)
                if is_reshape and reader.scope is node.scope and self.editor.is_free(reader):
                    before, after = (self.editor.shapes[each].dims for each in (node.result(), reader.result()))
                    spec = reshape_spec(_squeeze_dims(before or ()), after) if after is not None else None
                if spec is None:
                    self.exits.add(node.result())
                else:
                    self.readers[reader] = spec

    def write(self) -> None:
        axis = self.editor.integers([AXIS], "token_axis")
        names: dict[Value, str] = {}
        for node, plan in self.plans.items():
            nodes: list[NewNode] = []
            for value in plan.squeezed:
                if value not in names:
                    names[value] = self.editor.unique_name(f"{value.name}_squeezed")
                    nodes.append(NewNode("Squeeze", [value, axis], [names[value]]))
            inputs: list[NodeInput] = [names[x] if x is not None and x in plan.squeezed else x for x in node.inputs]
            out = node.result()
            for index, array in plan.constants.items():
                inputs[index] = self.editor.integers(array, f"{out.name}_squeezed_{index}")
            name = names[out] = self.editor.unique_name(f"{out.name}_squeezed")
            nodes.append(copy_node(node, inputs, [name], **plan.attributes))
            if out in self.exits:
                self.editor.replace(node, *nodes, NewNode("Unsqueeze", [name, axis], [out.name]))
            else:
                self.editor.insert_before(node, *nodes)
        for reader, spec in self.readers.items():
            shape = self.editor.integers(spec, f"{reader.result().name}_shape")
            self.editor.set_inputs(reader, {0: names[reader.operand(0)], 1: shape})


def _plan_node(editor: Editor, node: Node) -> _Plan | None:
    """Return how a node works without the axis, None where that is not known."""
    if node.domain or len(node.outputs) != 1 or node.outputs[0] is None or not editor.is_free(node):
        return None
    if not editor.is_untouched(node.result()) or not _has_axis(editor, node.result()):
        return None
    if requested_shape(node) is not None:  # for a tensor that has other axes
        before, after = (editor.shapes[value].dims for value in (node.operand(0), node.result()))
        if before is None or after is None or _has_axis(editor, node.operand(0)) or node.attr("allowzero", 0):
            return None
        spec = reshape_spec(before, _squeeze_dims(after))
        return None if spec is None else _Plan((), constants={1: spec})
    if node.is_op(*LOOKUPS):
        table, indices = (editor.shapes[node.operand(index)].dims for index in (0, 1))
        is_lookup = table is not None and len(table) == 2 and node.attr(LOOKUPS[node.operator], 0) in (0, -2)
        return _Plan((node.operand(1),)) if is_lookup and indices is not None and len(indices) == 2 else None
    if node.is_op("MatMul"):
        matrix = editor.shapes[node.operand(1)].dims
        return _Plan((node.operand(0),)) if _has_axis(editor, node.operand(0)) and len(matrix or ()) == 2 else None
    with suppress(UnknownError):
        return _of_layout(editor, node, find_layout(editor.facts(node)))
    return None


def _of_layout(editor: Editor, node: Node, layout: Layout) -> _Plan | None:
    """Return how a node works that treats the axis as any other, or only names the last one."""
    is_known = is_elementwise(node) or node.is_op(*ALONG_LAST) or (node.is_op(*REDUCTIONS) and node.attr("keepdims", 1))
    named = [layout.axis] if layout.axis is not None else layout.axes
    if not is_known or len(layout.kinds) != 3 or layout.kinds[AXIS] != FREE or any(axis not in LAST for axis in named):
        return None
    as_is = [value for index, value in enumerate(node.inputs) if index not in (*layout.inputs, layout.axes_input)]
    squeezed = []
    for value in map(node.operand, layout.inputs):
        dims = editor.shapes[value].dims  # a number, a vector or one row broadcasts alike with and without the axis
        if dims is None or any(dim != 1 for dim in dims[:-1]) or len(dims) > 2:
            squeezed.append(value)
    if not squeezed or not all(_has_axis(editor, value) for value in squeezed):
        return None
    if any(value is not None and (editor.shapes[value].rank or 0) > 1 for value in as_is):
        return None
    places = [LAST[axis] for axis in named]
    if layout.axis is None and layout.axes_input is not None:
        return _Plan(tuple(squeezed), constants={layout.axes_input: places})
    attributes = {"axis": places[0]} if layout.axis is not None else {"axes": places} if places else {}
    return _Plan(tuple(squeezed), attributes)


def _squeeze_dims(dims: Dims) -> Dims:
    return (*dims[:AXIS], *dims[AXIS + 1 :])


def _has_axis(editor: Editor, value: Value) -> bool:
    dims = editor.shapes[value].dims
    return dims is not None and len(dims) == 3 and dims[AXIS] == 1
