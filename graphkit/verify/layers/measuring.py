"""Match the tensors of two models, or of a model and its dumps, and measure how far they are apart."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from graphkit.equivalence.check import shared_values
from graphkit.errors import UsageError, did_you_mean
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import module_of
from graphkit.graph.view import Value, walk_breadth_first
from graphkit.matching.value_matching import Matching, match_graphs, may_be_equal
from graphkit.progress import Limits, Progress
from graphkit.verify.comparator import BLOCK, Difference, compare_output
from graphkit.verify.layers.compared_model import FLOATS, ArrayFile, Pair, Reader, Side

FLOOR = -1e8  # at most so much stands for minus infinity in a mask: -1e9, the least float32, -inf
MOST_TENSORS = 256  # in one step
UNKNOWN_SIZE = 1 << 20  # bytes, of a tensor whose dims are not known
SHARE = 4  # of what the outputs of a run may take, one part in so many is asked for at a time
PARTS = 8  # that a bisection runs forward by
LEAST_PART = 16  # pairs
SMALLER = 4  # times, is each next part
SEPARATORS = re.compile(r"[/.]+")
NEXT_DUMPS = 5  # that are asked for


class Measured(Struct, frozen=True, eq=False):
    """A pair of tensors, and how far the second is from the first."""

    pair: Pair
    difference: Difference | None  # the difference of their elements; None where none are numbers, and they agree
    cosine: float | None  # of the angle between them; None where one of them is all zeros, or they cannot be compared
    # whether no element differs by more than the tolerance, times the largest magnitude of the first where that is
    # above 1. Integers and booleans must be equal.
    agrees: bool


def measure_pair(pair: Pair, array_a: np.ndarray, array_b: np.ndarray, tolerance: float) -> Measured:
    """Measure how far the array of B is from that of A."""
    difference = compare_output(array_a, array_b, any_width=True, floor=FLOOR)
    if difference.problem:
        return Measured(pair, difference, None, agrees=False)
    if array_a.dtype.kind in "OUS" or not array_a.size:
        return Measured(pair, None, None, agrees=True)
    most = tolerance * max(1.0, difference.magnitude) if array_a.dtype.kind == "f" else 0.0
    flat, product, squares_of_a, squares_of_b = (array_a.ravel(), array_b.ravel()), 0.0, 0.0, 0.0
    for start in range(0, array_a.size, BLOCK):
        x, y = (array[start : start + BLOCK].astype(np.float64) for array in flat)
        known = np.isfinite(x) & np.isfinite(y) & ~((x <= FLOOR) & (y <= FLOOR))
        x, y = x[known], y[known]
        product, squares_of_a = product + float(x @ y), squares_of_a + float(x @ x)
        squares_of_b += float(y @ y)
    norm = float(np.sqrt(squares_of_a) * np.sqrt(squares_of_b))
    cosine = min(product / norm, 1.0) if norm else None
    return Measured(pair, difference, cosine, difference.absolute <= most)


def plain_array(array: np.ndarray) -> np.ndarray:
    """Return an array in float64, with 0 where numbers stand for minus infinity."""
    wide = array.astype(np.float64)
    wide[wide <= FLOOR] = 0.0
    return wide


def sweep_pairs(
    pairs: Sequence[Pair], side: Side, reader: Reader, tolerance: float, limits: Limits, progress: Progress
) -> list[Measured]:
    """Return how far apart every pair is; they come in topological order of A, which is `side`."""
    result: list[Measured] = []
    for step in _pair_steps(pairs, side, limits):
        progress(f"comparing tensors {len(result) + 1:,} to {len(result) + len(step):,} of {len(pairs):,}")
        result += [measure_pair(pair, *both, tolerance) for pair, both in zip(step, reader.read(step), strict=True)]
    return result


def _pair_steps(pairs: Sequence[Pair], side: Side, limits: Limits) -> Iterator[list[Pair]]:
    step, size, most = list[Pair](), 0, limits.outputs() // SHARE
    for pair in pairs:
        dims = side.dims(pair.a)
        needs = UNKNOWN_SIZE if dims is None or None in dims else 8 * math.prod(dim or 0 for dim in dims)
        if step and (size + needs > most or len(step) >= MOST_TENSORS):
            yield step
            step, size = [], 0
        step.append(pair)
        size += needs
    if step:
        yield step


def _count_ancestors(pairs: Sequence[Pair], side: Side) -> dict[Pair, int]:
    number = {pair.a: place for place, pair in enumerate(pairs)}
    bits: dict[Value, int] = dict.fromkeys(side.place, 0)
    for value in side.place:
        node = value.producer
        for read in side.reads[node] if node is not None else ():
            bits[value] |= bits.get(read, 0)
        if value in number:
            bits[value] |= 1 << number[value]
    return {pair: bits[pair.a] for pair in pairs}


def first_differing(measured: Sequence[Measured], side: Side) -> list[Measured]:
    """Return the pairs that differ though all their sources agree, in topological order."""
    above = _count_ancestors([m.pair for m in measured], side)
    bad = sum(1 << place for place, m in enumerate(measured) if not m.agrees)
    return [m for place, m in enumerate(measured) if not m.agrees and not above[m.pair] & bad & ~(1 << place)]


def bisect_pairs(
    pairs: Sequence[Pair], side: Side, reader: Reader, tolerance: float, progress: Progress
) -> list[Measured]:
    """Return the measurements that find a pair that differs though all its sources agree.

    Both models run forward, a part at a time, until something differs, then through that part in smaller ones. What a
    pair that agrees is computed from counts as agreeing; in the end what the found one is computed from is measured,
    and the search goes on where that is wrong. Each run goes on from the last that agreed, so that few nodes run twice.
    """
    above, known = _count_ancestors(pairs, side), dict[Pair, Measured]()

    def find_bad(some: Sequence[Pair]) -> Pair | None:
        inner = 0
        for pair in some:
            inner |= above[pair] ^ (1 << (above[pair].bit_length() - 1))  # its own bit is the last
        ends = [pair for pair in some if not inner >> (above[pair].bit_length() - 1) & 1]
        if fresh := [pair for pair in ends if pair not in known]:
            count = f"tensor {len(known) + 1:,} of at most {len(pairs):,}"
            progress(f"comparing {count}: '{fresh[0].a.name}'")
            for pair, both in zip(fresh, reader.read(fresh), strict=True):
                known[pair] = measure_pair(pair, *both, tolerance)
        return next((pair for pair in ends if not known[pair].agrees), None)

    def find_sources(pair: Pair) -> list[Pair]:
        return [source for place, source in enumerate(pairs) if above[pair] >> place & 1]

    todo, start, size = list(pairs), 0, max(LEAST_PART, -(-len(pairs) // PARTS))
    while start < len(todo):
        part = todo[start : start + size]
        if find_bad(part) is None:
            reader.keep()
            start += size
            continue
        reader.back()
        if len(part) > 1:
            size = max(1, len(part) // SMALLER)
            continue
        if (bad := find_bad([pair for pair in find_sources(part[0]) if pair is not part[0]])) is None:
            break
        todo, start = find_sources(bad), 0
    return sorted(known.values(), key=lambda measured: side.place[measured.pair.a])


def match_models(a: Side, b: Side, names_in_b: Mapping[str, str], *, by_order: bool = False) -> list[Pair]:
    """Return the tensors of the main graphs that match, in the topological order of `a`.

    Those match first of which `names_in_b` tells the name, and those of one name; then what has one normal form,
    whatever it is called, and the rest by structure: see `match_graphs`. Outputs that are left match where no others
    are of their type and dims. With `by_order`, what is left within a module of one path, of one operator and dims,
    goes by order where both have as many. Raises UsageError where a name of `names_in_b` does not exist, or stands
    there twice.
    """
    matching = Matching()
    for side in (a, b):
        matching.numbers.add(side.model)
    for name_a, name_b in names_in_b.items():
        if not matching.add(_value_named(a, name_a), _value_named(b, name_b), "map"):
            raise UsageError(f"--map {name_a}={name_b}: '{name_b}' stands for two tensors - map each once")
    names_in_a = {name_b: name_a for name_a, name_b in names_in_b.items()}
    equal = shared_values(a.model, b.model, matching.numbers.constants, b.spec, names_in_a)
    match_graphs(matching, a, b, equal=equal, by_order=by_order)
    open_a = [value for value in a.model.graph.outputs if value.producer and value not in matching.forth]
    open_b = [value for value in b.model.graph.outputs if value.producer and value not in matching.back]
    types = {value: getattr(declared_type(value), "dtype", None) for value in (*open_a, *open_b)}
    open_pairs = [(x, y) for x in open_a for y in open_b if types[x] == types[y] and may_be_equal(a.dims(x), b.dims(y))]
    for pair in open_pairs:
        if sum(not {*pair}.isdisjoint(other) for other in open_pairs) == 1:
            matching.add(*pair, "output")
    pairs = {value_a: matching.forth[value_a] for value_a in a.place if matching.forth.get(value_a) in b.place}
    holdable = [x for x, y in pairs.items() if x not in a.unholdable and y not in b.unholdable]
    return [Pair(value, pairs[value], matching.how[value]) for value in holdable]


def _value_named(side: Side, name: str) -> Value:
    if (value := side.model.graph.values.get(name)) is None or value not in side.place:
        hint = did_you_mean(name, (value.name for value in side.place), "`graphkit shapes` lists them")
        raise UsageError(f"--map: {side.model.label} computes no tensor '{name}' in its main graph - {hint}")
    return value


def match_dumps(side: Side, dumps: ArrayFile, dump_names: Mapping[str, str]) -> list[Pair]:
    """Return the tensors that have a dump, in topological order.

    A dump matches the tensor of its name, or the one tensor that leaves the module of its name (`encoder.layers.0.fc1`
    is what leaves `/encoder/layers.0/fc1`); where several leave it, none. Raises UsageError where a name of
    `dump_names` does not exist.
    """
    names = {value.name: value for value in side.place if value not in side.unholdable}
    matched: dict[Value, tuple[str, str]] = {}
    for tensor_name, dump_name in dump_names.items():
        if tensor_name not in names:
            hint = did_you_mean(tensor_name, names, "`graphkit shapes` lists them")
            raise UsageError(f"--map: {side.model.label} has no tensor '{tensor_name}' - {hint}")
        if dump_name not in dumps.names:
            hint = did_you_mean(dump_name, dumps.names)
            raise UsageError(f"--map: {dumps.label} has no array '{dump_name}' - {hint}")
        matched[names[tensor_name]] = (dump_name, "map")
    leaving = _values_leaving(side)
    for name in dumps.names:
        if name in dump_names.values():
            continue
        values = [names[name]] if name in names else leaving.get(_name_path(name), [])
        if len(values) == 1 and values[0] not in matched:
            matched[values[0]] = (name, "name" if name in names else "module")
    dumps.find_layouts({name: side.dims(value) for value, (name, _) in matched.items()})
    return [Pair(value, *matched[value]) for value in side.place if value in matched]


def _name_path(name: str) -> tuple[str, ...]:
    return tuple(part for part in SEPARATORS.split(name) if part)


def _values_leaving(side: Side) -> dict[tuple[str, ...], list[Value]]:
    """Return the tensors that are read outside the module that computes them, or come out of the model, by module."""
    outputs = set(side.model.graph.outputs)
    leaving: dict[tuple[str, ...], list[Value]] = {}
    for value in side.place:
        path = _name_path(module_of(value.producer)) if value.producer is not None else ()
        if not path or value in side.unholdable:
            continue
        readers = [_name_path(module_of(node)) for node, _ in value.consumers]
        for depth in range(len(path), 0, -1):
            module = path[:depth]
            if value in outputs or any(reader[:depth] != module for reader in readers):
                leaving.setdefault(module, []).append(value)
    return leaving


def find_next_dumps(side: Side, first: Value, known: Sequence[Value]) -> dict[str, Value]:
    """Return the tensors whose dumps would narrow down best where a difference begins, by the names to dump them by.

    They are spread over what `first`, the first tensor that differs, is computed from, and leave modules where names
    tell of these. What is `known` agrees.
    """

    def sources(value: Value) -> Sequence[Value]:
        return side.reads[value.producer] if value.producer is not None and value.producer in side.reads else ()

    fine = set(walk_breadth_first(known, sources))
    asked = [each for each in walk_breadth_first([first], sources) if each not in fine and each is not first]
    asked = [each for each in asked if each in side.place and each.producer and side.dtype(each) in FLOATS]
    paths: dict[Value, tuple[str, ...]] = {}
    for path, values in sorted(_values_leaving(side).items(), key=lambda item: len(item[0])):
        if len(values) == 1 and values[0] in asked:
            paths.setdefault(values[0], path)
    chosen = sorted(paths or asked, key=side.place.__getitem__)
    for depth in range(1, max(map(len, paths.values()), default=0)):
        outer = [value for value in chosen if len(paths[value]) <= depth]
        if len(outer) >= NEXT_DUMPS:
            chosen = outer
            break
    count = min(NEXT_DUMPS, len(chosen))
    spread = [chosen[(2 * number + 1) * len(chosen) // (2 * count)] for number in range(count)]
    return {".".join(paths[value]) if value in paths else value.name: value for value in spread}
