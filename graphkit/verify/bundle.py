"""The proof of a bundle: methods over one state, against the models that they were made of."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from graphkit.errors import GraphkitError
from graphkit.graph.names import counted
from graphkit.host.bundle import Bundle
from graphkit.host.search import Stepper, beam_search, greedy_search
from graphkit.render.blocks import Block, Column, Prose, Table
from graphkit.render.result import Result
from graphkit.runtime.isolation import isolation
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.verify.bundle_checks import CHECKS, start, tried
from graphkit.verify.bundle_original import GrowingPipeline
from graphkit.verify.bundle_prompts import Prompt, prompts
from graphkit.verify.counting import numbered
from graphkit.verify.levels import FLOAT16_TOLERANCE, has_float16, level_tolerance, rounds_activations
from graphkit.verify.original_pipeline import Originals

__all__ = ["BundleProof", "BundleRun", "distance", "verify_bundle"]

Search = Callable[[Stepper, np.ndarray, int, "int | None"], list[list[int]]]
BLOCK = 1 << 22  # elements that are compared at a time: the logits of a long prompt fill gigabytes
TOLERANCE = 1e-5  # where the sums of a product may be added up in another order


@dataclass(frozen=True)
class BundleRun:
    """One prompt through the originals and the bundle.

    Attributes:
        optimized: Whether onnxruntime fused operators, of both.
        rows: Rows.
        padded: Whether the last of them is padded.
        source: Positions of the source; 0 without an encoder.
        prompt: Tokens that the decoder starts with.
        steps: Steps after these, with given tokens.
        logits: The largest difference of logits at tokens that are no padding, over how far they vary where that is
            more than 1.
        failure: Why it fails, "" for nothing.
    """

    optimized: bool
    rows: int
    padded: bool
    source: int
    prompt: int
    steps: int
    logits: float
    failure: str


@dataclass(frozen=True)
class BundleProof(Result):
    """Whether a bundle gives what the originals give, and keeps to itself what it keeps.

    Attributes:
        tolerance: The largest difference that counts as equal; 0 where outputs have to be equal to the last bit.
        fused: The same where onnxruntime fuses operators, others in the bundle than in the originals.
        runs: The runs.
        checks: What else was tried, and what is wrong with it, "" for nothing.
        notes: What to know of the proof, a sentence each.
    """

    title: ClassVar[str] = "Proof"
    computed: ClassVar[tuple[str, ...]] = ("passed",)
    tolerance: float
    fused: float
    runs: tuple[BundleRun, ...]
    checks: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether it ran, and nothing is wrong."""
        return bool(self.runs) and not self.findings()

    def findings(self) -> tuple[str, ...]:
        """Return why the proof failed, a sentence each."""
        failures = [f"prompt of {run.prompt}, {run.rows} row(s): {run.failure}" for run in self.runs if run.failure]
        failures += [f"{name}: {fault}" for name, fault in self.checks.items() if fault]
        return (*failures, *(() if self.runs else ("nothing was run",)))

    def proven(self) -> str:
        """Return what is proven, in a sentence."""
        how = f"{counted(len(self.runs), 'run(s)')} and {counted(len(self.checks), 'check(s)')}"
        return f"Proven in {how}: the bundle gives what the originals give."

    def blocks(self) -> Iterator[Block]:
        """Yield the runs and the checks as tables, then what to know."""
        yield Table(
            (
                Column("onnxruntime"),
                Column("Rows", "number"),
                Column("Padded", "number"),
                Column("Source", "number"),
                Column("Prompt", "number"),
                Column("Steps", "number"),
                Column("Logits differ by", "number"),
                Column("Result"),
            ),
            [
                (
                    "default" if run.optimized else "plain",
                    run.rows,
                    int(run.padded) or None,
                    run.source or None,
                    run.prompt,
                    run.steps,
                    f"{run.logits:.1e}" if run.logits else "0",
                    run.failure or "equal",
                )
                for run in self.runs
            ],
        )
        rows = [(name, fault or "holds") for name, fault in self.checks.items()]
        yield Table((Column("Check"), Column("Result")), rows)
        yield from (Prose(note) for note in self.notes)
        if self.passed:
            exact = "to the last bit" if not self.tolerance else f"within {self.tolerance:g}"
            yield Prose(
                f"The bundle gives what the originals give: {exact} in plain onnxruntime, and within {self.fused:g} "
                "where onnxruntime fuses operators."
            )


