from __future__ import annotations

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx import TensorProto, helper, numpy_helper, parser, printer
from rewriting import model_of
from sessions import session_of

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph

CHAIN = """
agraph (float[N, L] x, float[N, L] z) => (float[N, L] y) {
    [first] a = Exp (x)
    b = Add (a, z)
    [last] c = Mul (b, w)
    y = Neg (c)
}"""


def chain() -> Model:
    return model_of(CHAIN, w=np.float32([2]))


def extracted(model: Model, *outputs: str, inputs: tuple[str, ...] = ()) -> Model:
    result = ExtractSubgraph(outputs, inputs).run(model).model
    onnx.checker.check_model(result.proto, full_check=True)
    session_of(result)
    return result


def text(model: Model) -> str:
    return " ".join(printer.to_text(model.proto.graph).split())


def shape(info: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim]


def declined(model: Model, outputs: tuple[str, ...], inputs: tuple[str, ...] = ()) -> str:
    with pytest.raises(UsageError) as error:
        ExtractSubgraph(outputs, inputs).run(model)
    return str(error.value).partition(": ")[2]


def test_a_value_becomes_an_input_of_its_inferred_shape_and_weights_come_along() -> None:
    assert text(extracted(chain(), "c", inputs=("b",))) == (
        "agraph (float[N,L] b) => (float[N,L] c) <float[1] w = {2}> { [last] c = Mul (b, w) }"
    )


def test_a_node_stands_for_what_it_gives_and_for_what_it_reads() -> None:
    model = extracted(chain(), "last", inputs=("last",))
    assert [value.name for value in (*model.graph.inputs, *model.graph.outputs)] == ["b", "c"]


def test_inputs_that_no_cut_replaces_stay_inputs_and_are_named() -> None:
    outcome = ExtractSubgraph(("c",), ("a",)).run(chain())
    assert [value.name for value in outcome.model.graph.inputs] == ["a", "z"]
    assert outcome.changes == (
        "2 of 4 nodes taken",
        "1 value to begin at: a",
        "1 input of the model needed besides: z",
    )


def test_without_a_beginning_it_is_all_that_the_outputs_need() -> None:
    model = extracted(chain(), "b", "a")
    assert text(model) == (
        "agraph (float[N,L] x, float[N,L] z) => (float[N,L] b, float[N,L] a) { [first] a = Exp (x) b = Add (a, z) }"
    )


def test_the_other_output_of_a_node_at_which_it_begins_is_still_computed() -> None:
    model = model_of(
        """
        agraph (float[N, 4] x) => (float[N, 2] y) {
            one, two = Split <num_outputs = 2, axis = 1> (x)
            y = Add (one, two)
        }""",
        opset=18,
    )
    result = extracted(model, "y", inputs=("one",))
    assert [value.name for value in result.graph.inputs] == ["one", "x"]
    assert list(result.graph.nodes[0].proto.output) == ["one_before", "two"]


def test_what_only_a_body_reads_may_be_where_it_begins() -> None:
    model = model_of(
        """
        agraph (float[N] x, bool c) => (float[N] y) {
            p = Exp (x)
            y = If (c) <
                then_branch = g1 () => (float[N] s) { q = Neg (p)  s = Mul (q, w) },
                else_branch = g2 () => (float[N] t) { t = Identity (p) }
            >
        }""",
        w=np.float32([2]),
    )
    result = extracted(model, "y", inputs=("p",))
    assert [value.name for value in result.graph.inputs] == ["p", "c"]
    assert [value.name for value in result.graph.initializers] == ["w"]


