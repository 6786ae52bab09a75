"""Losses of float16: inputs for which an original is itself far from its results in float32.

A rounding to ten bits may be amplified, by a Softmax of large scores, or by the sine of a position of a thousand. There
the digits of the original tell nothing of a rewrite, and it is judged twice, row by row of the first axis:

1. As it is, it may be `FACTOR` times as far from the original in float32 as the original is.
2. In float32, where both round next to nothing, it may differ by the tolerance, or by `FACTOR` times as much as the
   original does when its weights move by half a unit in their last place, which is how a fused weight is rounded.

A wrong rewrite is wrong in float32 too, so that it is found however much float16 loses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from graphkit.errors import ModelError
from graphkit.graph.names import count_things
from graphkit.model import Model
from graphkit.runtime.session import IsolatedSession, RunError, Runner
from graphkit.verify.candidate_sessions import Called, TwoModels
from graphkit.verify.comparator import Difference, Output, elementwise_difference, largest_magnitude
from graphkit.verify.float32_copies import in_float32
from graphkit.verify.original_runs import Run

__all__ = ["FACTOR", "Rounding"]

FACTOR = 2.0
SHAKES = 3  # times that the weights move
Outputs = Mapping[str, Output]


@dataclass(frozen=True)
class _References:
    """The outputs in float32 for a run: of the original, the rewritten model, and the original's moved copies."""

    original: Outputs
    rewritten: Outputs
    moved: tuple[Outputs, ...]


@dataclass
class Rounding:
    """The judge of differences above the tolerance of a model in float16.

    Attributes:
        explained: By the runs and outputs that float16 does not decide, how far the original is from itself in float32,
            and how far the rewritten model in float32 is from that, both relative to the largest magnitude.
    """

    two: TwoModels
    progress: Callable[[str], None] = lambda _: None
    explained: dict[tuple[Run, str], tuple[float, float]] = field(default_factory=dict)
    _known: dict[Run, _References | None] = field(default_factory=dict)

    def explains(self, run: Run, difference: Difference, actual: Output, tolerance: float) -> bool:
        """Whether the rounding of float16 in the original explains the difference of an output."""
        name, expected = difference.output, run.expected[difference.output]
        if difference.problem or not _is_float(expected) or (references := self._reference_runs(run)) is None:
            return False
        exact, rewritten = references.original[name], references.rewritten[name]
        if not _is_finite_with(exact, expected) or not _is_finite_with(rewritten, exact):
            return False
        of_original, of_candidate, of_rewritten = (_by_row(exact, array) for array in (expected, actual, rewritten))
        sensitivity = np.max([_by_row(exact, moved[name]) for moved in references.moved], axis=0)
        in_float32 = np.maximum(tolerance, FACTOR * sensitivity)
        if (of_candidate > np.maximum(in_float32, FACTOR * of_original)).any() or (of_rewritten > in_float32).any():
            return False
        worst = self.explained.get((run, name), (0.0, 0.0))
        self.explained[run, name] = max(worst[0], float(of_original.max())), max(worst[1], float(of_rewritten.max()))
        return True

    def caveats(self) -> tuple[str, ...]:
        """Return the runs that are compared in float32 alone, a clause."""
        runs = list(dict.fromkeys(run for run, _ in self.explained))
        kinds = ", ".join(dict.fromkeys(run.elements for run in runs if run.elements))
        where = count_things(len(runs), "run(s)") + (f" ({kinds})" if kinds else "")
        return (f"the digits of float16 in {where}, compared in float32",)

    def note(self) -> str:
        """Return how far off the original is there, and how far apart both are in float32, a sentence."""
        of_original, difference = (max(values) for values in zip(*self.explained.values(), strict=True))
        return (
            f"Where outputs are compared in float32, float16 puts the original itself {of_original:.2g} of the largest "
            f"magnitude off; in float32 both differ by at most {difference:.2g}."
        )

    def _reference_runs(self, run: Run) -> _References | None:
        if run not in self._known:
            self._known[run] = self._run(run)
        return self._known[run]

    def _run(self, run: Run) -> _References | None:
        if self._sessions is None:
            return None
        original, rewritten, *moved = self._sessions
        feed = self.two.feed(run)
        try:
            return _References(
                original.run(feed), rewritten.run(self.two.known(run)), tuple(session.run(feed) for session in moved)
            )
        except RunError:
            return None

    @cached_property
    def _sessions(self) -> Sequence[Runner] | None:
        """The models in float32, None where onnxruntime does not load one so."""
        before, after = self.two.models
        self.progress("proving: both models in float32")
        try:
            return [
                _float32_session(before),
                _float32_session(after, self.two.names),
                *(_float32_session(before, shaken=seed) for seed in range(SHAKES)),
            ]
        except ModelError:
            return None


def _float32_session(model: Model, names: Mapping[str, str] | None = None, shaken: int | None = None) -> Runner:
    """Return a session of a model in float32, by the names of the original.

    Raises:
        ModelError: It cannot be converted, or onnxruntime does not load it.
    """
    conversion = in_float32(model, shaken)
    if conversion is None:
        raise ModelError("it has functions or bfloat16, and is not converted", file=model.label)
    converted, renamed = conversion
    called = {now: (names or {}).get(was, was) for now, was in renamed.items()}
    return Called(IsolatedSession(converted), {**(names or {}), **called})


def _is_float(output: Output) -> bool:
    return isinstance(output, np.ndarray) and output.dtype.kind == "f" and bool(output.size)


def _is_finite_with(output: Output, reference: Output) -> bool:
    """Whether an output has the shape of another one, and a finite number wherever that has one."""
    if not isinstance(output, np.ndarray) or not isinstance(reference, np.ndarray) or output.shape != reference.shape:
        return False
    return bool(np.isfinite(output[np.isfinite(reference)]).all())


def _by_row(exact: Output, array: Output) -> np.ndarray:
    """Return the largest difference of each row of the first axis, relative to the largest magnitude of all."""
    assert isinstance(exact, np.ndarray)
    assert isinstance(array, np.ndarray)
    finite = np.isfinite(exact) & np.isfinite(array)
    apart = np.where(finite, elementwise_difference(exact, array), 0.0) / (largest_magnitude(exact[finite]) or 1.0)
    rows: np.ndarray = apart.reshape(len(apart) if apart.ndim else 1, -1).max(axis=1)
    return rows
