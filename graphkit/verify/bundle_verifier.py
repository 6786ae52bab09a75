"""The proof of a bundle: methods over one state, against the models that they were made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from graphkit.deploy.contract.bundle_contract import BundleContract
from graphkit.deploy.contract.contract_files import read_bundle
from graphkit.deploy.hosts.bundle_host import Bundle
from graphkit.graph.names import count_things
from graphkit.model import Model, load
from graphkit.options import DeploymentProofOptions
from graphkit.progress import portion_of, with_share
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.verify.altered_bundle import IsolatedBundle
from graphkit.verify.bundle_calls import Calls, decode_reordered_rows, last_alone, several_at_once
from graphkit.verify.bundle_causes import find_bundle_causes
from graphkit.verify.bundle_prompts import LONGEST, Prompt, make_prompts
from graphkit.verify.bundle_recording import Recording, begin_prompt, record_originals, search_of
from graphkit.verify.bundle_state_checks import CHECKS, Subject, can_choose, start_bundle, try_check
from graphkit.verify.candidate_sessions import tell_each
from graphkit.verify.comparator import Difference, distance_of_spread
from graphkit.verify.decoding import decode_greedily
from graphkit.verify.deployment_proofs import BundleProof, BundleRun
from graphkit.verify.equivalence.bundles import summarize_bundle
from graphkit.verify.fatal_node import run_isolated
from graphkit.verify.float16_bundles import Float16Judge
from graphkit.verify.oracle import Oracle
from graphkit.verify.originals import Originals
from graphkit.verify.proof_engine import Step, follow_steps
from graphkit.verify.tolerances import BUNDLE_TOLERANCE, BundleTolerance, has_float16
from graphkit.verify.weight_comparison import WrongPart, find_wrong_parts

__all__ = ["equal_tokens", "verify_bundle"]

SEARCHED = 12  # tokens
SAME = "weights are those of the export"
OTHERS = "they {} from those among the logits of all"


def verify_bundle(
    originals: Originals,
    folder: str | os.PathLike[str],
    options: DeploymentProofOptions = DeploymentProofOptions(),
    *,
    exact: bool,
    progress: Callable[[str], None] = lambda _: None,
) -> BundleProof:
    """Prove that a bundle gives the results of its originals.

    The originals decode each prompt once at each of onnxruntime's levels. How far these two are apart is what the
    runtime alone makes of the digits, and as much is allowed where it is more than the tolerance.

    Args:
        originals: The models that it was made of.
        folder: The bundle.
        options: How to prove it. The tolerance, by default `BUNDLE_TOLERANCE`, counts over how far logits vary where
            that is more than 1. For models with float16 tensors it is at least `FLOAT16_TOLERANCE`, and for those that
            round what they compute to 8 bits at least `QUANTIZED_TOLERANCE`.
        exact: Whether logits must be equal to the last bit in plain onnxruntime; else within the tolerance.
        progress: Called with the name of each step before it starts.

    Returns:
        The proof: `proof.passed` says whether it holds.

    Raises:
        ModelError: A model is broken, or onnxruntime cannot run it.
    """
    with run_isolated(options.limits):
        return _prove_bundle(originals, Path(folder), options, exact=exact, progress=progress)


def _prove_bundle(
    originals: Originals,
    folder: Path,
    options: DeploymentProofOptions,
    *,
    exact: bool,
    progress: Callable[[str], None],
) -> BundleProof:
    contract = read_bundle(folder / "bundle.json", altered=True)
    tolerance = BUNDLE_TOLERANCE if options.tolerance is None else options.tolerance
    all_prompts = make_prompts(contract, originals, options.seed)
    again = [prompt for prompt in all_prompts if prompt.tokens.shape[1] <= LONGEST]
    plainly = portion_of(progress, 0.0, 0.3)
    truth = _record_plainly(originals, contract, all_prompts, plainly, searches=options.same_tokens)
    at_default = record_originals(originals, again, optimize=True, progress=portion_of(progress, 0.3, 0.4))
    allowed = BundleTolerance.of(originals.models, _levels_apart(again, truth, at_default), tolerance, exact=exact)
    notes = [*_sizes_tried(contract), *_prompt_notes(all_prompts, allowed)]
    if _prompts_of_several(contract, all_prompts) and not truth.chunks:
        notes.append("The export does not run on several tokens after the first ones: such steps are not compared.")
    bundle = IsolatedBundle(folder, optimize=False, prepack=False, unchecked=True)
    rounds_to_half = any(map(has_float16, originals.models))
    judge = Float16Judge(originals, folder, contract) if rounds_to_half else None
    runs = _run_prompts(bundle, all_prompts, truth, allowed, judge, portion_of(progress, 0.4, 0.65), optimized=False)
    checks = _check_state(bundle, all_prompts, folder, portion_of(progress, 0.65, 0.74))
    choices = _option_checks(bundle, all_prompts, truth, allowed.near, judge)
    if options.same_tokens:
        choices = _search_checks(bundle, all_prompts[0].first_row(), truth, notes, allowed.near, judge) | choices
    for name in tell_each([*choices], "checking", portion_of(progress, 0.74, 0.83), "option of a caller"):
        checks[name] = try_check(choices[name])
    del bundle  # what it maps or has prepacked need not be there twice
    failing = list(_failing_prompts(all_prompts, runs, allowed))
    facts, cause_texts = list[WrongPart](), list[str]()
    if options.same_weights or failing:
        progress(with_share(0.83, "comparing weights"))
        facts = _wrong_parts(originals.models, contract, folder)
    if failing:
        progress("looking for the cause")
        cause_texts = find_bundle_causes(
            originals, folder, contract, failing, facts, _tolerance_within(failing[0], allowed)
        )
    if options.same_weights:
        checks[SAME] = _same_weights(facts)
    fused = portion_of(progress, 0.85, 0.95)
    runs += _run_prompts(
        IsolatedBundle(folder, unchecked=True), again, at_default, allowed, judge, fused, optimized=True
    )
    notes += judge.notes() if judge is not None else ()
    proof = BundleProof(allowed.plain, allowed.fused, tuple(runs), checks, tuple(notes), tuple(cause_texts))
    if not proof.passed:
        return proof
    progress(with_share(0.95, "proving: normal forms of the methods"))
    return replace(proof, equivalence=summarize_bundle(originals, folder, seconds=options.limits.seconds))


def _record_plainly(
    originals: Originals,
    contract: BundleContract,
    prompts: Sequence[Prompt],
    progress: Callable[[str], None],
    *,
    searches: bool,
) -> Recording:
    """Record the originals in plain onnxruntime, with searches and reordered rows."""
    batch = contract.sizes["batch"]
    steps = min(contract.lengths[0].most - prompts[0].tokens.shape[1] + 1, SEARCHED)
    beams, rows = sorted({1, min(3, batch)} if searches else ()), [1, 0, 0][:batch] if batch > 1 else []
    return record_originals(
        originals,
        prompts,
        optimize=False,
        beams=beams,
        steps=steps,
        rows=rows,
        several=_prompts_of_several(contract, prompts),
        progress=progress,
    )


def _prompts_of_several(contract: BundleContract, prompts: Sequence[Prompt]) -> list[int]:
    """Return the numbers of prompts to step several tokens from: the first, the first with padding and the last."""
    step = contract.method("step")
    tokens = step.sources.get("tokens", ()) if step is not None else ()
    if any(isinstance(port.shape[-1], int) for port in tokens):
        return []
    fit = [at for at, prompt in enumerate(prompts) if prompt.tokens.shape[1] <= LONGEST and len(prompt.steps) > 1]
    padded = [at for at in fit if prompts[at].is_padded]
    return sorted({*fit[:1], *padded[:1], *fit[-1:]})


def _failing_prompts(
    prompts: Sequence[Prompt], runs: Sequence[BundleRun], allowed: BundleTolerance
) -> Iterator[Prompt]:
    """Yield the prompts whose logits are not those of the originals."""
    for prompt, run in zip(prompts, runs, strict=True):
        if run.failure or (run.in_float32 is None and not run.logits <= _tolerance_within(prompt, allowed)):
            yield prompt


def _sizes_tried(contract: BundleContract) -> Iterator[str]:
    """Yield a sentence for the sizes that a user's inputs have besides rows and source: they are the largest."""
    method = contract.method("once")
    dims = (dim for port in (method.inputs if method is not None else ()) if port.kind == "user" for dim in port.shape)
    names = [dim for dim in dict.fromkeys(dims) if isinstance(dim, str) and dim not in ("batch", "source")]
    if largest := [f"{name} {contract.sizes[name]:,}" for name in names if name in contract.sizes]:
        yield f"Smaller inputs are not tried: all have {', '.join(largest)}."


