"""Equality by normal forms as the proof of a rewrite reports it, beside its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from graphkit.equivalence.result import GRADES, LEAST_SIZES, ROUNDED, ComparedConstants, Equivalence
from graphkit.errors import ModelError, count_things
from graphkit.graph.names import join_words
from graphkit.model import Model
from graphkit.ops.tensor import USUAL
from graphkit.progress import OutOfTimeError, time_limit
from graphkit.render.document_blocks import Block, Prose
from graphkit.shapes.input_dims import DimNames

SECONDS = 60.0  # after which the runs alone are the proof
MAX_LIMITS = 2  # of sizes that the headline tells
MAX_SHOWN = 3  # outputs of which the report says why nothing is shown


class EquivalenceSummary(Struct, frozen=True):
    """The outputs that normal forms show to be equal at every legal size and for every input."""

    proven: Mapping[str, str] = field(default_factory=dict)  # how exactly each of them is equal, by name
    unproven: Mapping[str, str] = field(default_factory=dict)  # why nothing is shown of the others, by name
    axioms: Mapping[str, int] = field(default_factory=dict)  # how often each equality was used
    conditions: tuple[str, ...] = ()  # the sizes that this is about, such as `batch >= 1`
    limits: tuple[str, ...] = ()  # those of the conditions that do not hold everywhere, such as `batch <= 16,777,216`
    compared: int = 0  # of how many kinds of nodes onnxruntime confirmed what the shape engine says of them
    shared_dims: tuple[str, ...] = ()  # which dims of the inputs it takes for one size, such as `one batch`
    # those that were compared with their exact values, where an output is proven in exact arithmetic
    constants: ComparedConstants = field(default_factory=ComparedConstants)

    @property
    def is_complete(self) -> bool:
        """Whether every output is proven."""
        return bool(self.proven) and not self.unproven

    @property
    def exactness(self) -> str:
        """How exactly all proven outputs are equal."""
        return max(self.proven.values(), key=GRADES.index, default="")

    @property
    def is_exact(self) -> bool:
        """Whether every output is proven bit for bit."""
        return self.is_complete and self.exactness == GRADES[0]

    @classmethod
    def of(cls, found: Equivalence) -> EquivalenceSummary:
        """Return the summary of a check."""
        # those that say of a dim alone that it is no larger than any dim is, go without saying
        limits = [str(limit) for limit in found.limits if limit.expr.name is None or limit.most < USUAL - 1]
        rounded = ["16-bit floats rounded after each node"] if ROUNDED in found.conditions else []
        return cls(
            proven={output.name: output.exactness for output in found.outputs if output.verdict == "proven"},
            unproven={output.name: output.reason for output in found.outputs if output.verdict != "proven"},
            axioms=found.used,
            conditions=found.conditions,
            limits=(*limits, *rounded) if found.proven else (),
            compared=found.compared,
            shared_dims=found.shared_dims,
            constants=found.constants,
        )

    @classmethod
    def join_parts(cls, parts: Mapping[str, EquivalenceSummary]) -> EquivalenceSummary:
        """Return the outputs of several models in one, by the names of these."""
        proven = {f"{model} {name}": exact for model, each in parts.items() for name, exact in each.proven.items()}
        unproven = {f"{model} {name}": why for model, each in parts.items() for name, why in each.unproven.items()}
        limits = dict.fromkeys(limit for each in parts.values() for limit in each.limits)
        return cls(proven, unproven, limits=tuple(limits))

    def headline(
        self,
        tested: str,
        runs: int,
        *,
        checks: int = 0,
        largest: str = "",
        caveats: Sequence[str] = (),
        models: Sequence[str] = (),
    ) -> str:
        """Return the first sentence of a proof: how exactly all outputs are equal, or which runs test that.

        Args:
            tested: What the runs found, a clause.
            runs: How many there were.
            checks: How many other checks there were.
            largest: The largest difference in the runs, "" where all are equal to the last bit.
            caveats: What they could not cover, a clause each. Normal forms do.
            models: Whose outputs these are, where there are others besides.
        """
        gaps, whose = "; ".join(caveats), f" of {join_words(models)}" if models else ""
        if self.is_complete:
            outputs = f"{len(self.proven):,} of {count_things(len(self.proven), 'output(s)')}{whose}"
            checked = f" and checked in {count_things(checks, 'other way(s)')}" if checks else ""
            difference = f", with a largest {largest}" if largest else ""
            without = f"; {'the run does' if runs == 1 else 'the runs do'} not cover: {gaps}" if gaps else ""
            run = f"run {_times_text(runs)}" if self.is_exact else f"tested in {count_things(runs, 'run(s)')}"
            end = f"{run}{checked}{difference}{without}"
            return f"Proven {self.exactness} at {self.sizes}{self.reach} ({outputs}), and {end}."
        how = " and ".join([count_things(runs, "run(s)"), *[count_things(checks, "check(s)")] * bool(checks)])
        without = f"; not covered: {gaps}" if gaps else ""
        text = f"Tested in {how}: {tested}{without}."
        count = f"{len(self.proven):,} of {count_things(len(self.proven) + len(self.unproven), 'output(s)')}{whose}"
        return f"{text} Proven {self.exactness} at {self.sizes}{self.reach}: {count}." if self.proven else text

    @property
    def reach(self) -> str:
        """The limits of its sizes, in words that follow "every size", "" for none."""
        if len(self.limits) > MAX_LIMITS:
            return f" within {count_things(len(self.limits), 'limit(s)')} that are told below"
        return f"{', where' if self.shared_dims else ' with'} {join_words(self.limits)}" if self.limits else ""

    @property
    def sizes(self) -> str:
        """The sizes that it is about, in the words of a headline."""
        return f"every size with {join_words(self.shared_dims)}" if self.shared_dims else "every size"

    def blocks(self, model: str = "") -> Iterator[Block]:
        """Yield the paragraphs of a report, with the name of a model that is one of several."""
        whose, total = f" of {model}" if model else "", len(self.proven) + len(self.unproven)
        if self.proven:
            conditions = f", for {', '.join(self.conditions)}" if self.conditions else ""
            where = f"at every legal size and for every input{conditions}"
            kinds = f"{count_things(self.compared, 'kind(s) of node')} at {LEAST_SIZES} sizes or more"
            confirmed = f" Shapes and integers are as onnxruntime has them, of {kinds}." if self.compared else ""
            shares = share_texts(Counter(self.proven.values()), total)
            yield Prose(f"By normal forms{whose}, {where}: {shares}.{confirmed}")
        if self.exactness == GRADES[1]:
            from graphkit.equivalence.linear import REAL_AXIOMS

            real = {axiom.name for axiom in REAL_AXIOMS}
            used = [f"{name} ({_times_text(count)})" for name, count in self.axioms.items() if name in real]
            texts = [f"Equalities of exact arithmetic: {', '.join(used)}."] if used else []
            texts += [f"{self.constants}."] if self.constants.count else []
            texts += ["Of rounding, overflow, NaN, infinities and signs of zeros, only the runs tell."]
            yield Prose(" ".join(texts))
        for name, reason in list(self.unproven.items())[:MAX_SHOWN]:
            yield Prose(f"Not proven at every size: '{name}'{whose}: {reason}.")
        if len(self.unproven) > MAX_SHOWN:
            yield Prose(f"Nor are {count_things(len(self.unproven) - MAX_SHOWN, 'other(s)')}.")


def _times_text(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def share_texts(grades: Mapping[str, int], total: int) -> str:
    """Return how many of some outputs are proven, by exactness, "" for none."""
    found = [f"{grades[grade]:,} {grade}" for grade in GRADES if grades.get(grade)]
    return f"{', '.join(found)}, of {total:,}" if found else ""


def limited_equivalence(check: Callable[..., Equivalence], rewritten: Model, seconds: float | None) -> Equivalence:
    """Check for equivalence within a time, None for a minute: `check` is `check_equivalence` of a rewrite.

    Where as much is proven without it, dims of one name need not be one size, which is tried first.
    """
    from graphkit.matching.value_numbering import ConstantNumbers  # which a report without a proof needs not

    numbers = ConstantNumbers()

    def check_in_time(dims: DimNames) -> Equivalence:
        try:
            with time_limit("the proof by normal forms", SECONDS if seconds is None else seconds):
                return check(dims=dims, numbers=numbers)
        except (ModelError, OutOfTimeError) as error:
            return Equivalence.unknown((value.name for value in rewritten.graph.outputs), str(error))

    apart = check_in_time("apart")  # most that fail so fail early
    if apart.is_proven and not apart.limits and apart.strength[1] == 0:
        return apart
    found = check_in_time("related")
    return apart if found.proven and found.shared_dims and apart.strength >= found.strength else found
