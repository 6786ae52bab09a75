"""A read-only view of a ModelProto: scopes, nodes and values, with producers and consumers, and walks along these.

The view wraps the protos and copies nothing but names, so that it takes milliseconds where a full conversion takes a
fifth of a second, and loses nothing. Names are unique within a scope only: scope and name together identify a value.
Scopes nest as graphs do: a body sees the values of the scopes around it, a function only its own.

No walk needs a limit of its own: each item is met once, so that a walk ends with the graph, also in a broken model
whose nodes form a circle.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from sys import intern
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import onnx
from onnx import AttributeProto, SparseTensorProto, TensorProto

from graphkit.errors import ModelError

T = TypeVar("T", int, float, str, tuple[int, ...], TensorProto, SparseTensorProto)
FIELDS: Mapping[type, tuple[int, str]] = {
    bool: (AttributeProto.INT, "i"),
    int: (AttributeProto.INT, "i"),
    float: (AttributeProto.FLOAT, "f"),
    str: (AttributeProto.STRING, "s"),
    tuple: (AttributeProto.INTS, "ints"),
    TensorProto: (AttributeProto.TENSOR, "t"),
    SparseTensorProto: (AttributeProto.SPARSE_TENSOR, "sparse_tensor"),
}
UNDEFINED = AttributeProto.UNDEFINED
SCALARS = (int, float, bytes, TensorProto, SparseTensorProto)
# The forms of a Constant without a tensor: kind and field of the attribute, dtype and field of the tensor.
FORMS: Mapping[str, tuple[int, str, int, str]] = {
    "value_int": (AttributeProto.INT, "i", TensorProto.INT64, "int64_data"),
    "value_ints": (AttributeProto.INTS, "ints", TensorProto.INT64, "int64_data"),
    "value_float": (AttributeProto.FLOAT, "f", TensorProto.FLOAT, "float_data"),
    "value_floats": (AttributeProto.FLOATS, "floats", TensorProto.FLOAT, "float_data"),
    "value_string": (AttributeProto.STRING, "s", TensorProto.STRING, "string_data"),
    "value_strings": (AttributeProto.STRINGS, "strings", TensorProto.STRING, "string_data"),
}
VALUES = frozenset({*FORMS, "value", "sparse_value"})
ZERO = TensorProto(data_type=TensorProto.FLOAT, dims=[1], float_data=[0.0])  # the default value of ConstantOfShape


def attribute_value(attribute: AttributeProto | None, default: T | type[T]) -> T | None:
    """Return the value of an attribute, or a default of the same kind where it is not given.

    The default is an int, a float, a str, a tuple of ints or a tensor; for an attribute without one, the type itself.
    None if the value is not known: the attribute is of another kind, comes from the call of a function, or is missing.
    """
    fallback: Any = default
    kind = default if isinstance(default, type) else type(default)
    if attribute is None:
        return None if kind is default else fallback
    value: Any = _held_field(attribute, *FIELDS[kind])
    return value.decode("utf-8", "replace") if kind is str and value is not None else value  # type: ignore[no-any-return]


def _held_field(attribute: AttributeProto, kind: int, field: str) -> object:
    """Return the value of a field, None for an attribute of another kind; IR version 1 does not write kinds down."""
    actual = attribute.type
    if attribute.ref_attr_name or (actual != kind and actual != UNDEFINED):
        return None
    if actual == UNDEFINED and field not in {descriptor.name for descriptor, _ in attribute.ListFields()}:
        return None
    value = getattr(attribute, field)
    return value if isinstance(value, SCALARS) else tuple(value)


def constant_tensor(attributes: Mapping[str, AttributeProto]) -> TensorProto | None:
    """Return the tensor that a Constant with these attributes gives, None if it is not known.

    The Constant may be sparse, have no value, several or one of the wrong kind, or take it from the call of a function.
    """
    names = attributes if len(attributes) == 1 else VALUES & attributes.keys()
    name = next(iter(names)) if len(names) == 1 else ""
    if name == "value":
        return attribute_value(attributes[name], TensorProto)
    if name not in FORMS:
        return None
    kind, field, dtype, data = FORMS[name]
    value: Any = _held_field(attributes[name], kind, field)
    if value is None:
        return None
    is_list = isinstance(value, tuple)
    tensor = TensorProto(data_type=dtype, dims=[len(value)] if is_list else [])
    getattr(tensor, data).extend(value if is_list else [value])
    return tensor


Kind = Literal["input", "initializer", "node", "undefined"]


class Value:
    """A named tensor (or sequence, map, optional) of one scope.

    Attributes:
        name: Unique in its scope.
        kind: The place of its definition: a graph (or function) input, an initializer, a node, or nowhere.
        producer: The node that computes it, None if none does.
        output_index: Which output of the producer it is.
        consumers: (node, input index) of each use, also in nested scopes.
        is_output: Whether it is an output of a graph.
        tensor: The initializer that gives its value or its default; None if that is sparse.
        sparse: The sparse initializer that gives its value.
    """

    __slots__ = ("consumers", "is_output", "kind", "name", "output_index", "producer", "scope", "sparse", "tensor")

    def __init__(
        self, name: str, scope: Scope, kind: Kind, producer: Node | None = None, output_index: int = 0
    ) -> None:
        self.name, self.scope, self.kind = name, scope, kind
        self.producer, self.output_index = producer, output_index
        self.consumers: list[tuple[Node, int]] = []
        self.is_output = False
        self.tensor: onnx.TensorProto | None = None
        self.sparse: onnx.SparseTensorProto | None = None

    def __repr__(self) -> str:
        return f"Value({self.name!r}, {self.kind})"

    @property
    def sources(self) -> tuple[Value | None, ...]:
        """The inputs of the node that computes it; empty where none does."""
        return self.producer.inputs if self.producer is not None else ()

    @property
    def constant(self) -> onnx.TensorProto | None:
        """The TensorProto of a constant: a dense initializer, or the value of a Constant node.

        None for any other value, and for a constant that is sparse or not known (see `constant_tensor`).
        """
        if self.kind == "initializer":
            return self.tensor
        return self.producer.constant if self.producer is not None and self.producer.operator == "Constant" else None

    @property
    def is_constant(self) -> bool:
        """Whether it is an initializer or the output of a Constant node, in any of its forms."""
        return self.kind == "initializer" or (self.producer is not None and self.producer.operator == "Constant")


def _leave_out_none(values: tuple[Value | None, ...]) -> tuple[Value, ...]:
    return values if None not in values else tuple(filter(None, values))  # type: ignore[return-value]


NONE: Mapping[str, Any] = MappingProxyType({})


class Node:
    """One node of a scope.

    Attributes:
        index: Its position among the scope's nodes.
        op_type, domain: The operator; the default domain is "".
        operator: The same as one: its domain stands before it unless that is the default one.
        attributes: The attributes by name.
        inputs, outputs: Values, None for each that is left out.
        operands, results: The inputs and the outputs that are not left out.
        bodies: The scopes of its graph attributes, by attribute name.
    """

    __slots__ = (
        *("_constant", "_signature", "attributes", "bodies", "domain", "index", "inputs", "op_type", "operands"),
        *("operator", "outputs", "proto", "results", "scope"),
    )

    def __init__(self, proto: onnx.NodeProto, scope: Scope, index: int) -> None:
        self.proto, self.scope, self.index = proto, scope, index
        name = proto.op_type
        self.op_type: str = intern(name) if type(name) is str else name  # one text, which all sets find at once
        self.domain = domain_of(as_text(proto.domain)) if proto.domain else ""
        self.operator = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        attributes = proto.attribute
        self.attributes: Mapping[str, AttributeProto] = {each.name: each for each in attributes} if attributes else NONE
        self.bodies: Mapping[str, Scope] = NONE
        self._signature: Hashable = None
        self._constant: onnx.TensorProto | Literal[False] | None = False
        self.inputs: tuple[Value | None, ...] = ()
        self.outputs: tuple[Value | None, ...] = ()
        self.operands: tuple[Value, ...] = ()
        self.results: tuple[Value, ...] = ()

    def connect(self, inputs: tuple[Value | None, ...], outputs: tuple[Value | None, ...]) -> None:
        """Let it read and give these values."""
        self.inputs, self.outputs = inputs, outputs
        self.operands, self.results = _leave_out_none(inputs), _leave_out_none(outputs)

    def __repr__(self) -> str:
        return f"Node({self.label!r}, {self.operator})"

    @property
    def signature(self) -> Hashable:
        """All that it is but for names, and for what its inputs are."""
        if self._signature is None:
            listed = sorted(self.attributes.items()) if self.attributes else ()
            attributes = [each.SerializeToString(deterministic=True) for _, each in listed]
            are_all = self.results is self.outputs
            given = len(self.results) if are_all else tuple([each is None for each in self.outputs])
            opsets = self.scope.opsets
            self._signature = self.operator, opsets.get("", 1), opsets.get(self.domain, 1), given, *attributes
        return self._signature

    def operand(self, index: int) -> Value:
        """Return an input that the node is known to have."""
        value = self.inputs[index]
        assert value is not None
        return value

    def result(self) -> Value:
        """Return the first output, which the node is known to have."""
        value = self.outputs[0]
        assert value is not None
        return value

    def attr(self, name: str, default: T | type[T]) -> T | None:
        """Return the value of an attribute, such as `node.attr("axis", 0)`, None if that is not known."""
        return attribute_value(self.attributes.get(name), default)

    def axis(self, rank: int | None, default: int = 0, name: str = "axis") -> int | None:
        """Return the axis that an attribute names, counted from the front, None if not known or not of that rank."""
        axis = self.attr(name, default)
        return axis % rank if axis is not None and rank is not None and -rank <= axis < rank else None

    @property
    def constant(self) -> onnx.TensorProto | None:
        """The tensor that a Constant gives, None if it is not known, and for any other operator."""
        if self._constant is False:
            self._constant = constant_tensor(self.attributes) if self.is_op("Constant") else None
        return self._constant or None

    @property
    def label(self) -> str:
        """Its name, or its operator and position if it has none."""
        return self.proto.name or f"{self.op_type}#{self.index}"

    @property
    def path(self) -> str:
        """Its label, after the path of its scope unless that is the main graph."""
        return f"{self.scope.path}/{self.label}" if self.scope.path else self.label

    def is_op(self, *op_types: str) -> bool:
        """Whether it is one of these operators of the default domain."""
        return self.operator in op_types

    def input(self, index: int) -> Value | None:
        """Return its input at an index, or None if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None