def verify_bundle(
    originals: Originals,
    folder: str | os.PathLike[str],
    *,
    exact: bool,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    progress: Callable[[str], None] = lambda _: None,
) -> BundleProof:
    """Prove that a bundle gives what its originals give.

    Args:
        originals: The models that it was made of.
        folder: The bundle.
        exact: Whether logits must be equal to the last bit in plain onnxruntime; else within the tolerance.
        tolerance: The largest difference that counts as equal, over how far logits vary where that is more than 1. For
            models with float16 tensors it is at least `FLOAT16_TOLERANCE`, and for those that round what they compute
            to 8 bits at least `QUANTIZED_TOLERANCE`.
        seed: Of prompts and sources.
        limits: What an original may take of time and memory.
        progress: Called with the name of each step before it starts.

    Returns:
        The proof: `proof.passed` says whether it holds.

    Raises:
        ModelError: A model is broken, or onnxruntime cannot run it.
    """
    folder = Path(folder)
    runs: list[BundleRun] = []
    notes: list[str] = []
    checks: dict[str, str] = {}
    models = [model for model in (originals.encoder, originals.first, originals.step) if model is not None]
    fused = max(tolerance, *map(level_tolerance, models))
    if any(map(has_float16, models)):
        exact, tolerance = False, max(tolerance, FLOAT16_TOLERANCE)
    if any(map(rounds_activations, models)):
        tolerance = max(tolerance, fused)
    plain = 0.0 if exact else tolerance
    with isolation(limits):
        for optimized in (False, True):
            level = f"proving: {'default' if optimized else 'plain'} level"
            progress(level)
            pipeline = GrowingPipeline(originals, optimize=optimized)
            bundle = Bundle(folder, optimize=optimized, prepack=None if optimized else False)
            made = prompts(bundle.contract, originals, seed)
            told = numbered(made, level, progress, "prompt")
            runs += [_run(pipeline, bundle, prompt, optimized, fused if optimized else plain) for prompt in told]
            if not optimized:
                checks = _checked(pipeline, bundle, made, folder, plain, notes, progress)
    return BundleProof(plain, fused, tuple(runs), checks, tuple(notes))


def _checked(
    pipeline: GrowingPipeline,
    bundle: Bundle,
    made: Sequence[Prompt],
    folder: Path,
    allowed: float,
    notes: list[str],
    progress: Callable[[str], None],
) -> dict[str, str]:
    """Try what must hold besides right logits; return what is wrong by what was tried, "" for nothing."""
    checks = {}
    for number, (name, check) in enumerate(CHECKS.items(), start=1):
        progress(f"checking {number} of {len(CHECKS)}: {name}")
        checks[name] = tried(partial(check, bundle, made, folder))
    progress("searching for tokens")
    checks |= _searches(pipeline, bundle, made, notes)
    if bundle.contract.sizes["batch"] > 1:
        checks["rows that are reordered"] = _reordered(pipeline, bundle, made, allowed)
    return checks


def _run(pipeline: GrowingPipeline, bundle: Bundle, prompt: Prompt, optimized: bool, allowed: float) -> BundleRun:
    """Run a prompt and given tokens through both."""
    worst, failure = 0.0, ""
    counts = prompt.mask.astype(bool)
    expected = pipeline.start(prompt.tokens, prompt.mask, prompt.inputs)
    actual, failure = _given(lambda: start(bundle, prompt))
    steps = 0
    for steps, tokens in enumerate([*prompt.steps, None]):
        if failure:
            break
        is_same_shape = expected.shape == actual.shape
        found = distance(_of(expected, counts), _of(actual, counts)) if is_same_shape else float("inf")
        worst = max(worst, found)
        if not found <= allowed:
            where = "the prompt" if steps == 0 else f"step {steps}"
            failure = f"the logits of {where} differ by {found:.1e}"
        elif tokens is not None:
            counts = np.ones_like(tokens, bool)
            expected = pipeline.step(tokens)
            actual, failure = _given(partial(bundle.step, tokens))
    rows, length = prompt.tokens.shape
    return BundleRun(optimized, rows, prompt.is_padded, prompt.source, length, steps, worst, failure)


