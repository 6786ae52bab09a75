"""The id of each node in Model Explorer: its path; in a second model, that of the node of the first that it matches.

Model Explorer synchronises two graphs by equal ids.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

from graphkit.analysis.costs.node_costs import functions_of
from graphkit.dtypes import dtype_name
from graphkit.graph.declared_types import attribute_text, shape_text, tensor_text
from graphkit.graph.name_families import family_labels, family_pattern, is_number
from graphkit.graph.names import count_things, module_of
from graphkit.graph.view import Node, Scope, Value, all_scopes, as_text
from graphkit.model import Model
from graphkit.model_diff.node_matching import NodeMatching
from graphkit.ops.tensor import plain_dims
from graphkit.shapes import Shapes
from graphkit.viewer.explorer_format import Graph, GraphNode, GroupNodeConfig, IncomingEdge, KeyValue, MetadataItem

__all__ = ["NodeIds", "Thing", "find_namespaces", "graph_ids", "matched_ids", "model_graphs", "node_ids"]


Output = tuple[Scope, int]  # an output of a graph or a function, by its index
Thing = Node | Value | Output  # a value is an input
RESERVED = "__proto__"  # which JavaScript does not keep as the key of an object
GROUP = "___group___"  # with which the ids of groups end


@dataclass
class NodeIds:
    """The ids of all nodes of a model, of its inputs and outputs.

    Attributes:
        of: The id of each.
        things: What has an id.
        numbers: The last number that was given to things of one wish.
    """

    of: dict[Thing, str] = field(default_factory=dict)
    things: dict[str, Thing] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, thing: Thing, wish: str, taken: NodeIds | None = None) -> None:
        """Give a thing an id that no other one has, here and in `taken`: its wish, or that with a number."""
        wish = f"{wish}_" if wish == RESERVED or wish.endswith(GROUP) else wish
        free, number = wish, 1
        while free in self.things or (taken is not None and free in taken.things):
            number = self.numbers.get(wish, number) + 1
            self.numbers[wish] = number
            free = f"{wish}#{number}"
        self.of[thing], self.things[free] = free, thing


def node_ids(model: Model) -> NodeIds:
    """Return an id for each node, input and output of a model."""
    ids = NodeIds()
    for thing, wish in _named_things(model):
        ids.add(thing, wish)
    return ids


def matched_ids(model: Model, matching: NodeMatching, first: NodeIds) -> NodeIds:
    """Return the ids of a second model: those of the first where the two match, others elsewhere."""
    ids = NodeIds()
    others = []
    for thing, wish in _named_things(model):
        twin = _find_twin(thing, wish, matching, first)
        if twin is None or first.of[twin] in ids.things:
            others.append((thing, wish))
        else:
            ids.add(thing, first.of[twin])
    for thing, wish in others:
        ids.add(thing, wish, first)
    return ids


def _find_twin(thing: Thing, wish: str, matching: NodeMatching, first: NodeIds) -> Thing | None:
    """Return what a thing of the second model is in the first one: inputs and outputs of graphs go by their names."""
    if isinstance(thing, Node):
        return matching.back.get(thing)
    if isinstance(thing, Value) and (thing in matching.values.back or thing.scope.parent is not None):
        twin = matching.values.back.get(thing)
        return twin if twin in first.of else None
    named = first.things.get(wish)
    return None if isinstance(named, Node) else named


def _named_things(model: Model) -> Iterator[tuple[Thing, str]]:
    for scope in all_scopes(model.scopes):
        before = f"{scope.path}/" if scope.path else ""
        yield from ((node, node.path) for node in scope.nodes)
        yield from ((value, f"{before}input {value.name}") for value in scope.inputs if not value.is_constant)
        if scope.parent is None:
            yield from (((scope, at), f"{before}output {value.name}") for at, value in enumerate(scope.outputs))


# The groups that nodes are in: modules of the source model, bodies in their nodes, repeated layers in one group.


Path = tuple[str, ...]
NUMBERED = re.compile(r".+[._]\d{1,9}")  # of a list of modules: `layers.0`, `layer_._0`
UNSAFE = str.maketrans({";": ",", "\\": "_"})  # which Model Explorer splits namespaces at, or reads as an escape


@dataclass(frozen=True)
class Namespaces:
    """Where the nodes of a graph are.

    Attributes:
        of_node: The namespace of each node.
        of_scope: That of each body, "" for the graph itself.
        repeated: What a group of repeated layers holds, by its namespace.
    """

    of_node: Mapping[Node, str]
    of_scope: Mapping[Scope, str]
    repeated: Mapping[str, str] = field(default_factory=dict)


def find_namespaces(graph: Scope) -> Namespaces:
    """Return the namespaces of the nodes of a graph, of all bodies too.

    A node with bodies has a group of its own, with each body in it. Modules of one list, `layers.0` to `layers.17`, of
    which most are built alike, are in one group, `layers.{0-17}`. A node that reads constants alone, and whose name
    tells no module, such as a copy of a weight, is where its readers are.
    """
    scopes: dict[Scope, Path] = {graph: ()}
    modules: dict[Scope, Path] = {graph: ()}  # those around a body, which need not come again in it
    paths: dict[Node, Path] = {}
    for scope in graph.walk():
        for node in scope.nodes:
            module = module_parts(module_of(node))
            around = modules[scope]
            inner = module[len(around) :] if module[: len(around)] == around else module
            paths[node] = (*scopes[scope], *inner)
            if node.bodies:
                paths[node] = (*paths[node], node.label.rpartition("/")[2] or node.op_type)
            for name, body in node.bodies.items():
                scopes[body] = (*paths[node], name)
                modules[body] = module
    _move_to_readers(graph, paths)
    labels, texts = _module_families(paths)

    def namespace(path: Path, end: int | None = None) -> str:
        """Return a path with the groups of the lists on it, as Model Explorer reads it."""
        placed: list[str] = []
        for depth, part in enumerate(path, 1):
            placed += [labels[path[:depth]], part] if path[:depth] in labels else [part]
        return "/".join(part.replace("/", ":") for part in placed[:end]).translate(UNSAFE)

    return Namespaces(
        {node: namespace(path) for node, path in paths.items()},
        {scope: namespace(path) for scope, path in scopes.items()},
        {namespace(path, -1 if path in labels else None): text for path, text in texts},
    )


def _move_to_readers(graph: Scope, paths: dict[Node, Path]) -> None:
    """Put the nodes that read constants alone, and that no module has, into the innermost group around all readers."""
    fixed: dict[Node, None] = {}
    for scope in graph.walk():
        for node in scope.nodes:
            read = [value for value in node.inputs if value is not None and not value.is_constant]
            if not node.bodies and node.inputs and all(value.producer in fixed for value in read):
                fixed[node] = None
    for node in reversed(fixed):
        readers = [paths[reader] for value in node.outputs if value is not None for reader, _ in value.consumers]
        if readers and not module_of(node):
            same = takewhile(lambda column: len(set(column)) == 1, zip(*readers, strict=False))
            paths[node] = tuple(column[0] for column in same)


def module_parts(module: str) -> Path:
    """Return the parts of a module's path, a number with the name of its list: `("model", "layers.0", "mlp")`."""
    path: list[str] = []
    for part in filter(None, module.split("/" if "/" in module else ".")):
        if is_number(part) and path:
            path[-1] += f".{part}"
        else:
            path.append(part)
    return tuple(path)


