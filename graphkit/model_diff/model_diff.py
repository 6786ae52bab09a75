"""The differences between the files of two models, without running them, ready to show."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from msgspec import structs

from graphkit.analysis.cost_changes import BeforeAndAfter, CostChange, cost_change, cost_change_blocks, cost_ratios
from graphkit.analysis.findings import Finding
from graphkit.analysis.node_costs import function_scopes
from graphkit.analysis.report import BLOCKERS, ReportOptions, judged_sections, report
from graphkit.errors import count_things
from graphkit.graph.declared_types import declared_type, type_text
from graphkit.graph.names import by_family, group_pairs, join_words, module_parts, pairs_by_family
from graphkit.graph.view import Value, as_text
from graphkit.matching.interfaces import Interfaces
from graphkit.matching.value_matching import known_tensor
from graphkit.model import Model, ModelLike, as_model
from graphkit.model_diff import COSTS, SECTIONS
from graphkit.model_diff.node_changes import (
    Change,
    FindingChange,
    LoneNode,
    NameChange,
    NodeChanges,
    NoteChange,
    Redeclared,
    ShapeChange,
    WeightChange,
    declaration_changes,
    node_changes,
    shape_changes,
    tensor_of,
    weight_changes,
)
from graphkit.model_diff.node_matching import NodeMatching, match_nodes, value_path
from graphkit.options import DiffOptions
from graphkit.render.document_blocks import Block, Heading, Prose, Table, outcome, table, table_of
from graphkit.render.result import Result
from graphkit.shapes import infer
from graphkit.targets import Target, load_target

KINDS = {"values": "other values", "dtype": "another dtype", "dims": "other dims"}  # of weight changes, in words
KINDS |= {"removed": "removed", "added": "added"}
MOST_ROWS = 40
MOST_NOTES = 8  # of one kind that are told one by one, in the text
COLUMNS = "Section | In A:code | In B:code | Difference | A | B"
Row = tuple[str, str, str, str, str | int | None, str | int | None]
TOLD = {"graph", "functions", "opset_import"}  # fields of a model that other sections tell of
TOLD_OF_GRAPH = {
    *("node", "initializer", "sparse_initializer", "input", "output", "value_info"),
    "quantization_annotation",  # which is told for each tensor
}
Annotated = tuple[frozenset[tuple[str, Hashable]], str, str]  # what it says, of which tensor, and that in words
SHORT = 160  # characters of a text


@dataclass(frozen=True)
class ModelDiff(Result):
    """The differences between the files of two models; names of values and the order of nodes do not count.

    Attributes:
        a, b: What to call them.
        interface: Inputs and outputs that differ.
        opsets: Operator sets and functions that differ.
        metadata: Notes that differ, of the model and of single things in it: producer, doc strings, metadata.
        nodes: Nodes that were removed, added or changed.
        weights: Constants that were removed, added or changed.
        shapes: Tensors of both models with another dtype or other dims, beyond what follows from dims of inputs.
        finding_changes: Findings of a report that are new, gone, or concern another number.
        blockers: The same of what keeps a model from the target.
        costs: What both cost, at the same sizes; no difference of its own, because it follows from others.
        target: Its name, "" for none.
        renamed_values: Names in A and in B of computed values that are the same.
        renamed_weights: Names in A and in B of constants that are equal.
        unread_weights: Constants of A whose bytes are missing, so that only their names and dims were compared.
        lists_renames: Whether the text lists names that differ.
        is_brief: Whether the text has findings and costs alone, and how much differs else.
        models: Both, for a page that shows them side by side.
    """

    title: ClassVar[str] = "Differences"
    computed: ClassVar[tuple[str, ...]] = ("differing",)
    a: str
    b: str
    interface: tuple[Change, ...]
    opsets: tuple[Change, ...]
    metadata: tuple[NoteChange, ...]
    nodes: NodeChanges
    weights: tuple[WeightChange, ...]
    shapes: tuple[ShapeChange, ...]
    finding_changes: tuple[FindingChange, ...]
    blockers: tuple[FindingChange, ...]
    costs: CostChange
    target: str = ""
    renamed_values: tuple[tuple[str, str], ...] = ()
    renamed_weights: tuple[tuple[str, str], ...] = ()
    unread_weights: tuple[str, ...] = ()
    lists_renames: bool = False
    is_brief: bool = field(default=False, metadata={"in_json": False})
    models: tuple[Model, Model] | None = field(default=None, repr=False, compare=False, metadata={"in_json": False})

    def graphs(self) -> Sequence[Mapping[str, object]]:
        """Return the graphs of both models, with the nodes of each that are in the other one."""
        from graphkit.model_diff.page_pair import page_pair

        return () if self.models is None else page_pair(self.models, ("A", "B"))

    @property
    def differing(self) -> tuple[str, ...]:
        """The sections that have a difference."""
        return tuple(name for name in SECTIONS if self._count(name))

    def failing(self, sections: Collection[str]) -> tuple[str, ...]:
        """Return those of some sections that differ; findings, blockers and costs only where there are more in B."""
        worse = {"findings": self.finding_changes, "blockers": self.blockers}
        differing = [name for name in self.differing if name in sections]
        failing = [name for name in differing if name not in worse or any(change.is_worse for change in worse[name])]
        is_dear = COSTS in sections and not self.is_equal and is_dearer(self.costs)
        return (*failing, COSTS) if is_dear else tuple(failing)

    def _count(self, section: str) -> int:
        if section == "nodes":
            return sum(map(len, structs.asdict(self.nodes).values()))
        return len(getattr(self, "finding_changes" if section == "findings" else section))

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differing

    def blocks(self) -> Iterator[Block]:
        """Yield the differences in a sentence, and each section that has one."""
        yield outcome([f"A is {self.a}, B is {self.b}.", *self._verdict_text()], [])
        for heading, found in (("Findings", self.finding_changes), (f"Blockers for {self.target}", self.blockers)):
            if found:
                yield Heading(heading, is_main=True)
                yield table_of("Finding=text | Kind | A:number=before | B:number=after", found)
        if not self.is_equal:
            yield from cost_blocks(self.costs)
        if self.is_brief:
            return
        for name in ("interface", "opsets", "metadata"):
            changes: Sequence[Change] = getattr(self, name) if name != "metadata" else [*_join_changes(self.metadata)]
            if changes:
                yield Heading(name.capitalize())
                yield from _family_rows("What | A | B", [(c.what, (c.before, c.after)) for c in changes])
        yield from self._node_blocks()
        yield from self._weight_blocks()
        if self.shapes:
            yield Heading("Shapes")
            first = [each for each in self.shapes if not each.follows]
            rows = [(each.value, (each.operator, each.before, each.after)) for each in first]
            yield from _family_rows("Tensor:code | Operator | A:code | B:code", rows)
            if len(first) < len(self.shapes):
                count = count_things(len(self.shapes) - len(first), "tensor(s)")
                yield Prose(f"What is computed from these differs too: {count}.")
        renamed = [*self.renamed_values, *self.renamed_weights] if self.lists_renames else []
        if renamed:
            yield Heading("Renamed")
            yield table("A:code | B:code", renamed)

    def csv_tables(self) -> Iterator[Table]:
        """Yield one table with a row for each difference, which is empty where nothing differs."""
        rows = list[Row]()  # the section of a difference, its names in both models, what differs, and what both have
        for section in ("interface", "opsets", "metadata"):
            rows += [(section, c.what, c.what, "", c.before, c.after) for c in getattr(self, section)]
        rows += [("nodes", each.node, "", "removed", each.operator, None) for each in self.nodes.removed]
        rows += [("nodes", "", each.node, "added", None, each.operator) for each in self.nodes.added]
        rows += [("nodes", m.node, m.other, "moved", m.graph, m.other_graph) for m in self.nodes.moved]
        for pair in self.nodes.changed:
            rows += [("nodes", pair.node, pair.other, c.what, c.before, c.after) for c in pair.changes]
        rows += [("weights", w.name, w.other, w.kind, w.before, w.after) for w in self.weights]
        for shape in self.shapes:
            place = "follows" if shape.follows else "begins"
            rows.append(("shapes", shape.value, shape.other, place, shape.before, shape.after))
        for section, changes in (("findings", self.finding_changes), ("blockers", self.blockers)):
            rows += [(section, f.text, f.text, f.kind, f.before, f.after) for f in changes]
        yield table(COLUMNS, rows)

    def _verdict_text(self) -> Iterator[str]:
        if self.is_equal:
            yield "Nothing differs."
        else:
            nodes = [f"{len(changes):,} {name}" for name, changes in structs.asdict(self.nodes).items() if changes]
            counts = {name: f"{self._count(name):,}" for name in self.differing}
            counts |= {"nodes": ", ".join(nodes)} if nodes else {}
            redeclared = sum(isinstance(change, Redeclared) for change in self.interface)
            if redeclared and redeclared == len(self.interface):
                counts["interface"] = f"{count_things(redeclared, 'output(s)')} declared anew"
            yield f"They differ in {join_words([f'{name} ({count})' for name, count in counts.items()])}."
            if ratios := cost_ratios(self.costs):
                yield f"B costs so many times what A does: {ratios}."
        renamed = [(len(self.renamed_values), "value(s)"), (len(self.renamed_weights), "weight(s)")]
        if any(count for count, _ in renamed):
            texts = [count_things(count, text) for count, text in renamed if count]
            yield f"Only the names differ of {join_words(texts)}."
        if self.unread_weights:
            weights = count_things(len(self.unread_weights), "weight(s)")
            yield f"The bytes of {weights} are missing, and were not compared."

    def _node_blocks(self) -> Iterator[Block]:
        if not self._count("nodes"):
            return
        yield Heading("Nodes")
        both = self.nodes.removed, self.nodes.added
        removed, added = ([node for node in nodes if not node.within] for nodes in both)
        if removed or added:
            yield from _family_rows("Module:code | Removed | Added", _by_module(removed, added))
        for word, nodes in (("removed", self.nodes.removed), ("added", self.nodes.added)):
            for owner, count in Counter(node.within for node in nodes if node.within).items():
                yield Prose(f"With '{owner}', {count_things(count, 'node(s)')} of its bodies {word}.")
        moves = Counter((node.graph, node.other_graph) for node in self.nodes.moved)
        for ends, count in moves.items():
            graphs = (f"'{path}'" if path else "the main graph" for path in ends)
            yield Prose(f"{count_things(count, 'node(s)')} moved from {' to '.join(graphs)}.")
        changed = []  # names that a node reads vary with its own, and stand beside it; all else is a cell
        for node, change in ((each, change) for each in self.nodes.changed for change in each.changes):
            names, text = (str(change), "") if isinstance(change, NameChange) else ("", str(change))
            changed.append(((node.node, names), (node.operator, text)))
        if changed:
            joined = pairs_by_family(changed)
            rows = [(node, (operator, change or names), n) for (node, names), (operator, change), n in joined]
            yield from _joined_rows("Node:code | Operator | Change", rows)

    def _weight_blocks(self) -> Iterator[Block]:
        if not self.weights:
            return
        yield Heading("Weights")
        single = []
        for each in self.weights:
            if each.kind != "storage" and not each.with_nodes:
                name = " -> ".join(dict.fromkeys(filter(None, (each.name, each.other))))
                equal = f"equal to {each.equal_to}" if each.equal_to and not each.has_values else ""
                single.append((name, (KINDS[each.kind], each.before, each.after, equal)))
        if single:
            yield from _family_rows("Weight:code | Difference | A | B | Equal to:note", single)
        moved = Counter((weight.before, weight.after) for weight in self.weights if weight.kind == "storage")
        for (before, after), count in moved.items():
            yield Prose(f"Kept elsewhere: {count_things(count, 'constant(s)')}, in A as {before}, in B as {after}.")
        for kind in ("removed", "added"):
            count = sum(weight.kind == kind and weight.with_nodes for weight in self.weights)
            if count:
                yield Prose(f"With the nodes that read them, {count_things(count, 'constant(s)')} {kind}.")


def _join_changes(changes: Sequence[NoteChange]) -> Iterator[Change]:
    """Yield changes, those of one note that many things have as one, with how many of them have it."""
    groups = group_pairs(((each.of, each.note, "" if each.note else each.what), each) for each in changes)
    for (of, note, _), group in groups.items():
        if len(group) <= MOST_NOTES:
            yield from group
            continue
        had, has = sum(each.before is not None for each in group), sum(each.after is not None for each in group)
        texts = (f"{count:,} have it" if count else None for count in (had, has))
        yield Change(f"{note} of {count_things(len(group), f'{of}(s)')}", *texts)


def _by_module(removed: Sequence[LoneNode], added: Sequence[LoneNode]) -> list[tuple[str, tuple[str, str]]]:
    paths: dict[tuple[str, ...], str] = {}
    counts: dict[tuple[str, ...], tuple[Counter[str], Counter[str]]] = {}
    for side, nodes in enumerate((removed, added)):
        for node in nodes:
            module = module_parts(node.module)
            paths.setdefault(module, node.module)
            counts.setdefault(module, (Counter(), Counter()))[side][node.operator] += 1
    return [(paths[module], (_tally_text(gone), _tally_text(new))) for module, (gone, new) in counts.items()]


def _tally_text(operators: Counter[str]) -> str:
    counts = sorted(operators.items())
    return " + ".join(operator if count == 1 else f"{count:,} {operator}" for operator, count in counts)


def _family_rows(headings: str, rows: Sequence[tuple[str, tuple[str | None, ...]]]) -> Iterator[Block]:
    """Yield a table with one row for each family of names of the same other cells, and how many names it stands for."""
    yield from _joined_rows(headings, by_family(rows))


def _joined_rows(headings: str, joined: Sequence[tuple[str, tuple[str | None, ...], int]]) -> Iterator[Block]:
    many = any(count > 1 for _, _, count in joined)
    shown = [(name, *cells, *((count,) if many else ())) for name, cells, count in joined[:MOST_ROWS]]
    yield table(f"{headings}{' | Times:number' if many else ''}", shown)
    if len(joined) > MOST_ROWS:
        yield Prose(f"... and {len(joined) - MOST_ROWS:,} more in the JSON report.")


def is_dearer(costs: CostChange) -> bool:
    """Whether B has more bytes, more multiply-accumulates or a higher peak of memory; not where they are not known."""
    a, b = costs.before, costs.after
    if a is None or b is None:
        return False
    pairs = ((a.macs.value, b.macs.value), (a.peak_bytes.value, b.peak_bytes.value), (a.bytes, b.bytes))
    return any(was is not None and now is not None and now > was for was, now in pairs)


def cost_blocks(costs: CostChange) -> Iterator[Block]:
    """Yield the costs of both where they differ, or why they cannot be counted."""
    if costs.unknown or costs.before != costs.after:
        yield from cost_change_blocks([costs], "Costs", ("A", "B"))


# Differences beside nodes and weights: inputs, outputs, operator sets, functions, metadata.


def interface_changes(interfaces: Interfaces) -> Iterator[Change]:
    """Yield the inputs and outputs that differ: in name, dtype, dims, order, doc string, or by having a default."""
    for kind, ports in (("input", interfaces.inputs), ("output", interfaces.outputs)):
        for value_a, value_b in (*ports.pairs, *((value, None) for value in ports.lost)):
            before, after = _port_text(value_a, kind), None if value_b is None else _port_text(value_b, kind)
            names = dict.fromkeys(f"'{value.name}'" for value in (value_a, value_b) if value is not None)
            if len(names) > 1 or before != after:
                is_same = len(names) == 1 and kind == "output" and value_b is not None and _may_be_one(value_a, value_b)
                what = f"{kind} {' -> '.join(names)}"
                yield (Redeclared if is_same else Change)(what, shorten_text(before), shorten_text(after))
        for value in ports.new:
            yield Change(f"{kind} '{value.name}'", None, shorten_text(_port_text(value, kind)))
        if ports.order_a != ports.order_b:
            orders = (", ".join(f"'{name}'" for name in order) for order in (ports.order_a, ports.order_b))
            yield Change(f"order of {kind}s", *map(shorten_text, orders))


def _may_be_one(a: Value, b: Value) -> bool:
    """Whether two declarations have one dtype, one rank and no size of one that is another number in the other."""
    types = declared_type(a), declared_type(b)
    if types[0] is None or types[1] is None or types[0].dtype != types[1].dtype:
        return False
    before, after = types[0].dims, types[1].dims
    if before is None or after is None or len(before) != len(after):
        return False
    sizes = zip(before, after, strict=True)
    return before != after and all(x == y for x, y in sizes if isinstance(x, int) and isinstance(y, int))


def _port_text(value: Value, kind: str) -> str:
    scope = value.scope
    info = scope.infos.get(value.name)
    dtype, shape = type_text(info.type) if info is not None else ("?", "?")
    has_default = kind == "input" and (value.tensor is not None or value.sparse is not None)
    doc = as_text(info.doc_string) if info is not None else ""
    return f"{dtype}{shape}{' with a default' if has_default else ''}{f' {doc!r}' if doc else ''}"


def _opset_versions(imports: Any) -> dict[str, str]:
    return {as_text(entry.domain) or "ai.onnx": str(entry.version) for entry in imports}


def _function_names(model: Model) -> dict[str, str]:
    signatures = {}
    for key, function in zip(function_scopes(model), model.proto.functions, strict=False):
        parts = [count_things(len(function.input), "input(s)"), count_things(len(function.output), "output(s)")]
        names = [*function.attribute, *(attribute.name for attribute in function.attribute_proto)]
        parts += [f"attributes {', '.join(map(as_text, names))}"] if names else []
        parts += [f"{domain} {version}" for domain, version in _opset_versions(function.opset_import).items()]
        signatures[f"function '{'.'.join(filter(None, map(as_text, key)))}'"] = ", ".join(parts)
    return signatures


def metadata_changes(a: Model, b: Model) -> Iterator[NoteChange]:
    """Yield the notes of models and their graphs that differ: producer, versions, doc strings, metadata."""
    before, after = (
        dict(_note_texts(model.proto, TOLD))
        | {f"graph {name}": text for name, text in _note_texts(model.proto.graph, TOLD_OF_GRAPH)}
        for model in (a, b)
    )
    yield from (NoteChange(change.what, change.before, change.after) for change in changed_entries(before, after))


def _note_texts(message: Message, without: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a message as texts; metadata by key."""
    for entry, value in message.ListFields():
        if entry.name in without:
            continue
        if entry.name == "metadata_props":
            yield from ((f"metadata '{key}'", text) for key, text in props(value).items())
        elif entry.type == FieldDescriptor.TYPE_MESSAGE:  # how many there are, and a checksum of what they say
            parts = value if isinstance(value, Sequence) or hasattr(value, "__len__") else [value]
            content = b"".join(part.SerializeToString(deterministic=True) for part in parts)
            count = count_things(len(parts), "entry(s)").replace("entrys", "entries")
            yield entry.name, f"{count}, checksum {zlib.crc32(content):08x}"
        else:
            yield entry.name, as_text(value) if isinstance(value, str | bytes) else str(value)


