"""The findings of a comparison of two models layer by layer, ready to show."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec import Struct

from graphkit.errors import count_things
from graphkit.graph.names import family_labels
from graphkit.model import Model
from graphkit.render.document_blocks import Block, Column, Heading, NodeMark, Prose, Table, columns
from graphkit.render.result import Result
from graphkit.shapes.infer import infer
from graphkit.verify.cause_search import Cause

MOST_ROWS = 36
EXPORTERS = {
    "pytorch": "In PyTorch they leave modules of these names: model.get_submodule(NAME).register_forward_hook(f).",
    "tf2onnx": "In Keras each name has that of its layer: keras.Model(model.inputs, model.get_layer(LAYER).output).",
}  # by producer, where to get dumps


class ComparedTensor(Struct, frozen=True):
    """A tensor of A and the one that it matches."""

    a: str
    b: str
    how: str  # what matched them: `map`, `form` (normal form), `name`, `structure`, `order`, `module`, `output` (left)
    node: str  # the node that computes it in A, "" for an input
    operator: str
    module: str  # the path of the module that this was exported from, "" where its name tells none
    dims: tuple[int, ...]  # in A
    absolute: float | None  # the largest absolute difference, None where none can be told
    relative: float | None  # that over the largest magnitude in A
    cosine: float | None  # of the angle between the two, None where one is all zeros
    problem: str  # why they cannot be compared, "" where they can
    agrees: bool  # whether they are equal within the tolerance


class Divergence(Struct, frozen=True):
    """A tensor that differs, though its sources agree."""

    tensor: str  # its name in A
    other: str  # its name in B
    node: str  # the node that computes it in A, "" for an input
    operator: str
    causes: tuple[Cause, ...]


class NextDump(Struct, frozen=True):
    """A tensor whose dump would narrow down where a difference begins."""

    name: str  # the name to dump it by
    tensor: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class ModelComparison(Result):
    """Two models, layer by layer.

    Attributes:
        a, b: What to call them.
        tolerance: Largest difference that counts as equal, times the largest magnitude where that is above 1.
        inputs: The dims that A was fed with.
        bisected: Whether only what a bisection needs was measured.
        steps: Runs of A, each of a part of it.
        tensors: What was measured, in topological order of A.
        divergences: The tensors at which a difference begins, in this order.
        matched: Tensors that match.
        unmatched_a, unmatched_b: Computed tensors that match none.
        unmatched_outputs: Outputs of A that are not compared.
        next_dumps: What to dump next, where B is a file of arrays in which the difference begins far from its cause.
        exporter: The exporter of A, in whose words these are named.
        notes: What to know of it, a sentence each.
        models: A, and B where it is a model, to be drawn on a page.
    """

    title: ClassVar[str] = "Layer by layer"
    computed: ClassVar[tuple[str, ...]] = ("passed",)
    a: str
    b: str
    tolerance: float
    inputs: dict[str, tuple[int, ...]]
    bisected: bool
    steps: int
    tensors: tuple[ComparedTensor, ...]
    divergences: tuple[Divergence, ...]
    matched: int
    unmatched_a: tuple[str, ...]
    unmatched_b: tuple[str, ...]
    unmatched_outputs: tuple[str, ...]
    next_dumps: tuple[NextDump, ...] = ()
    exporter: str = ""
    notes: tuple[str, ...] = ()
    models: tuple[Model, ...] = field(default=(), repr=False, compare=False, metadata={"in_json": False})

    def graphs(self) -> Sequence[Mapping[str, object]]:
        """Return the graphs of the models, with what was measured of the nodes of each."""
        from graphkit.analysis.page_graph import page_graph
        from graphkit.model_diff.page_pair import page_pair

        marks = [[*self._marks(model, is_other=at > 0)] for at, model in enumerate(self.models)]
        if len(self.models) == 2:
            return page_pair((self.models[0], self.models[1]), ("A", "B"), marks)
        return [page_graph(infer(model), marks=of_nodes) for model, of_nodes in zip(self.models, marks, strict=True)]

    def _marks(self, model: Model, *, is_other: bool) -> Iterator[NodeMark]:
        begins = {divergence.tensor for divergence in self.divergences}
        for tensor in self.tensors:
            value = model.graph.values.get(tensor.b if is_other else tensor.a)
            if value is None or value.producer is None:
                continue
            measured = tensor.problem or ("" if tensor.relative is None else f"relative {tensor.relative:.2g}")
            if tensor.a in begins:
                yield NodeMark("Errors", "first to differ", "fault", value.producer.path, measured)
            elif tensor.agrees:
                yield NodeMark("Errors", "equal", "fine", value.producer.path, measured)
            else:
                yield NodeMark("Errors", "different", "doubt", value.producer.path, measured)

    @property
    def passed(self) -> bool:
        """Whether something computed was compared, and all of it agrees."""
        return not self.findings()

    def findings(self) -> tuple[str, ...]:
        """Return where the models differ, a sentence each."""
        if not any(tensor.node for tensor in self.tensors):
            return ("Nothing that the models compute could be matched, so nothing is compared.",)
        outputs = self.models[0].graph.outputs if len(self.models) == 2 else None
        if outputs is not None and self.unmatched_outputs == tuple(each.name for each in outputs):
            return ("No output of A could be matched, so none is compared.",)
        return tuple(f"{d.tensor} differs: {' '.join(c.text for c in d.causes)}" for d in self.divergences)

    def blocks(self) -> Iterator[Block]:
        """Yield the verdict, where it begins, and the error by depth."""
        yield Prose(f"A is {self.a}, B is {self.b}.")
        yield self._verdict()
        if self.unmatched_outputs:
            hint = f"--map {shlex.quote(f'{self.unmatched_outputs[0]}=NAME')}"
            said = f"Outputs of A that are not compared: {family_labels(self.unmatched_outputs)}"
            yield Prose(f"{said} - tell what they are in B, as in {hint}.", "warning")
        for divergence in self.divergences:
            which = "First difference" if divergence is self.divergences[0] else "Another"
            yield Heading(f"{which}: {divergence.tensor}", is_main=True)
            yield Prose(self._divergence_text(divergence))
            yield from (Prose(cause.text, "warning") for cause in divergence.causes)
        if self.next_dumps:
            words = EXPORTERS.get(self.exporter, "They are named as in A.")
            names = ", ".join(dump.name for dump in self.next_dumps)
            yield Prose(f"Put these tensors of the port into {self.b} too, and compare again: {names}. {words}")
        if self.tensors:
            first = {divergence.tensor for divergence in self.divergences}
            rows, begins = _table_rows(self.tensors, first)
            yield Heading("Error by depth")
            numbers = (Column(name, "number") for name in ("Max abs", "Relative", "Cosine"))
            heads = (Column("Tensor in A", "code"), Column("Matched by"), *numbers, Column("", "note"))
            yield Table(heads, rows, marked=begins)
            most = max(tensor.relative or 0.0 for tensor in self.tensors)  # as of one that cannot be compared
            points = [(t.a, most if t.problem else t.relative or 0.0, None, t.a in first) for t in self.tensors]
            title = "Relative error of each tensor, where a difference begins in another colour"
            yield columns(title, "tensors in the order of A", points, is_logarithmic=True)
        for name, values in (("A", self.unmatched_a), ("B", self.unmatched_b)):
            if values:
                count = f"{len(values):,} tensors of {name} match" if len(values) > 1 else f"1 tensor of {name} matches"
                yield Prose(f"{count} none: {family_labels(values)}.")
        yield from (Prose(note) for note in self.notes)

    def _verdict(self) -> Prose:
        within = f"{self.tolerance:g} times the largest magnitude, or {self.tolerance:g} where that is below 1"
        tensors = "1 tensor matches" if self.matched == 1 else f"{self.matched:,} tensors match"
        is_plain = self.matched == len(self.tensors) and self.steps == 1
        steps = f", {len(self.tensors):,} of them measured in {count_things(self.steps, 'step(s)')}"
        how = f"{tensors}{'' if is_plain else steps}."
        differ = sum(not tensor.agrees for tensor in self.tensors)
        if not any(tensor.node for tensor in self.tensors):
            return Prose(self.findings()[0], "warning")
        verb = "differs" if differ == 1 else "differ"
        if not differ:
            return Prose(f"{how} All agree within {within}.")
        if self.bisected:
            return Prose(f"{how} {differ:,} {verb} by more than {within}.", "warning")
        begins = len(self.divergences)
        return Prose(f"{how} {differ:,} {verb} by more than {within}; it begins at {begins:,} of them.", "warning")

    def _divergence_text(self, divergence: Divergence) -> str:
        measured = next(tensor for tensor in self.tensors if tensor.a == divergence.tensor)
        text = f"Node '{divergence.node}' ({divergence.operator}) computes it in A."
        text = text if divergence.node else "It is an input of A."
        text += "" if divergence.other == divergence.tensor else f" In B it is '{divergence.other}'."
        if measured.absolute is None:
            return f"{text} {measured.problem}." if measured.problem else text
        relative = measured.relative or 0
        return f"{text} The largest difference is {measured.absolute:.3g}, {relative:.2g} of the magnitude."


def _table_rows(tensors: Sequence[ComparedTensor], first: set[str]) -> tuple[list[tuple[str | None, ...]], list[int]]:
    """Return a row for each tensor, or of many one a module, and the numbers of rows at which differences begin."""
    keys: Sequence[str] = [tensor.a for tensor in tensors]
    if len(tensors) > MOST_ROWS:
        modules = [tensor.module.replace(".", "/").split("/") for tensor in tensors]
        for depth in range(max(map(len, modules)), 0, -1):
            keys = ["/".join(module[:depth]) for module in modules]
            if 2 < len(_consecutive_runs(tensors, first, keys)) <= MOST_ROWS + len(first):
                break
        else:  # their names tell of no modules: as many in each row
            keys = [str(place * MOST_ROWS // len(tensors)) for place in range(len(tensors))]
    rows, begins = list[tuple[str | None, ...]](), list[int]()
    for (key, is_first), run in _consecutive_runs(tensors, first, keys):
        name = f"{run[0].a} ... {run[-1].a}" if key.isdigit() or not key else key
        absolute, relative = (
            max((number for each in run if (number := getattr(each, name)) is not None), default=None)
            for name in ("absolute", "relative")
        )
        cosine = min((each.cosine for each in run if each.cosine is not None), default=None)
        note = next((each.problem for each in run if each.problem), None)
        begin = "the difference begins here" if is_first else None
        begins += [len(rows)] if is_first else []
        rows.append(
            (
                f"{name} ({len(run)} tensors)" if len(run) > 1 else run[0].a,
                ", ".join(dict.fromkeys(each.how for each in run)),
                *(None if number is None else f"{number:.1e}" if number else "0" for number in (absolute, relative)),
                None if cosine is None else f"{cosine:.6f}",
                "; ".join(text for text in (begin, note) if text) or None,
            )
        )
    return rows, begins


def _consecutive_runs(
    tensors: Sequence[ComparedTensor], first: set[str], keys: Sequence[str]
) -> list[tuple[tuple[str, bool], list[ComparedTensor]]]:
    """Return the tensors that follow each other with one key; those at which a difference begins alone."""
    marked = [(each.a, True) if each.a in first else (key, False) for each, key in zip(tensors, keys, strict=True)]
    runs = itertools.groupby(zip(marked, tensors, strict=True), key=lambda pair: pair[0])
    return [(key, [tensor for _, tensor in run]) for key, run in runs]
