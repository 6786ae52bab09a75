from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from graphkit.graph.view import Node
from graphkit.model import Model, load
from graphkit.shapes.constraints.legal_sizes import Sizes
from graphkit.surgeon import from_graphsurgeon, to_graphsurgeon, to_networkx
from graphkit.verify.input_generator import InputGenerator


def decorated() -> Model:
    """Return an example with everything set that onnx-graphsurgeon drops."""
    proto = load("example:merged-decoder").restore()
    proto.domain, proto.model_version, proto.doc_string = "some.domain", 3, "a model"
    proto.metadata_props.add(key="k", value="v")
    graph = proto.graph
    graph.doc_string = "a graph"
    graph.input[0].doc_string = "an input"
    graph.node[0].doc_string = "a node"
    graph.node[0].metadata_props.add(key="node", value="metadata")
    body = graph.node[0].attribute[0].g
    body.node[0].doc_string = "a node of a branch"
    graph.quantization_annotation.add(tensor_name=graph.node[0].output[0])
    return Model.from_proto(proto)


def test_there_and_back_keeps_what_graphsurgeon_drops() -> None:
    before = decorated()
    after = from_graphsurgeon(to_graphsurgeon(before), before).proto
    source = before.proto
    assert (after.domain, after.model_version, after.doc_string) == ("some.domain", 3, "a model")
    assert after.ir_version == source.ir_version
    assert list(after.metadata_props) == list(source.metadata_props)
    assert list(after.opset_import) == list(source.opset_import)
    assert after.graph.doc_string == "a graph"
    assert after.graph.input[0].doc_string == "an input"
    assert after.graph.node[0].doc_string == "a node"
    assert list(after.graph.node[0].metadata_props) == list(source.graph.node[0].metadata_props)
    assert after.graph.node[0].attribute[0].g.node[0].doc_string == "a node of a branch"
    assert list(after.graph.quantization_annotation) == list(source.graph.quantization_annotation)


@pytest.mark.cases("causal-attention")
@pytest.mark.parametrize("name", ["merged-decoder", "causal-attention"])
def test_there_and_back_gives_the_same_numbers(name: str) -> None:
    model = load(f"example:{name}", threshold=1 << 30)
    result = from_graphsurgeon(to_graphsurgeon(model), model)
    feed = InputGenerator(model).make(Sizes(batch=2, sequence=3, past=0, encoder=4))
    outputs = []
    for proto in (model.proto, result.proto):
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        outputs.append(session.run(None, feed))
    for one, two in zip(*outputs, strict=True):
        np.testing.assert_array_equal(one, two)


def test_large_tensors_stay_where_they_are() -> None:
    model = load("example:causal-attention", threshold=64)
    result = from_graphsurgeon(to_graphsurgeon(model), model)
    external = [t for t in result.proto.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    assert len(external) == len(model.references)
    assert all(bytes(result.payload(t)) for t in external)


def test_what_is_changed_is_changed() -> None:
    model = load("example:causal-attention", threshold=1 << 30)
    graph = to_graphsurgeon(model)
    for node in graph.nodes:
        if node.op == "Softmax":
            node.op = "LogSoftmax"
    result = from_graphsurgeon(graph, model)
    onnx.checker.check_model(result.proto, full_check=True)
    assert [n.op_type for n in result.graph.nodes].count("LogSoftmax") == 2
    assert [n.op_type for n in model.graph.nodes].count("LogSoftmax") == 0


def test_a_network_of_a_model_is_that_of_its_scopes() -> None:
    model = load("example:causal-attention")
    assert set(to_networkx(model)) == set(to_networkx(model.scopes))
    assert {vertex for vertex in to_networkx(model) if isinstance(vertex, Node)} == set(model.nodes)
    assert repr(model.nodes[0]) == "Node('/Shape', Shape)"
