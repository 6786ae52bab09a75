"""A wrong tensor with its neighbourhood in both models, and whether padding explains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from graphkit.graph.mask_polarity import unmasked
from graphkit.graph.view import Node, Value
from graphkit.matching.graph_side import known
from graphkit.model import Model
from graphkit.verify.layers.compared_model import FLOATS, Side, constant_array
from graphkit.verify.layers.measuring import allowed, plain

__all__ = ["HOPS", "Case", "Cause", "Kind", "Part", "around", "padded_masks", "padding"]

Kind = Literal[
    "padding", "dims", "offset", "scale", "transposed", "permuted", "shifted", "positions", "term", "weights", "unknown"
]
HOPS = 3
MAX_AROUND = 24
LEFT = 0.02  # of a difference, the most that may remain unexplained


@dataclass(frozen=True)
class Cause:
    """The explanation of a difference.

    Attributes:
        kind: What it is.
        text: That in a sentence.
        initializer: The constant that it names, "" for none.
    """

    kind: Kind
    text: str
    initializer: str = ""


@dataclass(frozen=True, eq=False)
class Part:
    """The neighbourhood of a tensor in one model.

    Attributes:
        side: The model.
        value: The tensor.
        arrays: The arrays of the tensors that it is computed from in a few steps.
        nodes: The nodes of these steps.
    """

    side: Side
    value: Value
    arrays: Mapping[Value, np.ndarray] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    @cached_property
    def read(self) -> frozenset[Value]:
        """The constants that these nodes read."""
        return frozenset(value for node in self.nodes for value in node.inputs if value is not None and known(value))

    def floats(self, size: int) -> Iterator[tuple[Value, np.ndarray]]:
        """Yield the floating-point constants of so many elements in the model, those that are near first."""
        everything = [value for node in self.side.nodes for value in node.inputs if value is not None]
        for value in dict.fromkeys([*self.read, *everything]):
            tensor = known(value)
            if tensor is not None and tensor.data_type in FLOATS and int(np.prod(tensor.dims, dtype=object)) == size:
                yield value, constant_array(self.side.model, tensor)


@dataclass(frozen=True, eq=False)
class Case:
    """Two arrays that should be equal.

    Attributes:
        x: What A has, in float64, 0 in the place of minus infinity.
        y: What B has.
        most: The largest difference that counts as none.
        is_integer: Whether A has integers or booleans.
        a: What is around it in A.
        b: The same in B, None where B is a set of dumps.
    """

    x: np.ndarray
    y: np.ndarray
    most: float
    is_integer: bool
    a: Part
    b: Part | None

    @classmethod
    def of(cls, array_a: np.ndarray, array_b: np.ndarray, tolerance: float, a: Part, b: Part | None) -> Case:
        """Return the case of two arrays."""
        return cls(plain(array_a), plain(array_b), allowed(array_a, tolerance), array_a.dtype.kind != "f", a, b)

    @cached_property
    def difference(self) -> np.ndarray:
        """The elements of A less those of B."""
        return np.asarray(self.x - self.y)

    @cached_property
    def largest(self) -> float:
        """The largest difference."""
        return float(np.abs(self.difference).max(initial=0.0))

    def explains(self, rest: np.ndarray) -> bool:
        """Whether nothing remains of the difference."""
        return float(np.abs(rest).max(initial=0.0)) <= min(self.most, LEFT * self.largest)

    def equal(self, first: np.ndarray, second: np.ndarray) -> bool:
        """Whether two arrays are equal within the tolerance."""
        return first.shape == second.shape and float(np.abs(first - second).max(initial=0.0)) <= self.most


def around(side: Side, value: Value) -> tuple[list[Value], tuple[Node, ...]]:
    """Return the tensors that one is computed from in a few steps, and the nodes of these."""
    values, nodes = dict[Value, None](), dict[Node, None]()
    border = [value]
    for _ in range(HOPS):
        producers = [v.producer for v in border if v.producer is not None and v.producer not in nodes]
        nodes.update(dict.fromkeys(producers))
        border = [v for node in producers for v in side.reads[node] if v in side.place and v not in values]
        values.update(dict.fromkeys(sorted(border, key=side.place.__getitem__)))
    holdable = [v for v in values if v not in side.unholdable and v is not value]
    return holdable[:MAX_AROUND], tuple(nodes)


Agrees = Callable[[Mapping[str, np.ndarray]], bool]


Mask = tuple[np.ndarray, np.ndarray]  # as it is fed, and one that hides nothing


def padded_masks(model: Model, feed: Mapping[str, np.ndarray]) -> dict[str, Mask]:
    """Return the mask inputs of a model that mask something, by name."""
    masks = {v.name: (feed[v.name], polarity) for v, polarity in model.roles.polarities.items() if v.name in feed}
    pairs = {name: (mask, unmasked(mask, polarity)) for name, (mask, polarity) in masks.items()}
    return {name: pair for name, pair in pairs.items() if not np.array_equal(*pair)}


def padding(case: Case, masks: Mapping[str, Mask], agrees: Agrees) -> Iterator[Cause]:
    """Yield the mask without which the two agree.

    Args:
        case: The tensors.
        masks: The mask inputs that mask something.
        agrees: Whether the two agree with other inputs.
    """
    for name, (mask, whole) in masks.items():
        if agrees({name: whole}):
            yield Cause("padding", _text(case, name, mask == whole))
            return
    if len(masks) > 1 and agrees({name: whole for name, (_, whole) in masks.items()}):
        names = " and ".join(f"'{name}'" for name in masks)
        yield Cause("padding", f"padding leak: the two agree where {names} mask nothing.")


def _text(case: Case, name: str, counts: np.ndarray) -> str:
    if _only_where(case, counts):
        return f"padding: only positions that '{name}' masks differ; what counts agrees."
    return f"padding leak: the two agree where '{name}' masks nothing; padding changes what one of them computes."


def _only_where(case: Case, counts: np.ndarray) -> bool:
    """Whether only padded positions differ: dims [batch, length, ...] beside a mask [batch, length]."""
    if counts.ndim != 2 or case.x.shape != case.y.shape or case.x.shape[:2] != counts.shape:
        return False
    return case.equal(case.x[counts], case.y[counts])