def note_changes(matching: NodeMatching, weights: Sequence[tuple[Value, Value]]) -> Iterator[NoteChange]:
    """Yield the notes that differ of what both models have, one for each note; `weights` are constants that match."""
    inputs, outputs = matching.interface.inputs.pairs, matching.interface.outputs.pairs
    nodes, tensors = matching.forth.items(), [(x, tensor_of(x), tensor_of(y)) for x, y in weights]
    notes = [
        *(("input", x.name, _port_notes(x), _port_notes(y)) for x, y in inputs),
        *(("output", x.name, _port_notes(x), _port_notes(y)) for x, y in outputs),
        *(("weight", value_path(v), _doc_and_metadata(x), _doc_and_metadata(y)) for v, x, y in tensors if x and y),
        *(("node", node.path, _doc_and_metadata(node.proto), _doc_and_metadata(twin.proto)) for node, twin in nodes),
    ]
    for kind, name, before, after in notes:
        for each in changed_entries(before, after) if before != after else ():
            yield NoteChange(f"{each.what} of {kind} '{name}'", each.before, each.after, note=each.what, of=kind)
    mine, theirs = (_annotations_by_tensor(model, matching) for model in matching.models)
    for token in dict.fromkeys([*mine, *theirs]):
        sides = mine.get(token, []), theirs.get(token, [])
        said = [Counter(each for each, _, _ in side) for side in sides]
        if said[0] != said[1]:
            (_, tensor, _), title = (sides[0] or sides[1])[0], "quantization annotation"
            was, now = (", ".join(words for _, _, words in side) or None for side in sides)
            yield NoteChange(f"{title} of '{tensor}'", was, now, note=title, of="tensor")


