"""The editor: rewrites query a model through it, and record their changes in it.

A rewrite reads the view, which never changes, and records edits; `Editor.result` builds the new model. Every edit keeps
the elements of every value that still exists, so that edits of different nodes never disturb each other. A node is
edited once in a round; a second rewrite finds it taken and waits for the next round.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.numpy_helper
from msgspec.structs import replace

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.names import names_in
from graphkit.graph.new_nodes import NewNode, NodeInput, make_reshape
from graphkit.graph.operator_traits import BECAME_INPUTS, RANDOM
from graphkit.graph.view import Node, Scope, Value
from graphkit.io.read import DEFAULT_THRESHOLD
from graphkit.io.tensors import payload_size
from graphkit.model import Model
from graphkit.ops.rule_context import NodeFacts
from graphkit.ops.tensor import element_numbers
from graphkit.rewrite.base import Declined, MatchFailure
from graphkit.rewrite.edits import INITIALIZERS_SINCE, Edits
from graphkit.rewrite.fusions_to_keep import fused_nodes
from graphkit.shapes import AS_DECLARED, DimSpec, Shapes, infer

if TYPE_CHECKING:
    from graphkit.rewrite.element_bounds import ElementBounds
    from graphkit.rewrite.host_values import Dependence

MAX_UNIFORM = 256 << 10  # bytes of a constant that are read to see whether its elements are all the same
NUMPY_NUMBERS = {*INTEGERS, *FLOATS}


class Editor(Edits):
    """Collects edits of a sound model; where it is wanted, what fusions of onnxruntime look for is kept."""

    def __init__(self, model: Model, spec: DimSpec = AS_DECLARED, *, keep_fusions: bool = False) -> None:
        model.check_soundness()
        super().__init__(model)
        self.spec, self.keep_fusions = spec, keep_fusions
        self.changes: Counter[str] = Counter()
        self.declined: list[Declined] = []
        self._constants: dict[tuple[np.dtype[Any], tuple[int, ...], bytes], str] = {}
        self._uniform: dict[Value, float | None] = {}

    # Queries

    @cached_property
    def shapes(self) -> Shapes:
        """The inferred shapes of the model."""
        return infer(self.model, self.spec)

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """The main graph and its bodies, except bodies that cannot run, whose inferred shapes may be wrong.

        Functions are left out, because their calls differ.
        """
        impossible = self.shapes.impossible
        return tuple(s for s in self.model.graph.walk() if not any(body.contains(s) for body in impossible))

    @cached_property
    def _fused_nodes(self) -> Mapping[Node, str]:
        operators: dict[Node, str] = {}
        for scope in self.scopes if self.keep_fusions else ():
            operators.update(fused_nodes(scope, self.shapes.dims))
        return operators

    def nodes(self, *operators: str) -> Iterator[Node]:
        """Yield the nodes that an edit may still take: of one of these operators after the other, or all, in order.

        Operators are named with their domain unless it is onnx's.
        """
        for scope in self.scopes if not operators else ():
            yield from filter(self.is_free, scope.nodes)
        for operator in operators:
            for scope in self.scopes:
                yield from filter(self.is_free, scope.by_operator.get(operator, ()))

    def is_free(self, node: Node) -> bool:
        """Whether an edit may take a node: no edit has taken it, and no fusion needs it."""
        return not (node in self.replaced or node in self.inputs or node in self.before or node in self._fused_nodes)

    def is_fused(self, node: Node | None) -> bool:
        """Whether a fusion of onnxruntime needs a node unchanged."""
        return node is not None and node in self._fused_nodes

    def is_static(self, node: Node) -> bool:
        """Whether a node depends on constants and known dims alone, so that folding evaluates it, exactly as it is."""
        return self._static.issuperset(node.operands)

    @cached_property
    def _static(self) -> set[Value]:
        static: set[Value] = set()
        for scope in self.scopes:
            static.update(value for value in scope.initializers if value.is_constant)
            for node in scope.nodes:
                is_plain = not (node.domain or node.bodies or node.op_type in RANDOM)
                is_folded = is_plain and static.issuperset(node.operands)
                known = (value for value in node.results if element_numbers(self.shapes[value]) is not None)
                static.update(node.results if is_folded else known)
        return static

    @cached_property
    def bounds(self) -> ElementBounds:
        """The bounds of elements, which are computed where a rewrite asks."""
        from graphkit.rewrite.element_bounds import ElementBounds

        return ElementBounds(self.model, self.shapes)

    @cached_property
    def dependences(self) -> Mapping[Value, Dependence]:
        """The inputs that each value of the main graph is computed from."""
        from graphkit.rewrite.host_values import find_dependences

        return find_dependences(self.model, self.shapes)

    def facts(self, node: Node) -> NodeFacts:
        """Return a node with the known facts of its tensors."""
        inputs = [None if value is None else self.shapes[value] for value in node.inputs]
        return NodeFacts(node, inputs, [None if value is None else self.shapes[value] for value in node.outputs])

    def known_integers(self, value: Value | None) -> list[int] | None:
        """Return the elements of an integer tensor in order, None where they are not known."""
        array = element_numbers(self.shapes[value])
        return None if array is None else [int(number) for number in array.ravel()]

    def read_constant(self, value: Value | None, limit: int, itemsize: int = 0) -> np.ndarray | None:
        """Return the elements of a constant, None for any other value, or where a data file is missing.

        It may have so many bytes, those of another dtype where an item size is given.
        """
        tensor = value.constant if value is not None else None
        if tensor is None:
            return None
        size = math.prod(tensor.dims) * itemsize if itemsize else payload_size(tensor)
        if size is None or size > limit:
            return None
        try:
            return self.model.array(tensor)
        except ModelError:  # its data file is missing
            return None

    def uniform(self, value: Value) -> float | None:
        """Return the finite number that all elements of a constant equal, or None if they differ or are too many."""
        if value not in self._uniform:
            self._uniform[value] = self._read_uniform(value)
        return self._uniform[value]

    def _read_uniform(self, value: Value) -> float | None:
        if value.constant is None or value.constant.data_type not in NUMPY_NUMBERS:
            return None
        array = self.read_constant(value, MAX_UNIFORM)
        if array is None or not array.size:
            return None
        first = array.reshape(-1)[0]
        return float(first) if np.isfinite(float(first)) and bool((array == first).all()) else None

    # Edits

    def note(self, change: str, count: int = 1) -> None:
        """Count a change, such as "Reshape(s) given a constant shape": see `graph.names.counted`."""
        self.changes[change] += count

    def decline(self, node: Node, reason: str) -> None:
        """Record why a node stays unchanged."""
        self.declined.append(Declined(node.path, reason))

    @contextmanager
    def matching(self, node: Node) -> Iterator[None]:
        """Record why a node stays unchanged where a matcher inside raises its failure, or a data file is missing."""
        try:
            yield
        except (MatchFailure, ModelError) as failure:
            self.decline_failed(node, failure)

    def decline_failed(self, node: Node, failure: MatchFailure | ModelError) -> None:
        """Record the failure of a matcher, or that a data file is missing."""
        if isinstance(failure, ModelError):
            self.decline(node, str(failure))
        elif failure.reason:
            self.decline(failure.node or node, failure.reason)

    def bypass(self, node: Node, source: Value | str) -> bool:
        """Let the consumers of a node's first output read an equal value; a graph output keeps its name.

        Requires that no other output of the node is used. Returns whether the consumers can read that value.
        """
        value = node.result()
        is_used = self.replace_all_uses(value, source)
        if value.is_output:
            self.replace(node, NewNode("Identity", [source], [value.name], like=node))
            return True
        return is_used

    def constant(self, array: np.ndarray, name: str) -> str:
        """Add a constant that every graph can read, and return its name; equal arrays share one."""
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.unique_name(name)
            self.tensors.append(onnx.numpy_helper.from_array(np.array(array, order="C"), self._constants[key]))
        return self._constants[key]

    def weight(self, name: str, dtype: int, dims: Sequence[int], parts: Iterable[bytes]) -> str:
        """Return the name of a constant that every graph can read, whose bytes stay on disk where they are many."""
        chosen = self.unique_name(name)
        tensor = self.model.make_tensor(chosen, dtype, dims, parts)
        if (payload_size(tensor) or 0) < DEFAULT_THRESHOLD or self.model.proto.ir_version < INITIALIZERS_SINCE:
            inline = bytes(self.model.payload(tensor))
            tensor = onnx.TensorProto(name=chosen, data_type=dtype, dims=dims, raw_data=inline)
        self.tensors.append(tensor)
        return chosen

    def tensor(self, tensor: onnx.TensorProto, name: str) -> str:
        """Add a tensor as a constant that every graph can read, and return its name."""
        made = copy.deepcopy(tensor)
        made.name = self.unique_name(name)
        self.tensors.append(made)
        return made.name

    def integers(self, numbers: Sequence[int], name: str) -> str:
        """Add an int64 constant of rank 1, and return its name."""
        return self.constant(np.array(numbers, np.int64), name)

    def make_reshape(self, data: NodeInput, sizes: Sequence[int], out: str, like: Node | None = None) -> NewNode:
        """Return the node that gives data a constant shape."""
        return make_reshape(data, self.integers(sizes, f"{out}_shape"), out, like=like)

    def make_numbered(
        self, like: Node, op_type: str, data: NodeInput, numbers: Sequence[int], name: str, **attributes: object
    ) -> NewNode:
        """Return a node with numbers, such as axes or sizes: an attribute in the opset of `like`, or a named input."""
        since, (parameter, *_) = BECAME_INPUTS[op_type]
        if like.scope.opset() < since:
            return NewNode(op_type, [data], [], {**attributes, parameter: numbers})
        return NewNode(op_type, [data, self.integers(numbers, name)], [], attributes)

    def unique_name(self, name: str) -> str:
        """Return a name that no value or node has in any graph: the given one, or one made from it."""
        chosen, number = name, 1
        while chosen in self._names:
            chosen, number = f"{name}_{number}", number + 1
        self._names.add(chosen)
        return chosen

    @cached_property
    def _names(self) -> set[str]:
        return names_in(self.model.scopes)


class Builder:
    """The nodes that take the place of one, with names made from its output.

    builder = Builder(editor, node)
    square = builder.add("Mul", base, base, role="square")
    builder.add("Mul", square, base)
    builder.replace()  # the last node gives the output
    """

    def __init__(self, editor: Editor, node: Node) -> None:
        out = node.outputs[0] if node.outputs else None
        self.editor, self.node, self.label = editor, node, node.label if out is None else out.name
        self.nodes: list[NewNode] = []  # so far, in order; their names begin with the label

    def add(
        self, op_type: str, *inputs: NodeInput, role: str = "", like: Node | None = None, **attributes: object
    ) -> str:
        """Add a node, and return the name of its output."""
        return self.append(NewNode(op_type, inputs, [], attributes, like=like), role)

    def append(self, node: NewNode, role: str = "") -> str:
        """Add a node as it is, but for the name of its output, which is returned."""
        name = self.name(role or node.op_type.lower())
        self.nodes.append(replace(node, outputs=[name]))
        return name

    def name(self, role: str) -> str:
        """Return a new name."""
        return self.editor.unique_name(f"{self.label}_{role}")

    def constant(self, array: np.ndarray, role: str) -> str:
        """Return the name of a constant."""
        return self.editor.constant(array, f"{self.label}_{role}")

    def integers(self, numbers: Sequence[int], role: str) -> str:
        """Return the name of an int64 constant of rank 1."""
        return self.editor.integers(numbers, f"{self.label}_{role}")

    def finish(self) -> list[NewNode]:
        """Return the nodes: the last one gives the output, and is like the node unless another one is."""
        *nodes, last = self.nodes
        like = None if any(node.like is self.node for node in nodes) else self.node
        return [*nodes, replace(last, outputs=[self.label], like=like)]

    def replace(self) -> None:
        """Put the nodes in the place of the node."""
        self.editor.replace(self.node, *self.finish())