def _module_families(paths: Mapping[Node, Path]) -> tuple[dict[Path, str], list[tuple[Path, str]]]:
    """Return the lists of modules of which most are built alike: the group of each module, and what groups hold.

    With what a group holds comes the first module in it, or the group where it holds no more than a list.
    """
    built: defaultdict[Path, Counter[tuple[Path, str]]] = defaultdict(Counter)
    inside: defaultdict[Path, dict[str, None]] = defaultdict(dict)  # the groups in each group
    direct: set[Path] = set()  # groups that hold nodes of their own
    for node, path in paths.items():
        if node.is_op("Constant"):
            continue
        direct.add(path)
        for depth, part in enumerate(path):
            inside[path[:depth]][part] = None
            if NUMBERED.fullmatch(part):
                built[path[: depth + 1]][path[depth + 1 :], node.operator] += 1
    labels, texts = dict[Path, str](), list[tuple[Path, str]]()
    for parent, names in inside.items():
        lists: defaultdict[str, list[str]] = defaultdict(list)
        for name in names:
            if NUMBERED.fullmatch(name):
                lists[family_pattern(name)].append(name)
        for members in lists.values():
            alike = _alike_modules({name: built[parent + (name,)] for name in members})  # noqa: RUF005 - Python 3.10
            if alike is None:
                continue
            is_all = len(members) == len(names) and parent not in direct and parent
            label = family_labels(members)
            if not is_all:
                labels.update(((*parent, name), label) for name in members)
            texts.append((parent if is_all else (*parent, members[0]), alike))
    return labels, texts