def _prompt_notes(prompts: Sequence[Prompt], allowed: BundleTolerance) -> Iterator[str]:
    if allowed.is_raised:
        yield f"onnxruntime's two levels differ by {allowed.apart:.1e} on the export: {allowed.near:g} is allowed."
    if last := sorted({prompt.tokens.shape[1] for prompt in prompts if not prompt.all_logits}):
        lengths = ", ".join(f"{length:,}" for length in last)
        yield f"Of prompts of {lengths} tokens the logits of the last one are compared, within {allowed.near:g}."
    if long := [prompt.tokens.shape[1] for prompt in prompts if prompt.tokens.shape[1] > LONGEST]:
        lengths = ", ".join(f"{length:,}" for length in long)
        yield f"Prompts of {lengths} tokens run in plain onnxruntime alone, without padding."


def _levels_apart(prompts: Sequence[Prompt], at_plain: Recording, at_default: Recording) -> float:
    """Return how far the two levels of onnxruntime are apart on the originals."""
    largest = 0.0
    # the longest prompts come last, and run at the plain level alone
    for prompt, plain, default in zip(prompts, at_plain.logits, at_default.logits, strict=False):
        for number, (logits, same) in enumerate(zip(plain, default, strict=True)):
            largest = max(largest, distance_of_spread(prompt.counted(logits, number), prompt.counted(same, number)))
    return largest