def _given(call: Callable[[], np.ndarray]) -> tuple[np.ndarray, str]:
    """Return the logits that a bundle gives, or none and why it fails."""
    try:
        return call(), ""
    except GraphkitError as error:
        return np.empty(0), str(error)


def _of(logits: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the logits of tokens that count, without a copy where all do."""
    return logits if counts.all() else logits[counts]


def distance(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest difference, over how far an output varies where that is more than 1; infinity for a NaN.

    Equal arrays, NaN in the same places included, have the distance 0.
    """
    if expected.shape != actual.shape:
        return float("inf")
    flat, other = expected.reshape(-1), actual.reshape(-1)
    worst, count, total, squares = 0.0, 0, 0.0, 0.0
    for first in range(0, flat.size, BLOCK):
        one, two = (array[first : first + BLOCK].astype(np.float64) for array in (flat, other))
        if np.array_equal(one, two, equal_nan=True):
            one = one[np.isfinite(one)]
        elif np.isfinite(one).all() and np.isfinite(two).all():
            worst = max(worst, float(np.abs(one - two).max()))
        else:
            return float("inf")
        count, total, squares = count + one.size, total + float(one.sum()), squares + float((one * one).sum())
    mean = total / count if count else 0.0
    varies = math.sqrt(max(squares / count - mean * mean, 0.0)) if count else 0.0
    return worst / max(1.0, varies)


def _searches(pipeline: GrowingPipeline, bundle: Bundle, made: Sequence[Prompt], notes: list[str]) -> dict[str, str]:
    """Decode greedily and by beams with both, and compare the tokens."""
    found: dict[str, str] = {}
    one = made[0].first_row()
    most = bundle.contract.lengths[0].most - one.tokens.shape[1] + 1
    beams = min(3, bundle.contract.sizes["batch"])
    seen: list[list[int]] = []
    steps = min(most, 12)
    for width in sorted({1, beams}):
        search = greedy_search if width == 1 else partial(beam_search, beams=beams)
        expected = search(pipeline, pipeline.start(one.tokens, one.mask, one.inputs)[:, -1], steps, None)
        name = "greedy tokens" if width == 1 else f"tokens of {beams} beams"
        found[name] = tried(partial(_same_tokens, search, bundle, one, steps, expected))
        seen += expected
    if all(len(set(tokens)) == 1 for tokens in seen):
        notes.append("The tokens tell nothing: it is one token all the way. The logits tell.")
    if beams == 1:
        notes.append("A bundle of one row has no beams to try.")
    return found


def _same_tokens(search: Search, bundle: Bundle, prompt: Prompt, steps: int, expected: list[list[int]]) -> str:
    """Search with a bundle, and compare the tokens."""
    actual = search(bundle, start(bundle, prompt)[:, -1], steps, None)
    return "" if actual == expected else f"{actual[0]} instead of {expected[0]}"


def _reordered(pipeline: GrowingPipeline, bundle: Bundle, made: Sequence[Prompt], allowed: float) -> str:
    """Start two rows, let each become the other and the first one more, and compare the logits of the next steps."""
    prompt = max((each for each in made if len(each.tokens) == 2), key=lambda each: min(len(each.steps), 2))
    if not prompt.steps:
        return ""
    rows = [1, 0, 0][: bundle.contract.sizes["batch"]]
    pipeline.start(prompt.tokens, prompt.mask, prompt.inputs)
    pipeline.reorder(rows)
    steps = [tokens[rows] for tokens in prompt.steps[:2]]
    expected = [pipeline.step(tokens) for tokens in steps]

    def differences() -> str:
        start(bundle, prompt)
        bundle.reorder(rows)
        pairs = [(one, bundle.step(tokens)) for one, tokens in zip(expected, steps, strict=True)]
        worst = max(distance(one, other) for one, other in pairs)
        return "" if worst <= allowed else f"the logits of the next steps differ by {worst:.1e}"

    return tried(differences)