def _alike_modules(members: Mapping[str, Counter[tuple[Path, str]]]) -> str | None:
    """Return which modules are built alike, None if most are not, or have no modules in them: steps of a sequence."""
    groups: defaultdict[frozenset[tuple[tuple[Path, str], int]], list[str]] = defaultdict(list)
    for name, counts in members.items():
        groups[frozenset(counts.items())].append(name)
    most = max(groups.values(), key=len)
    has_modules = any(inner for inner, _ in members[most[0]])
    if len(members) < 2 or 2 * len(most) <= len(members) or not has_modules:
        return None
    others = [family_labels(names) for names in groups.values() if names is not most]
    text = f"{len(most)} built alike: {family_labels(most)}"
    return f"{text}; built otherwise: {'; '.join(others)}" if others else text


ENDS = ("Inputs", "Outputs")  # the groups of the inputs and outputs of a graph
REPEATED = ("#e8f0fe", "#4285f4")  # background and border of a group of repeated layers
LONGEST = 1000  # characters of a line
Lines = Callable[[Node], Sequence[tuple[str, str]]]


def graph_ids(model: Model, label: str) -> dict[Scope, str]:
    """Return the ids of the main graph, which is called as the model, and of each function; two models share none."""
    ids = {model.graph: label}
    for key, scope in functions_of(model).items():
        ids[scope] = f"{label}: function {'.'.join(filter(None, key))}"
    return ids


def model_graphs(
    shapes: Shapes, names: Mapping[Scope, str], ids: NodeIds, lines: Lines, about: Mapping[str, str]
) -> list[Graph]:
    """Return the graphs of a model.

    Args:
        shapes: Its shapes.
        names: The ids of its graphs.
        ids: The ids of its nodes.
        lines: Gives what is known of a node besides, as names and texts.
        about: What to know of the model as a whole.
    """
    functions = {key: names[body] for key, body in functions_of(shapes.model).items()}
    makers = (_Maker(shapes, scope, functions, ids, lines, about, spaces=find_namespaces(scope)) for scope in names)
    return [maker.graph(name) for maker, name in zip(makers, names.values(), strict=True)]