def _check_state(
    bundle: Bundle, prompts: Sequence[Prompt], folder: Path, progress: Callable[[str], None]
) -> dict[str, str]:
    """Run the checks of the state; return the fault of each by its name, "" where it passes."""
    checks = {}
    subject = Subject(bundle, [prompt for prompt in prompts if prompt.tokens.shape[1] <= LONGEST], folder)
    for name in tell_each([*CHECKS], "checking", progress, "state"):
        checks[name] = try_check(partial(CHECKS[name], subject))
    return checks


def _tolerance_within(prompt: Prompt, allowed: BundleTolerance) -> float:
    """Return how far the logits of a prompt may be where onnxruntime fuses nothing."""
    return allowed.plain if prompt.all_logits else allowed.near


def _run_prompts(
    bundle: Bundle,
    prompts: Sequence[Prompt],
    expected: Recording,
    allowed: BundleTolerance,
    judge: Float16Judge | None,
    progress: Callable[[str], None],
    *,
    optimized: bool,
) -> list[BundleRun]:
    """Decode all prompts with the bundle."""
    level = f"proving: {'default' if optimized else 'plain'} level"
    runs = []
    for number in tell_each(range(len(prompts)), level, progress, "prompt", lambda number: prompts[number].work):
        within = allowed.fused if optimized else _tolerance_within(prompts[number], allowed)
        runs.append(_run_prompt(bundle, prompts[number], expected.logits[number], within, optimized=optimized))
    if judge is None or not any(run.failure for run in runs):
        return runs
    progress(f"{level}, in float32")
    return judge.judged(bundle, prompts, runs, expected, allowed.fused if optimized else allowed.near)


