"""Give the matrix that makes logits a leading axis of 1, so that onnxruntime reads it as it lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnx import TensorProto

from graphkit.graph.declared_types import declared_dims
from graphkit.graph.traversal import follow_chain
from graphkit.graph.view import Node, Value
from graphkit.passes.state.keep_last_logits import KEPT
from graphkit.rewrite import ROUNDING, Editor, MatchFailure, NewNode, Rewrite

__all__ = ["UnpackLogitsWeight"]

SINCE = 13  # Squeeze takes its axes as an input
WIDE = 8  # columns for each row: with fewer, the packed matrix is read as fast or faster
LARGE = 16 * 2**20  # bytes: a smaller matrix may stay in the caches of a processor


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

    largest_error: ClassVar[float] = ROUNDING

    wide: int = WIDE
    large: int = LARGE

    def edit(self, editor: Editor) -> None:
        logits = editor.model.roles.logits
        if logits is None or (declared_dims(logits) or ())[1:2] not in ((1,), (KEPT,)):
            return
        product = next(
            (node for value in follow_chain(logits, _find_source) if (node := _find_product(value)) is not None), None
        )
        if product is not None and product.scope.opset() >= SINCE:
            with editor.matching(product):
                self._unpack(editor, product)

    def _unpack(self, editor: Editor, product: Node) -> None:
        weight, dims = product.operand(1), editor.shapes[product.operand(0)].dims
        tensor = self._wide(editor, weight)
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
            product_of_three = NewNode("MatMul", [product.operand(0), name], [raised], like=product)
            editor.replace(product, product_of_three, NewNode("Squeeze", [raised, first], [result]))
        editor.note("matrix of logits given a third axis, so that onnxruntime does not pack it")

    def _wide(self, editor: Editor, weight: Value) -> TensorProto:
        """Return the matrix, if it pays to read it as it lies."""
        tensor = weight.constant
        if tensor is None or len(tensor.dims) != 2 or tensor.data_type != TensorProto.FLOAT:
            raise MatchFailure
        rows, columns = tensor.dims
        if columns < self.wide * rows or 4 * rows * columns < self.large:
            raise MatchFailure
        if editor.is_output(weight) or len(weight.consumers) > 1:
            raise MatchFailure(f"'{weight.name}' is read elsewhere too")
        return tensor


def _find_product(value: Value) -> Node | None:
    """Return the product that gives a value."""
    return value.producer if value.producer is not None and value.producer.is_op("MatMul") else None


def _find_source(value: Value) -> Value | None:
    """Return the one tensor that a value is made of with constants, and not by a product."""
    node = value.producer
    sources = [x for x in node.inputs if x is not None and x.constant is None] if node is not None else []
    return sources[0] if len(sources) == 1 and _find_product(value) is None else None
