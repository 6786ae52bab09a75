"""Rows of states, such as that of the end token, by products with inputs that say which row it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphkit.errors import UsageError
from graphkit.graph.find_by_name import find_value
from graphkit.graph.view import Node
from graphkit.model import Model
from graphkit.rewrite import Builder, Editor, Outcome, Pass
from graphkit.rewrite.new_interface import NewInput, drop_dead_inputs, with_interface
from graphkit.rewrite.pass_options import Renames

__all__ = ["PoolRowByOneHot"]


@dataclass(frozen=True)
class PoolRowByOneHot(Pass):
    """Take rows of states by products with one-hot rows, which become inputs.

    Which row it is may follow from tokens that an NPU does not see; whoever knows them makes a row of zeros with a 1
    at its place. Rows that are chosen alike share an input.

    Legality: the states are `[batch, source, hidden]`, and the row, which one node gives, is `[batch, hidden]` or
    `[batch, 1, hidden]`.

    Before:

        agraph (float[2, 3, 4] states, int64[2, 2] places) => (float[2, 4] row) {
            row = GatherND (states, places)
        }

    After `pool-row-by-one-hot{rows=row=states,inputs=row=pooling}`:

        agraph (float[2, 3, 4] states, float[2, 1, 3] pooling) => (float[2, 4] row)
        <int64[1] row_axes = {1}> {
            row_product = MatMul (pooling, states)
            row = Squeeze (row_product, row_axes)
        }

    Attributes:
        rows: The states that each row is taken from: `row=states`.
        inputs: The input that says which row it is: `row=pooling`.
    """

    changes_interface: ClassVar[bool] = True

    rows: Renames = ()
    inputs: Renames = ()

    def run(self, model: Model) -> Outcome:
        """Return the model that takes the rows by products.

        Raises:
            UsageError: A row or its states do not exist, are no such tensors, or no input is named for the row.
        """
        if not self.rows:
            return Outcome(model)
        editor, inputs, new = Editor(model), dict(self.inputs), dict[str, NewInput]()
        for row, states in self.rows:
            name = inputs.get(row, "")
            new[name] = self._input(editor, name, row, states)
            builder = Builder(editor, self._row_node(editor, row))
            product = builder.add("MatMul", name, model.graph.values[states], role="product")
            if len(editor.shapes[model.graph.values[row]].dims or ()) == 2:
                builder.add("Squeeze", product, builder.integers([1], "axes"))
            builder.replace()
        made = drop_dead_inputs(with_interface(editor.result(clean=True), new, {}))
        changes = (
            f"'{row}' is the product of '{inputs[row]}', made by the host, and the states" for row, _ in self.rows
        )
        return Outcome(made, tuple(changes))

    def _row_node(self, editor: Editor, row: str) -> Node:
        """Return the node that gives a row."""
        node = find_value(editor.model.scopes, row, editor.model.label).producer
        if node is None or node.scope is not editor.model.graph or len(node.outputs) != 1:
            raise UsageError(f"{editor.model.label}: {self.name()}: no node gives '{row}' alone - name such a row")
        return node

    def _input(self, editor: Editor, name: str, row: str, states: str) -> NewInput:
        """Return the input that says which row of some states is meant."""
        tensors = [editor.shapes[find_value(editor.model.scopes, value, editor.model.label)] for value in (states, row)]
        dims, of_row = (tensor.dims or () for tensor in tensors)
        is_row = len(dims) == 3 and len(of_row) in (2, 3) and of_row[-1:] == dims[-1:]
        if not name or name in editor.model.graph.values or not is_row:
            raise UsageError(
                f"{editor.model.label}: {self.name()}: '{row}' is {tensors[1]}, no row of '{states}', {tensors[0]}, or "
                "has no new input - name a row, its states and an input"
            )
        return NewInput(name, tensors[0].dtype, (dims[0], 1, dims[1]), "1 at the place of the row, 0 elsewhere")