def _doc_and_metadata(message: Any) -> dict[str, str]:
    doc = {"doc string": as_text(message.doc_string)} if message.doc_string else {}
    return doc | {f"metadata '{key}'": text for key, text in props(message.metadata_props).items()}


def _port_notes(value: Value) -> dict[str, str]:
    """Return the metadata and the denotations of an input or output; the interface has its doc string."""
    info = value.scope.infos.get(value.name)
    if info is None:
        return {}
    dims = info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ()
    denotations = {"denotation": info.type.denotation}
    denotations |= {f"denotation of dim {axis}": dim.denotation for axis, dim in enumerate(dims)}
    notes = {f"metadata '{key}'": text for key, text in props(info.metadata_props).items()}
    return notes | {name: as_text(text) for name, text in denotations.items() if text}


def _annotations_by_tensor(model: Model, matching: NodeMatching) -> dict[Hashable, list[Annotated]]:
    """Return the annotations by the tensors that they are for, those of A as the tensors of B that they are."""

    def token(name: str) -> Hashable:
        value = model.graph.find(name)
        if value is None:
            return name
        twin = matching.values.forth.get(value, value)
        return twin if twin in matching.values.back else matching.values.numbers.value(value)

    annotations: dict[Hashable, list[Annotated]] = {}
    for each in model.proto.graph.quantization_annotation:
        said = frozenset((as_text(e.key), token(e.value)) for e in each.quant_parameter_tensor_names)
        words = ", ".join(f"{key} '{name}'" for key, name in props(each.quant_parameter_tensor_names).items())
        annotations.setdefault(token(each.tensor_name), []).append((said, as_text(each.tensor_name), words))
    return annotations


