"""The findings of the proof of a rewrite: its runs, outputs and weights, and the default level of onnxruntime."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from msgspec import Struct

from graphkit.analysis.cost_changes import CostChange
from graphkit.equivalence.equivalence_summary import EquivalenceSummary
from graphkit.errors import count_things
from graphkit.graph.names import group_pairs
from graphkit.render.document_blocks import Block, Heading, Lines, Prose, Table, outcome, table
from graphkit.render.result import Result
from graphkit.runtime.providers import Provider
from graphkit.verify.comparator import Difference, largest_measured

MAX_DIMS = 6  # symbols to write out one by one
MAX_SKIPPED = 3  # runs that fail in the original to write out


class Proof(Result):
    """The findings of a proof: what failed, a sentence each, or else what is proven."""

    title: ClassVar[str] = "Proof"
    computed: ClassVar[tuple[str, ...]] = ("passed",)
    runs: tuple[object, ...]

    @property
    def passed(self) -> bool:
        """Whether something ran, and nothing is wrong."""
        return bool(self.runs) and not self.findings()

    @abstractmethod
    def proven(self) -> str:
        """Return the proven statement, a sentence."""

    def failure_text(self) -> str:
        """Return what to say of a proof that does not hold, a sentence: that it failed, or that it did not run."""
        return "The proof failed."


def placed_text(placed: Mapping[str, int]) -> str:
    """Return how many nodes are on each provider, in words."""
    return ", ".join(f"{count:,} on {name}" for name, count in placed.items())


def placement_fault(placed: Mapping[str, int], provider: Provider) -> str:
    """Return why runs on a device say nothing of it, "" where they do: none of the nodes is there."""
    if provider.is_cpu or placed.get(provider.name):
        return ""
    return f"no node runs on {provider.name}, so nothing was tested there"


def proof_outcome(done: str, proof: Proof | None, *, faults: Sequence[str] = (), unproven: str = "") -> Lines:
    """Return the first lines of a report of written files: what was done, in a sentence, and how its proof ended.

    `faults` say what is wrong besides, a sentence each, and `unproven` why there is no proof; "" where nobody asked for
    one.
    """
    if proof is None:
        return outcome([done], (*faults, f"not proven: {unproven or 'the proof was not run'}"))
    if proof.passed:
        return outcome([done, proof.proven()], faults)
    return outcome([f"{done} {proof.failure_text()}"], (*faults, *(proof.findings() or ("nothing was run",))))


class ProvenReport(Result):
    """The report of files that were written and proven, with their costs beside those of their originals."""

    source: str
    proof: Proof | None
    costs: tuple[CostChange, ...]

    def graphs(self) -> Sequence[Mapping[str, object]]:
        """Return the graphs of the models before and after, with the nodes of each that are in another one."""
        from graphkit.model_diff.page_pair import page_rewrites

        return page_rewrites(self.costs)

    def heading(self) -> str:
        return f"{self.title} of {self.source}"

    def findings(self) -> tuple[str, ...]:
        return self.proof.findings() if self.proof is not None else ()


def proof_blocks(proof: Result | None, files: str, options: str = "") -> Iterator[Block]:
    """Yield the blocks of a proof of some files, or that there is none."""
    yield Heading("Proof")
    if proof is None:
        yield Prose(f"Not run: {files} unverified. `graphkit verify{options}` runs it.", "warning")
    else:
        yield from proof.blocks()


class WeightProof(Struct, frozen=True):
    """Weights compared byte by byte."""

    equal: int = 0
    bytes: int = 0
    made: int = 0  # small constants that only the result has, which nothing was compared with
    failures: tuple[str, ...] = ()  # weights that differ, a sentence each

    def __add__(self, other: WeightProof) -> WeightProof:
        failures = (*self.failures, *other.failures)
        return WeightProof(self.equal + other.equal, self.bytes + other.bytes, self.made + other.made, failures)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks to show."""
        if self.equal:
            weights = "1 constant tensor is" if self.equal == 1 else f"{self.equal:,} constant tensors are"
            yield Prose(f"{weights} equal byte by byte, {self.bytes:,} bytes of weights.")
        if self.made:
            constants = "1 small constant is" if self.made == 1 else f"{self.made:,} small constants are"
            yield Prose(f"{constants} new; only the runs compare what is made of them.")


class LevelProof(Struct, frozen=True):
    """A model at onnxruntime's default level, against its original without optimizations."""

    runs: int = 0
    tolerance: float = 0.0  # largest difference, relative to the largest magnitude in an output, that counts as equal
    scaled: float | None = None  # the largest such difference; None where nothing was compared, or no number differs
    reference: float | None = None  # the same of the original itself at the default level; None where nobody needs it
    failure: str = ""  # what differs, "" for nothing; it may be twice as far off as the original itself
    note: str = ""  # what to know of it, "" for nothing

    @property
    def result(self) -> str:
        """The largest difference, beside that of the original where it is known."""
        of_original = f", the original itself {self.reference:.3g}" if self.reference else ""
        return f"{self.scaled:.3g}{of_original}" if self.scaled is not None else "nothing was compared"


