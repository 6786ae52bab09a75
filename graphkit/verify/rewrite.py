"""The proof of a rewrite: original and result at several sizes of their dims, every output compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from onnx import TensorProto

from graphkit.graph.types import declared_type
from graphkit.graph.view import Node, all_nodes
from graphkit.io.tensors import inline_array, walk_tensors
from graphkit.model import Model, load
from graphkit.runtime.isolated import IsolatedSession
from graphkit.runtime.isolation import isolation
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.runtime.session import RunError, Runner, check_files
from graphkit.shapes import declarations
from graphkit.verify.binding import fed_inputs, fixed_by, given_shapes, solve
from graphkit.verify.compare import Difference, Output, compare_outputs, element_counts
from graphkit.verify.proof import OutputProof, RewriteProof, RunProof, SkippedRun
from graphkit.verify.running import Feeder, Run, run_original, unsteady_runs
from graphkit.verify.space import space_of

__all__ = ["FLOAT16_TOLERANCE", "default_tolerance", "verify_rewrite"]

RUNS = 6  # assignments to run at, for each value of the flags
FLOAT16_TOLERANCE = 0.01
FLOAT16_NOTE = (
    "It has float16 tensors: onnxruntime computes with them in float32 and rounds where operators happen to meet, "
    "so that bits may differ."
)
UNSTEADY = "it gives other outputs each time"
RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")


def verify_rewrite(
    original: Model | str | Path,
    rewritten: Model | str | Path,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[int | None, int | None]] | None = None,
    values: Mapping[str, object] | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    runs: int = RUNS,
    limits: Limits = DEFAULT_LIMITS,
    progress: Callable[[str], None] = lambda _: None,
) -> RewriteProof:
    """Run a model and what was made of it at several sizes, and compare every output.

    onnxruntime runs without graph optimizations, so that equal arithmetic gives equal bits. Sizes are legal for both:
    what the rewritten model fixes is fixed. Inputs that are one boolean, such as `use_cache_branch`, get both values.
    One model is loaded at a time, in a process of its own: one that ends the process, or takes too much, fails there.

    Args:
        original: A model file, which onnxruntime then reads itself; or a model as it is in memory.
        rewritten: The same of what was made of it. It may lack inputs, but no outputs.
        dims: Sizes of symbols of the original.
        inputs: Shapes of inputs.
        ranges: Least and largest size of symbols; None for an open end.
        values: Arrays for inputs by name, instead of generated ones.
        tolerance: Largest difference, absolute or relative, that counts as equal. Default: 0; for a model that has
            float16 tensors `FLOAT16_TOLERANCE`.
        seed: Of the generated inputs.
        runs: Assignments to run at, where there are as many.
        limits: What a model may take of time and memory.
        progress: Called with the name of each step before it starts.

    Returns:
        The proof: `proof.passed` says whether it holds. Random operators, and an original that never runs, fail it.

    Raises:
        UsageError: The models have not the same inputs, or a symbol or input does not exist.
        ModelError: A data file is missing, onnxruntime does not load a model, or no input can be made for one.
    """
    with isolation(limits):
        return _proof(original, rewritten, dims, inputs, ranges, values, tolerance, seed, runs, progress)


def _proof(
    original: Model | str | Path,
    rewritten: Model | str | Path,
    dims: Mapping[str, int] | None,
    inputs: Mapping[str, Sequence[int]] | None,
    ranges: Mapping[str, tuple[int | None, int | None]] | None,
    values: Mapping[str, object] | None,
    tolerance: float | None,
    seed: int,
    runs: int,
    progress: Callable[[str], None],
) -> RewriteProof:
    before, after = _loaded(original), _loaded(rewritten)
    contradictions = declarations(before).notes
    before, after = declarations(before).model, declarations(after).model
    given = {name: np.asarray(value) for name, value in (values or {}).items()}
    shapes = {**{name: array.shape for name, array in given.items()}, **(inputs or {})}
    numbers, facts = solve([*fixed_by(before, after), *given_shapes(before, shapes)], dims or {})
    names = (before.name, after.name) if before.name != after.name else (before.label, after.label)
    allowed = default_tolerance(before) if tolerance is None else tolerance
    proof = RewriteProof(*names, allowed, numbers, (), (), (), (), ())
    if random := next((node for model in (before, after) for node in _random_nodes(model)), None):
        return replace(proof, failures=(f"'{random.path}' is random ({random.op_type}), so nothing can be proven",))
    space = space_of(before, dims=numbers, inputs=shapes, ranges=ranges, facts=facts)
    feeder = Feeder(before, space, given, seed)
    progress("running the original")
    found = run_original(IsolatedSession(_source(original, before), prepack=False, known=before), feeder, runs)
    notes = [
        *contradictions,
        *([FLOAT16_NOTE] if allowed and tolerance is None else []),
        *found.notes,
        *_lost_inputs(before, after),
    ]
    proof = replace(proof, skipped=tuple(found.skipped), notes=tuple(notes))
    if not found.runs:
        return replace(proof, failures=("the original runs at no sizes that were tried, so nothing is proven",))
    progress("running the rewritten model")
    session, wanted = IsolatedSession(_source(rewritten, after), prepack=False, known=after), fed_inputs(after)
    result = _compared(proof, found.runs, feeder, session, wanted)
    if not any(run.failure for run in result.runs):
        return result
    progress("running the original again")
    unsteady = unsteady_runs(
        IsolatedSession(_source(original, before), prepack=False, known=before), feeder, found.runs
    )
    skipped = (*proof.skipped, *(SkippedRun(run.dims, run.flags, UNSTEADY) for run in unsteady))
    steady = [run for run in found.runs if run not in unsteady]
    if not steady:
        return replace(proof, skipped=skipped, failures=("the original gives other outputs each time",))
    proof = replace(proof, skipped=skipped, notes=(*proof.notes, f"{len(unsteady)} runs of the original do not count."))
    return _compared(proof, steady, feeder, session, wanted) if unsteady else result


def default_tolerance(model: Model) -> float:
    """Return the tolerance for rewrites that change no arithmetic: 0, unless onnxruntime decides where to round."""
    dtypes = {tensor.data_type for tensor, _ in walk_tensors(model.proto)}
    dtypes |= {declared.dtype for value in model.graph.inputs if (declared := declared_type(value)) is not None}
    return FLOAT16_TOLERANCE if dtypes & {TensorProto.FLOAT16, TensorProto.BFLOAT16} else 0.0


def _loaded(source: Model | str | Path) -> Model:
    model = source if isinstance(source, Model) else load(source)
    check_files(model)
    return model


def _source(source: Model | str | Path, model: Model) -> Path | Model:
    """Return what onnxruntime is to load: the file itself where one is named, so that no reader of ours is trusted."""
    return model if isinstance(source, Model) or model.path is None else model.path


def _random_nodes(model: Model) -> Iterator[Node]:
    """Yield the nodes that give other numbers in every run."""
    for node in all_nodes(model.scopes):
        is_random = node.is_op(*RANDOM) or node.op_type == "Sampling" or _is_training(node)
        if is_random and "seed" not in node.attributes:
            yield node


def _is_training(node: Node) -> bool:
    """Whether a Dropout drops: its third input says so, or is no constant."""
    flag = node.input(2) if node.is_op("Dropout") else None
    if flag is None:
        return False
    array = inline_array(flag.constant) if flag.constant is not None else None
    return array is None or bool(array.any())


def _lost_inputs(before: Model, after: Model) -> list[str]:
    lost = [name for name in fed_inputs(before) if name not in fed_inputs(after)]
    return [f"The rewritten model has no input {', '.join(lost)}."] if lost else []


def _compared(
    proof: RewriteProof, runs: Sequence[Run], feeder: Feeder, session: Runner, wanted: Mapping[str, object]
) -> RewriteProof:
    """Run the rewritten model on the same inputs, and compare."""
    tallies = {name: _Tally() for name in runs[0].expected}
    results = []
    for number, run in enumerate(runs, start=1):
        feed = feeder.feed(run.dims, run.flags, run.seed)
        try:
            actual = session.run({name: array for name, array in feed.items() if name in wanted})
        except RunError as error:
            results.append(RunProof(run.dims, run.flags, run.seed, None, None, error.problem))
            continue
        found = [one for one in compare_outputs(run.expected, actual) if one.output in tallies]
        for difference in found:
            tallies[difference.output].add(difference, run.expected[difference.output], number, proof.tolerance)
        results.append(_run_proof(run, found, proof.tolerance))
    failures = [*_interface_failures(list(tallies), session.outputs), *_run_failures(results)]
    empty = [name for name, tally in tallies.items() if not tally.finite and not failures]
    notes = [f"Nothing is compared of output {', '.join(empty)}, which never has a finite element."] if empty else []
    return replace(
        proof,
        runs=tuple(results),
        outputs=tuple(tally.proof(name, name in session.outputs) for name, tally in tallies.items()),
        notes=(*proof.notes, *notes),
        failures=tuple(failures),
    )


@dataclass
class _Tally:
    """One output in all runs so far."""

    worst: Difference | None = None
    run: int = 0
    elements: int = 0
    finite: int = 0
    failure: str = ""

    def add(self, difference: Difference, expected: Output, run: int, tolerance: float) -> None:
        elements, finite = element_counts(expected)
        self.elements, self.finite = self.elements + elements, self.finite + finite
        if not difference.exact and (self.worst is None or difference.absolute > self.worst.absolute):
            self.worst, self.run = difference, run
        if not self.failure and not difference.within(tolerance):
            self.failure = _text(difference)

    def proof(self, name: str, is_there: bool) -> OutputProof:
        if self.worst is None:
            return OutputProof(name, 0.0, 0.0, 0, self.elements, "" if is_there else "it is missing")
        absolute, relative = _numbers([self.worst])
        return OutputProof(name, absolute, relative, self.run, self.elements, self.failure)


def _text(difference: Difference) -> str:
    return difference.problem or f"differs by {difference.absolute:.3g}"


def _numbers(found: Sequence[Difference]) -> tuple[float | None, float | None]:
    """Return the largest differences, None where what differs is no number."""
    if any(one.problem for one in found):
        return None, None
    return max((one.absolute for one in found), default=0.0), max((one.relative for one in found), default=0.0)


def _run_proof(run: Run, found: Sequence[Difference], tolerance: float) -> RunProof:
    failing = [one for one in found if not one.within(tolerance)]
    failure = f"{failing[0].output} {_text(failing[0])}" if failing else ""
    failure += f", and {len(failing) - 1} more outputs" if len(failing) > 1 else ""
    return RunProof(run.dims, run.flags, run.seed, *_numbers(found), failure)


def _run_failures(results: Sequence[RunProof]) -> list[str]:
    """Return the first failure, and in how many runs there is one."""
    failing = [run for run in results if run.failure]
    if not failing:
        return []
    return [f"{len(failing)} of {len(results)} runs differ, the first at {failing[0]}: {failing[0].failure}"]


def _interface_failures(before: Sequence[str], after: Sequence[str]) -> list[str]:
    missing, new = ([name for name in one if name not in other] for one, other in ((before, after), (after, before)))
    failures = [f"output {', '.join(missing)} is missing"] if missing else []
    failures += [f"output {', '.join(new)} is none of the original's"] if new else []
    if not failures and list(before) != list(after):
        failures.append(f"the outputs come in another order: {', '.join(after)}")
    return failures