def _run_prompt(
    bundle: Bundle, prompt: Prompt, expected: Sequence[np.ndarray], allowed: float, *, optimized: bool
) -> BundleRun:
    """Decode a prompt and given tokens with the bundle, and compare the logits with those of the originals."""

    def repeated(number: int) -> dict[str, np.ndarray]:
        logits = start_bundle(bundle, prompt) if number == 0 else bundle.step(prompt.steps[number - 1])
        return {"logits": prompt.counted(logits, number)}

    def rule(step: Step, difference: Difference, _: object) -> tuple[float, str]:
        distance = difference.of_spread
        return distance, "" if distance <= allowed else f"the logits of {step.where} differ by {distance:.1e}"

    steps = (
        Step(f"step {at}" if at else "the prompt", {"logits": prompt.counted(logits, at)}, partial(repeated, at))
        for at, logits in enumerate(expected)
    )
    agreement, (rows, length) = follow_steps(steps, rule), prompt.tokens.shape
    return BundleRun(
        optimized=optimized,
        rows=rows,
        padded=prompt.is_padded,
        source=prompt.source,
        prompt=length,
        steps=agreement.steps - (agreement.error is None),
        logits=agreement.worst,
        failure=agreement.failure,
    )


def _search_checks(
    bundle: Bundle, prompt: Prompt, truth: Recording, notes: list[str], allowed: float, judge: Float16Judge | None
) -> dict[str, Callable[[], str]]:
    """Return what decodes greedily and by beams, and compares the tokens with those of the originals."""
    checks: dict[str, Callable[[], str]] = {}
    for width, expected in truth.tokens.items():
        name = "greedy tokens" if width == 1 else f"tokens of {width} beams"
        checks[name] = partial(_same_tokens, width, bundle, prompt, expected, allowed, judge)
    if all(len(set(tokens)) == 1 for rows in truth.tokens.values() for tokens in rows):
        notes.append("The tokens tell nothing: it is one token all the way. The logits tell.")
    if max(truth.tokens) == 1:
        notes.append("A bundle of one row has no beams to try.")
    return checks


def _same_tokens(
    beams: int, bundle: Bundle, prompt: Prompt, expected: list[list[int]], allowed: float, judge: Float16Judge | None
) -> str:
    """Search with a bundle, and compare the tokens."""
    actual = search_of(beams)(bundle, start_bundle(bundle, prompt)[:, -1], len(expected[0]), ())
    if actual == expected or (judge and judge.explains_tokens(bundle, prompt, beams, expected, allowed)):
        return ""
    return f"{actual[0]} instead of {expected[0]}"


def _option_checks(
    bundle: IsolatedBundle, prompts: Sequence[Prompt], truth: Recording, allowed: float, judge: Float16Judge | None
) -> dict[str, Callable[[], str]]:
    """Return the checks of a caller's options: reordered rows, steps of several tokens, the logits of the last ones."""
    checks: dict[str, Callable[[], str]] = {}
    pair = next((prompt for prompt in prompts if len(prompt.tokens) == 2 and prompt.steps), None)
    if truth.reordered and pair is not None:
        calls, words = (
            partial(decode_reordered_rows, pair, [1, 0, 0][: len(truth.reordered[0])]),
            "the logits of the next steps {}",
        )
        checks["rows that are reordered"] = partial(
            _repeat_calls, bundle, calls, truth.reordered, allowed, judge, words
        )
    if truth.chunks:
        checks["steps of several tokens"] = partial(_check_chunks, bundle, prompts, truth.chunks, allowed, judge)
    long = max((prompt for prompt in prompts if prompt.all_logits), key=lambda prompt: prompt.tokens.size)
    if can_choose(bundle.contract):
        checks["the logits of the last token alone"] = partial(_last_logits, bundle, long, allowed, judge)
        if long.tokens.shape[1] > 1:
            checks["the logits of the last two tokens"] = partial(_last_two_logits, bundle, long, allowed)
    return checks


