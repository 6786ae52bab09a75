"""The proof of a split: branch by branch, then as a decoding loop, against the merged decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphkit.errors import ModelError, UsageError
from graphkit.graph.merged import Condition, merged_decoders
from graphkit.model import Model
from graphkit.render.blocks import Block, Column, Prose, Table
from graphkit.render.result import Result
from graphkit.runtime.isolated import IsolatedSession
from graphkit.runtime.isolation import isolation
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.runtime.session import Runner
from graphkit.verify.compare import Difference, compare_outputs
from graphkit.verify.decoding import Decoded, Decoder, decode
from graphkit.verify.inputs import InputMaker
from graphkit.verify.sizes import Sizes

__all__ = ["BranchProof", "LoopProof", "SplitProof", "verify_split"]

FIRST_SIZES = (Sizes(1, 1, 0, 4), Sizes(2, 3, 0, 5), Sizes(3, 2, 0, 1))
LATER_SIZES = (Sizes(1, 1, 3, 4), Sizes(2, 1, 1, 5), Sizes(3, 1, 7, 2), Sizes(2, 3, 4, 5))
LOOP_SIZES = Sizes(batch=2, sequence=1, encoder=5)
DEFAULT_STEPS = 8


@dataclass(frozen=True)
class BranchProof:
    """One branch of the merged decoder against the model made of it.

    Attributes:
        model: Which of the two.
        outputs: Outputs compared.
        runs: The sizes that both were run at.
        skipped: Sizes at which the merged decoder itself fails.
        absolute, relative: The largest differences.
        failure: The first output that differs, and where; "" for none.
    """

    model: str
    outputs: int
    runs: tuple[str, ...]
    skipped: tuple[str, ...]
    absolute: float
    relative: float
    failure: str


@dataclass(frozen=True)
class LoopProof:
    """The pair against the merged decoder, decoding greedily.

    Attributes:
        steps: Steps decoded.
        absolute: The largest difference of logits.
        failure: The first step that differs, "" for none.
    """

    steps: int
    absolute: float
    failure: str


@dataclass(frozen=True)
class SplitProof(Result):
    """Whether a pair of decoders gives what the merged one gives."""

    title: ClassVar[str] = "Proof"
    tolerance: float
    branches: tuple[BranchProof, ...]
    loop: LoopProof

    @property
    def passed(self) -> bool:
        """Whether nothing differs by more than the tolerance."""
        return not self.loop.failure and not any(branch.failure for branch in self.branches)

    def findings(self) -> tuple[str, ...]:
        failures = [*(f"{b.model}: {b.failure}" for b in self.branches if b.failure)]
        return (*failures, *([f"decoding loop: {self.loop.failure}"] if self.loop.failure else []))

    def blocks(self) -> Iterator[Block]:
        yield Table(
            (
                Column("What"),
                Column("Outputs", "number"),
                Column("Runs", "number"),
                Column("Max abs", "number"),
                Column("Max rel", "number"),
                Column("Result"),
            ),
            [
                *(
                    (b.model, b.outputs, len(b.runs), _number(b.absolute), _number(b.relative), _verdict(b.failure))
                    for b in self.branches
                ),
                (
                    f"greedy loop, {self.loop.steps} steps",
                    None,
                    1,
                    _number(self.loop.absolute),
                    None,
                    _verdict(self.loop.failure),
                ),
            ],
            title=f"Against the merged decoder in onnxruntime (tolerance {self.tolerance:g})",
        )
        for branch in self.branches:
            if branch.skipped:
                yield Prose(f"{branch.model}: the merged decoder itself fails at {'; '.join(branch.skipped)}.")
        for failure in self.findings():
            yield Prose(failure, "warning")


def _number(value: float) -> str:
    return f"{value:.3g}"


def _verdict(failure: str) -> str:
    return "differs" if failure else "equal"


def verify_split(
    merged: Model,
    first: Model,
    with_past: Model,
    *,
    steps: int = DEFAULT_STEPS,
    tolerance: float = 0.0,
    seed: int = 0,
    limits: Limits = DEFAULT_LIMITS,
) -> SplitProof:
    """Run a merged decoder and the pair made of it, and compare.

    onnxruntime runs without graph optimizations, so that equal graphs give equal bits; and in a process of its own,
    which a model may end.

    Args:
        merged: The merged decoder, read from a file.
        first: The decoder of the first step, read from a file.
        with_past: The decoder of later steps, read from a file.
        steps: Greedy steps.
        tolerance: Largest difference, absolute or relative, that counts as equal.
        seed: Of the generated inputs.
        limits: What a model may take of time and memory.

    Raises:
        UsageError: `merged` is not a merged decoder, or a model was not read from a file.
        ModelError: onnxruntime cannot load a model, or the merged decoder fails at all sizes.
    """
    with isolation(limits):
        return _proof(merged, first, with_past, steps, tolerance, seed)


def _proof(merged: Model, first: Model, with_past: Model, steps: int, tolerance: float, seed: int) -> SplitProof:
    found = next(merged_decoders(merged.graph), None)
    if found is None:
        raise UsageError(f"{merged.label}: is not a merged decoder - give the model that was split first")
    session = _open(merged)
    branches = []
    for model, flag, sizes in ((first, not found.cache_when, FIRST_SIZES), (with_past, found.cache_when, LATER_SIZES)):
        branches.append(_branch(session, merged, found.condition, flag, model, sizes, tolerance, seed))
    loop = _loop(Decoder(merged, merged, session, session), first, with_past, steps, tolerance, seed)
    return SplitProof(tolerance, tuple(branches), loop)


def _open(model: Model) -> IsolatedSession:
    if model.path is None:
        raise UsageError("a model that was never written cannot be run - save it first")
    return IsolatedSession(model.path, known=model)


def _branch(
    session: Runner,
    merged: Model,
    condition: Condition,
    flag: bool,
    model: Model,
    all_sizes: tuple[Sizes, ...],
    tolerance: float,
    seed: int,
) -> BranchProof:
    maker, own = InputMaker(merged, seed), _open(model)
    wanted = {value.name for value in model.graph.inputs}
    runs, skipped = [], []
    worst = Difference("", 0.0, 0.0)
    failure = ""
    for sizes in all_sizes:
        feed = maker.make(sizes)
        feed[condition.input.name] = np.full(condition.shape, flag)
        try:
            expected = session.run(feed)
        except ModelError:
            skipped.append(str(sizes))
            continue
        actual = own.run({key: array for key, array in feed.items() if key in wanted})
        runs.append(str(sizes))
        for difference in compare_outputs(expected, actual):
            worst = max(worst, difference, key=lambda d: d.absolute)
            if not failure and not difference.within(tolerance):
                detail = difference.problem or f"differs by {difference.absolute:.3g}"
                failure = f"{difference.output} at {sizes}: {detail}"
    if not runs:
        raise ModelError(
            f"the merged decoder fails at all sizes tried ({'; '.join(skipped)})",
            file=merged.label,
            hint="skip the proof with --no-verify, and report the model",
        )
    return BranchProof(
        model.name, len(own.outputs), tuple(runs), tuple(skipped), worst.absolute, worst.relative, failure
    )


def _loop(merged: Decoder, first: Model, with_past: Model, steps: int, tolerance: float, seed: int) -> LoopProof:
    expected = decode(merged, sizes=LOOP_SIZES, steps=steps, seed=seed)
    actual = decode(Decoder(first, with_past, _open(first), _open(with_past)), sizes=LOOP_SIZES, steps=steps, seed=seed)
    return LoopProof(steps, *_compare_loops(expected, actual, tolerance))


def _compare_loops(expected: Decoded, actual: Decoded, tolerance: float) -> tuple[float, str]:
    worst = 0.0
    for step, (one, two) in enumerate(zip(expected.logits, actual.logits, strict=True), start=1):
        (difference,) = compare_outputs({"logits": one}, {"logits": two})
        worst = max(worst, difference.absolute)
        if not difference.within(tolerance):
            return worst, f"logits of step {step}: {difference.problem or f'differ by {difference.absolute:.3g}'}"
        if not np.array_equal(expected.tokens[:, step - 1], actual.tokens[:, step - 1]):
            return worst, f"tokens of step {step} differ"
    return worst, ""
