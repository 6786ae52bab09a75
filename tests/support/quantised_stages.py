"""What is tried of an export in each kind of quantisation: every stage of graphkit, and what came of it in a line."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quantised import MERGED

import graphkit
from graphkit.errors import GraphkitError
from graphkit.graph.declared_types import declared_dims
from graphkit.render.result import Result

__all__ = ["STAGES", "Attempt", "attempts"]

DIMS = {"height": 32, "width": 32, "num_channels": 3, "sequence_length": 32, "num_input_channels": 3}
Stage = Callable[[Path, Path], Iterator[Result]]


@dataclass(frozen=True)
class Attempt:
    """What came of a stage.

    Attributes:
        stage: Its name.
        outcome: `ok`; `declined`, where it ends with one of graphkit's own errors; `unproven`, where the proof fails;
            or `failed`, with a traceback.
        detail: Why, "" where it is ok.
    """

    stage: str
    outcome: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.stage}: {self.outcome}" + (f": {self.detail}" if self.detail else "")


def _files(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob("*.onnx"))


def _report(folder: Path, _: Path) -> Iterator[Result]:
    for path in _files(folder):
        yield graphkit.report(path)


def _split(folder: Path, output: Path) -> Iterator[Result]:
    if (folder / MERGED).is_file():
        yield graphkit.split_file(folder / MERGED, output)


def _fold(folder: Path, output: Path) -> Iterator[Result]:
    for path in _files(folder):
        yield graphkit.fold_file(path, output / path.name)


def _fuse(folder: Path, output: Path) -> Iterator[Result]:
    for path in _files(folder):
        yield graphkit.fold_file(path, output / path.name, graphkit.FoldOptions(fuse=True))


def _lower(folder: Path, output: Path, *, dequantize: bool = False) -> Iterator[Result]:
    symbols = {dim for path in _files(folder) for dim in _symbols(path)}
    dims = tuple((name, size) for name, size in DIMS.items() if name in symbols)
    options = graphkit.LowerOptions(src_len=16, max_cache_len=16, dims=dims, dequantize=dequantize)
    yield graphkit.lower_folder(folder, output, options)


def _symbols(path: Path) -> Iterator[str]:
    model = graphkit.load(path)
    is_series = any(value.name == "past_values" for value in model.graph.inputs)
    for value in model.graph.inputs:
        names = [dim for dim in declared_dims(value) or () if isinstance(dim, str)]
        yield from (name for name in names if is_series or name not in ("sequence_length", "num_input_channels"))


def _bundle(folder: Path, output: Path) -> Iterator[Result]:
    yield graphkit.bundle_folder(folder, output, graphkit.BundleOptions(max_cache=16, max_source=16))


STAGES: dict[str, Stage] = {
    "report": _report,
    "split": _split,
    "fold": _fold,
    "fold --fuse": _fuse,
    "lower": _lower,
    "lower --dequantize": partial(_lower, dequantize=True),
    "bundle": _bundle,
}


def attempts(folder: Path, stages: Sequence[str] = tuple(STAGES)) -> Iterator[Attempt]:
    """Yield what comes of each stage for an export."""
    for stage in stages:
        with tempfile.TemporaryDirectory() as made:
            yield _attempt(stage, folder, Path(made))


def _attempt(stage: str, folder: Path, output: Path) -> Attempt:
    try:
        results = list(STAGES[stage](folder, output))
    except GraphkitError as error:
        return Attempt(stage, "declined", str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Attempt(stage, "failed", f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    if stage == "report":
        return Attempt(stage, "ok")
    faults = [fault for result in results for fault in _faults(result)]
    return Attempt(stage, "unproven" if faults else "ok", "; ".join(faults))


def _faults(result: Result) -> Iterator[str]:
    proof = getattr(result, "proof", None)
    if proof is None:
        yield "there is no proof"
    elif not proof.passed:
        yield "; ".join(proof.findings())
