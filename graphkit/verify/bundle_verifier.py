"""The proof of a bundle: methods over one state, against the models that they were made of."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from msgspec import structs

from graphkit.contract.contract_files import read_bundle
from graphkit.equivalence.bundles import summarize_bundle
from graphkit.equivalence.originals import Originals
from graphkit.errors import ModelError, count_things
from graphkit.graph.operator_traits import PAST_KEYS
from graphkit.hosts.bundle_host import Bundle
from graphkit.model import Model, load
from graphkit.options import DeploymentProofOptions
from graphkit.progress import DEFAULT_LIMITS, Limits, Progress, portion_of, with_share
from graphkit.runtime.providers import CPU, Provider
from graphkit.runtime.session import IsolatedSession, as_provider
from graphkit.shapes.constraints.failing_sizes import sizes_that_run
from graphkit.verify.bundle_causes import find_bundle_causes
from graphkit.verify.bundle_prompts import (
    LONGEST,
    Calls,
    Prompt,
    Recording,
    begin_prompt,
    decode_reordered_rows,
    make_prompts,
    record_originals,
    search_of,
    several_at_once,
)
from graphkit.verify.bundle_state_checks import (
    CHECKS,
    UNUSED,
    IsolatedBundle,
    Subject,
    can_choose,
    start_bundle,
    try_check,
    widen_bundle,
    widen_model,
)
from graphkit.verify.comparator import (
    BUNDLE_TOLERANCE,
    LOWERING_TOLERANCE,
    BundleTolerance,
    Difference,
    distance_of_spread,
    has_float16,
    level_tolerance,
)
from graphkit.verify.decoding import decode_greedily
from graphkit.verify.deployment_proofs import BundleProof, BundleRun
from graphkit.verify.input_generator import ExportInputs, InputSpec
from graphkit.verify.oracle import Oracle, assumed_inputs
from graphkit.verify.proof_engine import Step, follow_steps, run_isolated, tell_each
from graphkit.verify.rewrite_proof import placed_text, placement_fault
from graphkit.verify.rounding import FACTORS, IN_FLOATS, without_rounding
from graphkit.verify.weight_comparison import WrongPart, find_wrong_parts

SEARCHED = 12  # tokens
PART = 3  # the size of open dims of models that run beside the decoder
SAME = "weights are those of the export"
OTHERS = "they {} from those among the logits of all"
CHUNKS = "steps of several tokens"
SIDES = (2, 4, 8)  # of grids of patches
NO_CHUNKS = "The export does not run on several tokens after the first ones: such steps are not compared."
JUNK = 99.0  # of slots that are not in use, where the export reads these too, behind a mask
FINITE = "unused slots may hold any number"
Checks = dict[str, Callable[[], str]]
STEPS = 12  # in which equal tokens are counted


def verify_bundle(
    originals: Originals,
    folder: str | os.PathLike[str],
    options: DeploymentProofOptions = DeploymentProofOptions(),
    *,
    exact: bool,
    progress: Progress = lambda _: None,
) -> BundleProof:
    """Prove that a bundle gives the results of its originals.

    The originals decode each prompt once at each of onnxruntime's levels. How far these two are apart is what the
    runtime alone makes of the digits, and as much is allowed where it is more than the tolerance.

    Args:
        originals: The models that it was made of.
        folder: The bundle.
        options: How to prove it. The tolerance, by default `BUNDLE_TOLERANCE`, or `LOWERING_TOLERANCE` where attentions
            of the export are one node, counts over how far logits vary where that is more than 1. For models with
            float16 tensors it is at least `FLOAT16_TOLERANCE`, and for those that round what they compute to 8 bits at
            least `QUANTIZED_TOLERANCE`; on a device at least its own.
        exact: Whether logits must be equal to the last bit in plain onnxruntime; else within the tolerance.
        progress: Called with the name of each step before it starts.

    Returns:
        The proof: `proof.passed` says whether it holds.

    Raises:
        ModelError: A model is broken, or onnxruntime cannot run it.
    """
    with run_isolated(options.limits):
        return BundleVerifier(originals, Path(folder), options, exact=exact, progress=progress).run()


def half_tolerance(tolerance: float, own: float) -> float:
    """Return how far logits in float16 may be off where the export's own are: one that overflows excuses nothing."""
    return max(tolerance, FACTORS[True] * own) if math.isfinite(own) else tolerance


