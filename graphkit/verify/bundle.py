"""The proof of a bundle: methods over one state, against the models that they were made of."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from graphkit.contract.reading import read_bundle
from graphkit.errors import GraphkitError
from graphkit.graph.names import counted
from graphkit.host.bundle import Bundle
from graphkit.render.blocks import Block, Column, Prose, Table
from graphkit.render.result import Result
from graphkit.runtime.isolation import isolation
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.verify.bundle_checks import CHECKS, start, tried
from graphkit.verify.bundle_prompts import LONGEST, Prompt, prompts
from graphkit.verify.bundle_recording import Recording, Search, record, search_of
from graphkit.verify.counting import numbered
from graphkit.verify.levels import FLOAT16_TOLERANCE, has_float16, level_tolerance, rounds_activations
from graphkit.verify.originals import Originals

__all__ = ["BundleProof", "BundleRun", "distance", "verify_bundle"]

BLOCK = 1 << 22  # elements that are compared at a time: the logits of a long prompt fill gigabytes
TOLERANCE = 1e-5  # where the sums of a product may be added up in another order
LEVELS = 2  # times as far as onnxruntime's two levels are apart on the export, where that is more
SEARCHED = 12  # tokens


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

    The originals decode each prompt once at each of onnxruntime's levels. How far these two are apart is what the
    runtime alone makes of the digits, and as much is allowed where it is more than the tolerance.

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
    contract = read_bundle(folder / "bundle.json")
    batch = contract.sizes["batch"]
    models = [model for model in (originals.encoder, originals.first, originals.step) if model is not None]
    fused = max(tolerance, *map(level_tolerance, models))
    if any(map(has_float16, models)):
        exact, tolerance = False, max(tolerance, FLOAT16_TOLERANCE)
    if any(map(rounds_activations, models)):
        tolerance = max(tolerance, fused)
    made = prompts(contract, originals, seed)
    beams = sorted({1, min(3, batch)})
    most = contract.lengths[0].most - made[0].tokens.shape[1] + 1
    with isolation(limits):
        recorded = partial(record, originals, made, progress=progress)
        rows = [1, 0, 0][:batch] if batch > 1 else []
        truth = recorded(optimize=False, beams=beams, steps=min(most, SEARCHED), rows=rows)
        at_default = recorded(optimize=True)
    apart = min(_apart(made, truth, at_default), fused)
    near = max(tolerance, LEVELS * apart)
    notes = list(_notes(made, apart, near, tolerance))
    plain = 0.0 if exact else near
    runs: list[BundleRun] = []
    checks: dict[str, str] = {}
    for optimized, expected in ((False, truth), (True, at_default)):
        bundle = Bundle(folder, optimize=optimized, prepack=None if optimized else False)
        level = f"proving: {'default' if optimized else 'plain'} level"
        for number in numbered(range(len(made)), level, progress, "prompt"):
            prompt = made[number]
            allowed = fused if optimized else plain if prompt.all_logits else near
            runs.append(_run(bundle, prompt, expected.logits[number], allowed, optimized=optimized))
        if not optimized:
            checks = _checked(bundle, made, folder, progress)
            checks |= _searches(bundle, made[0].first_row(), truth, notes)
            checks |= _choices(bundle, made, truth, near)
    return BundleProof(plain, fused, tuple(runs), checks, tuple(notes))


def _notes(made: Sequence[Prompt], apart: float, near: float, tolerance: float) -> Iterator[str]:
    if near > tolerance:
        yield f"onnxruntime's two levels differ by {apart:.1e} on the export: {near:.1e} is allowed."
    if long := sorted({prompt.tokens.shape[1] for prompt in made if not prompt.all_logits}):
        lengths = " and ".join(f"{length:,}" for length in long)
        yield f"Of prompts of {lengths} tokens the logits of the last one are compared, within {near:g}."


def _apart(made: Sequence[Prompt], one: Recording, other: Recording) -> float:
    """Return how far the two levels of onnxruntime are apart on the originals."""
    found = 0.0
    for prompt, plain, default in zip(made, one.logits, other.logits, strict=True):
        for number, (logits, same) in enumerate(zip(plain, default, strict=True)):
            found = max(found, distance(_counted(logits, prompt, number), _counted(same, prompt, number)))
    return found


def _counted(logits: np.ndarray, prompt: Prompt, number: int) -> np.ndarray:
    """Return the logits of tokens that are no padding, of a prompt or of a step after it."""
    if number or not prompt.all_logits or prompt.mask.all():
        return logits
    return np.asarray(logits[prompt.mask.astype(bool)])


def _checked(bundle: Bundle, made: Sequence[Prompt], folder: Path, progress: Callable[[str], None]) -> dict[str, str]:
    """Try what must hold besides right logits; return what is wrong by what was tried, "" for nothing."""
    checks = {}
    short = [prompt for prompt in made if prompt.tokens.shape[1] <= LONGEST]
    for number, (name, check) in enumerate(CHECKS.items(), start=1):
        progress(f"checking {number} of {len(CHECKS)}: {name}")
        checks[name] = tried(partial(check, bundle, short, folder))
    progress("searching for tokens")
    return checks


def _run(
    bundle: Bundle, prompt: Prompt, expected: Sequence[np.ndarray], allowed: float, *, optimized: bool
) -> BundleRun:
    """Decode a prompt and given tokens with the bundle, and compare the logits with those of the originals."""
    worst, steps = 0.0, 0
    actual, failure = _given(lambda: start(bundle, prompt))
    for steps, logits in enumerate(expected):
        if failure:
            break
        is_same_shape = logits.shape == actual.shape
        found = (
            distance(_counted(logits, prompt, steps), _counted(actual, prompt, steps)) if is_same_shape else math.inf
        )
        worst = max(worst, found)
        if not found <= allowed:
            where = "the prompt" if steps == 0 else f"step {steps}"
            failure = f"the logits of {where} differ by {found:.1e}"
        elif steps < len(prompt.steps):
            actual, failure = _given(partial(bundle.step, prompt.steps[steps]))
    rows, length = prompt.tokens.shape
    return BundleRun(optimized, rows, prompt.is_padded, prompt.source, length, steps, worst, failure)


def _given(call: Callable[[], np.ndarray]) -> tuple[np.ndarray, str]:
    """Return the logits that a bundle gives, or none and why it fails."""
    try:
        return call(), ""
    except GraphkitError as error:
        return np.empty(0), str(error)


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


def _searches(bundle: Bundle, prompt: Prompt, truth: Recording, notes: list[str]) -> dict[str, str]:
    """Decode greedily and by beams, and compare the tokens with those of the originals."""
    found: dict[str, str] = {}
    for width, expected in truth.tokens.items():
        name = "greedy tokens" if width == 1 else f"tokens of {width} beams"
        found[name] = tried(partial(_same_tokens, search_of(width), bundle, prompt, expected))
    if all(len(set(tokens)) == 1 for rows in truth.tokens.values() for tokens in rows):
        notes.append("The tokens tell nothing: it is one token all the way. The logits tell.")
    if max(truth.tokens) == 1:
        notes.append("A bundle of one row has no beams to try.")
    return found


def _same_tokens(search: Search, bundle: Bundle, prompt: Prompt, expected: list[list[int]]) -> str:
    """Search with a bundle, and compare the tokens."""
    actual = search(bundle, start(bundle, prompt)[:, -1], len(expected[0]), ())
    return "" if actual == expected else f"{actual[0]} instead of {expected[0]}"


def _choices(bundle: Bundle, made: Sequence[Prompt], truth: Recording, allowed: float) -> dict[str, str]:
    """Check what a caller may choose: rows in another order, and the logits of the last token alone."""
    found: dict[str, str] = {}
    pair = next((prompt for prompt in made if len(prompt.tokens) == 2 and prompt.steps), None)
    if truth.reordered and pair is not None:
        found["rows that are reordered"] = tried(partial(_reordered, bundle, pair, truth.reordered, allowed))
    long = max((prompt for prompt in made if prompt.all_logits), key=lambda prompt: prompt.tokens.size)
    method = bundle.contract.method("once")
    if method is not None and any(port.source is not None and port.source.kind == "kept" for port in method.inputs):
        found["the logits of the last token alone"] = tried(partial(_last_logits, bundle, long, allowed))
    return found


def _reordered(bundle: Bundle, prompt: Prompt, expected: Sequence[np.ndarray], allowed: float) -> str:
    """Start two rows, let each become the other and the first one more, and compare the logits of the next steps."""
    rows = [1, 0, 0][: len(expected[0])]
    start(bundle, prompt)
    bundle.reorder(rows)
    actual = [bundle.step(tokens[rows]) for tokens in prompt.steps[: len(expected)]]
    worst = max(distance(*pair) for pair in zip(expected, actual, strict=True))
    return "" if worst <= allowed else f"the logits of the next steps differ by {worst:.1e}"


def _last_logits(bundle: Bundle, prompt: Prompt, allowed: float) -> str:
    """Ask for the logits of each token and of the last one alone; both are to leave the same state."""
    pairs = []
    for chosen in (prompt, replace(prompt, all_logits=False)):
        logits = start(bundle, chosen)[:, -1:]
        pairs.append([logits, *(bundle.step(tokens) for tokens in prompt.steps[:1])])
    worst = max(distance(*pair) for pair in zip(*pairs, strict=True))
    return "" if worst <= allowed else f"they differ by {worst:.1e} from those among the logits of all"
