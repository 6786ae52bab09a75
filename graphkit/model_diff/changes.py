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
    """Something that differs.

    Attributes:
        what: Its name.
        before: What A has, None where A lacks it.
        after: What B has, None where B lacks it.
    """

    what: str
    before: str | None
    after: str | None

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
    """A note that differs, of a model or of one thing in it: a doc string, metadata, a denotation.

    Attributes:
        note: What all notes of its kind are called, such as `metadata 'namespace'`; "" for one of the model.
        of: What has it: the model, a node, a weight, an input, an output, or a tensor.
    """

    note: str = ""
    of: str = "model"


@dataclass(frozen=True)
class LoneNode:
    """A node that the other model lacks.

    Attributes:
        node: Its path.
        operator: What it computes.
        module: The path of the module that it was exported from, "" where its name tells none.
        instead: The values of the other model that its readers read instead.
        within: The path of the node in whose body it is, where the other model lacks that too, "" elsewhere.
    """

    node: str
    operator: str
    module: str
    instead: tuple[str, ...]
    within: str = ""


@dataclass(frozen=True)
class PairedNode:
    """A node of both models.

    Attributes:
        node: Its path in A.
        other: Its path in B.
        operator: What it computes in A.
        module: The path of the module that it was exported from, "" where its name tells none.
    """

    node: str
    other: str
    operator: str
    module: str


@dataclass(frozen=True)
class MovedNode(PairedNode):
    """A node of both models that is in another graph: a branch of an If in A, the main graph in B.

    Attributes:
        graph: The path of its graph in A, "" for the main graph.
        other_graph: The same in B.
    """

    graph: str
    other_graph: str


@dataclass(frozen=True)
class ChangedNode(PairedNode):
    """A node of both models that differs.

    Attributes:
        changes: What differs: its operator, attributes, inputs, outputs.
    """

    changes: tuple[Change, ...]


@dataclass(frozen=True)
class NodeChanges:
    """The nodes that differ, those of bodies and functions included.

    Attributes:
        removed: Nodes that B lacks.
        added: Nodes that A lacks.
        changed: Nodes of both that differ.
        moved: Nodes of both that are in another graph, some of them changed, too.
    """

    removed: tuple[LoneNode, ...] = ()
    added: tuple[LoneNode, ...] = ()
    changed: tuple[ChangedNode, ...] = ()
    moved: tuple[MovedNode, ...] = ()


@dataclass(frozen=True)
class WeightChange:
    """A constant that differs: an initializer, the default of an input, or the tensor of a Constant node.

    Attributes:
        name: In A, "" where A lacks it.
        other: In B, "" where B lacks it.
        kind: What differs: its values, its dtype, its dims, whether it is there, or whether it is an initializer.
        before: Dtype and dims in A, with the values of a small one; "" where A lacks it.
        after: The same in B.
        equal_to: A constant of the same bytes: of the other model, or of A where it is in both; "" for none.
        with_nodes: Whether all nodes that read it, or the body that it is in, were removed, or added, with it.
        has_values: Whether `before` or `after` has its values.
    """

    name: str
    other: str
    kind: WeightKind
    before: str
    after: str
    equal_to: str = ""
    with_nodes: bool = False
    has_values: bool = field(default=False, metadata={"in_json": False})


@dataclass(frozen=True)
class ShapeChange:
    """A tensor of both models that has another dtype or other dims.

    Attributes:
        value: Its path in A.
        other: Its path in B.
        operator: What computes it in A.
        before: Dtype and dims in A.
        after: The same in B.
        follows: Whether it is computed from another tensor that differs so.
    """

    value: str
    other: str
    operator: str
    before: str
    after: str
    follows: bool


@dataclass(frozen=True)
class FindingChange:
    """A finding that is new, gone, or concerns another number of nodes, tensors or outputs.

    Attributes:
        kind: Its kind, as in a report.
        text: The fault, in a sentence; that of B where B has it.
        before: How many it concerns in A, 0 where A lacks it.
        after: The same in B.
    """

    kind: str
    text: str
    before: int
    after: int

    @property
    def is_worse(self) -> bool:
        """Whether it concerns more in B."""
        return self.after > self.before