class Scope:
    """A graph, the body of a node, or a function, with the values that it defines.

    Attributes:
        path: "" for the main graph; `node/attribute` for a body; `function NAME` for a function.
        parent: The scope around a body.
        owner: The node that a body belongs to.
        nodes: In file order, which ONNX requires to be topological.
        bodies: Those of its nodes, in node order.
        inputs, outputs: Values; an output may belong to a scope around this one.
        values: All values that this scope defines, by name.
        infos: Declared types of values, inputs and outputs included, by name.
        opsets: Version of each operator set, by domain.
        problems: The faults of names: undefined, defined twice, used before their definition.
        twice: The names that are defined twice.
    """

    def __init__(self, path: str, parent: Scope | None, owner: Node | None, opsets: Mapping[str, int]) -> None:
        self.path, self.parent, self.owner, self.opsets = path, parent, owner, opsets
        self.nodes: tuple[Node, ...] = ()
        self.inputs: tuple[Value, ...] = ()
        self.outputs: tuple[Value, ...] = ()
        self.values: dict[str, Value] = {}
        self.infos: dict[str, onnx.ValueInfoProto] = {}
        self.initializers: tuple[Value, ...] = ()
        self.bodies: tuple[Scope, ...] = ()
        self.problems: list[str] = []
        self.twice: list[str] = []
        self.types: dict[Value, Any] = {}  # what `declared_type` has read

    def __repr__(self) -> str:
        return f"Scope({self.path!r}, {len(self.nodes)} nodes)"

    @property
    def depth(self) -> int:
        """How many scopes are around it."""
        return self.parent.depth + 1 if self.parent else 0

    def find(self, name: str) -> Value | None:
        """Return the value that a name stands for here: that of the innermost scope that defines it."""
        scope: Scope | None = self
        while scope is not None:
            if (value := scope.values.get(name)) is not None:
                return value
            scope = scope.parent
        return None

    @cached_property
    def by_operator(self) -> Mapping[str, Sequence[Node]]:
        """The nodes of each operator, in file order."""
        nodes: dict[str, list[Node]] = {}
        for node in self.nodes:
            nodes.setdefault(node.operator, []).append(node)
        return nodes

    def nodes_of(self, *operators: str) -> Sequence[Node]:
        """Return the nodes of some operators, in file order."""
        kinds = [self.by_operator[operator] for operator in operators if operator in self.by_operator]
        if len(kinds) < 2:
            return kinds[0] if kinds else ()
        return sorted(itertools.chain(*kinds), key=lambda node: node.index)

    @cached_property
    def input_dim_names(self) -> frozenset[str]:
        """The names that its inputs declare for dims, "" among them where a dim has none."""
        shapes = (info.type.tensor_type.shape for value in self.inputs if (info := self.infos.get(value.name)))
        return frozenset(dim.dim_param for shape in shapes for dim in shape.dim if not dim.HasField("dim_value"))

    def opset(self, domain: str = "") -> int:
        """Return the version of an operator set, 1 if the model does not say."""
        return self.opsets.get(domain, 1)

    def walk(self) -> Iterator[Scope]:
        """Yield this scope and the bodies in it, in node order."""
        yield self
        for body in self.bodies:
            yield from body.walk()

    def contains(self, other: Scope | None) -> bool:
        """Whether `other` is this scope or lies in it."""
        while other is not None and other is not self:
            other = other.parent
        return other is self


