"""The rows of a table of costs, of which `Costs` is made."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.names import counted
from graphkit.render.document_blocks import sized

__all__ = [
    "AliveTensor",
    "BranchRow",
    "CostRow",
    "CurvePoint",
    "MemoryOverTime",
    "PeakRow",
    "Quantity",
    "StepsRow",
    "UnknownCost",
    "amount_text",
    "number_text",
]

SHOWN = 110  # characters of an expression, in a text


@dataclass(frozen=True)
class Quantity:
    """A number that depends on the input dims.

    Attributes:
        value: At the sizes, without the nodes that are not counted; None if an input dim has no size.
        expression: In the input dims, the largest terms first; "" if it has too many terms to be read.
        uncounted: How many nodes are not in it.
    """

    value: int | None
    expression: str
    uncounted: int = 0

    @property
    def short(self) -> str:
        """The first terms of the expression, "" for a number."""
        if self.expression == str(self.value):
            return ""
        terms = _terms(self.expression)
        text = ""
        for number, term in enumerate(terms):
            if text and len(text) + len(term) > SHOWN:
                return f"{text} and {counted(len(terms) - number, 'more term(s)')}"
            text += term
        return text


def _terms(text: str) -> list[str]:
    """Return the terms of a sum, each but the first with its sign."""
    starts, depth = [0], 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth and text[place : place + 3] in (" + ", " - "):
            starts.append(place)
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


@dataclass(frozen=True)
class CostRow:
    """The costs of a group of nodes; of several groups that cost the same, those of each.

    Attributes:
        name: Of the group, or a label for all of them: `model/layers.{0-17}`.
        times: How many groups it stands for.
        nodes: Nodes that run; of several groups, the most that one of them has.
        parameters: Of the weights that its nodes are the first to read.
        weight_bytes: Of the same; of several groups, the most that one of them has: the first reads what they share.
        macs, operations, bytes_moved: Multiply-accumulates, other operations, and bytes read and written.
        intensity: Operations for each byte moved, two for a multiply-accumulate; None if one is not known.
    """

    name: str
    times: int
    nodes: int
    parameters: int
    weight_bytes: int
    macs: Quantity
    operations: Quantity
    bytes_moved: Quantity
    intensity: float | None


@dataclass(frozen=True)
class AliveTensor:
    """A tensor that is in memory at the peak."""

    name: str
    bytes: int
    expression: str


@dataclass(frozen=True)
class PeakRow:
    """The peak memory of activations.

    Attributes:
        bytes: At the sizes; the expression is that of the tensors that are there then.
        node: The node that runs at the peak.
        alive: The largest tensors that are there.
        tensors: How many there are.
        unknown: Why some tensors have no size.
    """

    bytes: Quantity
    node: str
    alive: tuple[AliveTensor, ...]
    tensors: int
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class MemoryOverTime:
    """The activations that are in memory as nodes run.

    Attributes:
        nodes: The number of each node that runs, in order: its place among all nodes of the file, those of the main
            graph first, then those of bodies and functions. A node of a loop comes once, one of a function at
            each call.
        bytes: The bytes that are there when it runs.
    """

    nodes: tuple[int, ...]
    bytes: tuple[int, ...]


@dataclass(frozen=True)
class BranchRow:
    """A branch of an If.

    Attributes:
        is_counted: Whether its costs are those of the model at the sizes.
        reason: Why it cannot run, "" if it can.
    """

    node: str
    branch: str
    is_counted: bool
    reason: str
    macs: Quantity
    operations: Quantity
    bytes_moved: Quantity


@dataclass(frozen=True)
class StepsRow:
    """Work that runs one step after the other.

    Attributes:
        steps: How many steps; None where that is not known.
        reason: Why it is not known, "" if it is.
        macs: Of all steps.
    """

    node: str
    op: str
    steps: Quantity | None
    reason: str
    macs: Quantity


@dataclass(frozen=True)
class UnknownCost:
    """Costs that are not known.

    Attributes:
        measures: `macs`, `operations`, `bytes_moved`.
        first: The first of the nodes.
    """

    reason: str
    measures: tuple[str, ...]
    nodes: int
    first: str


@dataclass(frozen=True)
class CurvePoint:
    """The costs at one size of a symbol; None for a cost that has no number there."""

    size: int
    macs: int | None
    operations: int | None
    bytes_moved: int | None
    peak_bytes: int
    kv_cache_bytes: int | None


def amount_text(quantity: Quantity, unit: str = "") -> str:
    """Return a number in short, `>=` before one without the nodes that are not counted."""
    return f"{'>= ' if quantity.uncounted else ''}{number_text(quantity.value, unit)}"


def number_text(number: int | None, unit: str = "") -> str:
    """Return a number in short, `?` for none."""
    return "?" if number is None else sized(number, unit)
