from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper
from real_models import MODEL_NAMES

from graphkit.errors import ModelError
from graphkit.graph.view import MAX_NESTING, Scope, all_nodes, all_scopes, build_scopes, find_nodes
from graphkit.model import Model

HEADER = '<ir_version: 8, opset_import: ["" : 17, "custom" : 3]>'
BRANCHES = """
g (bool c, float[N] x) => (float[N] y) {
    a = Neg(x)
    y = If (c) <
        then_branch = t () => (float[N] out) { local = Relu(a)  out = Add(local, x) },
        else_branch = e () => (float[N] out) { local = Abs(x)  out = Identity(local) }
    >
}
"""


def scopes(graph: str) -> tuple[Scope, ...]:
    return build_scopes(onnx.parser.parse_model(f"{HEADER} {graph}"))


def main(graph: str) -> Scope:
    return scopes(graph)[0]


def uses(scope: Scope, name: str) -> list[tuple[str, int]]:
    return [(node.path, index) for node, index in scope.values[name].consumers]


def test_the_main_graph_has_no_path_and_no_parent() -> None:
    scope = main("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    assert (scope.path, scope.parent, scope.owner, scope.depth) == ("", None, None, 0)


def test_inputs_and_outputs_are_values_of_the_scope() -> None:
    scope = main("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    assert (scope.inputs, scope.outputs) == ((scope.values["x"],), (scope.values["y"],))


def test_a_node_output_knows_its_producer_and_place() -> None:
    scope = main("g (float[N] x) => (a, b) { a, b = Split <axis = 0> (x) }")
    assert [(v.kind, v.producer, v.output_index) for v in scope.outputs] == [
        ("node", scope.nodes[0], 0),
        ("node", scope.nodes[0], 1),
    ]


def test_a_graph_input_has_no_producer() -> None:
    value = main("g (float[N] x) => (float[N] y) { y = Relu(x) }").inputs[0]
    assert (value.kind, value.producer, value.constant) == ("input", None, None)


def test_a_node_that_reads_a_value_twice_consumes_it_twice() -> None:
    assert uses(main("g (float[N] x) => (float[N] y) { y = Add(x, x) }"), "x") == [("Add#0", 0), ("Add#0", 1)]


def test_consumers_in_bodies_count() -> None:
    assert uses(main(BRANCHES), "x") == [("Neg#0", 0), ("If#1/then_branch/Add#1", 1), ("If#1/else_branch/Abs#0", 0)]


def test_a_body_finds_the_values_around_it() -> None:
    scope = main(BRANCHES)
    assert scope.nodes[1].bodies["then_branch"].find("a") is scope.values["a"]


def test_a_scope_does_not_see_into_its_bodies() -> None:
    assert main(BRANCHES).find("local") is None


def test_the_same_name_in_both_branches_means_two_values() -> None:
    bodies = main(BRANCHES).nodes[1].bodies
    first, second = bodies["then_branch"].values["local"], bodies["else_branch"].values["local"]
    assert first is not second
    assert [value.producer.op_type for value in (first, second) if value.producer] == ["Relu", "Abs"]


def test_an_output_of_a_body_may_belong_to_the_scope_around_it() -> None:
    scope = main(
        """g (bool c, float[N] x) => (float[N] y) {
            y = If (c) <then_branch = t () => (float[N] x) {}, else_branch = e () => (float[N] z) { z = Neg(x) }>
        }"""
    )
    assert scope.nodes[0].bodies["then_branch"].outputs == (scope.values["x"],)


def test_scopes_are_walked_in_node_order() -> None:
    assert [scope.path for scope in main(BRANCHES).walk()] == ["", "If#1/then_branch", "If#1/else_branch"]


def test_nodes_of_all_scopes_come_before_those_of_the_bodies() -> None:
    assert [node.op_type for node in all_nodes(scopes(BRANCHES))] == ["Neg", "If", "Relu", "Add", "Abs", "Identity"]


def test_a_scope_contains_itself_and_its_bodies_only() -> None:
    scope = main(BRANCHES)
    first, second = scope.nodes[1].bodies.values()
    assert [scope.contains(first), first.contains(first), first.contains(second), first.contains(scope)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_named_node_is_labelled_by_its_name() -> None:
    node = main("g (float[N] x) => (float[N] y) { [act] y = Relu(x) }").nodes[0]
    assert (node.label, node.path) == ("act", "act")


def test_an_unnamed_node_is_labelled_by_operator_and_position() -> None:
    nodes = main("g (float[N] x) => (float[N] y) { a = Relu(x)  y = Relu(a) }").nodes
    assert [node.label for node in nodes] == ["Relu#0", "Relu#1"]


def test_a_path_names_the_nodes_and_attributes_around() -> None:
    scope = main(
        """g (bool c, float[N] x) => (float[N] y) {
            [outer] y = If (c) <
                then_branch = t () => (float[N] o) {
                    [inner] o = If (c) <
                        then_branch = tt () => (float[N] p) { [deep] p = Relu(x) },
                        else_branch = te () => (float[N] p) { p = Abs(x) }
                    >
                },
                else_branch = e () => (float[N] o) { o = Neg(x) }
            >
        }"""
    )
    assert [node.path for node in all_nodes((scope,))] == [
        "outer",
        "outer/then_branch/inner",
        "outer/then_branch/inner/then_branch/deep",
        "outer/then_branch/inner/else_branch/Abs#0",
        "outer/else_branch/Neg#0",
    ]


def test_each_graph_of_a_list_of_graphs_is_a_body() -> None:
    graphs = [helper.make_graph([helper.make_node("Relu", ["x"], ["o"])], name, [], []) for name in ("a", "b")]
    node = helper.make_node("Choose", ["x"], ["y"], name="pick", domain="custom", cases=graphs)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, ["N"])], [])
    assert [scope.path for scope in build_scopes(helper.make_model(graph))[0].walk()] == [
        "",
        "pick/cases[0]",
        "pick/cases[1]",
    ]