def all_scopes(scopes: tuple[Scope, ...]) -> Iterator[Scope]:
    """Yield every scope at every depth."""
    for scope in scopes:
        yield from scope.walk()


def all_nodes(scopes: tuple[Scope, ...]) -> Iterator[Node]:
    """Yield every node at every depth."""
    for scope in all_scopes(scopes):
        yield from scope.nodes


def find_nodes(scopes: tuple[Scope, ...], *operators: str) -> Iterator[Node]:
    """Yield the nodes of some operators at every depth."""
    for scope in all_scopes(scopes):
        yield from scope.nodes_of(*operators)


def follow_operators(value: Value | None, operators: Collection[str]) -> Iterator[Value]:
    """Yield a value and those that it is made of by these operators alone, along their first inputs."""

    def before(value: Value) -> Value | None:
        return value.producer.input(0) if value.producer and value.producer.operator in operators else None

    return follow_chain(value, before)


def unwrap_value(value: Value, operators: Collection[str]) -> Value:
    """Return the value that another one is made of by these operators alone, along their first inputs."""
    *_, source = follow_operators(value, operators)
    return source


def branch_fault(node: Node) -> str:
    """Return why no runtime loads an If, "" if its branches take no inputs and give all of its outputs."""
    for name, body in node.bodies.items():
        if any(value.tensor is None and value.sparse is None for value in body.inputs):
            return f"its {name} has inputs, which a branch cannot be given"
        if any(value is not None for value in node.outputs[len(body.outputs) :]):
            return f"its {name} gives fewer outputs than it has"
    return ""


