"""The JSON that Model Explorer reads: graphs, and data of their nodes.

The fields have the names of its own `graph_builder` and `node_data_builder`, which a test compares them with; its
package is not needed to make them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "Color", "GradientItem", "Graph", "GraphNode", "GraphNodeData", "GroupNodeConfig", "IncomingEdge", "KeyValue",
    "MetadataItem", "NodeDataResult",
]  # fmt: skip

Color = str  # of CSS: `#d95f0e`


@dataclass(frozen=True)
class KeyValue:
    """A line of the panel."""

    key: str
    value: str


@dataclass(frozen=True)
class IncomingEdge:
    """A value that a node reads: the node that gives it, the place there, the place here."""

    sourceNodeId: str
    sourceNodeOutputId: str
    targetNodeInputId: str


@dataclass(frozen=True)
class MetadataItem:
    """The lines about one input or output of a node; `shape` is shown at its edges."""

    id: str
    attrs: list[KeyValue]


@dataclass(frozen=True)
class GraphNode:
    """A node.

    Attributes:
        id: Unique in its graph.
        label: What is drawn: the operator.
        namespace: The groups that it is in, outermost first: `model/layers.0`.
        subgraphIds: Graphs that it leads to.
    """

    id: str
    label: str
    namespace: str
    attrs: list[KeyValue]
    incomingEdges: list[IncomingEdge] = field(default_factory=list)
    outputsMetadata: list[MetadataItem] = field(default_factory=list)
    inputsMetadata: list[MetadataItem] = field(default_factory=list)
    subgraphIds: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class GroupNodeConfig:
    """How the groups look whose namespaces a regular expression finds."""

    namespaceRegex: str
    backgroundColor: Color
    borderColor: Color


@dataclass(frozen=True)
class Graph:
    """A graph.

    Attributes:
        groupNodeAttributes: Lines of the panel by namespace; "" is the graph itself.
    """

    id: str
    nodes: list[GraphNode]
    groupNodeAttributes: dict[str, dict[str, str]]
    groupNodeConfigs: list[GroupNodeConfig]


@dataclass(frozen=True)
class NodeDataResult:
    """Facts about one node; without a colour, that of the gradient."""

    value: int | float | str
    bgColor: Color | None = None
    textColor: Color | None = None


@dataclass(frozen=True)
class GradientItem:
    """The colour at a place between the least value, 0, and the greatest, 1."""

    stop: float
    bgColor: Color


@dataclass(frozen=True)
class GraphNodeData:
    """Facts about the nodes of one graph, by id.

    Attributes:
        hideInAggregatedStatsTable, hideInChildrenStatsTable: Whether sums and shares make no sense, as of texts.
    """

    results: dict[str, NodeDataResult]
    gradient: list[GradientItem] = field(default_factory=list)
    hideInAggregatedStatsTable: bool = False
    hideInChildrenStatsTable: bool = False