def test_a_dim_that_depends_on_data_is_one_symbol_wherever_it_occurs() -> None:
    model = model_of("""
        agraph (float[N] x) => (int64[u0, 1] y) {
            found = NonZero (x)
            twice = Concat <axis = 1> (found, found)
            turned = Transpose (found)
            double = Neg (twice)
            y = Neg (turned)
            z = Add (double, twice)
        }""")
    result = extracted(model, "y", "z", inputs=("turned", "twice"))
    assert [shape(info) for info in result.proto.graph.input] == [["u1", 1], [1, "2*u1"]]  # u0 is taken
    assert [shape(info) for info in result.proto.graph.output] == [["u1", 1], [1, "2*u1"]]


def test_shapes_of_outputs_claim_nothing_that_a_new_input_decides() -> None:
    model = model_of(
        """
        agraph (float[N, 8] x) => (float[N, 2, 4] y) {
            n = Shape <end = 1> (x)
            to = Concat <axis = 0> (n, rest)
            y = Reshape (x, to)
        }""",
        rest=np.int64([2, 4]),
    )
    (output,) = extracted(model, "y", inputs=("to",)).proto.graph.output
    assert [dim.WhichOneof("value") for dim in output.type.tensor_type.shape.dim] == [None] * 3


def test_doc_strings_metadata_functions_and_annotations_stay() -> None:
    proto = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17, "local" : 1]>
        agraph (float[N] x) => (float[N] y) <float scale = {1.0}> {
            h = local.twice (x)
            i = local.lonely (h)
            y = local.twice (i)
        }
        <domain: "local", opset_import: ["" : 17]> twice (v) => (w) { w = Add (v, v) }
        <domain: "local", opset_import: ["" : 17]> lonely (v) => (w) { w = Neg (v) }""")
    proto.doc_string, proto.graph.doc_string = "of the model", "of the graph"
    proto.metadata_props.add(key="author", value="somebody")
    proto.graph.metadata_props.add(key="inner", value="thing")
    known = proto.graph.value_info.add(name="i", doc_string="the middle")
    known.type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, ["N"]))
    known.metadata_props.add(key="of", value="i")
    annotation = proto.graph.quantization_annotation.add(tensor_name="i")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    result = ExtractSubgraph(("y",), ("i",)).run(Model.from_proto(proto)).model.proto
    assert [function.name for function in result.functions] == ["twice"]
    assert result.doc_string + result.graph.doc_string == "of the modelof the graph"
    assert result.metadata_props == proto.metadata_props
    assert result.graph.metadata_props == proto.graph.metadata_props
    assert result.opset_import == proto.opset_import
    assert result.graph.quantization_annotation == proto.graph.quantization_annotation
    assert [tensor.name for tensor in result.graph.initializer] == ["scale"]
    (taken,) = result.graph.input
    assert (taken.doc_string, taken.metadata_props[0].value) == ("the middle", "i")
    assert not result.graph.value_info


def test_an_input_with_a_default_keeps_it() -> None:
    model = chain()
    model.proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]))
    result = extracted(Model.from_proto(model.proto), "y", inputs=("b",))
    assert [value.name for value in result.graph.inputs] == ["b", "w"]
    assert numpy_helper.to_array(result.proto.graph.initializer[0]).tolist() == [2]


@pytest.mark.parametrize(
    ("outputs", "inputs", "reason"),
    [
        (("d",), (), "there is no value or node 'd' - `graphkit shapes` lists the values"),
        (("lsat",), (), "there is no value or node 'lsat' - did you mean 'last'?"),
        (("y",), ("w",), "'w' is a constant, which stays with its readers - name another value"),
        (("w",), (), "'w' is a constant, which stays with its readers - name another value"),
        (("x",), (), "'x' is an input, which nothing computes - end elsewhere"),
        (("b",), ("b",), "'b' is both where the subgraph begins and where it ends - leave out one"),
        (
            ("b",),
            ("c",),
            "no output that is asked for needs 'c', or only through other values where the subgraph begins - leave it "
            "out",
        ),
        (
            ("y",),
            ("a", "c"),
            "no output that is asked for needs 'a', or only through other values where the subgraph begins - leave it "
            "out",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(outputs: tuple[str, ...], inputs: tuple[str, ...], reason: str) -> None:
    assert declined(chain(), outputs, inputs) == reason


def test_a_subgraph_without_an_end_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no output - name at least one value or node"):
        ExtractSubgraph(()).run(chain())


def test_a_name_of_several_nodes_is_refused() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y) { [n] h = Exp (x)  [n] y = Neg (h) }")
    assert declined(model, ("n",)) == "2 nodes have the name 'n' - name a value instead"


def test_a_node_that_reads_constants_alone_is_no_beginning() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y) { [n] h = Exp (w)  y = Add (x, h) }", w=np.float32([2]))
    assert declined(model, ("y",), ("n",)) == "node 'n' reads nothing but constants - begin at another one"


def test_values_in_bodies_and_functions_are_refused_with_what_to_do() -> None:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        agraph (float[N] x, bool c, int64 n) => (float[N] y, float[N] z) {
            [choice] y = If (c) <
                then_branch = g1 () => (float[N] s) { inside = Exp (x)  s = local.f (inside) },
                else_branch = g2 () => (float[N] t) { t = Neg (x) }
            >
            [again] z = Loop (n, , x) <
                body = g3 (int64 i, bool on, float[N] v) => (bool more, float[N] u) {
                    more = Identity (on)  step = Abs (v)  u = Neg (step)
                }
            >
        }
        <domain: "local", opset_import: ["" : 17]> f (v) => (w) { deep = Abs (v)  w = Neg (deep) }""")
    model = Model.from_proto(proto)
    assert declined(model, ("inside",)) == (
        "'inside' is in the body 'choice/then_branch' of a node If, which may not run - name an output of that node, "
        "or take one branch first: graphkit rewrite -p inline-constant-if, specialize-input, or split-merged"
    )
    assert declined(model, ("step",)) == (
        "'step' is in the body 'again/body' of a node Loop, which may not run - name an output of that node"
    )
    assert declined(model, ("deep",)) == (
        "'deep' is in the function f, not in the main graph - put functions into the graph first: graphkit rewrite -p "
        "inline-functions"
    )