@dataclass(frozen=True, eq=False)
class RunSizes:
    """Where a run is: sizes of the symbols in the inputs' dims, and values of inputs that are one boolean."""

    dims: dict[str, int]
    flags: dict[str, bool]
    elements: str = field(default="", kw_only=True)  # what is special about the elements of its inputs, "" for nothing

    def __str__(self) -> str:
        values = ", ".join(f"{name}={str(flag).lower()}" for name, flag in self.flags.items())
        where = ", ".join(filter(None, (_dims_text(self.dims), values))) or "fixed dims"
        return f"{where}; {self.elements}" if self.elements else where


@dataclass(frozen=True)
class RunProof(RunSizes):
    """One run of both models.

    Attributes:
        absolute, relative: The largest differences; None where what differs is no number, the model failed, or normal
            forms had shown that there is nothing to compare.
        failure: What differs, "" for nothing that the tolerance does not cover.
    """

    seed: int
    absolute: float | None
    relative: float | None
    failure: str


@dataclass(frozen=True)
class SkippedRun(RunSizes):
    """Sizes at which the original itself fails."""

    reason: str


class OutputProof(Struct, frozen=True):
    """One output in all runs.

    Attributes:
        absolute, relative: The largest differences; None where what differs is no number.
        scaled: The largest difference, relative to the largest magnitude in the output; None as above, and where
            integers of more than 8 bits differ.
        worst: The run of the largest difference, counted from 1; 0 where all are equal to the last bit.
        elements: How many were compared.
        failure: What differs, "" for nothing that the tolerance does not cover.
    """

    name: str
    absolute: float | None = 0.0
    relative: float | None = 0.0
    scaled: float | None = 0.0
    worst: int = 0
    elements: int = 0
    failure: str = ""


