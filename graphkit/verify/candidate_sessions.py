"""Sessions of an original and its rewrite: by other names, as a part of the whole, inlined, with runs counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import Struct, field, structs

from graphkit.dtypes import HELD, dtype_name
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import all_nodes, key_of
from graphkit.model import Model
from graphkit.progress import Progress, with_share
from graphkit.runtime.providers import CPU, Provider
from graphkit.runtime.session import IsolatedSession, Runner
from graphkit.verify.feeder import Feeder, Run
from graphkit.verify.interface_changes import Branch
from graphkit.verify.proof_runs import LevelRuns
from graphkit.verify.rewrite_proof import RewriteProof, WeightProof

Item = TypeVar("Item")
KERNELS = ("", "ai.onnx", "com.microsoft")  # domains of the operators that onnxruntime runs without a function


class Called:
    """A session whose inputs and outputs go by other names; it takes those that it has of what it is given."""

    def __init__(self, session: Runner, names: Mapping[str, str] = {}) -> None:
        self.session, self.names, self.label = session, names, session.label
        self.own = {names.get(name, name): name for name in session.inputs}
        self.inputs: Sequence[str] = list(self.own)
        self.outputs = [names.get(name, name) for name in session.outputs]

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name."""
        found = self.session.run({self.own[name]: array for name, array in feed.items() if name in self.own})
        return {self.names.get(name, name): array for name, array in found.items()}


def tell_each(
    items: Sequence[Item],
    what: str,
    progress: Progress,
    unit: str = "run",
    work: Callable[[Item], float] = lambda _: 1.0,
) -> Iterator[Item]:
    """Yield items, each after its number was told: `proving: run 3 of 14`; some may be more work than others."""
    done, total = 0.0, sum(map(work, items))
    for number, item in enumerate(items, start=1):
        progress(with_share(done / total, f"{what}: {unit} {number:,} of {len(items):,}"))
        yield item
        done += work(item)