def test_a_sequence_is_no_beginning_and_may_be_an_end() -> None:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[N] x) => (float[N] y) <seq(float[N]) s> {
            s = SequenceConstruct (x, x)
            zero = Constant <value = int64 {0}> ()
            y = SequenceAt (s, zero)
        }""")
    model = Model.from_proto(proto)
    assert declined(model, ("y",), ("s",)) == (
        "'s' is seq(float32), and an input has to be a tensor - begin at another value"
    )
    assert extracted(model, "s").proto.graph.output[0].type.HasField("sequence_type")


CUSTOM = """
agraph (float[N] x) => (float[N] y) {
    h = local.Unheard (x)
    y = Neg (h)
}"""


def test_a_value_of_unknown_rank_is_neither_a_beginning_nor_an_end() -> None:
    assert declined(model_of(CUSTOM), ("y",), ("h",)) == (
        "the rank of 'h' is unknown: Unheard#0: there is no rule for local.Unheard - begin at another value"
    )
    assert declined(model_of(CUSTOM), ("h",)) == (
        "the type of 'h' is unknown: Unheard#0: there is no rule for local.Unheard - end at another value"
    )


def test_an_output_of_the_model_stays_as_declared_where_nothing_else_is_known() -> None:
    model = model_of(CUSTOM.replace("float[N] y", "float[N] h"))
    (output,) = ExtractSubgraph(("h",)).run(model).model.proto.graph.output
    assert output == model.proto.graph.output[0]


def test_graphs_for_training_are_left_out() -> None:
    model = chain()
    model.proto.training_info.add().algorithm.name = "training"
    outcome = ExtractSubgraph(("c",), ("b",)).run(Model.from_proto(model.proto))
    assert not outcome.model.proto.training_info
    assert outcome.changes[-1] == "the graphs for training left out"
