"""Costs before and after a rewrite: size, nodes, multiply-accumulates, peak memory, at the same sizes of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from msgspec import Struct
from msgspec.structs import replace

from graphkit.analysis.node_costs import Amount, Quantity, node_costs, sum_amounts
from graphkit.analysis.peak_memory import PeakMemory
from graphkit.analysis.typical_sizes import TypicalSizes
from graphkit.errors import GraphkitError, count_things
from graphkit.graph.roles import Axis
from graphkit.graph.view import all_nodes
from graphkit.io.tensors import bytes_place, is_in_a_file, payload_size
from graphkit.io.wire import encode_varint
from graphkit.model import Model
from graphkit.render.document_blocks import Block, Cell, Formula, Heading, Prose, Sentence, cell_text, size_cell, table
from graphkit.render.result import Sizes
from graphkit.shapes import AS_DECLARED, DimSpec, Expr, Shapes, infer, symbol
from graphkit.shapes.constraints.legal_sizes import symbol_roles
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.input_dims import declared_inputs, read_alike


class CostFigures(Struct, frozen=True):
    """The costs of a model, or of several that run one after the other."""

    bytes: int  # of the graph and its weights, wherever these are
    nodes: int  # at every depth
    macs: Quantity  # multiply-accumulates
    peak_bytes: Quantity  # the peak memory of activations; of several models, the largest


class Latency(Struct, frozen=True):
    """How long two models take in onnxruntime, run in turns with equal options."""

    before_ms: float  # the median of each, in milliseconds
    after_ms: float
    ratio: float  # the median of after over before, round by round
    low: float  # the least and the largest of these ratios
    high: float
    rounds: int  # how many rounds there were
    threads: int  # threads of each session
    provider: str = "cpu"  # the execution provider on which both ran


@dataclass(frozen=True)
class CostChange:
    """Costs before and after."""

    what: str  # what they are the costs of, such as a file; "" for the only one
    sizes: Sizes  # the sizes of the original's dims: those that are given, and typical ones
    before: CostFigures | None  # the costs; None where they cannot be counted
    after: CostFigures | None
    unknown: str = ""  # why not, "" if they can
    latency: Latency | None = None  # how long both take; None where that was not measured
    untimed: str = ""  # why it could not be measured, "" if it was, or nobody asked
    # what they are the costs of, for a page that shows both; None if they are not at hand
    models: BeforeAndAfter | None = field(default=None, repr=False, compare=False, metadata={"in_json": False})
    # symbols of the result that are expressions in the dims of the original
    links: Mapping[str, Expr] = field(default_factory=dict, repr=False, compare=False, metadata={"in_json": False})


def models_of(changes: Sequence[CostChange]) -> list[Model]:
    """Return the models of changes, each once, in the order of their page."""
    models = (model for change in changes if change.models for model in (*change.models.before, change.models.after))
    return list({id(model): model for model in models}.values())


def sizes_of_originals(changes: Sequence[CostChange]) -> Mapping[int, Sequence[Sizes]]:
    """Return the sizes at which the costs of each original are counted, by its identity, first those of its page.

    A page shows an original at the sizes of the last change of it.
    """
    sizes: dict[int, dict[Sizes, None]] = {}
    for change in reversed(changes):
        for model in change.models.before if change.models else ():
            sizes.setdefault(id(model), {}).setdefault(change.sizes)
    return {model: list(all_sizes) for model, all_sizes in sizes.items()}


class SizedModel(Struct, frozen=True):
    """A model with the sizes of its dims."""

    shapes: Shapes
    sizes: Mapping[str, int]  # of the symbols that stay open
    known: Mapping[str, int]  # of all symbols in the dims of its inputs

    @classmethod
    def of(
        cls,
        model: Model,
        spec: DimSpec,
        wish: Mapping[Axis, int],
        known_sizes: Mapping[str, int] = {},
        values: Mapping[str, np.ndarray] = {},
    ) -> SizedModel:
        """Choose the sizes of a model: those of the spec, known ones, and those of a wish.

        Values may have symbols of which the known sizes tell the numbers.
        """
        shapes = infer(model, spec, values=values)
        inputs = (value for value in shapes.model.graph.inputs if value.tensor is None)
        dims = (dim for value in inputs for dim in shapes[value].dims or ())
        names = dict.fromkeys(each.name for dim in dims for each in dim.walk_symbols())
        if names.keys() <= known_sizes.keys():
            sizes = {name: known_sizes[name] for name in names}
        else:
            typical = TypicalSizes(shapes.model, spec, shapes, wish).sizes
            sizes = {name: known_sizes.get(name, size) for name, size in typical.items()}
        elements = (element for array in values.values() if array.dtype == object for element in array.ravel())
        deciding = sorted({name for element in elements if isinstance(element, Expr) for name in element.symbols})
        sizes |= {name: known_sizes[name] for name in deciding if name in known_sizes}
        return cls(shapes, sizes, {**Inputs(model, spec).numbers, **sizes})

    def figures(self, written_bytes: int | None = None) -> CostFigures:
        """Return the costs; the bytes are those of the model as it was written, where they are known."""
        model = self.shapes.model
        nodes = node_costs(self.shapes, self.sizes, ("macs",)).nodes
        known = [node.costs["macs"] for node in nodes if "macs" in node.costs]
        macs, peak = sum_amounts(known), PeakMemory(self.shapes).at(self.sizes)
        return CostFigures(
            stored_bytes(model) if written_bytes is None else written_bytes,
            sum(1 for _ in all_nodes(model.scopes)),
            Quantity(macs.at(self.sizes), macs.text(self.sizes), len(nodes) - len(known)),
            Quantity(peak.bytes, peak.amount.text(self.sizes), len(peak.unknown)),
        )


@dataclass(frozen=True)
class BeforeAndAfter:
    """Models before and after a rewrite, with what says the sizes that both are looked at.

    A dim of the result is as large as what is called the same in the original, else as that of the same input.
    """

    before: Sequence[Model]  # the original, or several models that run one after the other
    after: Model  # the result
    spec: DimSpec = AS_DECLARED  # sizes of the original's dims
    # sizes by role, where others than the typical ones are of interest
    wish: Mapping[Axis, int] = field(default_factory=dict)
    # sizes of symbols of the result, as expressions in the dims of the original
    sizes: Mapping[str, Expr] = field(default_factory=dict)
    # values of inputs of the result that decide sizes: integers, and expressions in the dims of the original
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    written_bytes: int | None = None  # those of the result as it was written, where it is another model in memory

    def choose_sizes(self) -> tuple[list[SizedModel], SizedModel]:
        """Choose the sizes of originals and of their result; a GraphkitError says that there are none."""
        originals: list[SizedModel] = []
        known: dict[str, int] = {}
        for model in self.before:
            spec = self.spec | frozen_dims(model, self.after, self.wish)
            originals.append(SizedModel.of(model, spec, self.wish, known))
            known |= originals[-1].known
        linked = {name: Amount.of(dim).at(known) for name, dim in self.links(originals).items()}
        known_sizes = known | {name: size for name, size in linked.items() if size is not None}
        return originals, SizedModel.of(self.after, AS_DECLARED, self.wish, known_sizes, self.values)

    def values_at(self, sizes: Mapping[str, int]) -> Mapping[str, np.ndarray]:
        """Return the values as integers, at the sizes of the result."""
        return {
            name: np.array([Expr.of(each).evaluate(sizes) for each in array.ravel()], np.int64).reshape(array.shape)
            for name, array in self.values.items()
        }

    def links(self, originals: Sequence[SizedModel]) -> Mapping[str, Expr]:
        """Return symbols of the result that no original has, as expressions in the dims of the originals."""
        known = {name for each in originals for name in each.known}
        dims = (_dims_of_inputs(self.after, each) for each in reversed(originals))
        read, sizes = declared_inputs(self.after), {**{name: symbol(name) for name in known}, **self.sizes}
        named = {str(read.at(part[0]).name): sizes.get(name) for name, parts in read.groups.items() for part in parts}
        linked = {**named, **{name: dim for each in dims for name, dim in each.items()}}
        return {**{name: dim for name, dim in linked.items() if dim is not None and name not in known}, **self.sizes}


def cost_change(models: BeforeAndAfter, what: str = "") -> CostChange:
    """Count costs before and after a rewrite, at the same sizes; `what` says what to call them."""
    try:
        originals, result = models.choose_sizes()
        known = {name: size for each in originals for name, size in each.known.items()}
        after = result.figures(models.written_bytes)
        parts = [each.figures() for each in originals]  # which run one after the other
        macs = [part.macs for part in parts]
        text = " + ".join(each.expression for each in macs) if all(each.expression for each in macs) else ""
        before = CostFigures(
            bytes=sum(part.bytes for part in parts),
            nodes=sum(part.nodes for part in parts),
            macs=Quantity(sum(each.value or 0 for each in macs), text, sum(each.uncounted for each in macs)),
            peak_bytes=max((part.peak_bytes for part in parts), key=lambda peak: peak.value or 0),
        )
        return CostChange(what, Sizes(known.items()), before, after, models=models, links=models.links(originals))
    except GraphkitError as error:
        return CostChange(what, Sizes(), None, None, unknown=str(error), models=models)


def frozen_dims(before: Model, after: Model, wish: Mapping[Axis, int] = {}) -> DimSpec:
    """Return the sizes of symbols that are numbers in the result, those aside that a wish says."""
    wished = {name for name, role in symbol_roles(before).items() if role in wish} if wish else set[str]()
    both, dims = (read.dims for read in read_alike(before, after))
    pairs = (pair for name, known in both.items() for pair in _axis_pairs(known, dims.get(name)))
    sizes = {was.name: now.constant for was, now in pairs if was.name is not None and now.constant}
    return DimSpec.of({name: size for name, size in sizes.items() if name not in wished})


def _dims_of_inputs(after: Model, before: SizedModel) -> dict[str, Expr]:
    """Return the symbols of the result that are dims of inputs, as the original has them where it has that value.

    A cache may be laid out in another way, so that its symbols have the sizes that they have by name.
    """
    by_symbol, symbolic = {}, Inputs(after).symbolic
    for value in after.graph.inputs:
        known = before.shapes.model.graph.values.get(value.name)
        is_cache = known in before.shapes.model.roles.pasts
        dims = before.shapes.dims(known) if known is not None and not is_cache else None
        for now, was in _axis_pairs(symbolic.get(value.name), dims):
            if now.name is not None and Amount.of(was).at(before.sizes) is not None:
                by_symbol[now.name] = was
    return by_symbol


def _axis_pairs(left: Sequence[Expr] | None, right: Sequence[Expr] | None) -> Iterator[tuple[Expr, Expr]]:
    if left is not None and right is not None and len(left) == len(right):
        yield from zip(left, right, strict=True)


def cost_change_blocks(
    changes: Sequence[CostChange], heading: str = "Costs before and after", sides: tuple[str, str] = ("Before", "After")
) -> Iterator[Block]:
    """Yield the end of the report of a rewrite: costs before and after."""
    if not changes:
        return
    yield Heading(heading)
    numbers = {id(model): number for number, model in enumerate(models_of(changes))}  # of models on the page
    all_sizes = sizes_of_originals(changes)
    for change in changes:
        which = f" of {change.what}" if change.what else ""
        if change.unknown:
            yield Prose(f"Costs{which} are not counted: {change.unknown}.")
            continue
        place, runs = None, list[str]()  # of the result, and of the originals: a model, and after a point a further run
        if change.models is not None:
            place = numbers[id(change.models.after)]
            for original in map(id, change.models.before):
                run = all_sizes[original].index(change.sizes)
                runs.append(f"{numbers[original]}.{run}" if run else str(numbers[original]))
        title: list[str | Formula] = [f"Costs{which}"]
        for number, (name, size) in enumerate(change.sizes, 1):
            before = " at " if number == 1 else " and " if number == len(change.sizes) else ", "
            title += [f"{before}{name} ", Formula(f"{size:,}", size, name, ",", model=place)]
        headings = f"Cost | {sides[0]}:number | {sides[1]}:number | Ratio:number"
        if (time := change.latency) is not None:
            device = "" if time.provider == "cpu" else f" on {time.provider}"
            yield Prose(
                f"Latency{device}: {time.before_ms:.3g} ms before, {time.after_ms:.3g} ms after, {time.ratio:.2f}. "
                f"That is the median of {time.rounds} rounds in onnxruntime, run in turns on "
                f"{count_things(time.threads, 'thread(s)')} with default optimizations; the ratio is that of the "
                "rounds."
            )
        yield table(headings, [*_change_rows(change, place, runs)], title=Sentence.of(*title))
        if change.untimed:
            yield Prose(f"Latency{which} was not measured: {change.untimed}.")


def cost_ratios(change: CostChange) -> str:
    """Return what each cost is after a change, in multiples of before; "" where nothing changes, or it is not known."""
    rows = [(str(name), cell_text(ratio)) for name, _, _, ratio in _change_rows(change, None, ())]
    ratios = [f"{name} {ratio}" for name, ratio in rows if ratio]
    is_same = change.before == change.after or all(ratio.endswith(" 1.00") for ratio in ratios)
    return "" if is_same else ", ".join(ratios)


def _change_rows(change: CostChange, place: int | None, runs: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    before, after, time = change.before, change.after, change.latency
    if before is None or after is None:
        return
    sizes = before.bytes, after.bytes
    yield "file and weights", *(size_cell(size, "B") for size in sizes), _ratio_text(*sizes)
    yield "nodes", before.nodes, after.nodes, _ratio_text(before.nodes, after.nodes)
    macs, peaks = (before.macs, after.macs), (before.peak_bytes, after.peak_bytes)
    if place is not None:
        peaks = peaks[0].as_peak(*runs), peaks[1].as_peak(str(place))
    else:
        peaks = replace(peaks[0], expression=""), replace(peaks[1], expression="")
    yield "multiply-accumulates (MACs)", *(each.cell(model=place) for each in macs), _quantity_ratio(*macs, place)
    yield "peak memory of activations", *(each.cell("B", place) for each in peaks), _quantity_ratio(*peaks, place)
    if time is not None:  # no expression tells it
        ratio = f"{time.ratio:.2f} ({time.low:.2f} to {time.high:.2f})"
        texts = (f"{time.before_ms:.3g} ms", f"{time.after_ms:.3g} ms", ratio)
        yield "latency", *(Formula(text, None, "", "ratio") for text in texts)


def _quantity_ratio(was: Quantity, now: Quantity, place: int | None) -> Formula | str:
    """Return a number after a rewrite over that before, "" where one of them is not known, or not whole."""
    if not was.value or now.value is None or was.uncounted or now.uncounted:
        return ""
    return Formula(f"{now.value / was.value:.2f}", now.value, now.expression, "ratio", was.expression, model=place)


def _ratio_text(before: int | None, after: int | None) -> str:
    return f"{after / before:.2f}" if before and after is not None else ""


def stored_bytes(model: Model) -> int:
    """Return the bytes of a model: those of its graph, and of its weights wherever these are, tied ones once."""
    external = [tensor for tensor, _ in model.tensors if is_in_a_file(tensor)]
    payloads = {bytes_place(tensor): payload_size(tensor) or 0 for tensor in external}
    total = model.proto.ByteSize() + sum(payloads.values())
    for tensor in external:
        if model.is_inside(tensor):  # it takes more in the file of its model than here, even without its payload
            reference = onnx.TensorProto(external_data=tensor.external_data, data_location=tensor.data_location)
            payload, size = payload_size(tensor) or 0, tensor.ByteSize()
            header = 1 + len(encode_varint(payload)) - reference.ByteSize()
            total += header + len(encode_varint(size + header + payload)) - len(encode_varint(size))
    return total
