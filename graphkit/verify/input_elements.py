"""The elements of a run's inputs: usual ones, masks with padding, edges of dtypes and roles, special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from ml_dtypes import finfo
from msgspec import Struct, field
from msgspec.structs import replace

from graphkit.dtypes import inline_array
from graphkit.errors import ModelError
from graphkit.graph.dataflow import find_readers
from graphkit.graph.mask_polarity import Polarity, mask_elements
from graphkit.graph.operator_traits import COMPARING, PICKING, PRESERVING, operator_set, value_inputs
from graphkit.graph.view import Node, all_nodes, unwrap_value
from graphkit.io.read import CONFIGURATIONS
from graphkit.model import Model

Kind = Literal["usual", "edges", "extremes", "not finite"]
Padding = Literal["full", "right", "left", "holes", "empty", "above", "below"]  # the last ones of 0, 1 and 2, or -1
BY_ROW: tuple[Padding, ...] = ("left", "right", "holes", "full")
MAX_BYTES = 16 << 20  # of all defaults that are overridden together
FLOATS = (0.0, 1.0, -1.0, 0.5, -0.5, 5.0, -3.0, -0.0, 1.5, 2.5, -2.5, 3.0, 6.0, -5.0, 7.0, 10.0, -10.0, 0.1, 1e-3, 1e-6)
LARGE_FLOATS = (1e30, -1e30, 65504.0, -65504.0, 1e-30, 16777217.0, 89.0, -104.0, np.inf, -np.inf, 1e4, -1e4, 2.0**63)
NOT_FINITE = (np.nan, np.inf, -np.inf)
INTEGERS = (0, -1, 1, -2, 2, 3, -3, 7, -7, 10, 51, 100, -100, 255, 256, 1000)
LARGE_INTEGERS = (
    2**62 + 1, -(2**62) - 1, 2**31, -(2**31) - 1, 2**24 + 1, -(2**24) - 1, 2**32 + 1, 2**53 + 1, 2**63 - 1, -(2**63),
    2**31 - 1, -(2**31), 32767, -32768, 65535, 127, -128,
)  # fmt: skip
LIMITING = COMPARING | operator_set("Clip Max Min Mod ThresholdedRelu")
MAX_MARKS = 24
MAX_MARK_ELEMENTS = 8
T = TypeVar("T")
MOST = 16  # tokens: some tokenizers add hundreds
MOVES = PRESERVING | PICKING | {"Cast"}
KEEPING_PLACES = (*MOVES, "Add", "And", "Mul", "Not", "Or", "Where")
CHOOSING = ("ArgMax", "ArgMin", "TopK")
TOKEN_FIELDS = ("_token_id", "_token_index")
MAX_TOKENIZER_BYTES = 1 << 26  # of a tokenizer's file
MAX_SPECIAL_ROWS = 512  # that get special tokens


class Draw(Struct, frozen=True):
    """How the elements of a run are drawn."""

    # usual elements; small ones where operators change their behaviour, and ties; the largest and the smallest of a
    # dtype; NaN and infinities
    kind: Kind = "usual"
    # of the rows of masks, of which the last one counts for all rows that follow
    padding: tuple[Padding, ...] = ("full", "right")
    number: int = 0  # of the draw: which special tokens stand where, and which edges come first
    overridden: bool = False  # whether inputs with a default are fed something else
    only: str = ""  # the one input that gets edges, "" for all that may
    divides: bool = True  # whether integers among the edges may be 0 and -1, which end a process that divides by them

    @classmethod
    def usual(cls, number: int) -> Draw:
        """Return usual elements, with masks whose padding differs from run to run; the first prompt has none."""
        start = number % len(BY_ROW)
        return cls(padding=("full", *BY_ROW) if not number else (*BY_ROW[start:], *BY_ROW[:start]), number=number)

    def milder(self, inputs: Sequence[str]) -> Iterator[Draw]:
        """Yield milder draws for a model that fails: no divisors of 0, then edges of one input after the other."""
        yield self
        if self.kind == "usual":
            return
        yield replace(self, divides=False)
        if len(inputs) > 1:
            yield from (replace(self, divides=False, only=name) for name in inputs)

    def row(self, index: int) -> Padding:
        """Return the padding of a row of a mask."""
        return self.padding[min(index, len(self.padding) - 1)]


NAMES: Mapping[Kind, str] = {"edges": "edge values", "extremes": "extreme values", "not finite": "NaN and infinities"}
USUAL = Draw()
UNPADDED = Draw(padding=("full",), number=1)  # whose masks of floats multiply
LEAST_WITH_HOLES = 3
MAX_ROWS = 512  # that may be padded
FLOORS = (-1e4, None, -np.inf)  # what is added where a mask hides something; None for the least finite number
HIDING = (-np.inf, None)  # those next to which no score counts
FLOAT_MASKS = 3  # draws that show a row that hides all in each way


def padding_mask(shape: tuple[int, ...], rng: np.random.Generator, least: int = 1, draw: Draw = USUAL) -> np.ndarray:
    """Return ones, with zeros where the draw says; each row but an empty one keeps at least `least` ones, and one.

    Masks of more than two axes are of the last axis, the same for all that is between it and the first one.
    """
    mask = np.ones(shape, np.int64)
    if len(shape) < 2 or 0 in shape:
        return mask
    for row in range(min(shape[0], MAX_ROWS)):
        mask[row] = _mask_row(draw.row(row), shape[-1], max(least, 1), rng)
        if draw.row(row) == "holes" and len(shape) > 2:
            mask[row] &= rng.random(shape[1:]) < 0.7
            mask[row][..., 0] = 1
    return mask


def _mask_row(padding: Padding, size: int, least: int, rng: np.random.Generator) -> np.ndarray:
    row = np.ones(size, np.int64)
    if padding == "empty":
        return row * 0
    if padding in ("above", "below"):
        return rng.choice((0, 1, 2, 4), size) - (padding == "below")
    if size <= least or padding == "full":
        return row
    if padding == "holes" and size - least >= 1 and size >= LEAST_WITH_HOLES:
        row[rng.permutation(np.arange(1, size - 1))[: max(min((size - 1) // 2, size - least), 1)]] = 0
        return row
    count = int(rng.integers(1, size - least + 1))
    row[slice(0, count) if padding == "left" else slice(size - count, None)] = 0
    return row


def image_mask(shape: tuple[int, ...], rng: np.random.Generator, draw: Draw = USUAL) -> np.ndarray:
    """Return masks [batch, height, width] of images that fill a batch's size from the upper left corner."""
    mask = np.ones(shape, np.int64)
    if len(shape) < 3 or 0 in shape:
        return padding_mask(shape, rng, draw=draw)
    for row in range(shape[0]):
        padding = draw.row(row)
        if padding == "empty":
            mask[row] = 0
        elif padding != "full":
            mask[row][..., :, int(rng.integers(1, shape[-1] + 1)) :] = 0
            mask[row][..., int(rng.integers(1, shape[-2] + 1)) :, :] = 0
    return mask


