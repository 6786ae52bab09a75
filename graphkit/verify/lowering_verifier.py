"""The proof of a lowering: the original pipeline, unpadded, against host and lowered models at fixed, padded shapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from graphkit.contract import Contract
from graphkit.contract.host_contract import FIXED
from graphkit.equivalence.originals import Originals
from graphkit.errors import count_things
from graphkit.graph.names import join_words, label_families
from graphkit.model import load
from graphkit.options import DeploymentProofOptions
from graphkit.progress import DEFAULT_LIMITS, Limits, Progress
from graphkit.runtime.session import RunError, as_provider
from graphkit.verify.cause_search import with_attributes
from graphkit.verify.comparator import (
    LOWERING_TOLERANCE,
    ColumnTolerance,
    Difference,
    Output,
    computes_in_half,
    largest_measured,
    level_tolerance,
)
from graphkit.verify.decoding import decode_greedily
from graphkit.verify.deployment_proofs import LoweringProof, SourceRun
from graphkit.verify.input_elements import Draw, place_token, special_tokens
from graphkit.verify.input_generator import ExportInputs, InputSpec
from graphkit.verify.lowering_case import BEGUN, AlteredHost, IsolatedMethods, LoweringCase, find_leaks, sound_lengths
from graphkit.verify.lowering_causes import facts_of, find_lowering_causes
from graphkit.verify.oracle import OneSequence, assumed_inputs
from graphkit.verify.proof_engine import Agreement, Step, follow_steps, run_isolated, tell_each
from graphkit.verify.rewrite_proof import placed_text, placement_fault
from graphkit.verify.rounding import IN_FLOATS, without_rounding

STEPS = 32  # of a decoder without a cache, which takes any number
ENDING = 32  # steps at the end of the cache, where some before them are left out
GREEDY = 16  # most tokens to decode greedily
SPECIAL = 6  # steps with a special token
MASKED = 4  # runs where the caller gives masks, whose padding differs, or integers such as lengths
SHOWN = 8  # integers of an input at which the results differ
LARGE = 1000  # integers such as the time of a diffusion
NOTHING = "the originals give nothing that could be compared"


def verify_lowering(
    originals: Originals,
    folder: Path,
    options: DeploymentProofOptions = DeploymentProofOptions(),
    *,
    progress: Progress = lambda _: None,
) -> LoweringProof:
    """Prove that host and lowered models, in the folder of a contract, give the results of the originals.

    Sources of 1 token up to the fixed length run through both: the original without padding, the host with it. The
    decoder is given tokens until the cache is full and one more, then decodes greedily; the middle of a long cache is
    filled in both with what its first slots hold, times other factors. Unused slots and the embeddings of padding are
    filled with noise in one more run, which must change nothing.

    The tolerance, by default `LOWERING_TOLERANCE`, and on a device at least its own, counts times how far an output
    varies where that is above 1; models that compute in float16 are compared within 2**-8. Raises ModelError where a
    model does not load or run.
    """
    with run_isolated(options.limits):
        return _Proof(originals, folder, options, progress).run(same_weights=options.same_weights)


class _Proof:
    def __init__(self, originals: Originals, folder: Path, options: DeploymentProofOptions, progress: Progress) -> None:
        provider, seed, tolerance = as_provider(options.provider), options.seed, options.tolerance
        if tolerance is None:
            devices = [] if provider.is_cpu else [level_tolerance(model, provider) for model in originals.models]
            tolerance = max([LOWERING_TOLERANCE, *devices])
        self.progress, self.folder, self.provider = progress, folder, provider
        self.methods = IsolatedMethods(folder, provider)
        given, originals = originals, originals.map_models(without_rounding) if provider.is_cpu else originals
        self.is_unrounded = originals.models != given.models
        self.failing: LoweringCase | None = None  # the first that fails
        self.failing_length = 0  # of its sound
        self.rng = np.random.default_rng(seed)
        self.host = AlteredHost(folder, self.methods, unchecked=True)
        self.host.rng = np.random.default_rng(seed)
        self.contract = self.host.contract
        if self.is_unrounded:
            self.methods.models = {m.name: without_rounding(load(folder / m.file)) for m in self.contract.methods}
        self.allowance = ColumnTolerance(tolerance, is_half=any(map(computes_in_half, originals.models)))
        self.tolerance = self.allowance.tolerance
        self.reference = OneSequence(originals)
        self.reference.is_cut = self.host.pads_sounds
        self.reference.pad = self.contract.tokens["pad"] or 0
        self.inputs = ExportInputs(originals.models, self.rng)
        self.draws = itertools.count()
        self.vocabulary = self.host.vocabulary = vocabulary_size(self.contract)
        self.special, self.pads = special_tokens(originals.models, self.vocabulary)
        pads = {self.contract.tokens["pad"], *self.pads}
        everything = range(self.vocabulary)
        self.plain = np.array([token for token in everything if token not in pads] or everything)
        masks = {value.name for model in originals.models for value in model.roles.polarities}
        ports = (port for method in self.contract.methods for port in method.inputs)
        self.user = {port.name: port for port in ports if port.kind == "user"}
        self.has_user_masks = not masks.isdisjoint(self.user)
        others = {value.name for model in originals.models for value in model.roles.all("other")}
        self.integers = [name for name, port in self.user.items() if name in others and "int" in port.dtype]
        bounds = [maker.bounds for maker in self.inputs.makers]
        self.unknown = [name for name in self.integers if all(each.get(name) is None for each in bounds)]

    @cached_property
    def _steps(self) -> int:
        """How many steps to run: until the cache is full, but for those left out; some, where there is none."""
        positions = self.contract.sizes["positions"]
        return positions - self._skipped_steps if self.contract.sizes["capacity"] else min(positions, STEPS)

    @cached_property
    def _skipped_steps(self) -> int:
        """How many steps are left out in the middle, where the whole cache is slots that both hold alike."""
        step, sizes = self.reference.originals.step, self.contract.sizes
        if step is None or self.reference.originals.sliding is not None or step.roles.states:
            return 0
        grown = {value.name: each.axis for value, each in step.roles.pasts.items() if not step.roles.is_cross(each)}
        states = {state.name: state for state in self.contract.states if state.axis is not None}
        shapes = [(state.axis, state.shape[state.axis or 0]) for state in states.values()]
        is_alike = states.keys() == grown.keys() and shapes == [(grown[name], sizes["capacity"]) for name in states]
        return max(0, sizes["positions"] - BEGUN - ENDING) if is_alike else 0

    def run(self, *, same_weights: bool) -> LoweringProof:
        lengths, runs = self._source_lengths(), []
        if lengths and self.unknown:
            self._limit_integers(lengths[-1])
        count = max(len(lengths), self.host.batch, MASKED if self.has_user_masks or self.integers else 0)
        for number in tell_each(range(count if lengths else 0), "proving", self.progress):
            length = lengths[number % len(lengths)]
            self._take_sound(length)
            self.host.sequence = number % self.host.batch
            runs.append(self._source_run(length))
        self.host.sequence = 0
        self._take_sound(lengths[-1] if lengths else 0)
        runs += [self._run_special(token, lengths[-1]) for token in (self.special if lengths else ())]
        failed = [run for run in runs if run.failure]
        self.progress("comparing tables and weights")
        facts = facts_of(self.reference.originals, self.folder, self.contract, self.host)
        findings = [str(fact) for fact in facts.sure] if same_weights else []
        case, middle = None, lengths[(len(lengths) - 1) // 2] if lengths else 0
        if self._pads_with_tokens:  # they count as any other token does
            middle = lengths[-1]
        if lengths:
            tokens = self._draw_ids(self._steps)
            case = self._make_case(self._source(middle), tokens, self._user_inputs())
        self._take_sound(middle)
        if failed and self.failing is not None:
            self.progress("looking for the cause")
            self._take_sound(self.failing_length)
            findings += find_lowering_causes(self.failing, case, facts, self.rng)
        elif case is not None:
            findings += find_leaks(case, self.rng)
        if case is not None and self.is_unrounded:
            findings += self._run_written(case)
        notes, caveats = [*self._left_out(lengths)], [*self._caveats()]
        if self._steps and all(run.tokens <= 1 for run in runs):
            notes.append("The original chooses one token all the way: here equal tokens tell nothing, and logits do.")
        for token in self.pads:
            notes.append(f"The original takes token {token} for padding wherever it stands: no source has it.")
        if math.isfinite(self.tolerance) and (ties := sum(run.others for run in runs)):
            steps = count_things(ties, "step(s)")
            notes.append(f"At {steps} the two largest logits are as near as the tolerance: either token is right.")
        # rows of another tensor of the export are rows of it too: that a table is the right one, the runs tell
        tables = facts.proofs if same_weights and self.provider.is_cpu and not (failed or findings) else ()
        if fault := placement_fault(self.methods.placed, self.provider):
            findings.append(fault)
        elif placed := self.methods.placed:
            notes.append(f"Nodes of the lowered models, as onnxruntime placed them: {placed_text(placed)}.")
        told = tuple(findings), tuple(notes), tuple(caveats)
        return LoweringProof(self.tolerance, tuple(runs), *told, tables=tables, provider=str(self.provider))

    def _caveats(self) -> Iterator[str]:
        """Yield a sentence for each mask of the originals that nobody gives any more, and where padding matters."""
        models = self.reference.originals.models
        for name in sorted({value.name for model in models for value in model.roles.polarities if value.consumers}):
            if {method.became[name] for method in self.contract.methods if name in method.became} == {FIXED}:
                yield f"Its mask '{name}' is fixed: it hides nothing."
        steps = (method.outputs for method in self.contract.methods if method.when == "step")
        if others := [f"'{port.name}'" for ports in steps for port in ports if not port.writes][1:]:
            yield f"Of a step, logits alone are compared, not {join_words([*label_families(others)])}."
        yield from assumed_inputs(self.reference.originals.step)
        if self.is_unrounded:
            yield IN_FLOATS
        if self.unknown:
            names = join_words([f"'{name}'" for name in self.unknown])
            yield f"Integers of {names} are tried below {self.inputs.most} alone."
        if self._pads_with_tokens and self.contract.takes_text:
            yield f"Shorter texts are padded with token {self.reference.pad}, which no mask hides."
        if (sound := self.contract.sizes.get("sound", 0)) and not self.host.pads_sounds:
            yield f"It takes sounds of {count_things(sound, 'place(s)')}: zeros behind shorter ones change results."

    @property
    def _pads_with_tokens(self) -> bool:
        encoder = self.reference.originals.encoder
        return self.reference.fixed is not None and encoder is not None and not encoder.roles.all("mask")

    def _source_lengths(self) -> list[int]:
        source = self.contract.sizes["source"]
        if self.contract.sizes.get("sound", 0) > 0:
            return sound_lengths(self.host, self.reference)
        if not self.contract.takes_text:
            return [0]
        nearest = (self.reference.nearest_source(length) for length in (1, 2, max(1, source // 3), source - 1, source))
        return sorted({length for length in nearest if length is not None and 0 < length <= source})

    def _left_out(self, lengths: Sequence[int]) -> Iterator[str]:
        source = self.contract.sizes["source"]
        if self._skipped_steps:
            yield f"Each cache is filled by {BEGUN} steps, then by what they wrote, up to the last {ENDING} steps."
        if not self.contract.takes_text:
            return
        if lengths == [source]:
            size = count_things(source, "token(s)")
            yield f"Every source had {size}, which leaves no padding: it was not tested for leaks."
        elif self.reference.nearest_source(1) != 1:
            compared = ", ".join(map(str, lengths))
            yield f"The original does not run at every length up to {source}: it was compared at {compared}."

    def _source(self, length: int) -> list[int]:
        return self._draw_ids(length if self.contract.takes_text else 0)

    def _take_sound(self, length: int) -> None:
        if self.contract.sizes.get("sound", 0):
            self.host.sound = self.reference.valid = length

    def _draw_ids(self, count: int) -> list[int]:
        return [int(token) for token in self.rng.choice(self.plain, count)]

    def _user_inputs(self) -> dict[str, np.ndarray]:
        """Return inputs that the caller makes; the padding of masks among them differs from time to time.

        Integers of which nothing is known are lengths of the inputs every other time, as larger ones hide nothing.
        """
        number, specs = next(self.draws), {name: InputSpec(name, port.dtype) for name, port in self.user.items()}
        draw, longest = Draw.usual(number), max((dim for port in self.user.values() for dim in port.shape), default=1)
        made = {name: self.inputs.array(specs[name], port.shape, draw) for name, port in self.user.items()}
        if number % 2 and self.inputs.most > longest:
            made |= {name: made[name] % longest + 1 for name in self.unknown}
        return made

    def _limit_integers(self, length: int) -> None:
        """Let integers of which nothing is known be large, and so small that the original runs, as lengths must be."""
        dims = {dim for port in self.user.values() for dim in port.shape if dim > 2}
        self._take_sound(length)
        for most in (LARGE, self.inputs.most, *sorted(dims, reverse=True), 2):
            self.inputs.most = most
            try:
                user = {name: self.host.own(array) for name, array in self._user_inputs().items()}
                largest = {name: np.full_like(user[name], most - 1) for name in self.unknown}
                for each in (user, {**user, **largest}):
                    self.reference.start(self._source(length), each)
                return
            except RunError as error:
                if error.signal or error.timed_out:
                    raise

    def _run_special(self, token: int, length: int) -> SourceRun:
        steps = min(SPECIAL, self._steps)
        length = length if self.contract.takes_text else 0
        summary, usual = SourceRun(length, token=token), next((t for t in self.plain.tolist() if t != token), token)
        last = (length or steps) - 1
        places = ((), (0,), (last // 2,), (last,), (last // 3, last), (0, last // 2))
        for where in dict.fromkeys(places):
            source = place_token(token, self._draw_ids(length), where, usual)
            later = where if not length else [min(place, steps - 1) for place in where]
            tokens = place_token(token, self._draw_ids(steps), later, usual)
            run = self._compare_case(self._make_case(source, tokens, self._user_inputs()))
            spots = f"place{'s' * (len(where) > 1)} {' and '.join(str(place + 1) for place in where)}"
            failure = f"at {spots if where else 'no place'} of {length or steps}: {run.failure}" if run.failure else ""
            summary = replace(
                summary,
                encoder=largest_measured(summary.encoder, run.encoder),
                logits=largest_measured(summary.logits, run.logits),
                steps=summary.steps + run.steps,
                failure=summary.failure or failure,
            )
        return summary

    def _source_run(self, length: int) -> SourceRun:
        source, user = self._source(length), self._user_inputs()
        case = self._make_case(source, self._draw_ids(self._steps), user)
        run = self._compare_case(case)
        if run.failure and self.integers:
            given = [f"'{name}' of {user[name].ravel()[:SHOWN].tolist()}" for name in self.integers]
            run = replace(run, failure=f"{run.failure}, with {join_words(given)}")
        if not self._steps:
            return run
        case.start()
        greedy = min(GREEDY, run.steps)
        chosen, others, differs = self._choose_greedily(greedy)
        return replace(run, greedy=greedy, tokens=len(set(chosen)), others=others, failure=run.failure or differs)

    def _compare_case(self, case: LoweringCase) -> SourceRun:
        outputs, once = case.start()
        missing = [f"'{name}' is not given" for name in once if name not in outputs]
        valid = {name: outputs[name][tuple(map(slice, once[name].shape))] for name in once if name in outputs}
        steps = [Step("valid positions", once, lambda: valid)]
        encoder = self._follow_steps(steps, "'{0.output}' differs by {1:.1e} at {2}")
        logits = Agreement()
        if self._steps:
            expected = [self.reference.step(token) for token in case.walk_tokens(self.reference)]
            self.allowance.learn(expected)
            forced = self._forced_steps(case, expected)
            logits = self._follow_steps(forced, "logits differ by {1:.1e} at {2}")
        failures = [*missing, encoder.failure, logits.failure, "" if valid or self._steps else NOTHING]
        run = SourceRun(
            length=self.host.sound or len(case.source),
            encoder=encoder.worst if valid else None,
            steps=logits.steps,
            logits=logits.worst if self._steps else None,
            failure=next(filter(None, failures), ""),
            is_sound=self.host.sound is not None,
        )
        if run.failure and self.failing is None:
            self.failing, self.failing_length = case, self.host.sound or 0
        return run

    def _forced_steps(self, case: LoweringCase, expected: Sequence[np.ndarray]) -> Iterator[Step]:
        def repeat(token: int) -> dict[str, np.ndarray]:
            return {"logits": self.host.step(token)}

        for token, right in zip(case.walk_tokens(self.host), expected, strict=True):
            yield Step(f"step {self.host.position + 1}", {"logits": right}, partial(repeat, token))

    def _run_written(self, case: LoweringCase) -> Iterator[str]:
        """Yield what is wrong with what the files themselves give, of which no digit is compared."""
        with with_attributes(self.methods, models={}):
            tokens = case.walk_tokens(self.host)
            outputs = [*self.host.start(case.source, case.user).values(), *map(self.host.step, tokens)]
        if any(np.isnan(output).any() for output in outputs):
            yield "With activations in 8 bits, as its products ask for, it gives NaN."

    def _make_case(self, source: list[int], tokens: list[int], user: Mapping[str, np.ndarray]) -> LoweringCase:
        skipped = self._skipped_steps if len(tokens) > BEGUN else 0
        return LoweringCase(self.host, self.reference, source, tokens, user, self.allowance, skipped=skipped)

    def _follow_steps(self, steps: Iterable[Step], words: str) -> Agreement:
        """Let the host repeat steps of the original; an original that gives NaN proves nothing."""

        def rule(step: Step, difference: Difference, actual: Output) -> tuple[float, str]:
            expected = np.asarray(step.expected[difference.output])
            distance = float("inf") if np.isnan(expected).any() else difference.absolute
            differs = self.allowance.differ(np.asarray(actual), expected)
            return distance, words.format(difference, distance, step.where) if differs else ""

        agreement = follow_steps(steps, rule, to_the_end=True)
        if agreement.error is not None:
            raise agreement.error
        return agreement

    def _choose_greedily(self, steps: int) -> tuple[list[int], int, str]:
        """Return the tokens of the original, at how many steps the host has another as good, and a failure."""
        before, chosen, others = self._draw_ids(1)[0], list[int](), 0
        original = decode_greedily(self.reference.step(before), lambda token: self.reference.step(int(token)), steps)
        for number, (choice, expected) in enumerate(original, start=1):
            token, rival = int(choice), int(self.host.step(before).argmax())
            chosen.append(token)
            if rival != token and not self.allowance.is_tie(expected, token, rival):
                return chosen, others, f"greedy token {number} is {rival}, not {token}"
            others += rival != token
            if token not in self.plain:  # it pads: the original would take it for no token
                break
            before = token
        return chosen, others, ""


def vocabulary_size(contract: Contract) -> int:
    """Return how many tokens all tables of embeddings have rows for."""
    sources = {port.of for method in contract.methods for port in method.inputs}
    rows = [table.rows for table in contract.tables if table.name in sources and table.name.endswith("inputs_embeds")]
    return min(rows, default=2)


def measure_deviation(
    originals: Originals, folder: Path, *, limits: Limits = DEFAULT_LIMITS, progress: Progress = lambda _: None
) -> str:
    """Return how far host and lowered models are from the originals, as a clause; see `verify_lowering`."""
    options = DeploymentProofOptions(tolerance=math.inf, limits=limits)
    runs = verify_lowering(originals, folder, options, progress=progress).runs
    once, logits = (largest_measured(*(getattr(run, name) for run in runs)) for name in ("encoder", "logits"))
    sizes = {"what runs once differs": once, "logits differ": logits}
    clauses = [f"{what} by up to {size:.1e}" for what, size in sizes.items() if size is not None]
    if tokens := sum(run.greedy for run in runs):
        clauses.append(f"{sum(run.others for run in runs)} of {tokens} greedy tokens are others")
    return ", and ".join(filter(None, [", ".join(clauses[:-1]), *clauses[-1:]]))