def changed_entries(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    """Yield the differences of two mappings of texts by name."""
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield Change(name, shorten_text(before.get(name)), shorten_text(after.get(name)))


def props(entries: Any) -> dict[str, str]:
    """Return key and value of entries of a message."""
    return {as_text(entry.key): as_text(entry.value) for entry in entries}


def shorten_text(text: str | None) -> str | None:
    """Return a text, or its beginning and how long it is."""
    return text if text is None or len(text) <= SHORT else f"{text[:SHORT]}... ({len(text):,} characters)"


def findings_of(model: Model, target: Target | None) -> tuple[Finding, ...]:
    """Return the findings of a report, blockers of a target included where there is one."""
    sections = [section.name for section in judged_sections(ReportOptions(target=target))]
    only = tuple(name for name in sections if name != COSTS)  # which find nothing, and take a while
    return report(model, ReportOptions(only=only, target=target)).found()


def finding_changes(before: Sequence[Finding], after: Sequence[Finding]) -> Iterator[FindingChange]:
    """Yield the findings that are new, gone, or concern another number; matched by kind and key as in a baseline."""
    counts: dict[tuple[str, str], list[int]] = {}
    first: dict[tuple[str, str], Finding] = {}
    for side, findings in enumerate((before, after)):
        for finding in findings:
            key = finding.kind, finding.key
            counts.setdefault(key, [0, 0])[side] += finding.count
            first[key] = finding
    for key, (was, now) in counts.items():
        if was != now:
            yield FindingChange(kind=key[0], text=first[key].text, before=was, after=now)


def diff(a: ModelLike, b: ModelLike, options: DiffOptions = DiffOptions()) -> ModelDiff:
    """Compare the files of two models: interface, operator sets, metadata, nodes, weights, shapes and findings.

    Nodes match by name, and by what they compute; names of values and the order of nodes make no difference. Weights
    are read where two have one dtype and the same dims, and lie at different places.

    Args:
        a: A model.
        b: Another one, such as a later version of it.
        options: What to compare and to list.

    Returns:
        What differs; `is_equal` says whether nothing does.

    Raises:
        ModelError: A model cannot be read, or a file of weights has shrunk since.
        TargetError: There is no such target, or its file cannot be read.

    Example:
        >>> model = graphkit.load("example:causal-attention")
        >>> graphkit.diff(model, graphkit.fold(model).model).differing
        ('findings', 'nodes', 'weights')
    """
    models = first, second = as_model(a), as_model(b)
    ends = {*first.graph.inputs, *first.graph.outputs}
    target = load_target(options.target) if options.target is not None else None
    shapes, findings = zip(*((infer(model), findings_of(model, target)) for model in models), strict=True)
    matching = match_nodes(first, second, shapes)
    nodes, constants = node_changes(matching)
    weights = weight_changes(matching, constants)
    changes = tuple(finding_changes(*findings))
    return ModelDiff(
        a=first.label,
        b=second.label,
        interface=tuple(interface_changes(matching.interface)),
        opsets=(
            *changed_entries(_opset_versions(first.proto.opset_import), _opset_versions(second.proto.opset_import)),
            *changed_entries(_function_names(first), _function_names(second)),
        ),
        metadata=(
            *metadata_changes(first, second),
            *note_changes(matching, weights.pairs),
            *declaration_changes(matching),
        ),
        nodes=nodes,
        weights=weights.changes,
        shapes=tuple(shape_changes(matching, shapes)),
        finding_changes=tuple(change for change in changes if change.kind != BLOCKERS.name),
        blockers=tuple(change for change in changes if change.kind == BLOCKERS.name),
        costs=cost_change(BeforeAndAfter([first], second)),
        target=target.name if target is not None else "",
        renamed_values=tuple(
            (value_path(value), value_path(twin))
            for value, twin in matching.values.forth.items()
            if value.name != twin.name and value not in ends and known_tensor(value) is None
            if value.producer in matching.forth
        ),
        renamed_weights=weights.renamed,
        unread_weights=weights.unread,
        lists_renames=options.renames,
        is_brief=options.brief,
        models=models,
    )
