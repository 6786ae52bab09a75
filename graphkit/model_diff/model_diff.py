"""The differences between two models, ready to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec import structs

from graphkit.analysis.cost_changes import CostChange, cost_change_blocks, cost_ratios
from graphkit.errors import count_things
from graphkit.graph.names import by_family, group_pairs, join_words, module_parts, pairs_by_family
from graphkit.model import Model
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
)
from graphkit.render.document_blocks import Block, Heading, Prose, Table, outcome, table, table_of
from graphkit.render.result import Result

KINDS = {"values": "other values", "dtype": "another dtype", "dims": "other dims"}  # of weight changes, in words
KINDS |= {"removed": "removed", "added": "added"}
MOST_ROWS = 40
MOST_NOTES = 8  # of one kind that are told one by one, in the text


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
        yield from self._shape_blocks()
        renamed = [*self.renamed_values, *self.renamed_weights] if self.lists_renames else []
        if renamed:
            yield Heading("Renamed")
            yield table("A:code | B:code", renamed)

    def csv_tables(self) -> Iterator[Table]:
        """Yield one table with a row for each difference, which is empty where nothing differs."""
        yield table(COLUMNS, [*self._difference_rows()])

    def _difference_rows(self) -> Iterator[Row]:
        """Yield the section of each difference, its names in both models, what differs, and what both have."""
        for section in ("interface", "opsets", "metadata"):
            for change in getattr(self, section):
                yield section, change.what, change.what, "", change.before, change.after
        yield from (("nodes", each.node, "", "removed", each.operator, None) for each in self.nodes.removed)
        yield from (("nodes", "", each.node, "added", None, each.operator) for each in self.nodes.added)
        yield from (("nodes", m.node, m.other, "moved", m.graph, m.other_graph) for m in self.nodes.moved)
        for pair in self.nodes.changed:
            yield from (("nodes", pair.node, pair.other, c.what, c.before, c.after) for c in pair.changes)
        yield from (("weights", w.name, w.other, w.kind, w.before, w.after) for w in self.weights)
        for shape in self.shapes:
            place = "follows" if shape.follows else "begins"
            yield "shapes", shape.value, shape.other, place, shape.before, shape.after
        for section, changes in (("findings", self.finding_changes), ("blockers", self.blockers)):
            yield from ((section, f.text, f.text, f.kind, f.before, f.after) for f in changes)

    def _verdict_text(self) -> Iterator[str]:
        if self.is_equal:
            yield "Nothing differs."
        else:
            yield f"They differ in {join_words([*self._section_sentences()])}."
            if ratios := cost_ratios(self.costs):
                yield f"B costs so many times what A does: {ratios}."
        renamed = [(len(self.renamed_values), "value(s)"), (len(self.renamed_weights), "weight(s)")]
        if any(count for count, _ in renamed):
            texts = [count_things(count, text) for count, text in renamed if count]
            yield f"Only the names differ of {join_words(texts)}."
        if self.unread_weights:
            weights = count_things(len(self.unread_weights), "weight(s)")
            yield f"The bytes of {weights} are missing, and were not compared."

    def _section_sentences(self) -> Iterator[str]:
        nodes = [f"{len(changes):,} {name}" for name, changes in structs.asdict(self.nodes).items() if changes]
        for section in self.differing:
            counts = ", ".join(nodes) if section == "nodes" else f"{self._count(section):,}"
            redeclared = sum(isinstance(change, Redeclared) for change in self.interface)
            if section == "interface" and redeclared == len(self.interface):
                counts = f"{count_things(redeclared, 'output(s)')} declared anew"
            yield f"{section} ({counts})"

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
        single = [_weight_row(each) for each in self.weights if each.kind != "storage" and not each.with_nodes]
        if single:
            yield from _family_rows("Weight:code | Difference | A | B | Equal to:note", single)
        moved = Counter((weight.before, weight.after) for weight in self.weights if weight.kind == "storage")
        for (before, after), count in moved.items():
            yield Prose(f"Kept elsewhere: {count_things(count, 'constant(s)')}, in A as {before}, in B as {after}.")
        for kind in ("removed", "added"):
            count = sum(weight.kind == kind and weight.with_nodes for weight in self.weights)
            if count:
                yield Prose(f"With the nodes that read them, {count_things(count, 'constant(s)')} {kind}.")

    def _shape_blocks(self) -> Iterator[Block]:
        if not self.shapes:
            return
        yield Heading("Shapes")
        first = [each for each in self.shapes if not each.follows]
        rows = [(each.value, (each.operator, each.before, each.after)) for each in first]
        yield from _family_rows("Tensor:code | Operator | A:code | B:code", rows)
        if len(first) < len(self.shapes):
            count = count_things(len(self.shapes) - len(first), "tensor(s)")
            yield Prose(f"What is computed from these differs too: {count}.")


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


def _weight_row(weight: WeightChange) -> tuple[str, tuple[str, str, str, str]]:
    name = " -> ".join(dict.fromkeys(filter(None, (weight.name, weight.other))))
    equal = f"equal to {weight.equal_to}" if weight.equal_to and not weight.has_values else ""
    return name, (KINDS[weight.kind], weight.before, weight.after, equal)


def _family_rows(headings: str, rows: Sequence[tuple[str, tuple[str | None, ...]]]) -> Iterator[Block]:
    """Yield a table with one row for each family of names of the same other cells, and how many names it stands for."""
    yield from _joined_rows(headings, by_family(rows))


def _joined_rows(headings: str, joined: Sequence[tuple[str, tuple[str | None, ...], int]]) -> Iterator[Block]:
    many = any(count > 1 for _, _, count in joined)
    shown = [(name, *cells, *((count,) if many else ())) for name, cells, count in joined[:MOST_ROWS]]
    yield table(f"{headings}{' | Times:number' if many else ''}", shown)
    if len(joined) > MOST_ROWS:
        yield Prose(f"... and {len(joined) - MOST_ROWS:,} more in the JSON report.")


COLUMNS = "Section | In A:code | In B:code | Difference | A | B"
Row = tuple[str, str, str, str, str | int | None, str | int | None]


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