class BundleVerifier:
    """A proof of a bundle to run: what the originals give at both levels, and how far the bundle may be from that."""

    def __init__(
        self, originals: Originals, folder: Path, options: DeploymentProofOptions, *, exact: bool, progress: Progress
    ) -> None:
        self.originals, self.folder, self.options, self.progress = originals, folder, options, progress
        self.provider = as_provider(options.provider)
        exact = exact and self.provider.is_cpu
        self.contract = read_bundle(folder / "bundle.json", altered=True)
        self.prompts = make_prompts(self.contract, originals, options.seed)  # what both decode
        self.short = [prompt for prompt in self.prompts if prompt.at_both_levels]
        step = self.contract.method("step")
        tokens = step.sources.get("tokens", ()) if step is not None else ()
        several = [at for at, prompt in enumerate(self.prompts) if prompt.at_both_levels and len(prompt.steps) > 1]
        if any(isinstance(port.shape[-1], int) for port in tokens):
            several = []
        padded = [at for at in several if self.prompts[at].is_padded]
        # the prompts to step several tokens from: the first, the first with padding and the last
        self.several = sorted({*several[:1], *padded[:1], *several[-1:]})
        batch, first = self.contract.sizes["batch"], self.prompts[0]
        is_half = any(map(has_float16, originals.models))
        is_rounded = any(without_rounding(model) is not model for model in originals.models)
        # both in float32, where they round to float16 and can be converted, or to 8 bits: these are compared first
        is_wide = (is_half or is_rounded) and self.provider.is_cpu
        self.wide = widen_bundle(originals, folder, self.contract) if is_wide else None
        self.is_wide_half = is_half and self.wide is not None  # what is of float16 runs as it is too
        self.prepack = is_rounded  # else kernels unpack weights of 4 bits in each run, which takes 30 times as long
        compared = originals if self.wide is None else self.wide.originals
        self.truth = record_originals(
            compared,
            self.prompts,
            optimize=False,
            prepack=self.prepack,
            beams=sorted({1, min(3, batch)} if options.same_tokens else ()),
            steps=min(self.contract.lengths[0].most - first.tokens.shape[1] + 1, SEARCHED),
            rows=[1, 0, 0][:batch] if batch > 1 else [],
            several=self.several,
            progress=portion_of(progress, 0.0, 0.3),
        )
        at_default = portion_of(progress, 0.3, 0.4)
        self.at_default = record_originals(compared, self.short, optimize=True, progress=at_default)
        nodes = (node for model in originals.models for node in model.nodes)
        usual = LOWERING_TOLERANCE if any(node.operator in PAST_KEYS for node in nodes) else BUNDLE_TOLERANCE
        tolerance = usual if options.tolerance is None else options.tolerance
        if options.tolerance is None and not self.provider.is_cpu:
            tolerance = max(level_tolerance(model, self.provider) for model in originals.models)
        # the others come last, and ran at one level alone
        apart = max(map(_prompt_distance, self.prompts, self.truth.logits, self.at_default.logits), default=0.0)
        is_wide = self.is_wide_half or (self.wide is not None and not exact)
        self.allowed = BundleTolerance.of(compared.models, apart, tolerance, exact=exact, is_wide=is_wide)
        # how far logits of float16 may be from the originals in float32, where these themselves are no further
        self.half = BundleTolerance.of(originals.models, 0.0, tolerance, exact=False)

    def run(self) -> BundleProof:
        """Decode with the bundle at both levels, check its state and its options, and look for causes."""
        notes, progress = [*self._notes()], self.progress
        provider, is_cpu = self.provider, self.provider.is_cpu
        written = IsolatedBundle(
            self.folder, optimize=not is_cpu, prepack=self.prepack, unchecked=True, provider=provider
        )
        bundle = written if self.wide is None else self.wide.open(self.folder, optimize=False, prepack=self.prepack)
        runs = self._run_prompts(bundle, self.prompts, self.truth, portion_of(progress, 0.4, 0.65))
        junk = JUNK if self.is_static else math.nan
        subject = Subject(written, self.short, self.folder, junk)
        checks, state_checks = dict[str, str](), portion_of(progress, 0.65, 0.74)
        for name in tell_each([*CHECKS], "checking", state_checks, "state"):
            told = FINITE if name == UNUSED and not math.isnan(junk) else name
            checks[told] = try_check(partial(CHECKS[name], subject))
        choices = self._caller_checks(bundle)
        for name in tell_each([*choices], "checking", portion_of(progress, 0.74, 0.83), "option of a caller"):
            checks[name] = try_check(choices[name])
        failing = [prompt for prompt, run in zip(self.prompts, runs, strict=True) if run.failure]
        halves = self._run_halves(written, notes) if self.is_wide_half else []
        placed = written.placed
        del bundle, written, subject, choices  # what they map or have prepacked need not be there twice
        facts, causes = list[WrongPart](), list[str]()
        if self.options.same_weights or failing:
            progress(with_share(0.83, "comparing weights"))
            files = [load(self.folder / file) for file in dict.fromkeys(m.file for m in self.contract.methods)]
            facts = find_wrong_parts(self.originals.models, files)
        if failing:
            progress("looking for the cause")
            near, made = self._within(failing[0]), self if self.wide is None else self.wide
            convert = None if self.wide is None else widen_model
            causes = find_bundle_causes(made.originals, self.folder, made.contract, failing, facts, near, convert)
        if self.options.same_weights:
            checks[SAME] = " ".join(dict.fromkeys(str(fact) for fact in facts if fact.is_sure)).removesuffix(".")
        if not is_cpu:
            nodes = [f"Nodes of the bundle, as onnxruntime placed them: {placed_text(placed)}."] if placed else []
            fault, near = placement_fault(placed, provider), self.allowed.near
            given = (tuple(structs.replace(run, optimized=True) for run in runs), checks, (*notes, *nodes))
            return BundleProof(near, near, *given, (*causes, *([fault] if fault else [])), provider=str(provider))
        fused: Bundle = IsolatedBundle(self.folder, unchecked=True)
        halves += self._run_halves(fused) if self.is_wide_half else []
        fused = fused if self.wide is None else self.wide.open(self.folder, optimize=True, prepack=self.prepack)
        at_default = portion_of(progress, 0.85, 0.95)
        runs += self._run_prompts(fused, self.short, self.at_default, at_default, within=self.allowed.fused)
        runs += halves
        proof = BundleProof(self.allowed.plain, self.allowed.fused, tuple(runs), checks, tuple(notes), tuple(causes))
        if not proof.passed:
            return proof
        progress(with_share(0.95, "proving: normal forms of the methods"))
        seconds = self.options.limits.seconds
        return replace(proof, equivalence=summarize_bundle(self.originals, self.folder, seconds=seconds))

    def _run_halves(self, bundle: Bundle, notes: list[str] | None = None) -> list[BundleRun]:
        """Decode with a bundle of float16 as it is, beside the originals in float32.

        It may be `FACTORS[True]` times as far from these as the originals of float16 are. With `notes` it runs in plain
        onnxruntime, and they get a sentence about how far that is.
        """
        prompts, is_plain = self.prompts if notes is not None else self.short, notes is not None
        tolerance = self.half.near if is_plain else self.half.fused
        runs = []
        for prompt, expected, own in zip(prompts, self.truth.logits, self.own, strict=False):
            runs.append(_run_prompt(bundle, prompt, expected, half_tolerance(tolerance, own), optimized=not is_plain))
        if notes is not None:
            notes.append(f"Of the logits of the export itself float16 puts some {max(self.own, default=0.0):.1e} off.")
        return runs

    @cached_property
    def is_static(self) -> bool:
        """Whether a cache of the export has slots from the start, all of which it reads behind a mask."""
        roles = [model.roles for model in self.originals.models]
        return any(entry.is_static and not each.is_cross(entry) for each in roles for entry in each.cache)

    @cached_property
    def own(self) -> list[float]:
        """How far the originals of float16 are from themselves in float32, for each prompt."""
        halves = record_originals(self.originals, self.prompts, optimize=False, prepack=self.prepack)
        pairs = zip(self.prompts, self.truth.logits, halves.logits, strict=True)
        return [_prompt_distance(prompt, wide, half) for prompt, wide, half in pairs]

    def _within(self, prompt: Prompt) -> float:
        return self.allowed.plain if prompt.all_logits else self.allowed.near

    def _notes(self) -> Iterator[str]:
        """Yield what to know of the prompts and sizes that are tried, a sentence each."""
        method, sizes, allowed = self.contract.method("once"), self.contract.sizes, self.allowed
        users = [port for port in (method.inputs if method is not None else ()) if port.kind == "user"]
        dims = dict.fromkeys(dim for port in users for dim in port.shape if isinstance(dim, str))
        if largest := [f"{dim} {sizes[dim]:,}" for dim in dims if dim in sizes and dim not in ("batch", "source")]:
            yield f"Smaller inputs are not tried: all have {', '.join(largest)}."
        if allowed.is_raised:
            yield f"onnxruntime's two levels differ by {allowed.apart:.1e} on the export: {allowed.near:g} is allowed."
        if last := sorted({prompt.tokens.shape[1] for prompt in self.prompts if not prompt.all_logits}):
            lengths = ", ".join(f"{length:,}" for length in last)
            yield f"Of prompts of {lengths} tokens the logits of the last one are compared, within {allowed.near:g}."
        if plain := [prompt.tokens.shape[1] for prompt in self.prompts if not prompt.at_both_levels]:
            lengths = ", ".join(f"{length:,}" for length in dict.fromkeys(plain))
            yield f"Prompts of {lengths} tokens run in plain onnxruntime alone, those of more than {LONGEST} unpadded."
        if self.several and not self.truth.chunks:
            yield NO_CHUNKS
        if (tokens := self.truth.tokens) and all(len(set(row)) == 1 for rows in tokens.values() for row in rows):
            yield "The tokens tell nothing: it is one token all the way. The logits tell."
        yield from assumed_inputs(self.originals.step)
        if self.wide is not None and not self.is_wide_half:
            yield IN_FLOATS
        if tokens and max(tokens) == 1:
            yield "A bundle of one row has no beams to try."

    def _run_prompts(
        self,
        bundle: Bundle,
        prompts: Sequence[Prompt],
        expected: Recording,
        progress: Progress,
        within: float | None = None,
    ) -> list[BundleRun]:
        """Decode prompts with the bundle; `within` is how far all logits may be where onnxruntime fuses operators."""
        level = f"proving: {'plain' if within is None else 'default'} level"
        runs = []
        for number in tell_each(range(len(prompts)), level, progress, "prompt", lambda number: prompts[number].work):
            prompt = prompts[number]
            near = self._within(prompt) if within is None else within
            run = _run_prompt(bundle, prompt, expected.logits[number], near, optimized=within is not None)
            runs.append(structs.replace(run, is_wide=self.is_wide_half))
        return runs

    def _caller_checks(self, bundle: IsolatedBundle) -> Checks:
        """Return the checks of what callers do: search, reorder rows, give several tokens, or take fewer logits."""
        checks, near, first = Checks(), self.allowed.near, self.prompts[0].first_row()
        for width, expected in self.truth.tokens.items():
            name = "greedy tokens" if width == 1 else f"tokens of {width} beams"
            checks[name] = partial(_check_tokens, width, bundle, first, expected)
        pair = next((prompt for prompt in self.prompts if len(prompt.tokens) == 2 and prompt.steps), None)
        if (moved := self.truth.reordered) and pair is not None:
            calls = partial(decode_reordered_rows, pair, [1, 0, 0][: len(moved[0])])
            words = "the logits of the next steps {}"
            checks["rows that are reordered"] = partial(_repeat_calls, bundle, calls, moved, near, words)
        if self.truth.chunks:
            checks[CHUNKS] = partial(self._check_chunks, bundle)
        long = max((prompt for prompt in self.prompts if prompt.all_logits), key=lambda prompt: prompt.tokens.size)
        if can_choose(self.contract):
            for name, count in (("token alone", 1), ("two tokens", 2)):
                if count <= long.tokens.shape[1]:
                    checks[f"the logits of the last {name}"] = partial(_check_last, bundle, long, near, count)
        for model in self.originals.parts:  # which run beside the decoder
            checks[f"what {model.name} gives"] = partial(self._check_part, bundle, model)
        if self.contract.options.encode_apart:
            checks["the states of each prompt's source"] = partial(self._check_encoder, bundle)
        return checks

    def _check_encoder(self, bundle: IsolatedBundle) -> str:
        assert self.originals.first is not None
        reads = self.originals.first.roles.all("encoder state")[0].name
        for prompt in self.prompts:
            (states,) = bundle.run("encoder", prompt.encoded).values()
            if (worst := distance_of_spread(prompt.inputs[reads], states)) > self.allowed.near:
                return f"those of {prompt.source:,} positions differ by {worst:.1e}"
        return ""

    def _check_part(self, bundle: IsolatedBundle, model: Model) -> str:
        methods = [m for m in self.contract.methods if m.when == "step" and set(m.access.values()) <= {"none"}]
        method = methods[self.originals.parts.index(model)]
        inputs = ExportInputs([model], np.random.default_rng(self.options.seed))
        sizes = {name: min(size, PART) for name, size in self.contract.sizes.items()}
        sizes |= sizes_that_run(model, {dim for port in method.inputs for dim in port.shape if isinstance(dim, str)})
        session = IsolatedSession(model.path if model.path is not None else model, optimize=False)
        grid = next((port for port in method.inputs if port.shape[1:] == (3,) and port.dtype == "int64"), None)
        for side in (0, *SIDES) if grid is not None else (0,):  # patches in grids of one frame, and their number
            count = grid.shape[0] if grid is not None else 1
            rows = side * side * (count if isinstance(count, int) else PART)
            feed = {}
            for port in method.inputs:
                shape = [dim if isinstance(dim, int) else sizes.get(dim, PART) for dim in port.shape]
                if rows and port is not grid and isinstance(port.shape[0], str):
                    shape[0] = rows
                feed[port.name] = inputs.array(InputSpec(port.name, port.dtype), shape)
                if rows and port is grid:
                    feed[port.name] = np.broadcast_to(np.array([1, side, side]), shape).copy()
            try:
                expected = session.run(feed)
            except ModelError:
                continue
            actual = bundle.run(method.name, feed)
            worst = max(distance_of_spread(array, actual[name]) for name, array in expected.items())
            return "" if worst <= self.allowed.near else f"it differs by {worst:.1e}"
        return "no inputs are known at which the model of the export runs, so that nothing is compared"

    def _check_chunks(self, bundle: Bundle) -> str:
        for number, logits in self.truth.chunks.items():
            rows, length = self.prompts[number].mask.shape
            words = f"after a prompt of {count_things(rows, 'row(s)')} and {count_things(length, 'token(s)')} they {{}}"
            calls = partial(several_at_once, self.prompts[number])
            if fault := _repeat_calls(bundle, calls, logits, self.allowed.near, words):
                return fault
        return ""