@dataclass(frozen=True)
class RewriteProof(Proof):
    """The proof that a rewritten model gives the results of its original.

    Attributes:
        tolerance: Largest difference that counts as equal, absolute or relative.
        fixed: Sizes that the rewritten model, or the user, fixes.
        skipped: What the original itself cannot run.
        weights: Those of the same name in both, byte by byte.
        level: The rewritten model at onnxruntime's default level.
        notes: What to know of the proof, a sentence each.
        failures: Why it failed, a sentence each.
        of_magnitude: Whether the tolerance is relative to the largest magnitude in an output.
        coverage: The sizes, masks and edges of values at which both ran, in words.
        caveats: What the runs could not cover, a clause each.
        interface: What is declared otherwise than in the original, a clause each.
        equivalence: The outputs that are equal at every legal size and for every input, as normal forms show.
        provider: Where the rewritten model ran; the original ran on the CPU.
        placed: How many of its nodes were on each provider, where that is not the CPU and onnxruntime says so.
        is_rounded: Whether the tolerance is that of rounding, as measured on the original.
        is_unrun: Whether it could not be run, which `failures` say why, so that nothing is wrong either.
    """

    original: str
    rewritten: str
    tolerance: float
    fixed: dict[str, int]
    runs: tuple[RunProof, ...] = ()
    skipped: tuple[SkippedRun, ...] = ()
    outputs: tuple[OutputProof, ...] = ()
    weights: WeightProof = field(default_factory=WeightProof)
    level: LevelProof = field(default_factory=LevelProof)
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    of_magnitude: bool = False
    coverage: str = ""
    caveats: tuple[str, ...] = ()
    interface: tuple[str, ...] = ()
    equivalence: EquivalenceSummary = field(default_factory=EquivalenceSummary)
    provider: str = "cpu"
    placed: dict[str, int] = field(default_factory=dict)
    is_rounded: bool = field(default=False, metadata={"in_json": False})
    is_unrun: bool = field(default=False, metadata={"in_json": False})

    @property
    def largest(self) -> tuple[float | None, float | None]:
        """The largest absolute and relative differences; None where nothing ran, or what differs is no number."""
        pairs = [(output.absolute, output.relative) for output in self.outputs]
        if not pairs or any(absolute is None for absolute, _ in pairs):
            return None, None
        return largest_measured(*(pair[0] for pair in pairs)), largest_measured(*(pair[1] for pair in pairs))

    @property
    def _tolerance_text(self) -> str:
        return f"{self.tolerance:g}{' of the largest magnitude' * self.of_magnitude}"

    def covers(self, difference: Difference) -> bool:
        """Whether a difference is within the tolerance."""
        return difference.within(self.tolerance, of_magnitude=self.of_magnitude)

    def plus(self, **more: Iterable[object]) -> RewriteProof:
        """Return the proof with more in fields that hold several, such as `notes` and `failures`."""
        longer: dict[str, Any] = {name: (*getattr(self, name), *items) for name, items in more.items()}
        return replace(self, **longer)

    def heading(self) -> str:
        return f"Proof of {self.rewritten} against {self.original}"

    def findings(self) -> tuple[str, ...]:
        return self.failures

    def failure_text(self) -> str:
        return "The proof did not run." if self.is_unrun else super().failure_text()

    def proven(self) -> str:
        """Return the proven statement, a sentence."""
        inexact = [output for output in self.outputs if output.worst]
        equal = f"{'up to rounding, ' * self.is_rounded}within {self._tolerance_text}" if inexact else "to the last bit"
        where = f" on {self.provider}" if self.provider != "cpu" else ""
        tested = f"{count_things(len(self.outputs), 'output(s)')} equal {equal}{where}"
        scaled = largest_measured(*(output.scaled for output in inexact))
        worst = f"difference of {scaled:.3g} of the largest magnitude in an output" if scaled else ""
        return self.equivalence.headline(tested, len(self.runs), largest=worst, caveats=self.caveats)

    def blocks(self) -> Iterator[Block]:
        why = () if self.passed else self.failures or ("nothing was run",)
        yield outcome([self.proven() if self.passed else self.failure_text()], why)
        fixed = f", at {_dims_text(self.fixed)}" if self.fixed else ""
        tolerance = f"tolerance {self._tolerance_text}."
        if self.provider != "cpu":
            two = f"The original on the CPU without graph optimizations, the rewritten model on {self.provider}{fixed}"
            yield Prose(f"{two}; {tolerance}")
            if self.placed:
                yield Prose(f"Nodes of the rewritten model, as onnxruntime placed them: {placed_text(self.placed)}.")
        elif self.outputs or not self.passed:
            yield Prose(f"In onnxruntime without graph optimizations{fixed}; {tolerance}")
        else:
            yield Prose(f"The rewritten model loads and runs at onnxruntime's default level{fixed}.")
        if self.coverage:
            yield Prose(f"Covered: {self.coverage}.")
        yield from self.equivalence.blocks()
        for change in self.interface:
            yield Prose(f"Interface: {change}.")
        if self.runs:
            verdicts = ["differs" if run.failure else "runs" if run.absolute is None else "equal" for run in self.runs]
            pairs = enumerate(zip(self.runs, verdicts, strict=True), start=1)
            rows = [(number, str(run), run.absolute, run.relative, verdict) for number, (run, verdict) in pairs]
            yield table("Run:number | Dims:code | Max abs:number | Max rel:number | Result", rows)
            yield from self._output_blocks()
            yield from self.weights.blocks()
        if (level := self.level).runs:
            runs = "the same run" if level.runs == 1 else f"the same {level.runs} runs"
            allowed = f"tolerance {level.tolerance:g} of the largest magnitude in each output"
            yield Prose(f"At onnxruntime's default level, in {runs}; {allowed}. Largest difference: {level.result}.")
        skipped = Counter((str(run), run.reason) for run in self.skipped)
        for (where, reason), count in list(skipped.items())[:MAX_SKIPPED]:
            runs = f" (in {count} runs)" if count > 1 else ""
            yield Prose(f"The original itself fails at {where}: {reason}{runs}")
        if len(skipped) > MAX_SKIPPED:
            yield Prose(f"So it does at {len(skipped) - MAX_SKIPPED} more.")
        yield from map(Prose, self.notes)
        yield from (Prose(failure, "warning") for failure in self.failures)

    def _output_blocks(self) -> Iterator[Block]:
        if not self.outputs:
            return
        exact = sum(not output.worst and not output.failure for output in self.outputs)
        if exact == len(self.outputs):
            yield Prose(f"All outputs are equal to the last bit: {exact}.")
            return
        yield Prose(f"{exact} of {len(self.outputs)} outputs are equal to the last bit.")
        rows = [
            (o.name, o.absolute, o.relative, o.worst or None, "differs" if o.failure else "within tolerance")
            for o in self.outputs
            if o.worst or o.failure
        ]
        yield table("Output:code | Max abs:number | Max rel:number | Worst run:number | Result", rows)


def _dims_text(dims: Mapping[str, int]) -> str:
    """Return `batch=2, past=0`; of many symbols those of one size together."""
    if len(dims) <= MAX_DIMS:
        return ", ".join(f"{name}={size}" for name, size in dims.items())
    groups = group_pairs((size, name) for name, size in dims.items())
    others = ((names[0], f" and {len(names) - 1} others" if len(names) > 1 else "") for names in groups.values())
    return ", ".join(f"{first}{more}={size}" for (first, more), size in zip(others, groups, strict=True))


