"""The usual mistakes of a port: each is made in the original, which gives what the port has if it is the one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from graphkit.errors import ModelError
from graphkit.graph.mask_polarity import make_open_mask
from graphkit.graph.names import label_families
from graphkit.graph.operator_traits import MEASURING
from graphkit.graph.roles import MASKS
from graphkit.graph.view import Node, Value
from graphkit.matching.value_matching import known_tensor
from graphkit.verify.cause_search import Kind
from graphkit.verify.layers.compared_model import FLOATS, Side, Steps, constant_array
from graphkit.verify.layers.measuring import FLOOR

MOST_KINDS = 24  # of constants, those nearest to the end and to the beginning first
BIASES = {"Add": (0, 1), "Gemm": (2,), "Conv": (2,), "ConvTranspose": (2,), "LayerNormalization": (2,)}
SCALES = {"Mul": (0, 1), "Div": (1,)}
Arrays = Mapping[Value, np.ndarray]


@dataclass(frozen=True, eq=False)
class Mistake:
    """A mistake that a port may make.

    Attributes:
        kind, text: What it is; the text begins with its name.
        arrays: What the original reads instead if it makes it too.
        unknown_places: How many of the last tokens have results that are not known then.
    """

    kind: Kind
    text: str
    arrays: Arrays
    unknown_places: int = 0


def make_mistakes(side: Side, value: Value) -> Iterator[tuple[Mistake, np.ndarray]]:
    """Run a model with one mistake after the other, and yield what it gives for a value.

    Those in inputs come first, then those in what is added to activations whatever these are, then constants.
    """
    nodes = Steps(side, side.feed, [value]).relevant
    used = {read for node in nodes for read in side.reads[node]}
    yield from _runs(side, value, [each for each in _input_mistakes(side) if used & each.arrays.keys()])
    roles = side.model.roles
    fixed = {*roles.all(*MASKS, "positions", "condition")}
    data = {each for each in side.inputs if each not in fixed}
    activations = list[Node]()
    for node in sorted(nodes, key=side.order.__getitem__):
        if not node.is_op(*MEASURING) and any(read in data for read in side.reads[node]):
            data.update(output for output in node.outputs if output is not None)
            activations.append(node)
    constants = _constant_mistakes(side, activations[::-1])
    yield from _runs(side, value, [*_addend_mistakes(side, activations, data), *constants])


def _runs(side: Side, value: Value, mistakes: list[Mistake]) -> Iterator[tuple[Mistake, np.ndarray]]:
    """Load a model once, and run it with each mistake."""
    replaced = list(dict.fromkeys(each for mistake in mistakes for each in mistake.arrays))
    known = dict(zip(replaced, Steps(side, side.feed, replaced).values(replaced), strict=True))
    with Steps(side, side.feed, [value], given=known).load_part(value) as run:
        for mistake in mistakes:
            with contextlib.suppress(ModelError):
                yield mistake, run(mistake.arrays)


def altered_masks(mask: np.ndarray, whole: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a mask as ports get it wrong, and how; `whole` is the one that hides nothing, and differs."""
    yield "inverted", np.where(mask == whole, mask[mask != whole][0], whole)
    for step, where in ((-1, "after"), (1, "before")) if mask.ndim else ():
        text, edge = f"shifted by one: it reads the place {where}", slice(-1, None) if step < 0 else slice(0, 1)
        yield text, np.roll(mask, step, -1)
        twice = np.roll(mask, step, -1)
        twice[..., edge] = mask[..., edge]  # the last place is there twice, or the first
        yield text, twice


def _input_mistakes(side: Side) -> Iterator[Mistake]:
    """Yield masks that are inverted, shifted or ignored, tokens one place on, and positions that begin elsewhere."""
    roles = side.model.roles
    for value in side.inputs:
        array, role = side.feed[value.name], roles.of(value)
        if role in MASKS:
            whole = make_open_mask(array, roles.polarities[value])
            if np.array_equal(array, whole):
                continue
            for how, mask in altered_masks(array, whole):
                text = f"mask {how.partition(' ')[0]}: A with '{value.name}' {how}"
                yield Mistake("mask", text, {value: mask.astype(array.dtype)})
            yield Mistake("padding", f"padding counts: A with nothing masked by '{value.name}'", {value: whole})
        elif role in ("tokens", "encoder tokens") and array.ndim and array.shape[-1] > 1:
            for step, where in ((1, "later"), (-1, "earlier")):
                text = f"tokens shifted: A with '{value.name}' one place {where}"
                moved, edge = np.roll(array, step, -1), 0 if step > 0 else -1
                for token in (array[..., edge], moved[..., edge], 0):
                    shifted = moved.copy()
                    shifted[..., edge] = token
                    yield Mistake("shifted", text, {value: shifted}, int(step < 0 and role == "tokens"))
        elif role == "positions":
            for step in (1, -1, 2, -2):
                text = f"positions off by {abs(step)}: A with {abs(step)} {'more' if step > 0 else 'less'} in "
                yield Mistake("positions", f"{text}'{value.name}'", {value: np.maximum(array + step, 0)})
            places = np.broadcast_to(np.arange(array.shape[-1], dtype=array.dtype), array.shape)
            text = f"positions count padding: A with 0, 1, 2, ... as '{value.name}'"
            yield Mistake("positions", text, {value: places})


