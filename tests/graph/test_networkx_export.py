from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import onnx
import onnx.parser

from graphkit.graph.view import Node, Scope, all_nodes, build_scopes
from graphkit.model import Model
from graphkit.surgeon import Network, cone, to_networkx

CHAIN = "g (float[N] x, float[N] z) => (y, w) { a = Relu(x)  y = Add(a, x)  w = Neg(z) }"
BRANCHES = """
g (bool c, float[N] x) => (float[N] y) { y = If (c) <
    then_branch = t () => (float[N] a) { a = Neg(x) },
    else_branch = e () => (float[N] b) { b = Abs(x) }
> }
"""


def main(graph: str) -> Scope:
    return build_scopes(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'))[0]


def edges(network: Network) -> set[tuple[str, str]]:
    def text(vertex: object) -> str:
        return vertex.path if isinstance(vertex, Node) else vertex.name  # type: ignore[attr-defined]

    return {(text(start), text(end)) for start, end in network.edges}


def test_edges_run_from_values_to_nodes_to_values() -> None:
    assert edges(to_networkx([main("g (float[N] x) => (float[N] y) { y = Relu(x) }")])) == {
        ("x", "Relu#0"),
        ("Relu#0", "y"),
    }


def test_an_if_is_computed_from_the_outputs_of_its_branches() -> None:
    assert edges(to_networkx([main(BRANCHES)])) == {
        ("c", "If#0"),
        ("x", "If#0/then_branch/Neg#0"),
        ("If#0/then_branch/Neg#0", "a"),
        ("a", "If#0"),
        ("x", "If#0/else_branch/Abs#0"),
        ("If#0/else_branch/Abs#0", "b"),
        ("b", "If#0"),
        ("If#0", "y"),
    }


def test_values_may_be_left_out() -> None:
    network = to_networkx([main(CHAIN)], keep=lambda value: value.kind == "node")
    assert edges(network) == {("Relu#0", "a"), ("a", "Add#1"), ("Add#1", "y"), ("Neg#2", "w")}


def test_a_left_out_input_has_no_edge() -> None:
    assert ("", "Clip#0") not in edges(to_networkx([main("g (x, hi) => (y) { y = Clip(x, , hi) }")]))


def test_a_cone_is_what_a_vertex_is_computed_from() -> None:
    scope = main(CHAIN)
    assert edges(cone(to_networkx([scope]), scope.values["y"])) == {
        ("x", "Relu#0"),
        ("Relu#0", "a"),
        ("a", "Add#1"),
        ("x", "Add#1"),
        ("Add#1", "y"),
    }


def test_the_cone_of_an_input_is_the_input() -> None:
    scope = main(CHAIN)
    assert list(cone(to_networkx([scope]), scope.values["z"])) == [scope.values["z"]]


def test_a_real_model_is_one_acyclic_graph(real_model: Callable[[str], Model]) -> None:
    model = real_model("gpt2-tiny/decoder_model_merged")
    network = to_networkx(model.scopes)
    assert nx.is_directed_acyclic_graph(network)
    assert sum(isinstance(vertex, Node) for vertex in network) == len(list(all_nodes(model.scopes)))