def body_graphs(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the graph attributes of a node by name, in the order of `Node.bodies`; `name[i]` for those of a list."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for number, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{number}]", graph


def graphs_with_scopes(graph: onnx.GraphProto, scope: Scope) -> Iterator[tuple[onnx.GraphProto, Scope]]:
    """Yield a graph and its bodies, copies perhaps, with the scopes that they have in the view of the original."""
    yield graph, scope
    for proto, node in zip(graph.node, scope.nodes, strict=True):
        for (_, body), inner in zip(body_graphs(proto), node.bodies.values(), strict=True):
            yield from graphs_with_scopes(body, inner)


def with_bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those in their bodies."""
    for node in nodes:
        yield node
        for _, body in body_graphs(node) if node.attribute else ():
            yield from with_bodies(body.node)


def nodes_of(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, those of its bodies and functions included."""
    yield from with_bodies(proto.graph.node)
    for function in proto.functions:
        yield from with_bodies(function.node)


FunctionKey = tuple[str, str, str]  # domain, name, overload


def domain_of(name: str) -> str:
    """Return a domain, the default one as ""."""
    return "" if name == "ai.onnx" else name


def functions_of(proto: onnx.ModelProto) -> dict[FunctionKey, onnx.FunctionProto]:
    """Return the functions of a model by the key that calls use."""
    return {(domain_of(f.domain), f.name, f.overload): f for f in proto.functions}


def key_of(node: onnx.NodeProto) -> FunctionKey:
    """Return the key of the function that a node calls."""
    return domain_of(node.domain), node.op_type, node.overload


def as_text(value: str | bytes) -> str:
    """Return a protobuf string as text, with bytes that are not UTF-8 escaped."""
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


MAX_NESTING = 32  # bodies in bodies: protobuf reads 100 messages in each other, and a body is three


def build_scopes(model: onnx.ModelProto, file: str | None = None) -> tuple[Scope, ...]:
    """Return the scope of the main graph, then one for each function; a ModelError says that they cannot be read."""
    builder = _Builder(file)
    opsets = _opset_versions(model.opset_import)
    main = Scope("", None, None, opsets)
    builder.fill_graph(main, model.graph)
    scopes = [main]
    for function in model.functions:
        scope = Scope(f"function {function.name}", None, None, {**_opset_versions(function.opset_import), **opsets})
        scope.inputs = tuple(builder.define(scope, name, "input") for name in function.input)
        scope.infos = {info.name: info for info in function.value_info}
        builder.fill_nodes(scope, function.node)
        builder.fill_outputs(scope, function.output)
        scopes.append(scope)
    return tuple(scopes)


def _opset_versions(imports: object) -> dict[str, int]:
    return {"" if entry.domain == "ai.onnx" else as_text(entry.domain): entry.version for entry in imports}  # type: ignore[attr-defined]


class _Builder:
    def __init__(self, file: str | None) -> None:
        self.file = file
        self.protos: dict[Scope, Sequence[onnx.NodeProto]] = {}
        self.later: dict[Scope, set[str]] = {}  # outputs of the nodes of a scope, where something is undefined

    def corrupt(self, problem: str, hint: str = "the file is corrupt; export it again") -> ModelError:
        return ModelError(problem, file=self.file, hint=hint)

    def define(self, scope: Scope, name: str, kind: Kind) -> Value:
        if type(name) is not str:  # protobuf gives bytes where a string is not UTF-8
            raise self.corrupt(f"the name {name!r:.60} is not UTF-8")
        if name in scope.values:
            self.note_twice(scope, name)
            return scope.values[name]
        value = scope.values[name] = Value(name, scope, kind)
        return value

    @staticmethod
    def note_twice(scope: Scope, name: str) -> None:
        scope.problems.append(f"'{name}' is defined twice")
        scope.twice.append(name)

    def use(self, scope: Scope, name: str) -> Value:
        value = scope.find(name)
        if value is None:
            scope = self.home(scope, name)
            value = self.define(scope, name, "undefined")
            scope.problems.append(f"'{name}' is used but never defined before")
        return value

    def home(self, scope: Scope, name: str) -> Scope:
        """Return the graph that defines a name further on, the one that uses it where none does."""
        around: Scope | None = scope
        while around is not None:
            if around not in self.later:
                self.later[around] = {output for node in self.protos[around] for output in node.output}
            if name in self.later[around]:
                return around
            around = around.parent
        return scope

    def fill_graph(self, scope: Scope, graph: onnx.GraphProto) -> None:
        if scope.depth > MAX_NESTING:
            problem = f"graphs are nested more than {MAX_NESTING} deep, which is more than protobuf can read"
            raise self.corrupt(problem, "export it with fewer If and Loop nodes in each other")
        for infos in (graph.value_info, graph.output, graph.input):
            scope.infos.update((info.name, info) for info in infos)
        scope.inputs = tuple(self.define(scope, info.name, "input") for info in graph.input)
        dense = [self.fill_initializer(scope, tensor.name, tensor, None) for tensor in graph.initializer]
        sparse = [self.fill_initializer(scope, s.values.name, None, s) for s in graph.sparse_initializer]
        scope.initializers = (*dense, *sparse)
        self.fill_nodes(scope, graph.node)
        self.fill_outputs(scope, [info.name for info in graph.output])

    def fill_outputs(self, scope: Scope, names: Iterable[str]) -> None:
        scope.outputs = tuple(self.use(scope, name) for name in names)
        for value in scope.outputs:
            value.is_output = True

    def fill_initializer(
        self, scope: Scope, name: str, dense: onnx.TensorProto | None, sparse: onnx.SparseTensorProto | None
    ) -> Value:
        value = scope.values.get(name) or self.define(scope, name, "initializer")
        if value.tensor is not None or value.sparse is not None:
            self.note_twice(scope, name)
        value.tensor, value.sparse = dense, sparse
        return value

    def fill_nodes(self, scope: Scope, protos: Sequence[onnx.NodeProto]) -> None:
        self.protos[scope], known = protos, scope.values
        nodes = []
        for index, proto in enumerate(protos):
            node = Node(proto, scope, index)
            nodes.append(node)
            if {type(node.op_type), type(proto.name), *map(type, node.attributes)} != {str}:
                raise self.corrupt(f"node {index} has a name, an operator or an attribute that is not UTF-8")
            inputs = [(known.get(name) or self.use(scope, name)) if name else None for name in proto.input[:]]
            for position, value in enumerate(inputs):
                if value is not None:
                    value.consumers.append((node, position))
            for name, graph in body_graphs(proto) if node.attributes else ():
                body = Scope(f"{node.path}/{name}", scope, node, scope.opsets)
                node.bodies = {**node.bodies, name: body}
                self.fill_graph(body, graph)
            outputs = [self.produce(node, i, name) if name else None for i, name in enumerate(proto.output[:])]
            node.connect(tuple(inputs), tuple(outputs))
        scope.nodes = tuple(nodes)
        scope.bodies = tuple(body for node in nodes if node.bodies for body in node.bodies.values())

    def produce(self, node: Node, position: int, name: str) -> Value:
        scope = node.scope
        value = scope.values.get(name)
        if value is None and type(name) is str:
            value = scope.values[name] = Value(name, scope, "node", node, position)
        elif value is None or value.kind != "undefined":
            value = self.define(scope, name, "node")
        elif value.producer is None:
            value.kind, value.producer, value.output_index = "node", node, position
        return value


ItemT = TypeVar("ItemT", bound=Hashable)


def follow_chain(start: ItemT | None, following: Callable[[ItemT], ItemT | None]) -> Iterator[ItemT]:
    """Yield an item, the one that follows it, and so on, until none follows.

    `following` is called for an item only when the caller asks for the next one.
    """
    met: set[ItemT] = set()
    while start is not None and start not in met:
        met.add(start)
        yield start
        start = following(start)


def chain_end(start: ItemT, following: Callable[[ItemT], ItemT | None]) -> ItemT:
    """Return the last item of a chain."""
    *_, end = follow_chain(start, following)
    return end


def walk_breadth_first(
    starts: Iterable[ItemT], following: Callable[[ItemT], Iterable[ItemT | None]]
) -> Iterator[ItemT]:
    """Yield items and all that follow them, breadth first, each once; None is left out.

    `following` is called for an item only when the caller asks for the next one.
    """
    queue = list(dict.fromkeys(starts))
    met = set(queue)
    for item in queue:
        yield item
        for each in following(item):
            if each is not None and each not in met:
                met.add(each)
                queue.append(each)


def walk_postorder(starts: Iterable[ItemT], following: Callable[[ItemT], Iterable[ItemT | None]]) -> Iterator[ItemT]:
    """Yield items and all that follow them, depth first, each once and after those that follow it; None is left out."""
    met: set[ItemT] = set()
    pending = [(item, False) for item in reversed(list(starts))]
    while pending:
        item, is_followed = pending.pop()
        if is_followed:
            yield item
        elif item not in met:
            met.add(item)
            pending.append((item, True))
            pending += [(each, False) for each in reversed(list(following(item))) if each is not None]


def connected_groups(
    items: Iterable[ItemT], neighbours: Callable[[ItemT], Iterable[ItemT | None]]
) -> Iterator[list[ItemT]]:
    """Yield groups of connected items, each in the order of all; neighbours that are none of the items do not count."""
    order = {item: place for place, item in enumerate(items)}
    met: set[ItemT] = set()
    for start in order:
        if start not in met:
            near = walk_breadth_first(
                [start], lambda item: (x for x in neighbours(item) if x in order and x not in met)
            )
            group = list(near)
            met.update(group)
            yield sorted(group, key=order.__getitem__)