def _repeat_calls(
    bundle: Bundle, calls: Calls, expected: Sequence[np.ndarray], allowed: float, judge: Float16Judge | None, words: str
) -> str:
    """Repeat calls with a bundle, and return by how much the logits differ, in words; "" where they do not."""
    worst = max(map(distance_of_spread, expected, calls(partial(start_bundle, bundle), bundle)))
    is_right = worst <= allowed or (judge and judge.explains(calls, expected, bundle, allowed))
    return "" if is_right else words.format(f"differ by {worst:.1e}")


def _check_chunks(
    bundle: Bundle,
    prompts: Sequence[Prompt],
    expected: Mapping[int, Sequence[np.ndarray]],
    allowed: float,
    judge: Float16Judge | None,
) -> str:
    """Decode several tokens in a step, and compare their logits with those of the originals in such steps."""
    for number, logits in expected.items():
        rows, length = prompts[number].tokens.shape
        words = f"after a prompt of {count_things(rows, 'row(s)')} and {count_things(length, 'token(s)')} they {{}}"
        calls = partial(several_at_once, prompts[number])
        if fault := _repeat_calls(bundle, calls, logits, allowed, judge, words):
            return fault
    return ""


def _last_logits(bundle: Bundle, prompt: Prompt, allowed: float, judge: Float16Judge | None) -> str:
    """Ask for the logits of each token and of the last one alone; both are to leave the same state."""
    expected = [start_bundle(bundle, prompt)[:, -1:], *(bundle.step(tokens) for tokens in prompt.steps[:1])]
    return _repeat_calls(bundle, partial(last_alone, prompt), expected, allowed, judge, OTHERS)


def _last_two_logits(bundle: IsolatedBundle, prompt: Prompt, allowed: float) -> str:
    """Ask for the logits of each token and of the last two; only the last product has other sizes."""
    expected = [start_bundle(bundle, prompt)[:, -2:]]
    two = bundle.keeping(2, prompt.tokens, prompt.mask if prompt.has_mask else None, prompt.inputs)
    return _repeat_calls(bundle, lambda *_: [two], expected, allowed, None, OTHERS)


def _wrong_parts(originals: Sequence[Model], contract: BundleContract, folder: Path) -> list[WrongPart]:
    """Compare weights, and numbers in attributes, with those of the same name."""
    return find_wrong_parts(
        originals, [load(folder / file) for file in dict.fromkeys(m.file for m in contract.methods)]
    )


def _same_weights(facts: Sequence[WrongPart]) -> str:
    """Return which weights and attributes are surely others, "" for none."""
    return " ".join(dict.fromkeys(str(fact) for fact in facts if fact.is_sure)).removesuffix(".")


STEPS = 12


def equal_tokens(
    originals: Originals,
    folder: Path,
    *,
    seed: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[int, int]:
    """Return how many greedy tokens of the export the bundle chooses too, and how many there are.

    The export decodes greedily from the first row of each prompt; both go on with its tokens.

    Raises:
        ModelError: A model is broken, or onnxruntime cannot run it.
    """
    contract = read_bundle(folder / "bundle.json", altered=True)
    equal = tried = 0
    all_prompts = make_prompts(contract, originals, seed)
    with run_isolated(limits):
        oracle, bundle = Oracle(originals, can_choose=True), IsolatedBundle(folder, optimize=False, unchecked=True)
        all_prompts = [replace(prompt.first_row(), all_logits=False) for prompt in all_prompts]
        for prompt in tell_each(all_prompts, "counting equal tokens", progress, "prompt"):
            expected = begin_prompt(oracle, prompt)[:, -1]
            actual = start_bundle(bundle, prompt)[:, -1]
            steps = min(STEPS, contract.lengths[0].most - prompt.tokens.shape[1] + 1)
            for number, (tokens, _) in enumerate(
                decode_greedily(expected, lambda ids: oracle.step(ids)[:, -1], steps), 1
            ):
                equal += int((actual.argmax(-1) == tokens).sum())
                tried += len(tokens)
                if number < steps:
                    actual = bundle.step(tokens.reshape(-1, 1))[:, -1]
    return equal, tried