FUNCTION = """
g (float[N] x) => (float[N] y) { y = custom.f(x) }
<domain: "custom", opset_import: ["" : 13]> f (a) => (b) { b = Add(a, x) }
"""


def test_a_function_is_a_scope_of_its_own() -> None:
    scope = scopes(FUNCTION)[1]
    assert (scope.path, scope.depth, [value.name for value in scope.inputs]) == ("function f", 0, ["a"])


def test_a_function_does_not_capture() -> None:
    scope = scopes(FUNCTION)[1]
    assert scope.values["x"].kind == "undefined"
    assert scope.problems == ["'x' is used but never defined before"]


def test_a_function_has_the_opset_of_its_model_at_which_onnxruntime_runs_it() -> None:
    assert [scope.opset() for scope in scopes(FUNCTION)] == [17, 17]


def test_a_function_takes_other_opsets_from_the_model() -> None:
    assert [scope.opset("custom") for scope in scopes(FUNCTION)] == [3, 3]


def test_the_opset_of_a_domain_that_is_not_imported_is_1() -> None:
    assert main("g () => () {}").opset("elsewhere") == 1


def test_the_names_of_the_default_domain_mean_the_same() -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["ai.onnx" : 15]> g () => () {}')
    assert build_scopes(model)[0].opset() == 15


def test_an_undefined_name_is_a_value_and_a_problem() -> None:
    scope = main("g (float[N] x) => (float[N] y) { y = Add(x, ghost) }")
    assert scope.values["ghost"].kind == "undefined"
    assert scope.problems == ["'ghost' is used but never defined before"]


def test_an_undefined_output_is_a_problem() -> None:
    assert main("g (float[N] x) => (float[N] y) {}").problems == ["'y' is used but never defined before"]


def test_an_unsorted_graph_is_connected_and_a_problem() -> None:
    scope = main("g (float[N] x) => (float[N] y) { y = Relu(a)  a = Neg(x) }")
    assert (scope.values["a"].kind, scope.values["a"].producer) == ("node", scope.nodes[1])
    assert scope.problems == ["'a' is used but never defined before"]


