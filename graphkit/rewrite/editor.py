"""Changes to a model, collected against its view and made all at once.

A rewrite reads the view, which does not change, and says what is to be different; `Editor.result` builds the new model.
What an edit must keep: every value that still exists has the same elements as before, so that edits of different nodes
never disturb each other. A node is edited once in a round; a rewrite that comes second finds it taken and waits for the
next round.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from graphkit.errors import ModelError
from graphkit.graph.view import Node, Scope, Value, all_scopes, body_graphs
from graphkit.io.tensors import payload_size
from graphkit.model import Model
from graphkit.rewrite.base import Declined, copy_proto
from graphkit.rewrite.fusions import fused_nodes
from graphkit.shapes import AS_DECLARED, DimSpec, Shapes, infer
from graphkit.shapes.tensor import FLOATS, INTEGERS

__all__ = ["INITIALIZERS_SINCE", "Editor", "NewNode", "NodeInput"]

NodeInput = Value | str | None  # an input of a node: a value of the view, the name of a new one, or left out
Holder = onnx.GraphProto | onnx.FunctionProto

MAX_UNIFORM = 256 << 10  # bytes of a constant that are read to see whether its elements are all the same
NUMPY_NUMBERS = {*INTEGERS, *FLOATS}
INITIALIZERS_SINCE = 4  # IR version from which an initializer need not be an input


@dataclass(frozen=True)
class NewNode:
    """A node to make.

    Attributes:
        op_type: Of the default domain.
        inputs: What it reads.
        outputs: Names.
        attributes: As `onnx.helper.make_node` takes them.
        name: Of the node.
        like: The node whose name, doc string and metadata it takes over.
    """

    op_type: str
    inputs: Sequence[NodeInput]
    outputs: Sequence[str]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    like: Node | None = None


def _possible(scope: Scope, impossible: Container[Scope]) -> Iterator[Scope]:
    """Yield a graph and the bodies in it, leaving out some with all that is in them."""
    yield scope
    for node in scope.nodes:
        for body in node.bodies.values():
            if body not in impossible:
                yield from _possible(body, impossible)


@lru_cache(maxsize=1)  # the last model that nothing changed is the first one of the next run
def _shapes(model: Model, spec: DimSpec) -> Shapes:
    return infer(model, spec)


class Editor:
    """Collects edits of one model.

    Args:
        model: The model, which stays as it is.
        spec: What is known of the input dims.
        keep_fusions: Whether the nodes that fusions of onnxruntime look for stay as they are.

    Raises:
        ModelError: The model's graph is not sound: see `Model.check_soundness`.
    """

    def __init__(self, model: Model, spec: DimSpec = AS_DECLARED, *, keep_fusions: bool = False) -> None:
        model.check_soundness()
        self.model, self.spec, self.keep_fusions = model, spec, keep_fusions
        self.changes: Counter[str] = Counter()
        self.declined: list[Declined] = []
        self._aliases: dict[Value, Value | str] = {}
        self._inputs: dict[Node, dict[int, NodeInput]] = defaultdict(dict)
        self._replaced: dict[Node, Sequence[NewNode]] = {}
        self._heads: dict[Scope, list[NewNode]] = defaultdict(list)
        self._before: dict[Node, Sequence[NewNode]] = {}
        self._renamed: dict[Value, str] = {}
        self._constants: dict[tuple[np.dtype[Any], tuple[int, ...], bytes], str] = {}
        self._tensors: list[onnx.TensorProto] = []
        self._inner_names: dict[Scope, set[str]] = {}
        self._uniform: dict[Value, float | None] = {}

    # What rewrites ask

    @property
    def shapes(self) -> Shapes:
        """What the shape engine knows of the model."""
        return _shapes(self.model, self.spec)

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """The main graph and the bodies in it, but those that cannot run: what is known of their shapes may be wrong.

        Functions are left as they are, for calls differ.
        """
        return tuple(_possible(self.model.graph, self.shapes.impossible))

    @cached_property
    def _by_operator(self) -> Mapping[str, list[Node]]:
        found: dict[str, list[Node]] = defaultdict(list)
        for scope in self.scopes:
            for node in scope.nodes:
                if not node.domain:
                    found[node.op_type].append(node)
        return found

    @cached_property
    def _fused(self) -> Mapping[Node, str]:
        """The nodes that fusions look for."""
        found: dict[Node, str] = {}
        for scope in self.scopes if self.keep_fusions else ():
            found.update(fused_nodes(scope, lambda value: self.shapes[value].rank))
        return found

    def nodes(self, *op_types: str) -> Iterator[Node]:
        """Yield the nodes of these operators of the default domain that an edit may take."""
        for op_type in op_types:
            yield from (node for node in self._by_operator.get(op_type, ()) if self.is_free(node))

    def is_free(self, node: Node) -> bool:
        """Whether an edit may take a node: none has, and no fusion needs it as it is."""
        return not self.is_taken(node) and not self.is_fused(node)

    def is_fused(self, node: Node | None) -> bool:
        """Whether a fusion needs a node as it is."""
        return node is not None and node in self._fused

    def is_taken(self, node: Node) -> bool:
        """Whether an edit has taken a node."""
        return node in self._replaced or node in self._inputs or node in self._before

    def is_output(self, value: Value) -> bool:
        """Whether a value is an output of its graph, so that its name and place must stay."""
        return value in self._outputs

    @cached_property
    def _outputs(self) -> set[Value]:
        return {value for scope in self.model.graph.walk() for value in scope.outputs}

    def has_alias(self, value: Value) -> bool:
        """Whether the consumers of a value read another one already."""
        return value in self._aliases

    def is_renamed(self, value: Value) -> bool:
        """Whether a value will have another name."""
        return value in self._renamed

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
        """Return what the consumers of a value will read, those in a scope as far as the names mean the same there."""
        found: Value | str = value
        while isinstance(found, Value) and found in self._aliases:
            after = self._aliases[found]
            if scope is not None and isinstance(after, Value) and not self.is_visible(after, scope):
                break
            found = after
        return found

    def uniform(self, value: Value) -> float | None:
        """Return the finite number that all elements of a constant are; None where they differ, or are many."""
        if value not in self._uniform:
            self._uniform[value] = self._read_uniform(value)
        return self._uniform[value]

    def _read_uniform(self, value: Value) -> float | None:
        tensor = value.constant
        size = payload_size(tensor) if tensor is not None else None
        if tensor is None or size is None or not 0 < size <= MAX_UNIFORM or tensor.data_type not in NUMPY_NUMBERS:
            return None
        try:
            array = self.model.array(tensor)
        except ModelError:  # its data file is missing
            return None
        first = float(array.reshape(-1)[0])
        return first if np.isfinite(first) and bool((array == array.reshape(-1)[0]).all()) else None

    def new_reads(self) -> set[Value]:
        """Return the values that nodes will read through an edit, which their consumers in the view do not tell."""
        sources: list[NodeInput] = [*self._aliases.values()]
        sources += [source for changed in self._inputs.values() for source in changed.values()]
        made = [*self._replaced.values(), *self._before.values(), *self._heads.values()]
        sources += [source for nodes in made for node in nodes for source in node.inputs]
        return {source for source in sources if isinstance(source, Value)}

    # What they say

    def note(self, change: str, count: int = 1) -> None:
        """Count a change, such as "Reshapes take a constant"."""
        self.changes[change] += count

    def decline(self, node: Node, reason: str) -> None:
        """Say why a node stays as it is."""
        self.declined.append(Declined(node.path, reason))

    def replace_all_uses(self, value: Value, instead: Value | str) -> bool:
        """Let all consumers of a value read another one, which has the same elements; return whether they can."""
        if not self.can_replace_all_uses(value, instead):
            return False
        self._aliases[value] = instead
        return True

    def can_replace_all_uses(self, value: Value, instead: Value | str) -> bool:
        """Whether all consumers of a value can read another one."""
        return isinstance(instead, str) or all(self.is_visible(instead, node.scope) for node, _ in value.consumers)

    def bypass(self, node: Node, source: Value | str, output: int = 0) -> bool:
        """Let the consumers of a node's output read an equal value; a graph's output stays as a name.

        Only for a node of whose outputs no other one is in use. Returns whether it is possible.
        """
        value = node.outputs[output]
        assert value is not None
        is_used = self.replace_all_uses(value, source)
        if self.is_output(value):
            self.replace(node, NewNode("Identity", [source], [value.name], like=node))
            return True
        return is_used

    def set_inputs(self, node: Node, inputs: Mapping[int, NodeInput]) -> None:
        """Change what a node reads."""
        self._inputs[node].update(inputs)

    def replace(self, node: Node, *nodes: NewNode) -> None:
        """Put nodes in the place of one; they give its outputs by name, those that are not in use apart."""
        self._replaced[node] = nodes

    def insert_before(self, node: Node, *nodes: NewNode) -> None:
        """Put nodes before one that stays, until nothing reads it."""
        self._before[node] = nodes

    def insert_first(self, scope: Scope, node: NewNode) -> None:
        """Put a node before all nodes of a graph, after those put there before."""
        self._heads[scope].append(node)

    def rename(self, value: Value, name: str) -> None:
        """Give a node's output another name, which no value has that stays, nor one in a body that reads it."""
        assert value.producer is not None
        self._renamed[value] = name
        self.set_inputs(value.producer, {})

    def constant(self, array: np.ndarray, name: str) -> str:
        """Return the name of a constant that every graph can read, the same one for equal arrays."""
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.unique_name(name)
            self._tensors.append(onnx.numpy_helper.from_array(np.array(array, order="C"), self._constants[key]))
        return self._constants[key]

    def tensor(self, tensor: onnx.TensorProto, name: str) -> str:
        """Return the name of a constant that every graph can read, made of a tensor whatever its form."""
        made = onnx.TensorProto()
        made.CopyFrom(tensor)
        made.name = self.unique_name(name)
        self._tensors.append(made)
        return made.name

    def integers(self, numbers: Sequence[int], name: str) -> str:
        """Return the name of an int64 constant of rank 1."""
        return self.constant(np.array(numbers, np.int64), name)

    def unique_name(self, name: str) -> str:
        """Return a name that no value and no node has in any graph, as near as can be to the wished one."""
        chosen, number = name, 1
        while chosen in self._names:
            chosen, number = f"{name}_{number}", number + 1
        self._names.add(chosen)
        return chosen

    @cached_property
    def _names(self) -> set[str]:
        scopes = list(all_scopes(self.model.scopes))
        return {name for scope in scopes for name in (*scope.values, *(node.proto.name for node in scope.nodes))}

    # The new model

    @property
    def is_changed(self) -> bool:
        """Whether there is any edit."""
        return bool(self._aliases or self._inputs or self._replaced or self._before or self._heads or self._renamed)

    def result(self) -> Model:
        """Return the model with all edits made, the same one where there are none."""
        if not self.is_changed:
            return self.model
        proto = copy_proto(self.model)
        first: list[onnx.NodeProto] = []
        if proto.ir_version >= INITIALIZERS_SINCE:
            proto.graph.initializer.extend(self._tensors)
        else:
            first = [onnx.helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in self._tensors]
        self._rebuild(self.model.graph, proto.graph, first)
        return self.model.with_proto(proto)

    @cached_property
    def _dirty(self) -> set[Node]:
        dirty = {node for value in (*self._aliases, *self._renamed) for node, _ in value.consumers}
        dirty.update(self._inputs)
        dirty.update(value.producer for value in self._renamed if value.producer is not None)
        return dirty

    def _rebuild(self, scope: Scope, graph: onnx.GraphProto, first: list[onnx.NodeProto]) -> None:
        nodes = first + [self._made(new, scope) for new in self._heads.get(scope, ())]
        is_same = not nodes
        for node, proto in zip(scope.nodes, graph.node, strict=True):
            if node in self._before:
                nodes += [self._made(new, scope) for new in self._before[node]]
                is_same = False
                if any(new.like is node for new in self._before[node]):
                    proto.ClearField("name")  # which the new one has: onnxruntime refuses two nodes of one name
            if node in self._replaced:
                nodes += [self._made(new, scope) for new in self._replaced[node]]
                is_same = False
                continue
            self._rewire(node, proto)
            nodes.append(proto)
            for (_, body_graph), body in zip(body_graphs(proto), node.bodies.values(), strict=True):
                self._rebuild(body, body_graph, [])
        for annotation in graph.quantization_annotation:
            annotation.tensor_name = self._annotated(scope, annotation.tensor_name)
            for entry in annotation.quant_parameter_tensor_names:
                parameter = scope.find(entry.value)
                entry.value = self._name(parameter, scope) or entry.value
        if not is_same:
            kept = onnx.GraphProto()
            kept.node.extend(nodes)
            del graph.node[:]
            graph.node.extend(kept.node)

    def _annotated(self, scope: Scope, name: str) -> str:
        value = scope.find(name)
        return self._renamed.get(value, name) if value is not None else name

    def _rewire(self, node: Node, proto: onnx.NodeProto) -> None:
        if node not in self._dirty:
            return
        changed = self._inputs.get(node, {})
        sources = [changed.get(index, value) for index, value in enumerate(node.inputs)]
        sources += [changed[index] for index in sorted(changed) if index >= len(node.inputs)]
        proto.input[:] = [self._name(source, node.scope) for source in sources]
        for index, value in enumerate(node.outputs):
            if value in self._renamed:
                proto.output[index] = self._renamed[value]

    def _name(self, source: NodeInput, scope: Scope) -> str:
        if source is None:
            return ""
        found = self.resolve(source, scope) if isinstance(source, Value) else source
        return self._renamed.get(found, found.name) if isinstance(found, Value) else found

    def _made(self, new: NewNode, scope: Scope) -> onnx.NodeProto:
        names = [self._name(source, scope) for source in new.inputs]
        proto = onnx.helper.make_node(new.op_type, names, list(new.outputs), name=new.name, **new.attributes)
        if new.like is not None:
            for name in ("name", "doc_string"):
                if new.like.proto.HasField(name):
                    setattr(proto, name, getattr(new.like.proto, name))
            proto.metadata_props.extend(new.like.proto.metadata_props)
        return proto