class LoopProof(Struct, frozen=True):
    """The pair against the merged decoder, decoding greedily."""

    prompt: int  # tokens of the prompt
    steps: int  # steps decoded; 0 for a loop that was not run
    absolute: float | None  # the largest difference of logits, None where it did not get that far
    failure: str  # the first step that differs, or why the loop does not run; "" for nothing
    note: str = ""  # why there is none to run, "" for nothing


@dataclass(frozen=True)
class SplitProof(Proof):
    """The proof that a pair of decoders gives the results of the merged one.

    Attributes:
        tolerance: Largest difference, absolute or relative, that counts as equal without optimizations.
        branches: First step and later steps, each as a rewrite of the merged decoder with its condition fixed.
        loop: Both, decoding.
    """

    tolerance: float
    branches: tuple[RewriteProof, ...]
    loop: LoopProof

    @property
    def passed(self) -> bool:
        """Whether nothing is missing, and nothing differs by more than the tolerance."""
        return all(branch.passed for branch in self.branches) and not self.loop.failure

    def findings(self) -> tuple[str, ...]:
        failures = [f"{branch.rewritten}: {failure}" for branch in self.branches for failure in branch.failures]
        return (*failures, *([f"decoding loop: {self.loop.failure}"] if self.loop.failure else []))

    def failure_text(self) -> str:
        wrong = any(not (branch.passed or branch.is_unrun) for branch in self.branches) or self.loop.failure
        return super().failure_text() if wrong else "The proof did not run."

    def proven(self) -> str:
        """Return the proven statement, a sentence for each model and one for the loop."""
        sentences = [(branch.rewritten, branch.proven()) for branch in self.branches]
        texts = [f"{name}: {sentence[0].lower()}{sentence[1:]}" for name, sentence in sentences]
        steps = count_things(self.loop.steps, "greedy step(s)")
        return " ".join([*texts, *([f"The two decode {steps} as the merged decoder does."] if self.loop.steps else [])])

    def blocks(self) -> Iterator[Block]:
        yield outcome([self.proven() if self.passed else self.failure_text()], self.findings())
        for branch in self.branches:
            if branch.coverage:
                yield Prose(f"Covered of {branch.rewritten}: {branch.coverage}.")
            yield from branch.equivalence.blocks(branch.rewritten)
        yield from self._tables()
        yield from sum((branch.weights for branch in self.branches), WeightProof()).blocks()
        shared = [note for note in self.branches[0].notes if all(note in branch.notes for branch in self.branches)]
        for branch in self.branches:
            for run in branch.skipped[:MAX_SKIPPED]:
                yield Prose(f"{branch.rewritten}: the merged decoder itself fails at {run}: {run.reason}.")
            if len(branch.skipped) > MAX_SKIPPED:
                yield Prose(f"So it does at {len(branch.skipped) - MAX_SKIPPED} more.")
            if branch.fixed:
                yield Prose(f"{branch.rewritten}: it takes {_dims_text(branch.fixed)} only.")
            yield from (Prose(f"{branch.rewritten}: {note}") for note in branch.notes if note not in shared)
        yield from (Prose(note) for note in (*shared, self.loop.note) if note)
        yield from (Prose(failure, "warning") for failure in self.findings())

    def _tables(self) -> Iterator[Table]:
        rows: list[tuple[str, int | None, int, str | None, str | None, str]] = []
        for branch in self.branches:
            verdict = _verdict_text(branch.passed) if branch.runs else "not run"
            absolute, relative = map(_number_text, branch.largest)
            rows.append((branch.rewritten, len(branch.outputs), len(branch.runs), absolute, relative, verdict))
        loop = self.loop
        if loop.steps:
            name = f"greedy loop from {count_things(loop.prompt, 'token(s)')}, {count_things(loop.steps, 'step(s)')}"
            rows.append((name, None, 1, _number_text(loop.absolute), None, _verdict_text(not loop.failure)))
        yield table(
            "What | Outputs:number | Runs:number | Max abs:number | Max rel:number | Result",
            rows,
            title=f"Against the merged decoder, without graph optimizations (tolerance {self.tolerance:g})",
        )
        if levels := [(branch.rewritten, branch.level) for branch in self.branches if branch.level.runs]:
            allowed = max(level.tolerance for _, level in levels)
            yield table(
                "What | Runs:number | Largest difference | Result",
                [(name, level.runs, level.result, _verdict_text(not level.failure)) for name, level in levels],
                title=f"At onnxruntime's default level (tolerance {allowed:g} of the largest magnitude)",
            )


def _number_text(value: float | None) -> str | None:
    return f"{value:.3g}" if value is not None else None


def _verdict_text(is_equal: bool) -> str:
    return "equal" if is_equal else "differs"