def test_a_sorted_graph_has_no_problems() -> None:
    assert main(BRANCHES).problems == []


def test_of_two_nodes_that_define_a_name_the_first_counts() -> None:
    scope = main("g (float[N] x) => (float[N] y) { y = Relu(x)  y = Neg(x) }")
    assert scope.values["y"].producer is scope.nodes[0]
    assert scope.problems == ["'y' is defined twice"]


def test_a_node_cannot_redefine_an_input() -> None:
    scope = main("g (float[N] x) => (float[N] x) { x = Relu(x) }")
    assert (scope.values["x"].kind, scope.problems) == ("input", ["'x' is defined twice"])


def test_two_inputs_of_one_name_are_a_problem() -> None:
    assert main("g (float[N] x, float[N] x) => (float[N] y) { y = Relu(x) }").problems == ["'x' is defined twice"]


def test_an_initializer_is_a_constant() -> None:
    value = main("g (float[N] x) => (float[N] y) <float[1] w = {2}> { y = Mul(x, w) }").values["w"]
    assert (value.kind, value.is_constant, value.constant) == ("initializer", True, value.tensor)


def test_an_initializer_that_is_an_input_is_a_default_not_a_constant() -> None:
    value = main("g (float[N] x, float[1] w = {2}) => (float[N] y) { y = Mul(x, w) }").values["w"]
    assert (value.kind, value.is_constant, value.constant) == ("input", False, None)
    assert value.tensor is not None


def test_a_sparse_initializer_is_a_constant_without_a_dense_tensor() -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])
    indices = helper.make_tensor("w_at", TensorProto.INT64, [1], [0])
    graph = helper.make_graph([helper.make_node("Relu", ["w"], ["y"])], "g", [], [])
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    value = build_scopes(helper.make_model(graph))[0].values["w"]
    assert (value.kind, value.is_constant, value.constant, value.tensor) == ("initializer", True, None, None)
    assert value.sparse is not None
    assert list(value.sparse.dims) == [3]


def test_a_body_reads_what_an_unsorted_graph_around_it_defines_later() -> None:
    scope = main("""
        g (float[N] x, bool c) => (float[N] y) {
            y = If (c) < then_branch = t () => (float[N] a) { a = Neg (late) },
                         else_branch = f () => (float[N] b) { b = Neg (own) own = Abs (x) } >
            late = Exp (x)
        }""")
    then, otherwise = scope.nodes[0].bodies.values()
    assert then.nodes[0].inputs == (scope.values["late"],)
    assert scope.values["late"].producer is scope.nodes[1]
    assert otherwise.nodes[0].inputs == (otherwise.values["own"],)
    assert scope.problems == ["'late' is used but never defined before"]


def test_an_undefined_name_in_a_body_is_a_problem_of_the_body() -> None:
    scope = main("""
        g (float[N] x, bool c) => (float[N] y) {
            y = If (c) < then_branch = t () => (float[N] a) { a = Neg (ghost) },
                         else_branch = f () => (float[N] b) { b = Neg (x) } >
        }""")
    then, _ = scope.nodes[0].bodies.values()
    assert (scope.problems, then.problems) == ([], ["'ghost' is used but never defined before"])


def test_an_input_that_is_left_out_is_none() -> None:
    node = main("g (float[N] x, float[2] s) => (float[N] y) { y = Resize(x, , s) }").nodes[0]
    assert [value.name if value else None for value in node.inputs] == ["x", None, "s"]


def test_operands_and_results_are_what_is_not_left_out() -> None:
    nodes = main("g (float[N] x, k) => (i) { y = Clip(x, , k)  , i = TopK(y, k) }").nodes
    assert [[value.name for value in node.operands] for node in nodes] == [["x", "k"], ["y", "k"]]
    assert [[value.name for value in node.results] for node in nodes] == [["y"], ["i"]]


def test_nodes_of_operators_come_in_file_order_at_every_depth() -> None:
    found = find_nodes(scopes(BRANCHES), "Identity", "Abs", "Neg", "Add", "Nowhere")
    assert [f"{node.scope.path} {node.operator}" for node in found] == [
        " Neg",
        "If#1/then_branch Add",
        "If#1/else_branch Abs",
        "If#1/else_branch Identity",
    ]