def _prompt_distance(prompt: Prompt, expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> float:
    pairs = enumerate(zip(expected, actual, strict=True))
    distances = (distance_of_spread(prompt.counted_logits(x, at), prompt.counted_logits(y, at)) for at, (x, y) in pairs)
    return max(distances, default=0.0)


def _run_prompt(
    bundle: Bundle, prompt: Prompt, expected: Sequence[np.ndarray], allowed: float, *, optimized: bool
) -> BundleRun:
    """Decode a prompt and given tokens with the bundle, and compare the logits with those of the originals."""

    def repeat(number: int) -> dict[str, np.ndarray]:
        logits = start_bundle(bundle, prompt) if number == 0 else bundle.step(prompt.steps[number - 1])
        return {"logits": prompt.counted_logits(logits, number)}

    def rule(step: Step, difference: Difference, _: object) -> tuple[float, str]:
        distance = difference.of_spread
        return distance, "" if distance <= allowed else f"the logits of {step.where} differ by {distance:.1e}"

    steps = (
        Step(f"step {at}" if at else "the prompt", {"logits": prompt.counted_logits(logits, at)}, partial(repeat, at))
        for at, logits in enumerate(expected)
    )
    agreement, (rows, length) = follow_steps(steps, rule), prompt.mask.shape
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


def _check_tokens(beams: int, bundle: Bundle, prompt: Prompt, expected: list[list[int]]) -> str:
    actual = search_of(beams)(bundle, start_bundle(bundle, prompt)[:, -1], len(expected[0]), ())
    return "" if actual == expected else f"{actual[0]} instead of {expected[0]}"


def _repeat_calls(bundle: Bundle, calls: Calls, expected: Sequence[np.ndarray], allowed: float, words: str) -> str:
    """Repeat calls with a bundle, and return by how much the logits differ, in words; "" where they do not."""
    worst = max(map(distance_of_spread, expected, calls(partial(start_bundle, bundle), bundle)))
    return "" if worst <= allowed else words.format(f"differ by {worst:.1e}")


def _check_last(bundle: IsolatedBundle, prompt: Prompt, allowed: float, count: int) -> str:
    steps = prompt.steps[:1]
    expected = [start_bundle(bundle, prompt)[:, -count:], *map(bundle.step, steps)]
    last = bundle.start_keeping(count, prompt.tokens, prompt.mask if prompt.has_mask else None, prompt.inputs)
    return _repeat_calls(bundle, lambda *_: [last, *map(bundle.step, steps)], expected, allowed, OTHERS)


def equal_tokens(
    originals: Originals,
    folder: Path,
    *,
    seed: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    provider: Provider = CPU,
    progress: Progress = lambda _: None,
) -> tuple[int, int]:
    """Return how many greedy tokens of the export the bundle chooses too, and how many there are.

    The export decodes greedily from the first row of each prompt; both go on with its tokens.
    """
    contract = read_bundle(folder / "bundle.json", altered=True)
    equal = tried = 0
    all_prompts = make_prompts(contract, originals, seed)
    with run_isolated(limits):
        oracle = Oracle(originals, can_choose=True)
        bundle = IsolatedBundle(folder, optimize=not provider.is_cpu, unchecked=True, provider=provider)
        all_prompts = [structs.replace(prompt.first_row(), all_logits=False) for prompt in all_prompts]
        for prompt in tell_each(all_prompts, "counting equal tokens", progress, "prompt"):
            expected = begin_prompt(oracle, prompt)[:, -1]
            actual = start_bundle(bundle, prompt)[:, -1]
            steps = min(STEPS, contract.lengths[0].most - prompt.tokens.shape[1] + 1)
            chosen = decode_greedily(expected, lambda ids: oracle.step(ids)[:, -1], steps)
            for number, (tokens, _) in enumerate(chosen, start=1):
                equal += int((actual.argmax(-1) == tokens).sum())
                tried += len(tokens)
                if number < steps:
                    actual = bundle.step(tokens.reshape(-1, 1))[:, -1]
    return equal, tried
