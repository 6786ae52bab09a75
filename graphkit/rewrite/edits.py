"""The edits of a model, collected against its view."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx.helper import get_attribute_value

from graphkit.graph.view import Node, Scope, Value
from graphkit.model import Model

__all__ = ["Edits", "NewNode", "NodeInput", "attributes_of"]

NodeInput = Value | str | None  # a value of the view, the name of a new one, or left out


@dataclass(frozen=True)
class NewNode:
    """A node to make.

    Attributes:
        op_type: The operator.
        inputs: Values or names that it reads.
        attributes: As `onnx.helper.make_node` takes them, or as protos.
        like: The node whose name, doc string and metadata it takes over.
        domain: Of the operator.
    """

    op_type: str
    inputs: Sequence[NodeInput]
    outputs: Sequence[str]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    like: Node | None = None
    domain: str = ""


def attributes_of(node: Node, **changed: Any) -> dict[str, Any]:
    """Return the attributes of a node as `NewNode` takes them, some of them changed; an empty list as its proto."""
    found = {name: get_attribute_value(attribute) for name, attribute in node.attributes.items()}
    empty = {name: node.attributes[name] for name, value in found.items() if isinstance(value, list) and not value}
    return found | empty | changed


class Edits:
    """Edits of one model, which is not changed.

    Attributes:
        aliases: What the consumers of a value read instead of it.
        inputs: The inputs that a node reads instead of others, by index.
        replaced: The nodes that take the place of a node.
        before: The nodes that come before a node.
        heads: The nodes that come first in a graph.
        functions: What nodes call, by domain and name, where the model does not have it yet.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.aliases: dict[Value, Value | str] = {}
        self.inputs: dict[Node, dict[int, NodeInput]] = defaultdict(dict)
        self.replaced: dict[Node, Sequence[NewNode]] = {}
        self.before: dict[Node, Sequence[NewNode]] = {}
        self.heads: dict[Scope, list[NewNode]] = defaultdict(list)
        self.renamed: dict[Value, str] = {}
        self.tensors: list[onnx.TensorProto] = []
        self.functions: dict[tuple[str, str], onnx.FunctionProto] = {}
        self._new_reads: set[Value] = set()
        self._inner_names: dict[Scope, set[str]] = {}

    # Queries

    @property
    def is_changed(self) -> bool:
        """Whether there are any edits."""
        return bool(self.aliases or self.inputs or self.replaced or self.before or self.heads or self.renamed)

    def is_taken(self, node: Node) -> bool:
        """Whether an edit has taken a node."""
        return node in self.replaced or node in self.inputs or node in self.before

    def has_alias(self, value: Value) -> bool:
        """Whether the consumers of a value read another one already."""
        return value in self.aliases

    def is_renamed(self, value: Value) -> bool:
        """Whether a value gets another name."""
        return value in self.renamed

    def is_visible(self, value: Value, scope: Scope) -> bool:
        """Whether a value may be read in a scope by its name, which no body inside its own scope gives to another.

        A body's inputs and initializers may have names of the graphs around it. onnxruntime mixes them up even where
        one branch of an If has such an initializer, and the other reads the outer tensor.
        """
        return scope is value.scope or value.name not in self.inner_names(value.scope)

    def inner_names(self, scope: Scope) -> set[str]:
        """Return the names that the bodies inside a graph define."""
        if scope not in self._inner_names:
            self._inner_names[scope] = {name for body in scope.walk() if body is not scope for name in body.values}
        return self._inner_names[scope]

    def resolve(self, value: Value, scope: Scope | None = None) -> Value | str:
        """Return the value that consumers of a value will read; in a scope, if given, names may be shadowed."""
        found: Value | str = value
        while isinstance(found, Value) and found in self.aliases:
            after = self.aliases[found]
            if scope is not None and isinstance(after, Value) and not self.is_visible(after, scope):
                break
            found = after
        return found

    @property
    def new_reads(self) -> Set[Value]:
        """The values that edits give new readers, which `Value.consumers` does not list."""
        return self._new_reads

    def only_reader(self, value: Value) -> Node | None:
        """Return the one node that reads a value, in its own graph, None where others do, or will after the edits.

        An output of a graph is read by what runs the graph.
        """
        if len(value.consumers) != 1 or value in self._new_reads or value in value.scope.outputs:
            return None
        reader = value.consumers[0][0]
        return reader if reader.scope is value.scope else None

    # Edits

    def replace_all_uses(self, value: Value, instead: Value | str) -> bool:
        """Let all consumers of a value read another one with the same elements; return whether that is possible."""
        if not self.can_replace_all_uses(value, instead):
            return False
        self.aliases[value] = instead
        self._read([instead])
        return True

    def can_replace_all_uses(self, value: Value, instead: Value | str) -> bool:
        """Whether all consumers of a value can read another one."""
        return isinstance(instead, str) or all(self.is_visible(instead, node.scope) for node, _ in value.consumers)

    def set_inputs(self, node: Node, inputs: Mapping[int, NodeInput]) -> None:
        """Change the inputs of a node."""
        self.inputs[node].update(inputs)
        self._read(inputs.values())

    def take(self, node: Node) -> None:
        """Keep other edits of this round from a node, which stays as it is until nothing reads it."""
        self.set_inputs(node, {})

    def replace(self, node: Node, *nodes: NewNode) -> None:
        """Replace a node by nodes that produce its used outputs under the same names.

        What no node produces any longer must have no reader left, also none of another edit of the same round: where
        one may come, insert nodes before this one, which stays until nothing reads it.
        """
        self.replaced[node] = nodes
        self._make(nodes)

    def insert_before(self, node: Node, *nodes: NewNode) -> None:
        """Insert nodes before a node, which stays until nothing reads it."""
        self.before[node] = nodes
        self._make(nodes)

    def insert_first(self, scope: Scope, node: NewNode) -> None:
        """Insert a node at the start of a graph, after those inserted there before."""
        self.heads[scope].append(node)
        self._make([node])

    def rename(self, value: Value, name: str) -> None:
        """Rename a node's output, to a name that no remaining value has, here or in a body that reads it."""
        assert value.producer is not None
        self.renamed[value] = name
        self.take(value.producer)

    def _make(self, nodes: Iterable[NewNode]) -> None:
        for node in nodes:
            self._read(node.inputs)

    def _read(self, sources: Iterable[NodeInput]) -> None:
        self._new_reads.update(source for source in sources if isinstance(source, Value))
