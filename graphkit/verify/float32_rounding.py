"""Rounding of float32: how far an original moves when its numbers are rounded anew, as far as a rewrite may be off.

A rewrite that adds and multiplies in another order, or with weights that it computed beforehand, differs in the last
digits. How far these reach grows with the depth of a model and with its magnitudes, and no constant is right for all.
So the original is measured: copies of it run on the same inputs, whose weights and inputs are off by up to half a unit
in their last place, as when they are rounded anew. A few times as much is rounding, whatever is more is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from onnx import TensorProto

from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.runtime.session import IsolatedSession, RunError, Runner
from graphkit.verify.candidate_sessions import TwoModels
from graphkit.verify.comparator import Difference, Output, compare_output
from graphkit.verify.float32_copies import in_float32
from graphkit.verify.original_runs import Run
from graphkit.verify.tolerances import FLOAT32_TOLERANCE

__all__ = ["Float32Rounding"]

COPIES = 3
FACTOR = 4  # measured, of results of other tools: at most 1.6
UNIT = 2.0**-24  # half a unit in the last place, which outputs are rounded to in any case
DECIDED = "extreme values, NaN and infinities, where rounding decides"


@dataclass
class Float32Rounding:
    """The judge of differences above the tolerance of a model in float32.

    Attributes:
        proven: The outputs that are equal in exact arithmetic, as normal forms show.
        explained: What is rounding: by run and output the difference, and how far the original moves, both relative to
            the largest magnitude.
        excuses: Whether runs of extreme values count as explained: what overflows depends on the order of sums too.
        has_excused: Whether any such run differs.
    """

    two: TwoModels
    proven: Collection[str] = ()
    progress: Callable[[str], None] = lambda _: None
    explained: dict[tuple[Run, str], tuple[float, float]] = field(default_factory=dict)
    excuses: bool = False
    has_excused: bool = False
    _moves: dict[Run, Mapping[str, float]] = field(default_factory=dict)

    def explains(self, run: Run, difference: Difference, _: Output, tolerance: float) -> bool:
        """Whether the difference of an output is rounding."""
        if run.draw.kind in ("extremes", "not finite"):
            self.has_excused |= self.excuses
            return self.excuses
        if difference.problem or not math.isfinite(difference.scaled):
            return False
        moves = self._measure_moves(run).get(difference.output, 0.0)
        limit = max if difference.output in self.proven else min  # where a choice flips, outputs move by any amount
        if difference.scaled > max(tolerance, limit(FACTOR * max(moves, UNIT), FLOAT32_TOLERANCE)):
            return False
        self.explained[run, difference.output] = difference.scaled, moves
        return True

    def caveats(self) -> tuple[str, ...]:
        """Return what is not compared, a clause each."""
        return (DECIDED,) if self.has_excused else ()

    def note(self) -> str:
        """Return how far outputs are apart, and how far the original itself moves, a sentence."""
        difference, moves = (max(values) for values in zip(*self.explained.values(), strict=True))
        return (
            f"Differences are rounding, of up to {difference:.2g} of the largest magnitude in an output; the original "
            f"itself moves by up to {moves:.2g} where its weights and inputs are rounded anew."
        )

    @property
    def tolerance(self) -> float:
        """The largest difference, rounded up to two digits."""
        largest = max(difference for difference, _ in self.explained.values())
        return float(f"{1.05 * largest:.1e}")

    def _measure_moves(self, run: Run) -> Mapping[str, float]:
        """Return how far each output of the original moves in a run."""
        if run not in self._moves:
            moves: dict[str, float] = {}
            for number, session in enumerate(self._sessions):
                try:
                    outputs = session.run(_rounded_anew(self.two.feed(run), number))
                except RunError:
                    continue
                for name, output in outputs.items():
                    difference = compare_output(run.expected[name], output, name)
                    if not difference.problem and math.isfinite(difference.scaled):
                        moves[name] = max(moves.get(name, 0.0), difference.scaled)
            self._moves[run] = moves
        return self._moves[run]

    @cached_property
    def _sessions(self) -> list[Runner]:
        """The copies of the original; none where onnxruntime does not load them."""
        self.progress("proving: the original, rounded anew")
        source = self.two.sources[0]
        original = source if isinstance(source, Model) else self.two.models[0]
        copies = [in_float32(original, seed, wide_inputs=True, half=TensorProto.FLOAT) for seed in range(COPIES)]
        try:
            return [IsolatedSession(copy[0], prepack=False) for copy in copies if copy is not None]
        except ModelError:
            return []


def _rounded_anew(feed: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: array * (1 + rng.uniform(-UNIT, UNIT, array.shape)).astype(np.float32)
        if array.dtype == np.float32
        else array
        for name, array in feed.items()
    }
