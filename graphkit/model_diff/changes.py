"""The differences of two models as data: before and after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# Of a diff, in the order of its text
SECTIONS = ("findings", "blockers", "interface", "opsets", "metadata", "nodes", "weights", "shapes")
COSTS = "costs"  # which follow from differences of these
WeightKind = Literal["values", "dtype", "dims", "removed", "added", "storage"]


@dataclass(frozen=True)
class Change:
    """Something that differs."""

    what: str  # its name
    before: str | None  # what A has, None where A lacks it
    after: str | None  # what B has, None where B lacks it

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.what}: {self.after} added"
        if self.after is None:
            return f"{self.what}: {self.before} removed"
        return f"{self.what}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class NameChange(Change):
    """An input or output of a node that is another value: both are names, whose numbers vary with that of the node."""


@dataclass(frozen=True)
class Redeclared(Change):
    """An output whose dims are declared in other words, as a fold does: no two sizes of it contradict each other."""


@dataclass(frozen=True)
class NoteChange(Change):
    """A note that differs, of a model or of one thing in it: a doc string, metadata, a denotation."""

    note: str = ""  # what all notes of its kind are called, such as `metadata 'namespace'`; "" for one of the model
    of: str = "model"  # what has it: the model, a node, a weight, an input, an output, or a tensor


@dataclass(frozen=True)
class LoneNode:
    """A node that the other model lacks."""

    node: str  # its path
    operator: str  # what it computes
    module: str  # the path of the module that it was exported from, "" where its name tells none
    instead: tuple[str, ...]  # the values of the other model that its readers read instead
    within: str = ""  # the path of the node in whose body it is, where the other model lacks that too, "" elsewhere


@dataclass(frozen=True)
class PairedNode:
    """A node of both models."""

    node: str  # its path in A
    other: str  # its path in B
    operator: str  # what it computes in A
    module: str  # the path of the module that it was exported from, "" where its name tells none


@dataclass(frozen=True)
class MovedNode(PairedNode):
    """A node of both models that is in another graph: a branch of an If in A, the main graph in B."""

    graph: str  # the path of its graph in A, "" for the main graph
    other_graph: str  # the same in B


@dataclass(frozen=True)
class ChangedNode(PairedNode):
    """A node of both models that differs."""

    changes: tuple[Change, ...]  # what differs: its operator, attributes, inputs, outputs


@dataclass(frozen=True)
class NodeChanges:
    """The nodes that differ, those of bodies and functions included."""

    removed: tuple[LoneNode, ...] = ()  # nodes that B lacks
    added: tuple[LoneNode, ...] = ()  # nodes that A lacks
    changed: tuple[ChangedNode, ...] = ()  # nodes of both that differ
    moved: tuple[MovedNode, ...] = ()  # nodes of both that are in another graph, some of them changed, too


@dataclass(frozen=True)
class WeightChange:
    """A constant that differs: an initializer, the default of an input, or the tensor of a Constant node.

    Attributes:
        kind: What differs: its values, its dtype, its dims, whether it is there, or whether it is an initializer.
        with_nodes: Whether all nodes that read it, or the body that it is in, were removed, or added, with it.
    """

    name: str  # in A, "" where A lacks it
    other: str  # in B, "" where B lacks it
    kind: WeightKind
    before: str  # dtype and dims in A, with the values of a small one; "" where A lacks it
    after: str  # the same in B
    equal_to: str = ""  # a constant of the same bytes: of the other model, or of A where it is in both; "" for none
    with_nodes: bool = False
    has_values: bool = field(default=False, metadata={"in_json": False})  # whether `before` or `after` has its values


@dataclass(frozen=True)
class ShapeChange:
    """A tensor of both models that has another dtype or other dims."""

    value: str  # its path in A
    other: str  # its path in B
    operator: str  # what computes it in A
    before: str  # dtype and dims in A
    after: str  # the same in B
    follows: bool  # whether it is computed from another tensor that differs so


@dataclass(frozen=True)
class FindingChange:
    """A finding that is new, gone, or concerns another number of nodes, tensors or outputs."""

    kind: str  # its kind, as in a report
    text: str  # the fault, in a sentence; that of B where B has it
    before: int  # how many it concerns in A, 0 where A lacks it
    after: int  # the same in B

    @property
    def is_worse(self) -> bool:
        """Whether it concerns more in B."""
        return self.after > self.before
