"""The base class of passes, and the function that runs a pipeline of them.

A pass is a frozen dataclass whose fields are its options. It never changes the model that it is given: it
returns another one, with what it changed, and what it declined to change and why.
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx

from graphkit.graph.families import families, in_short
from graphkit.model import Model

__all__ = ["Declined", "Outcome", "Pass", "copy_proto", "drop_inputs", "grouped", "keep", "run_passes"]


@dataclass(frozen=True)
class Declined:
    """Something that a pass left unchanged, and why."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


def grouped(declined: Iterable[str]) -> tuple[str, ...]:
    """Return each reason once, with the places it holds for; reasons that differ in numbers alone are one."""
    places: dict[str, dict[str, list[str]]] = {}
    for label, texts in families(declined).items():
        where, _, reason = label.partition(": ")
        places.setdefault(reason, {}).setdefault(where, []).extend(texts)
    return tuple(f"{in_short(found)}: {reason}" for reason, found in places.items())


@dataclass(frozen=True)
class Outcome:
    """What a pass, or a pipeline, did.

    Attributes:
        changes: One sentence for each change.
        declined: What stayed unchanged, and why.
    """

    model: Model
    changes: tuple[str, ...] = ()
    declined: tuple[Declined, ...] = ()


@dataclass(frozen=True)
class Pass(ABC):
    """Base of all passes.

    Attributes:
        largest_error: How far the results of a node can be off after it, absolutely, for values near 1; 0 where they
            are equal to the last bit.
    """

    largest_error: ClassVar[float] = 0.0

    @classmethod
    def name(cls) -> str:
        """Return the name in kebab-case: `EliminateDeadCode` is `eliminate-dead-code`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @abstractmethod
    def run(self, model: Model) -> Outcome:
        """Rewrite a model.

        Raises:
            UsageError: An option does not fit the model.
            ModelError: The model's graph is not sound: see `Model.check_soundness`.
        """


def run_passes(model: Model, passes: Iterable[Pass]) -> Outcome:
    """Run passes one after the other.

    Args:
        model: The model to start from; it is not changed.
        passes: The passes, in order.

    Returns:
        The last model, with the changes and refusals of all passes.

    Raises:
        UsageError: An option does not fit the model.
        ModelError: The model's graph is not sound: see `Model.check_soundness`.
    """
    changes: list[str] = []
    declined: list[Declined] = []
    for step in passes:
        outcome = step.run(model)
        model = outcome.model
        changes += [f"{step.name()}: {change}" for change in outcome.changes]
        declined += outcome.declined
    return Outcome(model, tuple(changes), tuple(declined))


def keep(field: MutableSequence[Any], wanted: Sequence[bool]) -> None:
    """Keep the members of a repeated field that are wanted, in place."""
    if not all(wanted):
        kept = [member for member, keep_it in zip(field, wanted, strict=True) if keep_it]
        del field[:]
        field.extend(kept)


def drop_inputs(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Remove inputs with their defaults, in place."""
    keep(graph.input, [info.name not in names for info in graph.input])
    keep(graph.initializer, [tensor.name not in names for tensor in graph.initializer])
    keep(graph.sparse_initializer, [sparse.values.name not in names for sparse in graph.sparse_initializer])


def copy_proto(model: Model) -> onnx.ModelProto:
    """Return a copy of a model's weightless proto, to change, once the model is found to be sound."""
    model.check_soundness()
    return copy.deepcopy(model.proto)
