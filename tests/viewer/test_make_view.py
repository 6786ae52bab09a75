"""What Model Explorer is given: graphs, ids, overlays, and two models side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping

import onnx
import pytest
from builders import model_of, proto_of

import graphkit
from graphkit.model import Model
from graphkit.viewer.explorer_format import Graph, GraphNode
from graphkit.viewer.make_view import ModelView, view

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "__proto__",
    "constructor",
    "x___group___",
    '"',
    "a;b/c\\",
    "{0-3}",
    "\u202e",
)


def shown(model: Model | str, **options: object) -> ModelView:
    return view(model, **options).models[0]  # type: ignore[arg-type]


def nodes(graph: Graph) -> dict[str, GraphNode]:
    return {node.id: node for node in graph.nodes}


def lines(node: GraphNode) -> Mapping[str, str]:
    return {line.key: line.value for line in node.attrs}


def results(model: ModelView, name: str) -> dict[str, object]:
    """Return the values of an overlay by node, of all graphs."""
    (overlay,) = [each for each in model.overlays if each.name == name]
    return {node: result.value for data in overlay.by_graph.values() for node, result in data.results.items()}


def test_a_graph_has_inputs_nodes_and_outputs_and_no_constants() -> None:
    model = model_of(
        "(float[N, 4] x) => (float[N, 4] y) { [sum] s = Add (x, w) [end] y = Softmax <axis = 1> (s) }", w=[1.0]
    )
    graph = shown(model).graphs[0]
    assert [(node.id, node.label, node.namespace) for node in graph.nodes] == [
        ("input x", "Input", "Inputs"),
        ("sum", "Add", ""),
        ("end", "Softmax", ""),
        ("output y", "Output", "Outputs"),
    ]
    assert [[edge.sourceNodeId for edge in node.incomingEdges] for node in graph.nodes] == [
        [],
        ["input x"],
        ["sum"],
        ["end"],
    ]
    assert lines(nodes(graph)["sum"])["input 1"] == "w: float32[1] = [1]"
    assert lines(nodes(graph)["end"])["axis"] == "1"
    assert {line.key: line.value for line in nodes(graph)["sum"].outputsMetadata[0].attrs} == {
        "__tensor_tag": "s",
        "shape": "[N, 4]",
        "dtype": "float32",
    }


def test_the_value_of_a_shape_is_told() -> None:
    graph = shown(model_of("(float[N, 4] x) => (int64[2] y) { [shape] y = Shape (x) }")).graphs[0]
    assert {line.key: line.value for line in nodes(graph)["shape"].outputsMetadata[0].attrs}["value"] == "[N, 4]"


LOOP = """(int64 n, float[N] x, bool c) => (float[N] y) {
    [loop] y = Loop (n, c, x) <
        body = b (int64 i, bool before, float[N] v) => (bool after, float[N] w) {
            [same] after = Identity (before) [more] w = Add (v, x)
        }
    >
}"""


def test_a_body_reads_what_its_node_is_given_and_gives_its_results() -> None:
    graph = shown(model_of(LOOP)).graphs[0]
    reads = {node.id: [edge.sourceNodeId for edge in node.incomingEdges] for node in graph.nodes}
    assert reads["loop/body/input i"] == []
    assert reads["loop/body/input before"] == ["input c"]
    assert reads["loop/body/input v"] == ["input x"]
    assert reads["loop/body/more"] == ["loop/body/input v", "input x"]
    assert reads["loop"] == ["input n", "input c", "input x", "loop/body/same", "loop/body/more"]
    assert {node.namespace for node in graph.nodes if "body" in node.id} == {"loop/body"}


def test_a_function_is_a_graph_that_its_calls_lead_to() -> None:
    text = """<ir_version: 10, opset_import: ["": 18, "my": 1]>
    g (float[N] x) => (float[N] y) { [first] t = my.Twice (x) [second] y = my.Twice (t) }
    <domain: "my", opset_import: ["": 18]>
    Twice (a) => (b) { [inner] b = Add (a, a) }"""
    model = shown(Model.from_proto(onnx.parser.parse_model(text)))
    main, function = model.graphs
    assert [nodes(main)[name].subgraphIds for name in ("first", "second")] == [[function.id], [function.id]]
    assert list(nodes(function)) == ["function Twice/input a", "function Twice/inner", "function Twice/output b"]
    assert results(model, "operations")["function Twice/inner"]  # of both calls


def test_costs_shapes_origins_and_hazards_are_overlays() -> None:
    model = shown("example:causal-attention")
    assert [overlay.name for overlay in model.overlays] == [
        *("shape origins", "shapes", "hazards", "weight bytes", "bytes moved", "operations", "MACs"),
    ]
    costs = graphkit.costs("example:causal-attention", by="node")
    macs = {row.name: row.macs.value for row in costs.rows if row.macs.value}
    assert results(model, "MACs") == macs
    assert results(model, "bytes moved") == {r.name: r.bytes_moved.value for r in costs.rows if r.bytes_moved.value}
    stored = {row.name: row.weight_bytes for row in costs.rows}
    assert all(stored[name] == value for name, value in results(model, "weight bytes").items())
    for hazard in graphkit.hazards("example:causal-attention").hazards:
        assert all(str(hazard)[:200] in str(results(model, "hazards")[name]) for name in hazard.nodes)
    groups = {
        name: group.expression for group in graphkit.origins("example:causal-attention").groups for name in group.nodes
    }
    origins = results(model, "shape origins")
    assert origins.keys() == groups.keys()
    assert all(text[:100] in str(origins[name]) for name, text in groups.items())


def test_blockers_of_a_target_are_an_overlay() -> None:
    model = shown("example:causal-attention", target="ethos-u85")
    found = graphkit.blockers("example:causal-attention", "ethos-u85")
    assert model.overlays[-1].name == "blockers of ethos-u85"
    assert results(model, model.overlays[-1].name).keys() == {each.path for each in (*found.blockers, *found.unknown)}


def test_sizes_are_those_that_are_given() -> None:
    spec = graphkit.DimSpec.of({"sequence_length": 7, "batch_size": 1})
    model = shown("example:causal-attention", spec=spec)
    assert model.graphs[0].groupNodeAttributes[""]["costs at"] == "sequence_length 7 and batch_size 1"
    found = graphkit.costs("example:causal-attention", spec)
    assert sum(value for value in results(model, "MACs").values() if isinstance(value, int)) == found.macs.value


TEXT = "(float[N, 4] x) => (float[N, 4] y) { [one] t = Tanh (x) [two] u = Exp (t) [three] y = Softmax <axis = 1> (u) }"


def test_nodes_that_match_have_one_id() -> None:
    other = """(float[N, 4] x) => (float[N, 4] y) {
        [uno] a = Tanh (x) [two] b = Add (a, a) [drei] y = Softmax <axis = 0> (b)
    }"""
    made = view(model_of(TEXT), model_of(other))
    first, second = (list(nodes(model.graphs[0])) for model in made.models)
    assert first == ["input x", "one", "two", "three", "output y"]
    assert second == ["input x", "one", "two#2", "three", "output y"]  # which is another node
    assert made.synchronised == 4
    assert lines(nodes(made.models[1].graphs[0])["one"])["node"] == "uno"
    assert results(made.models[0], "diff") == {"two": "removed", "three": "changed: axis: 1 -> 0"}
    assert results(made.models[1], "diff") == {"two#2": "added", "three": "changed: axis: 1 -> 0"}


def test_the_nodes_of_a_fold_are_those_that_diff_tells() -> None:
    model = graphkit.load("example:detection")
    folded = graphkit.fold(model).model
    made, found = view(model, folded), graphkit.diff(model, folded).nodes
    texts = [[str(text).partition(":")[0] for text in results(each, "diff").values()] for each in made.models]
    assert [texts[0].count("removed"), texts[1].count("added")] == [len(found.removed), len(found.added)]
    assert [text.count("changed") for text in texts] == [len(found.changed)] * 2
    assert made.synchronised > len(found.added)


def test_hostile_names_are_data() -> None:
    proto = proto_of(TEXT)
    for name, node in zip(HOSTILE * 2, [*proto.graph.node] * 5, strict=False):
        copy = proto.graph.node.add()
        copy.CopyFrom(node)
        copy.name, copy.output[0] = name, f"{name}{len(proto.graph.node)}"
    proto.graph.doc_string = proto.producer_name = HOSTILE[0]
    model = view(Model.from_proto(proto)).models[0]
    ids = [node.id for node in model.graphs[0].nodes]
    assert len(set(ids)) == len(ids)
    assert not any(name == "__proto__" or name.endswith("___group___") for name in ids)
    named = [lines(node)["node"] for node in model.graphs[0].nodes if "node" in lines(node)]
    assert set(HOSTILE) <= set(named)
    assert json.loads(json.dumps(ids)) == ids


def test_many_nodes_of_one_name_take_no_time() -> None:
    proto = proto_of(TEXT)
    for number in range(3000):
        node = proto.graph.node.add(op_type="Tanh", name="same", input=["x"], output=[f"v{number}"])
        assert node.name == "same"
    ids = [node.id for node in view(Model.from_proto(proto)).models[0].graphs[0].nodes]
    assert ids[4:7] == ["same", "same#2", "same#3"]
    assert len(set(ids)) == len(ids)


def test_two_models_of_one_name_are_told_apart() -> None:
    made = view("example:causal-attention", "example:causal-attention")
    assert [model.label for model in made.models] == ["A example:causal-attention", "B example:causal-attention"]
    assert made.models[0].graphs[0].id != made.models[1].graphs[0].id
    assert made.synchronised == len(made.models[1].graphs[0].nodes)
    assert all(overlay.name != "diff" or overlay.nodes == 0 for model in made.models for overlay in model.overlays)


@pytest.mark.parametrize("count", [1, 2])
def test_the_json_is_what_model_explorer_reads(count: int) -> None:
    """One collection has a label and graphs; several are a list, whose graphs it calls `subgraphs`."""
    document = json.loads(view(*["example:causal-attention"] * count).to_json())
    keys = [set(each) for each in ([document] if count == 1 else document)]
    assert keys == [{"label", "graphs"}] if count == 1 else [{"label", "subgraphs"}] * 2
