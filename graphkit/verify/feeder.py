"""The inputs of a model's runs at its legal sizes, from a seed, with flags and arrays that are given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphkit.graph.roles import MASKS
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.runtime.isolation import current_limits
from graphkit.shapes.constraints.dim_equalities import fed_inputs
from graphkit.shapes.constraints.legal_sizes import LegalSizes
from graphkit.verify.comparator import Output
from graphkit.verify.critical_sizes import Threshold, find_thresholds, lengths_of
from graphkit.verify.input_elements import USUAL, Defaults, Draw, Kind
from graphkit.verify.input_generator import InputGenerator, is_flag
from graphkit.verify.rewrite_proof import RunSizes

MAX_FLAGS = 2  # flags of which all combinations are run
KINDS: tuple[Kind, ...] = ("edges", "extremes", "not finite")
Flags = dict[str, bool]


@dataclass(frozen=True, eq=False)
class Run(RunSizes):
    """A feed, and the original's outputs for it.

    Attributes:
        empty: The dims that are 0 there, although they count from 1 on elsewhere.
    """

    seed: int
    expected: Mapping[str, Output]
    draw: Draw = USUAL
    empty: tuple[str, ...] = ()


class Feeder:
    """Makes the inputs of a model at its legal sizes, from a seed; arrays that are given stand for generated ones.

    Args:
        model: The original.
        legal: The sizes at which both run.
        given: Arrays for inputs.
        seed: Of the generator.
        others: What was made of the original: numbers that these models compare with are edges too.
        kinds: Kinds of edges of values to try.
        is_unpadded: Whether masks hide nothing.
    """

    def __init__(
        self,
        model: Model,
        legal: LegalSizes,
        given: Mapping[str, np.ndarray],
        seed: int,
        *,
        others: Sequence[Model] = (),
        kinds: Sequence[Kind] = KINDS,
        is_unpadded: bool = False,
    ) -> None:
        self.sizes, self.given, self.kinds = legal, given, kinds
        self.inputs: Mapping[str, Value] = fed_inputs(model)
        self.models = (model, *others)
        most = current_limits().inputs()
        self.maker = InputGenerator(model, seed, others=others, most=most, is_unpadded=is_unpadded)
        self.defaults = Defaults.of(model, others)
        self.lengths = lengths_of(model)
        merged = model.roles.decoder
        self.reading = {} if merged is None else {merged.condition.input.name: merged.cache_when}
        self.flag_shapes = {} if merged is None else {merged.condition.input.name: merged.condition.shape}

    def flags(self) -> list[Flags]:
        """Return the combinations of flags to run, at least one."""
        names = [*(name for name, value in self.inputs.items() if is_flag(value)), *self.reading]
        given = {name: (bool(self.given[name].all()),) for name in names if name in self.given}
        values = {name: given.get(name, (False, True)) for name in names}
        if sum(len(choices) > 1 for choices in values.values()) > MAX_FLAGS:
            return [{name: choices[at] for name, choices in values.items()} for at in (0, -1)]
        return [dict(zip(values, flags, strict=True)) for flags in itertools.product(*values.values())]

    def legal(self, flags: Flags) -> LegalSizes:
        """Return the legal sizes with these flags."""
        reads_past = any(flags.get(name) == flag for name, flag in self.reading.items())
        return self.sizes.for_branch(is_first=self.is_first(flags), reads_past=reads_past)

    def is_first(self, flags: Flags) -> bool:
        """Whether a merged decoder runs its first step with these flags."""
        return any(flags.get(name) == (not flag) for name, flag in self.reading.items())

    @cached_property
    def thresholds(self) -> tuple[Threshold, ...]:
        """The constants that dims meet; those of the rewritten model alone come first."""
        original, *others = map(find_thresholds, self.models)
        return (*(met for rewritten in others for met in rewritten if met not in original), *original)

    def unlike(self, dims: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yield sizes at which dims of one name differ: no runtime checks that they are equal."""
        roles, places = self.models[0].roles, dict[str, dict[tuple[str, int], list[str]]]()
        for name, value in self.inputs.items():
            role = roles.of(value)
            for axis, dim in enumerate((self.sizes.inputs[name] or ()) if value.consumers else ()):
                if dim.name is not None:
                    kinds = places.setdefault(dim.name, {})
                    kinds.setdefault((name if role == "other" else role, axis), []).append(f"{name}.{axis}")
        for shared, kinds in places.items():
            for others in [*kinds.values()][1:]:
                for size in {1, 2 * dims[shared]} - {dims[shared]}:
                    yield {**dims, **dict.fromkeys(others, size)}

    def again(self, run: Run) -> dict[str, np.ndarray]:
        """Return the inputs of a run once more."""
        return self.feed(run.dims, run.flags, run.seed, run.draw)

    def edge_kinds(self, dims: Mapping[str, int], *, is_first: bool) -> dict[Kind, int]:
        """Return the kinds of edges that generated inputs have at some sizes, with the draws that show them all."""
        every = self.sizes.shapes(dims, is_first=is_first)
        shapes = {name: shape for name, shape in every.items() if name not in self.given}
        return {kind: draws for kind in self.kinds if (draws := self.maker.draws(kind, shapes))}

    @property
    def is_exact(self) -> bool:
        """Whether both models are to give the same at all edges of values."""
        return set(self.kinds) == set(KINDS)

    def at(self, legal: LegalSizes) -> Feeder:
        """Return a feeder for other sizes."""
        return Feeder(self.models[0], legal, self.given, self.maker.seed, is_unpadded=self.maker.is_unpadded)

    def shapes(self, run: Run) -> dict[str, tuple[int, ...] | None]:
        """Return the shapes of the inputs of a run."""
        return self.sizes.shapes(run.dims, is_first=self.is_first(run.flags))

    def rows(self, run: Run) -> int:
        """Return how many rows the masks have in a run."""
        shapes = self.shapes(run)
        mask_shapes = [shapes.get(value.name) for value in self.maker.model.roles.all(*MASKS)]
        return max((shape[0] for shape in mask_shapes if shape), default=0)

    def edged_inputs(self, draw: Draw) -> list[str]:
        """Return the inputs that get edges with a draw."""
        return [value.name for value in self.maker.model.roles.inputs if self.maker.has_edges(value, draw)]

    def feed(self, dims: Mapping[str, int], flags: Flags, seed: int, draw: Draw = USUAL) -> dict[str, np.ndarray]:
        """Return the inputs of a run."""
        is_first = self.is_first(flags)
        shapes = self.sizes.shapes(dims, is_first=is_first)
        of_flags = {**shapes, **self.flag_shapes}
        booleans = {name: np.full(of_flags.get(name) or (), flag) for name, flag in flags.items()}
        past = 0 if is_first else self.sizes.past_size(dims)
        feed = self.maker.arrays(shapes, past=past, given={**self.given, **booleans}, seed=seed, draw=draw)
        overridden = self.defaults.override_elements(draw) if draw.overridden else {}
        return {**overridden, **feed, **booleans}  # a condition with a default is fed too
