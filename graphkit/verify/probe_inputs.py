"""What runs of a model tell of its inputs: which elements of a mask hide, and what is as long as the tokens.

It is for the oracle of proofs, which may not ask what a rewrite asked: nothing here looks at nodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache

import numpy as np

from graphkit.errors import ModelError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.roles import Role, declared_rank, dim_at
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.shapes.constraints.failing_sizes import SizeCheck
from graphkit.shapes.constraints.legal_sizes import Sizes, symbol_roles
from graphkit.verify.input_generator import InputGenerator

Arrays = Mapping[str, np.ndarray]
KEEPING = (1, 0)  # the elements of a mask for what counts and for padding, as tokenizers and feature extractors make it
ELEMENTS = (KEEPING, (0, 1))
ADDED = (0, -1e9)  # as well where a mask holds floats
LENGTHS = (8, 12, 16, 32, 64, 128, 512, 2048, 8192)  # that are tried
TRIED = 4  # lengths at which it runs
HIDDEN = 3  # of a length, one part in so many
CLEAR = 4  # times less influence than another one is less
NONE = 1e-5  # of the largest output: no influence
SOURCES: tuple[Role, ...] = ("tokens", "encoder tokens", "embeddings", "audio")
REACH = 1024  # how far a length is looked for at which the original runs
_size_check = lru_cache(maxsize=4)(SizeCheck)


class InputProbe:
    """Finds out about the inputs of a model by running it."""

    def __init__(self, model: Model, run: Callable[[Arrays], Arrays]) -> None:
        self.model, self.run = model, run
        self._elements: dict[Value, tuple[float, float]] = {}

    def elements(self, mask: Value) -> tuple[float, float]:
        """Return the element of a mask for what counts, and that for padding.

        The right ones are those with which the content of padding changes nothing elsewhere. Where runs do not tell,
        they are those of tokenizers.
        """
        if mask not in self._elements:
            self._elements[mask] = self._find_polarity(mask)
        return self._elements[mask]

    def _find_polarity(self, mask: Value) -> tuple[float, float]:
        source, declared = self._source, declared_type(mask)
        if source is None or declared is None or declared.rank != 2:
            return KEEPING
        choices = (*ELEMENTS, ADDED) if declared.is_float else ELEMENTS
        is_sound = self.model.roles.of(source) == "audio"
        runnable = filter(self._runs_at, self._runnable_lengths())
        for length in itertools.islice(runnable, TRIED):  # of a short one, what is left may not run
            is_told = False
            for is_first in (False,) if is_sound else (True, False):
                apart = {choice: self._measure_influence(mask, source, choice, length, is_first) for choice in choices}
                least, second, *_ = sorted(apart.values())
                if least * CLEAR < second and not (least > NONE and math.isinf(second)):
                    return min(apart, key=apart.__getitem__)
                is_told = is_told or not math.isinf(least)
            if is_told:
                break
        return KEEPING

    @cached_property
    def _source(self) -> Value | None:
        return next(iter(self.model.roles.all(*SOURCES)), None)

    def _runnable_lengths(self) -> Iterator[int]:
        yield from LENGTHS
        if (length := nearest_length(self.model, LENGTHS[1])) is not None:
            yield length

    def _measure_influence(
        self, mask: Value, source: Value, elements: tuple[float, float], length: int, is_first: bool
    ) -> float:
        """Return how far what counts changes with the content of padding, relative to the largest output; infinite
        where it does not run so, and where content changes nothing though all of it counts.

        Padding of a text may come first: behind it, a causal mask would hide it anyway. Where the first token stands
        for the text, it has to come last, as that of a sound does.
        """
        count = length // HIDDEN
        hidden = slice(0, count) if is_first else slice(length - count, length)
        feed, other = (self._input_maker.arrays(self._shapes(length), seed=seed) for seed in (1, 2))
        array, changed = np.full_like(feed[mask.name], elements[0]), feed[source.name].copy()
        array[:, hidden] = elements[1]
        changed[:, hidden] = other[source.name][:, hidden]
        roles = self.model.roles.outputs
        names = [value.name for value, role in roles.items() if role not in ("present", "next state")]
        whole = np.full_like(array, elements[0])
        try:
            first, second, all_first, all_second = (
                self.run({**feed, mask.name: each, source.name: content})
                for each in (array, whole)
                for content in (feed[source.name], changed)
            )
        except ModelError:
            return math.inf
        if all(np.array_equal(all_first[name], all_second[name], equal_nan=True) for name in names):
            return math.inf  # what counts has to matter
        names = [name for name in names if first[name].ndim > 2] or names
        share = (length - count) / length
        return max((_outputs_apart(first[name], second[name], share, from_end=is_first) for name in names), default=0.0)

    @cached_property
    def following_inputs(self) -> frozenset[tuple[str, int]]:
        """The inputs that have to be as long as the source, each with the axis: else nothing runs."""
        open_axes = {
            (value.name, axis)
            for value in self.model.roles.inputs
            for axis in range(1, declared_rank(value) or 0)
            if isinstance(dim_at(value, axis), str) and self.model.roles.axis(value, axis) not in ("batch", "past")
        }
        length = next((length for length in self._runnable_lengths() if self._runs_at(length)), 0)
        if self._source is None or not length or (self._source.name, 1) not in open_axes:
            return frozenset()
        for other in (length - 1, length - 2, length // 2):
            tied = {place for place in open_axes if not self._runs_at(length, {place: other})}
            for count in range(len(tied) + 1):
                for places in itertools.combinations(sorted(tied - {(self._source.name, 1)}), count):
                    if self._runs_at(length, dict.fromkeys([(self._source.name, 1), *places], other)):
                        return frozenset(places)
        return frozenset()

    def _runs_at(self, length: int, others: Mapping[tuple[str, int], int] = {}) -> bool:
        try:
            shapes = dict(self._shapes(length))
            for (name, axis), other in others.items():
                shape = shapes[name] or ()
                shapes[name] = (*shape[:axis], other, *shape[axis + 1 :])
            self.run(self._input_maker.arrays(shapes))
        except ModelError:
            return False
        return True

    def _shapes(self, length: int) -> Mapping[str, tuple[int, ...] | None]:
        roles, names = self.model.roles, set[str]()
        for value in roles.inputs:
            declared = declared_type(value)
            dims = enumerate((declared.dims if declared is not None else None) or ())
            of_lengths = [dim for axis, dim in dims if axis and roles.axis(value, axis) not in ("batch", "past")]
            names |= {dim for dim in of_lengths if isinstance(dim, str)}
        return self._input_maker.shapes(Sizes(1, length, 0, length, tuple((name, length) for name in sorted(names))))

    @cached_property
    def _input_maker(self) -> InputGenerator:
        return InputGenerator(self.model)


def _outputs_apart(first: np.ndarray, second: np.ndarray, share: float, *, from_end: bool) -> float:
    """Return how far two outputs are apart in the share of their positions that counts, relative to their largest."""
    if first.dtype.kind != "f" or first.shape != second.shape or not first.size:
        return 0.0
    if first.ndim > 2:
        count = max(1, int(first.shape[1] * share))
        part = slice(first.shape[1] - count, None) if from_end else slice(0, count)
        first, second = first[:, part], second[:, part]
    wide, other = first.astype(np.float64), second.astype(np.float64)
    if not (np.isfinite(wide).all() and np.isfinite(other).all()):
        return math.inf
    return float(np.abs(wide - other).max() / max(1.0, np.abs(wide).max()))


def fixed_length(encoder: Model) -> int | None:
    """Return how many tokens an encoder takes where it takes no other number of them, else None."""
    if (declared := _declared_length(encoder)) is not None or encoder.roles.first("tokens") is None:
        return declared
    least = nearest_length(encoder, 1)
    return least if least is not None and nearest_length(encoder, 4 * least) == least else None


def _declared_length(encoder: Model) -> int | None:
    ids = encoder.roles.first("tokens")
    declared = declared_type(ids) if ids is not None else None
    length = declared.dims[-1] if declared is not None and declared.dims else None
    return length if isinstance(length, int) else None


def nearest_length(encoder: Model, length: int) -> int | None:
    """Return the length of a source at which an encoder runs that is nearest to this one, None for none."""
    if (fixed := _declared_length(encoder)) is not None:
        return fixed
    roles = symbol_roles(encoder)
    names = frozenset(name for name, role in roles.items() if role in ("encoder", "sequence", "total"))
    rows = dict.fromkeys((name for name in roles if roles[name] == "batch"), 1)
    return _size_check(encoder).nearest(rows, names, length, REACH)