def float_mask(
    shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator, draw: Draw, polarity: Polarity | None = None
) -> np.ndarray:
    """Return a mask of floats, which models multiply with or add; one with a row that hides all is no bias."""
    hides_all, is_added = "empty" in draw.padding, polarity in ("adds", None)
    if draw.number % 3 == 2 and is_added and not hides_all:
        return rng.standard_normal(shape)
    keep = padding_mask(shape, rng, draw=draw)
    if not is_added or (draw.number % 3 == 1 and len(shape) < 3 and polarity is None):
        return mask_elements(keep, polarity).astype(np.float64)
    floor = HIDING[min(draw.number % 3, 1)] if hides_all else FLOORS[draw.number // 3 % len(FLOORS)]
    return np.where(keep == 0, float(np.finfo(dtype).min) if floor is None else floor, 0.0)


class Marks(Struct, frozen=True):
    """Numbers that the nodes of models compare with."""

    integers: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()

    def __or__(self, other: Marks) -> Marks:
        return Marks(_distinct((*self.integers, *other.integers)), _distinct((*self.floats, *other.floats)))


def marks_of(model: Model) -> Marks:
    """Return the numbers that the nodes of a model compare with, as far as they are small constants."""
    numbers = list[int | float]()
    for node in (node for node in all_nodes(model.scopes) if node.is_op(*LIMITING)):
        for value in node.inputs:
            array = inline_array(value.constant) if value is not None else None
            if array is not None and array.dtype.kind in "fiu" and array.size <= MAX_MARK_ELEMENTS:
                numbers += [each for each in array.ravel().tolist() if np.isfinite(each) and abs(each) < 2**62]
        limits = (node.attr(name, float) for name in ("alpha", "min", "max"))
        numbers += [number for number in limits if isinstance(number, float) and np.isfinite(number)]
    integers = _distinct(int(number) for number in numbers if float(number).is_integer())
    return Marks(integers[:MAX_MARKS], _distinct(map(float, numbers))[:MAX_MARKS])


def _distinct(numbers: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(numbers))


def edges_of(dtype: np.dtype, draw: Draw, marks: Marks) -> np.ndarray:
    """Return the edges of a dtype, each once, the most telling first."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        around = (near for number in marks.integers for near in (number, number - 1, number + 1))
        ends = (int(limits.max), int(limits.min))
        chosen = (*ends, *LARGE_INTEGERS) if draw.kind == "extremes" else (*INTEGERS, *around)
        fitting = (each for each in chosen if ends[1] <= each <= ends[0] and (draw.divides or each not in (0, -1)))
        return np.array(_distinct(fitting), dtype)
    if draw.kind == "not finite":
        return np.array(NOT_FINITE).astype(dtype)
    with np.errstate(over="ignore"):
        if draw.kind == "extremes":
            info = finfo(dtype)  # type: ignore[no-untyped-call]
            large: np.ndarray = np.clip(np.array(LARGE_FLOATS), float(info.min), float(info.max)).astype(dtype)
            return large
        near = [number for mark in marks.floats for number in (mark, np.nextafter(mark, -np.inf), mark + 1, mark - 1)]
        return np.array((*FLOATS, *near)).astype(dtype)


def draw_array(usual: np.ndarray, edges: np.ndarray, rng: np.random.Generator, draw: Draw) -> np.ndarray:
    """Return an array with edges among its usual elements.

    Small edges may stand anywhere, with rows of one element, and with the greatest at both ends. Extremes, NaN and
    infinities stay in two rows of a batch, so that what the other rows give still tells something.
    """
    array: np.ndarray = usual.copy()
    if not array.size:
        return array
    if array.size < len(edges):  # each run shows others
        array[...] = edges[(draw.number * array.size + np.arange(array.size)) % len(edges)].reshape(array.shape)
        return array
    if draw.kind == "edges":
        array = np.where(rng.random(array.shape) < 0.6, rng.choice(edges, array.shape), array)
        array.reshape(-1)[rng.permutation(array.size)[: len(edges)]] = edges
        _tie_elements(array, edges)
    elif array.ndim > 1 and array.shape[0] > 2:
        enough = max(2, -(-len(edges) // array[0].size))
        rows = array[1 : max(min(1 + enough, array.shape[0] - 1), 2)]
        rows[...] = edges[(draw.number + np.arange(rows.size)) % len(edges)].reshape(rows.shape)
        rows[-1] = np.where(rng.random(rows[-1].shape) < 0.5, rows[-1], array[0])
    else:
        array.reshape(-1)[rng.permutation(array.size)[: len(edges)]] = edges
    return array


def _tie_elements(array: np.ndarray, edges: np.ndarray) -> None:
    if not array.ndim or array.shape[-1] < 2:
        return
    rows = array.reshape(-1, array.shape[-1])
    if len(rows) > 1:
        rows[1 % len(rows)] = edges[0]
    for row in rows[2:3] if len(rows) > 2 else rows[:1]:
        row[0] = row[-1] = row.max()
        if len(row) > 3:
            row[1] = row[-2] = row.min()


class Defaults(Struct, frozen=True):
    """The defaults of inputs that runs may override."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    kept: tuple[str, ...] = ()  # inputs whose defaults no run overrides: they are large, or decide the sizes of tensors

    @classmethod
    def of(cls, model: Model, others: Sequence[Model] = ()) -> Defaults:
        """Return those of a model that all others take as inputs too."""
        arrays, kept, size = dict[str, np.ndarray](), list[str](), 0
        taken = [{value.name for value in each.graph.inputs} for each in others]
        for value in model.graph.inputs:
            if value.tensor is None or not value.consumers or not all(value.name in names for names in taken):
                continue
            array = None
            with suppress(ModelError):  # its data file is missing
                array = model.array(value.tensor)
            steers = any(index in value_inputs(node) for node, index in value.consumers)
            if array is None or size + array.nbytes > MAX_BYTES or steers:
                kept.append(value.name)
            else:
                size += array.nbytes
                arrays[value.name] = array
        return cls(arrays, tuple(kept))

    def override_elements(self, draw: Draw) -> dict[str, np.ndarray]:
        """Return other elements for each of them: integers in another order, as they may be indices."""
        rng = np.random.default_rng(draw.number)

        def other(array: np.ndarray) -> np.ndarray:
            if array.dtype.kind == "f":
                return (array * 0.75 + rng.standard_normal(array.shape) * 0.1).astype(array.dtype)
            if array.dtype.kind == "b":
                return ~array
            is_number = array.size == 1 and array.dtype.kind in "iu"
            return (array + 1).astype(array.dtype) if is_number else np.roll(array, 1)

        return {name: other(array) for name, array in self.arrays.items()}


def special_tokens(models: Sequence[Model], vocabulary: int) -> tuple[list[int], list[int]]:
    """Return the special tokens of an export: those that ids are compared with, of its configuration and tokenizer.

    The second are those that a model takes for padding by itself wherever they stand. The files are read where they are
    beside the models. Tokens are below `vocabulary`.
    """
    compared = {token: nodes for model in models for token, nodes in _compared_constants(model).items()}
    pads = list[int]()  # whose comparisons give a mask, and find no place, as those of an end token do
    for token, nodes in compared.items():
        values = [value for node in nodes for value in node.outputs if value is not None]
        uses = (use for value in values for use in find_readers(value, lambda node, _: node.is_op(*KEEPING_PLACES)))
        if not any(reader.is_op(*CHOOSING) for reader, _ in uses):
            pads.append(token)
    named = list[int]()
    for folder in dict.fromkeys(model.path.parent for model in models if model.path is not None):
        for name in CONFIGURATIONS:
            named += _of_configuration(_read_json(folder / name))
        added = _read_json(folder / "tokenizer_config.json").get("added_tokens_decoder")
        named += [int(text) for text in added if text.isdecimal()] if isinstance(added, Mapping) else []
        listed = _read_json(folder / "tokenizer.json").get("added_tokens")
        entries = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
        named += [each for entry in entries if isinstance(each := entry.get("id"), int)]
    known = [token for token in dict.fromkeys([*compared, *named]) if 0 <= token < vocabulary and token not in pads]
    return known[:MOST], [token for token in pads if token < vocabulary]


def place_token(token: int, ids: Sequence[int], where: Sequence[int], usual: int) -> list[int]:
    """Return ids with a token at these places and another one wherever else it stood."""
    return [token if place in where else usual if id_there == token else id_there for place, id_there in enumerate(ids)]


def _compared_constants(model: Model) -> dict[int, list[Node]]:
    nodes_by_token: dict[int, list[Node]] = {}
    for ids in model.roles.all("tokens", "encoder tokens"):
        for node, index in find_readers(ids, lambda node, index: index == 0 and node.is_op(*MOVES)):
            compared_with = node.input(1 - index) if node.is_op(*COMPARING) else None
            tensor = unwrap_value(compared_with, MOVES).constant if compared_with is not None else None
            is_small = tensor is not None and int(np.prod(tensor.dims)) <= MOST
            for token in model.array(tensor).ravel() if tensor is not None and is_small else ():
                nodes_by_token.setdefault(int(token), []).append(node)
    return nodes_by_token


def _of_configuration(plain: Mapping[str, object]) -> Iterator[int]:
    for name, entry in plain.items():
        if isinstance(entry, dict):
            yield from _of_configuration(entry)
        elif name.endswith(TOKEN_FIELDS):
            yield from (token for token in (entry if isinstance(entry, list) else [entry]) if type(token) is int)


def _read_json(path: Path) -> Mapping[str, object]:
    """Return a file of JSON, nothing where it is none: the proof does not depend on these files."""
    try:
        plain = json.loads(path.read_bytes()) if path.is_file() and path.stat().st_size <= MAX_TOKENIZER_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def with_specials(ids: np.ndarray, specials: Sequence[int], draw: Draw) -> np.ndarray:
    """Return ids in which each row has a special token at one of its places, and no row another one by chance."""
    array: np.ndarray = ids.copy()
    if not array.size or not array.ndim or not specials:
        return array
    usual = next((token for token in range(int(ids.max()), -1, -1) if token not in specials), None)
    if usual is not None:
        array[np.isin(array, specials)] = usual
    for index, row in enumerate(array.reshape(-1, array.shape[-1])[:MAX_SPECIAL_ROWS]):
        turn = draw.number + index
        size = len(row)
        places: tuple[list[int], ...] = ([0], [size // 2], [size - 1], [size // 3, size - 1], [0, size - 1], [])
        row[places[turn % len(places)]] = specials[turn % len(specials)]
    return array