@dataclass(frozen=True)
class _Maker:
    """Makes the graph of the main graph, or of a function."""

    shapes: Shapes
    scope: Scope
    functions: Mapping[tuple[str, str, str], str]
    ids: NodeIds
    lines: Lines
    about: Mapping[str, str]
    spaces: Namespaces

    def graph(self, name: str) -> Graph:
        nodes = [*self.inputs(self.scope, ENDS[0]), *self.nodes(), *self.outputs()]
        # As regular expressions of JavaScript
        escaped = ("".join(f"\\{c}" if c in r"\^$.*+?()[]{}|/-" else c for c in each) for each in self.spaces.repeated)
        configs = [GroupNodeConfig(f"^{space}$", *REPEATED) for space in escaped]
        return Graph(name, nodes, self.attributes(), configs)

    def nodes(self) -> Iterator[GraphNode]:
        for scope in self.scope.walk():
            if scope is not self.scope:
                yield from self.inputs(scope, self.spaces.of_scope[scope])
            yield from (self.node(node) for node in scope.nodes if not node.is_op("Constant"))

    def node(self, node: Node) -> GraphNode:
        called = self.functions.get((node.domain, node.op_type, node.proto.overload))
        plain = [each for each in node.proto.attribute if not (each.HasField("g") or each.graphs)]
        attributes = [(as_text(each.name), attribute_text(each)) for each in plain]
        named = [("node", node.path), *([("domain", node.domain)] if node.domain else [])]
        edges, constants = self.reads(node.inputs)
        for name, body in node.bodies.items():
            for at, value in enumerate(body.outputs):
                edges += self.edge(value, f"{name} {at}")
        return GraphNode(
            self.ids.of[node],
            node.op_type,
            self.spaces.of_node[node],
            _attribute_lines([*named, *attributes, *constants, *self.lines(node)]),
            incomingEdges=edges,
            outputsMetadata=[self.output(at, value) for at, value in enumerate(node.outputs) if value is not None],
            inputsMetadata=[_tensor_tag(str(at), value) for at, value in enumerate(node.inputs) if value is not None],
            subgraphIds=[] if called is None else [called],
        )

    def reads(self, values: Sequence[Value | None]) -> tuple[list[IncomingEdge], list[tuple[str, str]]]:
        """Return the edges of what a node reads, and the constants."""
        edges, constants = [], []
        for at, value in enumerate(values):
            if value is None:
                continue
            edges += self.edge(value, str(at))
            if value.is_constant:
                tensor = value.constant
                text = tensor_text(tensor) if tensor is not None else "sparse, or not known"
                constants.append((f"input {at}", f"{value.name}: {text}"))
        return edges, constants

    def edge(self, value: Value, at: str) -> list[IncomingEdge]:
        """Return the edge to a value, none to a constant."""
        if value.is_constant:
            return []
        source = self.ids.of.get(value.producer if value.producer is not None else value)
        return [] if source is None else [IncomingEdge(source, str(value.output_index), at)]

    def output(self, at: int, value: Value) -> MetadataItem:
        tensor, reason = self.shapes[value], self.shapes.reason(value)
        lines = [
            ("__tensor_tag", value.name),
            ("shape", shape_text(plain_dims(tensor.dims))),
            ("dtype", dtype_name(tensor.dtype) if tensor.dtype else "?"),
        ]
        if tensor.values_text:
            lines.append(("value", tensor.values_text))
        return MetadataItem(str(at), _attribute_lines([*lines, *([("unknown", reason)] if reason else [])]))

    def inputs(self, scope: Scope, space: str) -> Iterator[GraphNode]:
        """Yield a node for each input; that of a body reads what its node is given."""
        for at, value in enumerate(scope.inputs):
            if value.is_constant:
                continue
            owner, source = scope.owner, None
            if owner is not None and not (owner.is_op("Loop") and at == 0):  # which is the number of the iteration
                source = owner.input(at + (owner.is_op("Scan") and owner.scope.opset() < 9))
            edges = [] if source is None else self.edge(source, "0")
            about = _attribute_lines([("name", value.name)])
            yield GraphNode(self.ids.of[value], "Input", space, about, edges, [self.output(0, value)])

    def outputs(self) -> Iterator[GraphNode]:
        for at, value in enumerate(self.scope.outputs):
            edges, constants = self.reads([value])
            about = _attribute_lines([("name", value.name), *constants])
            tags = [_tensor_tag("0", value)]
            yield GraphNode(self.ids.of[self.scope, at], "Output", ENDS[1], about, edges, inputsMetadata=tags)

    def attributes(self) -> dict[str, dict[str, str]]:
        """Return what is known of groups: how many nodes are in them, and which layers they repeat."""
        counts: Counter[str] = Counter()
        for node, space in self.spaces.of_node.items():
            if not node.is_op("Constant"):
                counts.update([*accumulate(space.split("/"), "{}/{}".format)][::-1] if space else ())
                counts[""] += 1
        about = {space: {"size": count_things(count, "node(s)")} for space, count in counts.items()}
        for space, text in self.spaces.repeated.items():
            about.setdefault(space, {})["repeated layers"] = text[:LONGEST]
        return {**about, "": {**self.about, **about.get("", {})}}


def _tensor_tag(at: str, value: Value) -> MetadataItem:
    return MetadataItem(at, _attribute_lines([("__tensor_tag", value.name)]))


def _attribute_lines(lines: Sequence[tuple[str, str]]) -> list[KeyValue]:
    return [KeyValue(name, text if len(text) <= LONGEST else f"{text[:LONGEST]}...") for name, text in lines]
