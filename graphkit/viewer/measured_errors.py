"""The errors that `graphkit compare` measured, from its result or its JSON, laid over the graph of either model."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.errors import UsageError
from graphkit.graph.view import Node
from graphkit.model import Model
from graphkit.render.result import versioned_schema
from graphkit.viewer.explorer_format import NodeDataResult
from graphkit.viewer.overlays import Overlay

if TYPE_CHECKING:
    from graphkit.verify.layers.comparison import ModelComparison

__all__ = ["MeasuredErrors", "error_overlay", "measured_errors"]

SCHEMA = versioned_schema("model-comparison")
FIRST, DIFFERS, PROBLEM = "#b71c1c", "#ff8a65", "#bdbdbd"
AGREES = ("#e8f5e9", "#c8e6c9", "#dcedc8", "#f0f4c3")  # below each of the bounds, and above
BOUNDS = (1e-9, 1e-7, 1e-5)  # of relative errors
HOW_TO = "write one with `graphkit compare A B --report FILE.json`"


@dataclass(frozen=True)
class TensorError:
    """The error of a tensor.

    Attributes:
        names: In A and in B.
        relative: Over the largest magnitude in A, None where none can be told.
        problem: Why not.
        agrees: Whether it is within the tolerance.
        is_first: Whether the difference begins here.
    """

    names: tuple[str, str]
    relative: float | None
    problem: str
    agrees: bool
    is_first: bool

    @property
    def badness(self) -> tuple[bool, bool, float]:
        """A key that is greater for what should rather be seen."""
        return self.is_first, not self.agrees, math.inf if self.relative is None else self.relative


@dataclass(frozen=True)
class MeasuredErrors:
    """The errors of a comparison of two models.

    Attributes:
        source: What to call it.
    """

    source: str
    tensors: tuple[TensorError, ...]


def measured_errors(compared: ModelComparison | str | os.PathLike[str]) -> MeasuredErrors:
    """Return the errors of a comparison, or of the JSON that it was written to.

    Raises:
        UsageError: The file cannot be read, or is no comparison.
    """
    if not isinstance(compared, (str, os.PathLike)):
        return _read_errors(f"{compared.a} and {compared.b}", compared.to_dict())
    path = os.fspath(compared)
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror} - {HOW_TO}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not JSON: {error} - {HOW_TO}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UsageError(f"{path}: is not a comparison of two models ({SCHEMA}) - {HOW_TO}")
    try:
        return _read_errors(path, document)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: is not a comparison as graphkit writes it: {error!r} - {HOW_TO}") from error


def _read_errors(source: str, document: dict[str, Any]) -> MeasuredErrors:
    firsts = {(each["tensor"], each["other"]) for each in document["divergences"]}
    return MeasuredErrors(
        source,
        tuple(
            TensorError(
                names=(str(each["a"]), str(each["b"])),
                relative=None if each["relative"] is None else float(each["relative"]),
                problem=str(each["problem"]),
                agrees=bool(each["agrees"]),
                is_first=(each["a"], each["b"]) in firsts,
            )
            for each in document["tensors"]
        ),
    )


def error_overlay(model: Model, errors: MeasuredErrors, *, is_other: bool = False) -> Overlay:
    """Return the errors of the tensors that the nodes of a model give.

    Args:
        model: A, or B.
        errors: The errors.
        is_other: Whether the model is B.

    Raises:
        UsageError: The comparison is of other models.
    """
    worst: dict[Node, TensorError] = {}
    for tensor in errors.tensors:
        value = model.graph.values.get(tensor.names[is_other])
        if value is not None and value.producer is not None:
            node = value.producer
            worst[node] = max(worst.get(node, tensor), tensor, key=lambda each: each.badness)
    if not worst:
        raise UsageError(f"{errors.source}: compares no tensor that a node of {model.label} gives - {HOW_TO}")
    return Overlay("errors", {node: _error_result(tensor) for node, tensor in worst.items()})


def _error_result(tensor: TensorError) -> NodeDataResult:
    is_number = tensor.relative is not None and math.isfinite(tensor.relative)
    value = tensor.relative if is_number and tensor.relative is not None else tensor.problem or "not a number"
    if tensor.is_first:
        return NodeDataResult(value, FIRST, "#ffffff")
    if not is_number or tensor.relative is None:
        return NodeDataResult(value, PROBLEM, "#000000")
    shade = AGREES[sum(tensor.relative >= bound for bound in BOUNDS)]
    return NodeDataResult(value, shade if tensor.agrees else DIFFERS, "#000000")
