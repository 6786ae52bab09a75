"""What differs between two models whose nodes match: nodes, constants, dtypes and dims of tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Literal

from msgspec import Struct
from onnx import TensorProto

from graphkit.dtypes import dtype_name
from graphkit.errors import count_things
from graphkit.graph.dataflow import in_order
from graphkit.graph.declared_types import attribute_text, shape_text, tensor_text, values_text
from graphkit.graph.names import group_pairs, module_of
from graphkit.graph.view import Node, Scope, Value, all_scopes, as_text
from graphkit.matching.value_matching import is_counted, source_of
from graphkit.matching.value_numbering import default_of
from graphkit.model import Model
from graphkit.model_diff.node_matching import NodeMatching, value_path
from graphkit.ops.tensor import is_known
from graphkit.shapes import Shapes
from graphkit.symbolic.expr import Expr

ReadConstants = dict[tuple[Value, Value], None]  # constants of A and of B that nodes read at the same place
Dims = tuple[Expr, ...] | None
WeightKind = Literal["values", "dtype", "dims", "removed", "added", "storage"]


class _Reading:
    """What readers read in both models: collects what is read instead of values that are gone, and constants."""

    def __init__(self, matching: NodeMatching) -> None:
        self.matching = matching
        self.after: dict[Node, dict[str, None]] = {}  # what is read in B instead of results of nodes of A alone
        self.before: dict[Node, dict[str, None]] = {}  # the other way
        self.constants: ReadConstants = {}

    def differs(self, value_a: Value | None, value_b: Value | None) -> bool:
        """Whether one place reads something else, which no node that is gone, or new, and no constant explains."""
        if value_a is not None and value_b is not None:
            source_a, source_b = source_of(value_a), source_of(value_b)
            if source_a.is_constant and source_b.is_constant:
                is_other = self.is_other_constant(source_a, source_b)
                if not is_other:
                    self.constants[value_a, value_b] = None
                return is_other
        if self.matching.agree(value_a, value_b):
            return False
        gone = value_a.producer if value_a is not None and value_a.producer not in self.matching.forth else None
        made = value_b.producer if value_b is not None and value_b.producer not in self.matching.back else None
        if gone is not None and value_b is not None:
            self.after.setdefault(gone, {})[value_b.name] = None
        if made is not None and value_a is not None:
            self.before.setdefault(made, {})[value_a.name] = None
        return (gone is None and made is None) or value_a is None or value_b is None

    def is_other_constant(self, value_a: Value, value_b: Value) -> bool:
        """Whether a node reads another constant than before, where one of the two is in both models."""
        agree = self.matching.agree
        if value_a.name == value_b.name or agree(value_a, value_b):
            return False
        before, after = value_a.scope.find(value_b.name), value_b.scope.find(value_a.name)
        return (before is not None and agree(before, value_b)) or (after is not None and agree(value_a, after))


def node_changes(matching: NodeMatching) -> tuple[NodeChanges, ReadConstants]:
    """Return the nodes that differ, and the constants that nodes read at the same places."""
    reading = _Reading(matching)
    changed: list[ChangedNode] = []
    owners: dict[Node, list[Change]] = {}
    for pair in matching.graphs:
        outputs, ends = list[Change](), list[tuple[str, Value | None, Value | None]]()
        label = pair.a.path.rpartition("/")[2]
        of_label = f" of {label}" if label else ""
        if pair.a.path:
            if len(pair.a.inputs) != len(pair.b.inputs):
                outputs.append(Change(f"inputs of {label}", str(len(pair.a.inputs)), str(len(pair.b.inputs))))
            ends += [(str(index), *both) for index, both in enumerate(zip_longest(pair.a.outputs, pair.b.outputs))]
        else:
            ends += [(f"'{both[0].name}'", *both) for both in matching.interface.outputs.pairs]
        for name, value_a, value_b in ends:
            if reading.differs(value_a, value_b):
                texts = _source_text(value_a), _source_text(value_b)
                outputs.append(NameChange(f"output {name}{of_label}", *texts))
        if pair.owners is not None:
            owners.setdefault(pair.owners[0], []).extend(outputs)
    for node, twin in matching.forth.items():
        changes = (*_node_differences(node, twin, reading), *owners.get(node, ()))
        if changes:
            changed.append(ChangedNode(node.path, twin.path, node.operator, module_of(node), changes))
    mine, theirs = matching.alone
    removed, added = _lone_nodes(mine, reading.after), _lone_nodes(theirs, reading.before)
    graphs = {pair.a: pair.b for pair in matching.graphs}
    moved = tuple(
        MovedNode(node.path, twin.path, node.operator, module_of(node), node.scope.path, twin.scope.path)
        for node, twin in matching.forth.items()
        if graphs.get(node.scope) is not twin.scope and not node.is_op("Constant")
    )
    return NodeChanges(removed, added, tuple(changed), moved), reading.constants


def _lone_nodes(nodes: Sequence[Node], instead: dict[Node, dict[str, None]]) -> tuple[LoneNode, ...]:
    lone, alone = [], set(nodes)
    for node in nodes:
        if node.is_op("Constant"):  # which weights tell of
            continue
        owner = node.scope.owner  # the innermost of these nodes in whose body it is
        while owner is not None and owner not in alone:
            owner = owner.scope.owner
        within = owner.path if owner is not None else ""
        lone.append(LoneNode(node.path, node.operator, module_of(node), tuple(instead.get(node, ())), within))
    return tuple(lone)


def _node_differences(node_a: Node, node_b: Node, reading: _Reading) -> Iterator[Change]:
    if node_a.operator != node_b.operator:
        yield Change("operator", node_a.operator, node_b.operator)
    if node_a.proto.overload != node_b.proto.overload:
        yield Change("overload", str(node_a.proto.overload), str(node_b.proto.overload))
    if not node_a.is_op("Constant"):
        first, second = (reading.matching.values.numbers.attributes[node] for node in (node_a, node_b))
        for name in sorted({*first, *second}, key=str):
            if first.get(name) != second.get(name):
                yield Change(as_text(name), _attribute_text(node_a, name), _attribute_text(node_b, name))
        for name in sorted(node_a.bodies.keys() ^ node_b.bodies.keys(), key=str):
            texts = ["a graph" if name in node.bodies else None for node in (node_a, node_b)]
            yield Change(as_text(name), *texts)
    pairs = list(zip_longest(node_a.inputs, node_b.inputs))
    places = [index for index, (x, y) in enumerate(pairs) if reading.differs(x, y)]
    agree = reading.matching.agree
    order = [next((to for to in places if agree(pairs[at][0], pairs[to][1])), None) for at in places]
    if places and len({*order, None}) > len(places):  # they only change places
        yield Change("order of inputs", *(", ".join(map(str, indices)) for indices in (places, order)))
    else:
        yield from (NameChange(f"input {index}", *map(_name_of_value, pairs[index])) for index in places)
    for index, outputs in enumerate(zip_longest(node_a.outputs, node_b.outputs)):
        if (outputs[0] is None) != (outputs[1] is None):
            yield NameChange(f"output {index}", *map(_name_of_value, outputs))


def _name_of_value(value: Value | None) -> str | None:
    if value is None:
        return None
    tensor = value.constant if value.kind == "node" and is_counted(value.name) else None
    return tensor_text(tensor) if tensor is not None and values_text(tensor) else value.name


def _source_text(value: Value | None) -> str | None:
    if value is None:
        return None
    return f"{value.producer.operator} '{value.producer.label}'" if value.producer is not None else f"'{value.name}'"


def _attribute_text(node: Node, name: str) -> str | None:
    attribute = node.attributes.get(name)
    if attribute is not None:
        return attribute_text(attribute)
    default = default_of(node, name)
    return f"{attribute_text(default)} (default)" if default is not None else None


class Weights(Struct, frozen=True):
    """The constants that differ."""

    changes: tuple[WeightChange, ...] = ()  # one for each
    renamed: tuple[tuple[str, str], ...] = ()  # names in A and in B of constants that are equal
    # the constants of A that were not compared, since bytes of theirs or of those in B are missing
    unread: tuple[str, ...] = ()
    pairs: tuple[tuple[Value, Value], ...] = ()  # those that are the same, in A and in B


class _Side(Struct, frozen=True, eq=False, dict=True):
    """The constants of a model, and their numbers."""

    matching: NodeMatching
    model: Model
    scopes: tuple[Scope, ...]
    matched_graphs: Collection[Scope]
    matched: Collection[Node]

    @cached_property
    def numbers(self) -> Mapping[Value, int]:
        constants, numbers = self.matching.values.numbers.constants, dict[Value, int]()
        for value in (value for scope in self.scopes for value in scope.values.values()):
            tensor = value.constant if value.constant is not None else value.tensor
            if tensor is not None:
                numbers[value] = constants.of(self.model, tensor)
            elif value.sparse is not None:
                numbers[value] = constants.of_sparse(self.model, value.sparse)
        return numbers

    @cached_property
    def by_number(self) -> Mapping[int, Value]:
        """A constant for each number, the first one."""
        return {number: value for value, number in reversed(list(self.numbers.items()))}

    def is_unread(self, value: Value) -> bool:
        """Whether its bytes are missing."""
        return self.numbers[value] in self.matching.values.numbers.constants.unread

    def is_alone(self, value: Value) -> bool:
        """Whether it is read, and only by nodes that the other model lacks, or is in a body that it lacks."""
        is_matched = any(node in self.matched for node, _ in value.consumers)
        return not is_matched and bool(value.consumers or value.scope not in self.matched_graphs)


def weight_changes(matching: NodeMatching, read: ReadConstants) -> Weights:
    """Return the constants that differ; `read` are those that nodes read at the same places."""
    graphs = {graph for pair in matching.graphs for graph in (pair.a, pair.b)}  # a function of one model is none
    scopes = [tuple(all_scopes(tuple(root for root in each.scopes if root in graphs))) for each in matching.models]
    graphs |= {graph for pair in matching.moves for graph in (pair.a, pair.b)}
    mine = _Side(matching, matching.models[0], scopes[0], graphs, matching.forth)
    theirs = _Side(matching, matching.models[1], scopes[1], graphs, matching.back)
    pairs = list(_pair_constants(matching, read, mine, theirs))
    changes = [change for value_a, value_b in pairs for change in _weight_changes(value_a, value_b, mine, theirs)]
    paired = {value for pair in pairs for value in pair}
    changes += [_lone_weight(value, "removed", mine, theirs) for value in mine.numbers if value not in paired]
    changes += [_lone_weight(value, "added", theirs, mine) for value in theirs.numbers if value not in paired]
    equal = [(x, y) for x, y in pairs if mine.numbers[x] == theirs.numbers[y] and x.name != y.name]
    unread = {x for x in mine.numbers if mine.is_unread(x)} | {x for x, y in pairs if theirs.is_unread(y)}
    return Weights(
        changes=tuple(changes),
        renamed=tuple(dict.fromkeys((value_path(x), value_path(y)) for x, y in equal)),
        unread=tuple(value_path(value) for value in mine.numbers if value in unread),
        pairs=tuple(pairs),
    )


def _pair_constants(
    matching: NodeMatching, read: ReadConstants, mine: _Side, theirs: _Side
) -> Iterator[tuple[Value, Value]]:
    """Yield constants that are the same: those read at one place, of one content, of one name."""
    sources = dict.fromkeys((source_of(value_a), source_of(value_b)) for value_a, value_b in read)
    pairs = [both for both in sources if both[0] in mine.numbers and both[1] in theirs.numbers]
    yield from pairs
    done = {value_a for value_a, _ in pairs}, {value_b for _, value_b in pairs}
    for graphs in (*matching.graphs, *matching.moves):
        rest_a = [value for value in graphs.a.values.values() if value in mine.numbers and value not in done[0]]
        rest_b = [value for value in graphs.b.values.values() if value in theirs.numbers and value not in done[1]]
        keys: tuple[Callable[[Value, int], Hashable], ...] = (  # of a constant and its number
            lambda value, number: (value.name, number),
            lambda _, number: number,
            # not the name of a node that an exporter counted, as `Constant_3_output_0`
            lambda value, _: value if value.kind == "node" and is_counted(value.name) else value.name,
        )
        for key in keys:
            by_key = group_pairs((key(value_b, theirs.numbers[value_b]), value_b) for value_b in rest_b)
            for value_a in rest_a:
                if twins := by_key.get(key(value_a, mine.numbers[value_a])):
                    yield value_a, twins[0]
                    done[0].add(value_a)
                    done[1].add(twins.pop(0))
            rest_a = [value_a for value_a in rest_a if value_a not in done[0]]
            rest_b = [value_b for value_b in rest_b if value_b not in done[1]]


def _weight_changes(value_a: Value, value_b: Value, mine: _Side, theirs: _Side) -> Iterator[WeightChange]:
    names = value_path(value_a), value_path(value_b)
    first, second = tensor_of(value_a), tensor_of(value_b)
    kind: WeightKind | None = None
    texts = _weight_text(value_a), _weight_text(value_b)
    places = _storage_text(value_a), _storage_text(value_b)
    if mine.numbers[value_a] != theirs.numbers[value_b]:
        if first is None or second is None or first.data_type != second.data_type:
            kind = "dtype"
        else:
            kind = "dims" if first.dims != second.dims else "values"
    if kind is not None and not (kind == "values" and (mine.is_unread(value_a) or theirs.is_unread(value_b))):
        equal = _path_of_value(mine.by_number.get(theirs.numbers[value_b]))
        yield WeightChange(*names, kind, *texts, equal, has_values=_has_values(value_b))
    elif places[0] != places[1]:
        yield WeightChange(*names, "storage", *places)


def _lone_weight(value: Value, kind: WeightKind, side: _Side, other: _Side) -> WeightChange:
    names, texts = (value_path(value), ""), (_weight_text(value), "")
    if kind == "added":
        names, texts = names[::-1], texts[::-1]
    equal = _path_of_value(other.by_number.get(side.numbers[value]))
    return WeightChange(*names, kind, *texts, equal, with_nodes=side.is_alone(value), has_values=_has_values(value))


def _path_of_value(value: Value | None) -> str:
    return value_path(value) if value is not None else ""


def tensor_of(value: Value) -> TensorProto | None:
    """Return the tensor of a constant, the values of a sparse one."""
    if value.sparse is not None:
        return value.sparse.values
    return value.constant if value.constant is not None else value.tensor


def _weight_text(value: Value) -> str:
    if value.sparse is not None:
        return f"sparse {dtype_name(value.sparse.values.data_type)}{list(value.sparse.dims)}"
    tensor = tensor_of(value)
    return tensor_text(tensor) if tensor is not None else ""


def _has_values(value: Value) -> bool:
    tensor = tensor_of(value) if value.sparse is None else None
    return tensor is not None and bool(values_text(tensor))


def _storage_text(value: Value) -> str:
    if value.kind == "node":
        return "Constant node"
    return "default of an input" if value.kind == "input" else "initializer"


def shape_changes(matching: NodeMatching, shapes: tuple[Shapes, Shapes]) -> Iterator[ShapeChange]:
    """Yield the tensors that matching nodes compute in another dtype or dims.

    Where a symbol of an input is another one, or a number, in B, it is in what follows from it too. A dim that is not
    known in one of the models is no difference.
    """
    # The outputs for symbols of inputs that B lacks
    ends = (*matching.interface.inputs.pairs, *matching.interface.outputs.pairs)
    dims = [(shapes[0][value_a].dims, shapes[1][value_b].dims) for value_a, value_b in ends]
    renaming = _renamed_symbols(dims), _renamed_symbols((dims_b, dims_a) for dims_a, dims_b in dims)
    differing: set[Value] = set()
    # those of a graph after those that they read
    graphs = dict.fromkeys(pair.a for pair in (*matching.graphs, *matching.moves))
    nodes = [node for graph in graphs for node in in_order(graph) if not node.is_op("Constant")]
    twins = [(node, matching.forth[node]) for node in nodes if node in matching.forth]
    results = ((node, *pair) for node, twin in twins for pair in zip(node.outputs, twin.outputs, strict=False))
    for node, value_a, value_b in results:
        if value_a is None or value_b is None:
            continue
        first, second = shapes[0][value_a], shapes[1][value_b]
        is_same_dtype = first.dtype == second.dtype or 0 in (first.dtype, second.dtype)  # 0: not known
        if is_same_dtype and _same_dims(first.dims, second.dims, renaming):
            continue
        differing.add(value_a)
        follows = any(value in differing for value in node.inputs)
        was, now = (f"{dtype_name(t.dtype) if t.dtype else '?'}{shape_text(t.dims)}" for t in (first, second))
        yield ShapeChange(value_path(value_a), value_path(value_b), node.operator, was, now, follows=follows)


def _renamed_symbols(ends: Iterable[tuple[Dims, Dims]]) -> Mapping[str, Expr]:
    """Return the counterparts of symbols in the other model: numbers, other symbols, or the same with other bounds."""
    counterparts: dict[Expr, Expr] = {}
    for dims, others in ends:
        if dims is None or others is None or len(dims) != len(others):
            continue
        for dim, other_dim in zip(dims, others, strict=True):
            if dim.name is not None:
                counterparts.setdefault(dim, other_dim)
    return {str(dim.name): other_dim for dim, other_dim in counterparts.items() if dim != other_dim}


def _same_dims(dims_a: Dims, dims_b: Dims, renaming: tuple[Mapping[str, Expr], Mapping[str, Expr]]) -> bool:
    if dims_a is None or dims_b is None:
        return True
    return len(dims_a) == len(dims_b) and all(
        not (is_known(x) and is_known(y)) or x == y or x.substitute(renaming[0]) == y or x == y.substitute(renaming[1])
        for x, y in zip(dims_a, dims_b, strict=True)
    )


def declaration_changes(matching: NodeMatching) -> Iterator[NoteChange]:
    """Yield how many tensors of both models have their type declared in one of them only, or declared otherwise."""
    counts = {"A": 0, "B": 0, "both": 0}
    for value_a, value_b in matching.values.forth.items():
        ends = (*value_a.scope.outputs, *value_b.scope.outputs)
        if value_a.producer is None or value_a.producer not in matching.forth or value_a in ends or value_b in ends:
            continue
        first, second = value_a.scope.infos.get(value_a.name), value_b.scope.infos.get(value_b.name)
        if first is not None and second is not None:
            counts["both"] += first.type != second.type
        elif first is not None or second is not None:
            counts["B" if first is None else "A"] += 1
    texts = {name: count_things(count, "tensor(s)") for name, count in counts.items() if count}
    if counts["A"] or counts["B"]:
        yield NoteChange("declared types", texts.get("A"), texts.get("B"))
    if counts["both"]:
        yield NoteChange("types that are declared otherwise", texts["both"], texts["both"])


class Change(Struct, frozen=True):
    """Something that differs."""

    what: str  # its name
    before: str | None  # what A has, None where A lacks it
    after: str | None  # what B has, None where B lacks it

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.what}: {self.after} added"
        if self.after is None:
            return f"{self.what}: {self.before} removed"
        return f"{self.what}: {self.before} -> {self.after}"


class NameChange(Change, frozen=True):
    """An input or output of a node that is another value: both are names, whose numbers vary with that of the node."""


class Redeclared(Change, frozen=True):
    """An output whose dims are declared in other words, as a fold does: no two sizes of it contradict each other."""


class NoteChange(Change, frozen=True):
    """A note that differs, of a model or of one thing in it: a doc string, metadata, a denotation."""

    note: str = ""  # what all notes of its kind are called, such as `metadata 'namespace'`; "" for one of the model
    of: str = "model"  # what has it: the model, a node, a weight, an input, an output, or a tensor


class LoneNode(Struct, frozen=True):
    """A node that the other model lacks."""

    node: str  # its path
    operator: str  # what it computes
    module: str  # the path of the module that it was exported from, "" where its name tells none
    instead: tuple[str, ...]  # the values of the other model that its readers read instead
    within: str = ""  # the path of the node in whose body it is, where the other model lacks that too, "" elsewhere


class PairedNode(Struct, frozen=True):
    """A node of both models."""

    node: str  # its path in A
    other: str  # its path in B
    operator: str  # what it computes in A
    module: str  # the path of the module that it was exported from, "" where its name tells none


class MovedNode(PairedNode, frozen=True):
    """A node of both models that is in another graph: a branch of an If in A, the main graph in B."""

    graph: str  # the path of its graph in A, "" for the main graph
    other_graph: str  # the same in B


class ChangedNode(PairedNode, frozen=True):
    """A node of both models that differs."""

    changes: tuple[Change, ...]  # what differs: its operator, attributes, inputs, outputs


class NodeChanges(Struct, frozen=True):
    """The nodes that differ, those of bodies and functions included."""

    removed: tuple[LoneNode, ...] = ()  # nodes that B lacks
    added: tuple[LoneNode, ...] = ()  # nodes that A lacks
    changed: tuple[ChangedNode, ...] = ()  # nodes of both that differ
    moved: tuple[MovedNode, ...] = ()  # nodes of both that are in another graph, some of them changed, too


@dataclass(frozen=True)
class WeightChange:
    """A constant that differs: an initializer, the default of an input, or the tensor of a Constant node."""

    name: str  # in A, "" where A lacks it
    other: str  # in B, "" where B lacks it
    # what differs: its values, its dtype, its dims, whether it is there, or whether it is an initializer
    kind: WeightKind
    before: str  # dtype and dims in A, with the values of a small one; "" where A lacks it
    after: str  # the same in B
    equal_to: str = ""  # a constant of the same bytes: of the other model, or of A where it is in both; "" for none
    # whether all nodes that read it, or the body that it is in, were removed, or added, with it
    with_nodes: bool = False
    has_values: bool = field(default=False, metadata={"in_json": False})  # whether `before` or `after` has its values


class ShapeChange(Struct, frozen=True):
    """A tensor of both models that has another dtype or other dims."""

    value: str  # its path in A
    other: str  # its path in B
    operator: str  # what computes it in A
    before: str  # dtype and dims in A
    after: str  # the same in B
    follows: bool  # whether it is computed from another tensor that differs so


class FindingChange(Struct, frozen=True):
    """A finding that is new, gone, or concerns another number of nodes, tensors or outputs."""

    kind: str  # its kind, as in a report
    text: str  # the fault, in a sentence; that of B where B has it
    before: int  # how many it concerns in A, 0 where A lacks it
    after: int  # the same in B

    @property
    def is_worse(self) -> bool:
        """Whether it concerns more in B."""
        return self.after > self.before