def _addend_mistakes(side: Side, nodes: list[Node], data: set[Value]) -> Iterator[Mistake]:
    """Yield what is added to activations and depends on none, such as positions or a causal mask: twice, not at all.

    Rows of a table may also be those before or behind.
    """
    added = dict.fromkeys(read for node in nodes if node.is_op("Add") for read in node.inputs if read is not None)
    computed = (read for read in added if read not in data and known_tensor(read) is None)
    addends = [read for read in computed if side.dtype(read) in FLOATS and read not in side.unholdable]
    arrays = Steps(side, side.feed, addends).values(addends) if addends else []
    for value, array in zip(addends, arrays, strict=True):
        yield from _added_rows(value, array)
        source: Value | None = value
        while source is not None and source.producer is not None and not source.producer.is_op("Gather"):
            source = source.producer.input(0)
        table, ids = source.producer.inputs if source is not None and source.producer is not None else (None, None)
        tensor = known_tensor(table) if table is not None else None
        if source is None or ids is None or tensor is None or tensor.data_type not in FLOATS or len(tensor.dims) != 2:
            continue
        rows, index = constant_array(side.model, tensor), Steps(side, side.feed, [ids]).values([ids])[0]
        for step in (1, -1, 2, -2):
            text = f"positions off by {abs(step)}: A with the rows {abs(step)} {'behind' if step > 0 else 'before'}"
            shifted = np.clip(index + step, 0, len(rows) - 1)
            if rows[index].shape == array.shape:
                yield Mistake("positions", f"{text} in its table", {value: rows[shifted]})


def _added_rows(value: Value, array: np.ndarray) -> Iterator[Mistake]:
    if array.size and array.min() <= FLOOR:
        yield Mistake("mask", f"mask lost: A without its mask '{value.name}'", {value: np.zeros_like(array)})
        return
    yield Mistake("positions", f"positions twice: A that adds '{value.name}' twice", {value: 2 * array})
    yield Mistake("positions", f"positions lost: A without '{value.name}'", {value: np.zeros_like(array)})


def _constant_mistakes(side: Side, nodes: list[Node]) -> Iterator[Mistake]:
    """Yield biases that are lost, and scales that are lost or applied twice; those of equal layers together."""
    families = dict[str, dict[Value, np.ndarray]]()
    for node in nodes:
        for table in (BIASES, SCALES):
            for value in (node.input(at) for at in table.get(node.op_type, ()) if not node.domain):
                tensor = known_tensor(value) if value is not None else None
                if value is None or tensor is None or tensor.data_type not in FLOATS:
                    continue
                array = constant_array(side.model, tensor)
                if (array.size > 1) == (table is BIASES):
                    is_named = value.producer is None and "::" not in value.name
                    families.setdefault(value.name if is_named else node.label, {})[value] = array
    kinds = [*label_families(families).items()]
    ends = itertools.chain.from_iterable(zip(kinds, reversed(kinds), strict=True))
    for label, names in [*dict(ends).items()][:MOST_KINDS]:
        arrays = {value: array for name in names for value, array in families[name].items()}
        first = next(iter(arrays.values()))
        if first.size == 1:
            yield Mistake("scale", f"scale lost: A without '{label}'", {v: np.ones_like(x) for v, x in arrays.items()})
            yield Mistake("scale", f"scale twice: A with '{label}' twice", {v: x * x for v, x in arrays.items()})
        elif first.size > first.shape[-1]:
            yield from _added_rows(*next(iter(arrays.items())))
        else:
            yield Mistake("term", f"bias lost: A without '{label}'", {v: np.zeros_like(x) for v, x in arrays.items()})