class Counted:
    """A session that tells the number of each run before it starts.

    `total` is how many runs there will be, where none fails: those that fail are made up for.
    """

    def __init__(self, session: Runner, what: str, total: int, progress: Progress) -> None:
        self.label = session.label
        self._session, self._what, self._total, self._progress = session, what, total, progress
        self._number = 0
        self.inputs, self.outputs = session.inputs, session.outputs

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name."""
        self._number += 1
        more, share = f" of {self._total:,}" * (self._number <= self._total), (self._number - 1) / max(self._total, 1)
        self._progress(with_share(min(share, 1.0), f"{self._what}: run {self._number:,}{more}"))
        return self._session.run(feed)


class Part(Struct, frozen=True):
    """What a model has of the whole that it was made of: a subgraph, or a branch of a merged decoder."""

    cuts: tuple[str, ...]  # values of the whole that are inputs of the part
    ends: tuple[str, ...]
    branch: Branch | None = None  # the branch that it is made of; None for a subgraph

    def fault(self, part: Model) -> str:
        """Return why the part cannot be fed from the whole, "" where it can."""
        for value in part.graph.inputs:
            declared = declared_type(value) if value.name in self.cuts else None
            if declared is not None and declared.dtype not in HELD:
                subgraph = f"a subgraph that begins at '{value.name}'"
                return f"onnxruntime hands out no {dtype_name(declared.dtype)}, so nothing can be proven of {subgraph}"
        return ""

    def weights(self, part: Model) -> WeightProof | None:
        """Compare the weights of a part of a branch with those that the branch reads; None for a subgraph."""
        if self.branch is None:
            return None
        from graphkit.verify.weight_comparison import foreign_weights  # which few proofs need

        return foreign_weights(self.branch.merged, self.branch.scopes(), part)

    def unread(self, whole: Model) -> list[str]:
        """Return the inputs of the whole that the part need not have."""
        needed = self.branch.inputs() if self.branch is not None else set()
        return [value.name for value in whole.graph.inputs if value.name not in needed]

    def unwritten_outputs(self, whole: Model) -> list[str]:
        """Return the outputs of the whole that a branch does not give."""
        return [value.name for value in whole.graph.outputs if self.branch is not None and value.name not in self.ends]


class TwoModels(Struct, frozen=True):
    """An original and its rewrite, to be loaded one after the other."""

    sources: tuple[Path | Model, Path | Model]
    models: tuple[Model, Model]
    feeder: Feeder
    input_names: frozenset[str]  # the inputs of the rewritten model, by their names in the original
    # names in the original by names in the rewritten model, where these differ
    names: Mapping[str, str] = field(default_factory=dict)
    part: Part | None = None  # what to expose of the original, where the rewritten model is a part of it
    provider: Provider = CPU  # where the rewritten model runs; on a device at the default level, as its users have it
    # how many of its nodes are on each provider, once it is loaded on a device
    placed: dict[str, int] = field(default_factory=dict)

    def original(self, *, optimize: bool = False) -> Runner:
        """Return a session of the original with all of its outputs, and all that a part needs of it."""
        return self._session(0, optimize=optimize)

    def rewritten_session(self, *, optimize: bool = False) -> Runner:
        """Return a session of the rewritten model, by the names of the original."""
        session = self._session(1, optimize=optimize or not self.provider.is_cpu)
        self.placed.update(session.placed)
        return Called(session, self.names)

    def begin_loading(self) -> Callable[[], Runner]:
        """Begin to load the rewritten model at the default level beside other work; return what waits for its session.

        That raises ModelError where onnxruntime does not load it, or ends with it.
        """
        session = self._session(1, optimize=True, beside=True)

        def wait() -> Runner:
            session.wait()
            return Called(session, self.names)

        return wait

    def _session(self, index: int, *, optimize: bool, beside: bool = False) -> IsolatedSession:
        source, known, provider = self.sources[index], self.models[index], self.provider if index else CPU
        return IsolatedSession(
            source, optimize=optimize, prepack=optimize, known=known, provider=provider, beside=beside
        )

    def outputs(self, run: Run) -> Sequence[str]:
        """Return the outputs of the original that the rewritten model has to give."""
        return list(run.expected) if self.part is None else self.part.ends

    def feed(self, run: Run) -> dict[str, np.ndarray]:
        """Return the inputs of a run of the original."""
        return self.feeder.again(run)

    def known(self, run: Run) -> dict[str, np.ndarray]:
        """Return the inputs that the rewritten model still has, and the values that the original computed for it."""
        fed = {name: array for name, array in self.feed(run).items() if name in self.input_names}
        cuts = self.part.cuts if self.part is not None else ()
        return {**fed, **{name: np.asarray(run.expected[name]) for name in cuts}}

    def moved_originals(self, runs: int, progress: Progress) -> list[LevelRuns]:
        """Return how to run copies of the original in which roundings to 8 bits meet other ties, so many times."""
        if self.part is not None:
            return []
        from graphkit.verify.quantized_rounding import moved_copies  # which few proofs need

        def with_progress(model: Model) -> Runner:
            session = IsolatedSession(model, optimize=False, prepack=False, known=model)
            return Counted(session, "proving: the original with its data moved", runs, progress)

        return [LevelRuns(partial(with_progress, copy), self.feed) for copy in moved_copies(self.models[0])]

    def at_default(self, runs: int, progress: Progress) -> tuple[LevelRuns, LevelRuns]:
        """Return how to run the rewritten model and the original at the default level, so many times."""

        def open_counted(opened: Callable[..., Runner], name: str) -> Runner:
            return Counted(opened(optimize=True), f"proving: {name}, default level", runs, progress)

        rewritten = partial(open_counted, self.rewritten_session, "the rewritten model")
        original = partial(open_counted, self.original, "the original")
        return LevelRuns(rewritten, self.known), LevelRuns(original, self.feed)


def prove_inlined(
    proof: RewriteProof, two: TwoModels, run: Callable[[TwoModels], RewriteProof], progress: Progress
) -> RewriteProof:
    """Add to a proof the runs of the rewritten model with such functions inlined.

    Functions that the original calls as often are its own: what onnxruntime has for them is what its users get.
    """
    before, after = two.models
    called, was = _count_calls(after), _count_calls(before)
    if not proof.passed or all(count <= was[key] for key, count in called.items()):
        return proof
    from graphkit.passes.control_flow.inline_functions import InlineFunctions  # which few proofs need

    progress("proving: the rewritten model with its functions inlined")
    inlined = InlineFunctions().run(after)
    if _count_calls(inlined.model):
        reasons = "; ".join(map(str, inlined.declined))
        return replace(proof, failures=(f"its functions cannot be inlined, as other runtimes do: {reasons}",))
    result = run(structs.replace(two, sources=(two.sources[0], inlined.model), models=(before, inlined.model)))
    if result.failures:
        condition = "with its functions inlined, as other runtimes run it"
        return replace(proof, failures=tuple(f"{condition}: {failure}" for failure in result.failures))
    worst = max((output.absolute or 0.0 for output in result.outputs), default=0.0)
    verdict = f"differ by at most {worst:.3g}" if worst else "are equal to the last bit"
    return proof.plus(notes=[f"With its functions inlined, as other runtimes run it, outputs {verdict}."])


def _count_calls(model: Model) -> Counter[tuple[str, str, str]]:
    functions = {(f.domain, f.name, f.overload) for f in model.proto.functions if f.domain in KERNELS}
    return Counter(key for node in all_nodes(model.scopes) if (key := key_of(node.proto)) in functions)
