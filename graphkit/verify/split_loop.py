"""The greedy loop of a split's proof: prompt and steps long enough to pass where a model may change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.runtime.isolated import IsolatedSession
from graphkit.shapes.constraints.symbol_sizes import Role, Sizes
from graphkit.verify.comparator import compare_outputs
from graphkit.verify.decoding import Decoded, Decoder, decode
from graphkit.verify.original_runs import Feeder, Found
from graphkit.verify.split_proof import LoopProof
from graphkit.verify.thresholds import MARGIN

if TYPE_CHECKING:
    from graphkit.runtime.session import Runner

__all__ = ["DEFAULT_STEPS", "Loop"]

DEFAULT_STEPS = 8
BATCH, ENCODER = 2, 5


@dataclass(frozen=True)
class Loop:
    """A merged decoder and a pair, to decode side by side.

    Attributes:
        pair: Decoder of the first step, decoder of later steps.
        first, later: What makes inputs for these; None where nothing fits both.
        found: What the merged decoder runs at on the first step.
        fits: Whether the pair has the inputs and outputs of the merged decoder's branches.
    """

    merged: Model
    pair: tuple[Model, Model]
    first: Feeder | None
    later: Feeder | None
    found: Found
    steps: int
    fits: bool

    @property
    def note(self) -> str:
        """Why there is no loop to run, "" where there is one."""
        if not self.fits or self.first is None or self.later is None or not self.found.runs:
            return "No greedy loop was run: the pair does not fit the merged decoder."
        if "past" in self.later.sizes.fixed_roles:
            return "No greedy loop was run: the decoder of later steps takes a past of one length."
        return ""

    @property
    def is_possible(self) -> bool:
        """Whether there is a loop to run."""
        return not self.note

    @property
    def sizes(self) -> Sizes:
        """Batch, prompt and encoder's length, such that the steps pass a length at which the model may change."""
        assert self.first is not None
        return Sizes(self._fixed("batch", BATCH), self._prompt(), 0, self._fixed("encoder", ENCODER))

    def _fixed(self, role: Role, size: int) -> int:
        assert self.first is not None
        assert self.later is not None
        return self.first.sizes.fixed_roles.get(role, self.later.sizes.fixed_roles.get(role, size))

    def _prompt(self) -> int:
        assert self.first is not None
        legal = self.first.sizes
        if "sequence" in legal.fixed_roles:
            return legal.fixed_roles["sequence"]
        longest = max((legal.tokens.evaluate(run.dims) for run in self.found.runs), default=1) if legal.tokens else 1
        beyond = next((length for length in self.first.lengths.beyond if length <= longest), longest)
        return max(min(longest - self.steps + 1, beyond - MARGIN - self.steps // 2), 1)

    def expected(self, session: Runner) -> Decoded:
        """Return the tokens and logits of the merged decoder."""
        return decode(Decoder(self.merged, self.merged, session, session), sizes=self.sizes, steps=self.steps)

    def _actual(self) -> Decoded:
        first, later = self.pair
        assert first.path is not None
        assert later.path is not None
        with (
            IsolatedSession(first.path, prepack=False, known=first) as one,
            IsolatedSession(later.path, prepack=False, known=later) as two,
        ):
            return decode(Decoder(first, later, one, two), sizes=self.sizes, steps=self.steps, like=self.merged)

    def compared(self, expected: Decoded, tolerance: float) -> LoopProof:
        """Decode with the pair on the same inputs, and compare."""
        prompt = self.sizes.sequence
        try:
            actual = self._actual()
        except ModelError as error:
            return LoopProof(prompt, self.steps, None, error.problem)
        return LoopProof(prompt, self.steps, *_compare_loops(expected, actual, tolerance))


def _compare_loops(expected: Decoded, actual: Decoded, tolerance: float) -> tuple[float | None, str]:
    worst = 0.0
    for step, (one, two) in enumerate(zip(expected.logits, actual.logits, strict=True), start=1):
        (difference,) = compare_outputs({"logits": one}, {"logits": two})
        if difference.problem:
            return None, f"logits of step {step}: {difference.problem}"
        worst = max(worst, difference.absolute)
        if not difference.within(tolerance):
            return worst, f"logits of step {step}: differ by {difference.absolute:.3g}"
        if not np.array_equal(expected.tokens[:, step - 1], actual.tokens[:, step - 1]):
            return worst, f"tokens of step {step} differ"
    return worst, ""
