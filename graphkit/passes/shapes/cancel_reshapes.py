"""Remove a Reshape and the one that undoes it where only elementwise nodes lie between them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from graphkit.graph.operators import BROADCASTING, RESHAPING, UNARY
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, NodeInput, attributes_of
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.reshape_spec import reshape_spec
from graphkit.shapes.tensor import Dims

__all__ = ["CancelReshapes"]

RESHAPE_SINCE = 5
ELEMENTWISE_SINCE = 7  # before, a node with two inputs needs an attribute to broadcast


@dataclass(frozen=True)
class CancelReshapes(Rewrite):
    """Remove Reshapes, Squeezes and Unsqueezes around elementwise nodes, which work on any dims.

    GPT-2 turns `[b, s, h]` into `[b*s, h]` for each Gemm, and back for each Gelu.

    Legality: the nodes in between are elementwise and read the tensors that such nodes before them give, all of one
    shape, or constants of one element; a node behind them gives the shape before them again. What else reads a result
    gets it from a Reshape of its own, as long as more of them go than come.

    Before:

        agraph (float[N, L, 8] x) => (float[M, 8] y)
        <int64[2] rows = {-1, 8}, int64[3] back = {-1, 1, 8}, float two = {2}> {
            a = Reshape (x, rows)
            b = Sigmoid (a)
            c = Reshape (b, back)
            d = Mul (c, two)
            e = Reshape (d, rows)
            y = Neg (e)
        }

    After:

        agraph (float[N, L, 8] x) => (float[M, 8] y) <int64[2] rows = {-1, 8}, float two = {2}> {
            a = Reshape (x, rows)
            b = Sigmoid (a)
            d_flat = Mul (b, two)
            y = Neg (d_flat)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes(*sorted(RESHAPING)):
            source, out = node.input(0), node.outputs[0]
            before, after = (editor.shapes[value].dims if value is not None else None for value in (source, out))
            if before is None or after is None or before == after or node.scope.opset() < RESHAPE_SINCE:
                continue
            region = _Region(editor, node, before, after)
            if region.saved > 0:
                region.write()
                editor.note("Reshape(s) around elementwise nodes removed", region.saved)


@dataclass
class _Region:
    """Elementwise nodes that can work on other dims.

    Attributes:
        first: The node that reshapes their source.
        before: The dims that they are to work on.
        after: Those that they work on.
        entries: Reshaped tensors of these dims, and their sources.
        nodes: In the order in which they were found.
        exits: Nodes that give the dims before again.
        read: The results that something else reads.
    """

    editor: Editor
    first: Node
    before: Dims
    after: Dims
    entries: dict[Value, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    exits: list[Node] = field(default_factory=list)
    read: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find all that follows the first node."""
        pending = [value for value in self.first.outputs if value is not None and self._is_entry(value)]
        known = set(pending)
        while pending:
            for node, _ in pending.pop().consumers:
                if node in self.nodes or not self._fits(node):
                    continue
                self.nodes.append(node)
                around = [value for value in (*node.inputs, *node.outputs) if value is not None and value not in known]
                found = [value for value in around if value in self.entries or value in node.outputs]
                known.update(found)
                pending += found
        self.nodes.sort(key=lambda node: node.index)
        self.entries = {value: source for value, source in self.entries.items() if self._is_read(value)}
        for value in (*self.entries, *self._results()):
            self._sort_readers(value)

    def _is_read(self, value: Value) -> bool:
        return any(node in self.nodes for node, _ in value.consumers)

    def _results(self) -> Iterator[Value]:
        yield from (value for node in self.nodes for value in node.outputs if value is not None)

    def _sort_readers(self, value: Value) -> None:
        others = [node for node, _ in value.consumers if node not in self.nodes]
        exits = [node for node in others if self._is_exit(node, value)]
        self.exits += [node for node in exits if node not in self.exits]
        if len(exits) < len(others) or self.editor.is_output(value):
            self.read.append(value)

    def _is_entry(self, value: Value) -> bool:
        """Whether a value has the dims before where a node reshapes it; it is noted."""
        node = value.producer
        source = node.input(0) if node is not None and node.is_op(*RESHAPING) else None
        if source is None or self.editor.shapes[value].dims != self.after or not self._is_untouched(value):
            return False
        if self.editor.shapes[source].dims != self.before or value.scope is not self.first.scope:
            return False
        self.entries[value] = source
        return True

    def _is_exit(self, node: Node, value: Value) -> bool:
        out = node.outputs[0] if node.outputs else None
        if out is None or not node.is_op(*RESHAPING) or node.input(0) is not value or not self.editor.is_free(node):
            return False
        return (
            self.editor.shapes[out].dims == self.before and not self.editor.is_output(out) and self._is_untouched(out)
        )

    def _is_untouched(self, value: Value) -> bool:
        return not self.editor.has_alias(value) and value not in self.editor.new_reads

    def _fits(self, node: Node) -> bool:
        """Whether a node can work on the dims before."""
        is_elementwise = node.is_op(*UNARY) or (node.is_op(*BROADCASTING) and node.scope.opset() >= ELEMENTWISE_SINCE)
        outs = [value for value in node.outputs if value is not None]
        if not is_elementwise or not self.editor.is_free(node) or node.scope is not self.first.scope:
            return False
        if len(outs) != 1 or not self._is_untouched(outs[0]):
            return False
        if self.editor.shapes[outs[0]].dims != self.after:
            return False
        return all(value is not None and self._is_readable(value) for value in node.inputs)

    def _is_readable(self, value: Value) -> bool:
        if value in self.entries or value.producer in self.nodes or self._is_entry(value):
            return True
        tensor = value.constant
        return tensor is not None and math.prod(tensor.dims) == 1 and len(tensor.dims) <= len(self.before)

    @property
    def saved(self) -> int:
        """How many nodes fewer there will be."""
        gone = [value for value in self.entries if value not in self.read]
        back = [value for value in self.read if value not in self.entries]
        if not self.nodes or (back and reshape_spec(self.before, self.after) is None):
            return 0
        return len(gone) + len(self.exits) - len(back)

    def write(self) -> None:
        """Let the nodes work on the dims before."""
        names: dict[Value, Value | str] = dict(self.entries)
        for node in self.nodes:
            (out,) = (value for value in node.outputs if value is not None)
            names[out] = self.editor.unique_name(f"{out.name}_flat")
            inputs: list[NodeInput] = [names.get(value, value) if value is not None else None for value in node.inputs]
            new = NewNode(node.op_type, inputs, [str(names[out])], attributes_of(node), like=node)
            if out in self.read:
                spec = reshape_spec(self.before, self.after) or ()
                shape = self.editor.integers(spec, f"{out.name}_shape")
                self.editor.replace(node, new, NewNode("Reshape", [names[out], shape], [out.name]))
            else:
                self.editor.insert_before(node, new)
        for node in self.exits:
            source = node.operand(0)
            self.editor.bypass(node, names[source])