def test_an_input_past_the_last_is_none() -> None:
    assert main("g (float[N] x) => (float[N] y) { y = Clip(x) }").nodes[0].input(2) is None


def test_an_output_that_is_left_out_is_none() -> None:
    graph = helper.make_graph([helper.make_node("TopK", ["x", "k"], ["", "i"])], "g", [], [])
    outputs = build_scopes(helper.make_model(graph))[0].nodes[0].outputs
    assert [value.name if value else None for value in outputs] == [None, "i"]


def test_an_operator_is_named_with_its_domain() -> None:
    node = main("g (float[N] x) => (float[N] y) { y = custom.Relu(x) }").nodes[0]
    assert (node.operator, node.is_op("Relu")) == ("custom.Relu", False)


def test_ai_onnx_is_the_default_domain() -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")], "g", [], [])
    node = build_scopes(helper.make_model(graph))[0].nodes[0]
    assert (node.operator, node.is_op("Abs", "Relu")) == ("Relu", True)


def test_declared_types_are_found_by_name() -> None:
    scope = main("g (float[N] x) => (float[N] y) <float[N] a> { a = Relu(x)  y = Relu(a) }")
    assert set(scope.infos) == {"x", "a", "y"}


def protos(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from protos(body)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_real_models_have_every_node_and_no_problem(name: str, real_model: Callable[[str], Model]) -> None:
    model = real_model(name)
    found = [node for scope in model.graph.walk() for node in scope.nodes]
    assert len(found) == sum(1 for _ in protos(model.proto.graph))
    assert [scope.problems for scope in all_scopes(model.scopes) if scope.problems] == []


@pytest.mark.parametrize("name", ["marian-tiny/decoder_model_merged", "search/loop-greedy"])
def test_producers_and_consumers_agree_with_the_nodes(name: str, real_model: Callable[[str], Model]) -> None:
    for scope in all_scopes(real_model(name).scopes):
        for value in scope.values.values():
            assert all(node.inputs[index] is value for node, index in value.consumers)
            assert value.producer is None or value.producer.outputs[value.output_index] is value


def test_operands_and_the_result_are_known_to_be_there() -> None:
    node = main("g (float[N] x) => (float[N] y) { y = Clip (x, , x) }").nodes[0]
    assert (node.operand(0).name, node.operand(2).name, node.result().name) == ("x", "x", "y")
    with pytest.raises(AssertionError):
        node.operand(1)


def nested(levels: int) -> onnx.ModelProto:
    """Return a model with so many Ifs inside each other."""
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "leaf", [], [output])
    for _ in range(levels):
        graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], then_branch=graph)], "g", [], [output])
    return helper.make_model(graph)


def test_bodies_may_nest_up_to_the_limit() -> None:
    levels = MAX_NESTING - 1  # whose declared types leave no room for one more
    assert max(scope.depth for scope in build_scopes(nested(levels))[0].walk()) == levels


def test_deeper_bodies_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphkit.graph.view.MAX_NESTING", 5)
    with pytest.raises(
        ModelError, match=r"^deep\.onnx: graphs are nested more than 5 deep, which is more than protobuf can "
    ):
        build_scopes(nested(6), "deep.onnx")


@pytest.mark.parametrize("text", ["node_name", "input_x", "OpType", "middle", "attribute"])
def test_a_name_that_is_not_utf8_is_an_error(text: str) -> None:
    model = onnx.parser.parse_model(
        f"""{HEADER} g (float[N] input_x) => (float[N] y) {{
            [node_name] middle = OpType <attribute = 1> (input_x)
            y = Relu (middle)
        }}"""
    )
    broken = model.SerializeToString().replace(text.encode(), b"\xff" * len(text))
    with pytest.raises(ModelError, match="not UTF-8 - the file is corrupt; export it again"):
        build_scopes(onnx.ModelProto.FromString(broken))
