"""Whether a folded model gives what the original gives, in onnxruntime at many sizes: no script.

Both run without graph optimizations, so that equal graphs give equal bits. A tool that fuses operators moves the last
digits; in a dynamically quantised model one such digit can move a whole quantisation step, so the greatest difference
is told, and who reads it judges.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from contenders import Job

import graphkit
from graphkit.errors import ModelError
from graphkit.verify.compare import compare_outputs
from graphkit.verify.inputs import InputMaker
from graphkit.verify.session import Session
from graphkit.verify.sizes import Sizes

__all__ = ["Agreement", "Truth", "truth"]

# batch, sequence, past, encoder
DECODER = (
    (1, 1, 0, 4),
    (1, 7, 0, 5),
    (2, 1, 3, 6),
    (3, 5, 2, 1),
    (2, 3, 33, 9),
    (1, 1, 129, 17),
    (3, 1, 1, 2),
    (2, 17, 40, 3),
)
# batch, height, width
IMAGE = ((1, 64, 64), (2, 97, 65), (3, 33, 200), (1, 224, 160), (2, 128, 51))
CLOSE = 1e-4


@dataclass(frozen=True)
class Truth:
    """Inputs at several sizes, each with what the original makes of them."""

    runs: tuple[tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]], ...]


@dataclass(frozen=True)
class Agreement:
    """How a result compares.

    Attributes:
        runs: Sizes tried.
        equal: Those with equal bits in every output.
        worst: The greatest difference, absolute or relative, whichever is less, among the others.
        failures: What else went wrong, by sizes.
        loads: Whether onnxruntime takes it at all.
    """

    runs: int
    equal: int
    worst: float
    failures: tuple[str, ...]
    loads: bool = True

    def __str__(self) -> str:
        if not self.loads:
            return "does not load"
        if self.failures:
            return f"WRONG at {len(self.failures)} of {self.runs}"
        if self.equal == self.runs:
            return f"equal at {self.runs}"
        return f"{'close' if self.worst <= CLOSE else 'FAR'} at {self.runs}: {self.worst:.1e}"


def sizes_of(job: Job, symbols: set[str]) -> Iterator[Sizes]:
    """Give sizes to run at: batch 1, 2 and 3, no past, odd lengths; where settings fix one, that."""
    if "height" in symbols:
        for batch, height, width in IMAGE:
            yield Sizes(batch=batch, symbols=(("num_channels", 3), ("height", height), ("width", width)))
        return
    for batch, sequence, past, encoder in DECODER:
        sizes = Sizes(batch, sequence, past, encoder)
        for name, size in job.case.dims.items():
            kind = next((kind for kind in ("batch", "past", "encoder") if kind in name), "sequence")
            sizes = replace(sizes, **{kind: size})
        yield sizes


def feeds(job: Job) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Give inputs at all sizes, each once; a merged decoder's switch follows the past."""
    model = graphkit.load(job.frozen)
    declared = [dim for value in model.proto.graph.input for dim in value.type.tensor_type.shape.dim]
    symbols = {dim.dim_param for dim in declared if dim.dim_param}
    seen = set()
    for seed, sizes in enumerate(sizes_of(job, symbols)):
        feed = InputMaker(model, seed).make(sizes)
        shapes = " ".join(f"{name}{list(array.shape)}" for name, array in feed.items())
        if shapes in seen and (symbols or seed > 2):
            continue
        seen.add(shapes)
        for name, array in feed.items():
            if array.ndim == 3 and "mask" in name and seed % 2:
                array[:, array.shape[1] * 3 // 4 :, :] = 0
        if "use_cache_branch" in feed:
            feed["use_cache_branch"] = np.array([sizes.past > 0])
        yield str(sizes), feed


def truth(job: Job) -> Truth:
    """Run the original at all sizes; those that it refuses itself, such as more positions than it has, are left out.

    Raises:
        ModelError: It does not load.
    """
    session, runs = Session(job.model), []
    for name, feed in feeds(job):
        with contextlib.suppress(ModelError):
            runs.append((name, feed, session.run(feed)))
    return Truth(tuple(runs))


def compare(result: Path, expected: Truth) -> Agreement:
    """Run a result at all sizes."""
    equal, worst, failures = 0, 0.0, []
    try:
        session = Session(result)
    except ModelError as error:
        return Agreement(len(expected.runs), 0, np.inf, (error.problem,), loads=False)
    for name, feed, outputs in expected.runs:
        try:
            found = session.run(feed)
        except ModelError as error:
            failures.append(f"{name}: {error.problem}")
            continue
        missing = outputs.keys() - found.keys()
        differences = compare_outputs(outputs, found)
        problems = [f"{d.output}: {d.problem}" for d in differences if d.problem] + [f"no output {n}" for n in missing]
        if problems:
            failures.append(f"{name}: {problems[0]}")
        this = max((min(d.absolute, d.relative) for d in differences if not d.problem), default=0.0)
        equal += not problems and not this
        worst = max(worst, this)
    return Agreement(len(expected.runs), equal, worst, tuple(failures))
