from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, printer
from real_models import unpacked_export
from rewriting import model_of

from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model, load
from graphkit.options import RewriteProofOptions
from graphkit.passes.interface.rename import Rename, dims_by_role
from graphkit.verify.rewrite_verifier import verify_rewrite

PLAIN = "agraph (float[N, L] x) => (float[N, L] y) { h = Exp (x)  y = Neg (h) }"
BRANCHES = """
agraph (float[N] x, bool c) => (float[N] y) {
    h = Exp (x)
    y = If (c) <
        then_branch = g1 () => (float[N] s) { inner = Neg (h)  s = Mul (inner, h) },
        else_branch = g2 () => (float[N] t) { t = Identity (h) }
    >
}"""


def text(model: Model) -> str:
    return " ".join(printer.to_text(model.proto.graph).replace('"', "").split())


def renamed(model: Model, step: Rename) -> Model:
    result = step.run(model).model
    onnx.checker.check_model(result.proto, full_check=True)
    names = {new: old.name for old, new in step.new_names(model).items()}
    symbols = {new: old for old, new in step.dims}
    assert verify_rewrite(
        model,
        result,
        options=RewriteProofOptions(
            names=tuple((old, new) for new, old in names.items()),
            symbols=tuple((old, new) for new, old in symbols.items()),
            runs=2,
        ),
    ).passed
    return result


def refused(model: Model, step: Rename) -> str:
    with pytest.raises(UsageError) as error:
        step.run(model)
    return str(error.value).removeprefix(f"{model.label}: ")


def test_inputs_outputs_and_values_follow_wherever_they_occur() -> None:
    result = renamed(model_of(PLAIN), Rename((("x", "left"),), (("y", "right"),), (("h", "middle"),)))
    assert text(result) == (
        "agraph (float[N,L] left) => (float[N,L] right) { middle = Exp (left) right = Neg (middle) }"
    )


def test_what_bodies_read_follows_too() -> None:
    result = renamed(model_of(BRANCHES), Rename(values=(("h", "outer"),)))
    assert "inner = Neg (outer) s = Mul (inner, outer)" in text(result)
    assert "t = Identity (outer)" in text(result)


def test_names_may_be_swapped() -> None:
    result = renamed(model_of(PLAIN), Rename((("x", "y"),), (("y", "x"),)))
    assert text(result) == "agraph (float[N,L] y) => (float[N,L] x) { h = Exp (y) x = Neg (h) }"


def test_initializers_annotations_types_and_shardings_follow() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y) <float s = {2.0}> { h = Mul (x, s)  y = Neg (h) }")
    graph = model.proto.graph
    graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["N"]))
    annotation = graph.quantization_annotation.add(tensor_name="h")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    graph.node[0].device_configurations.add(configuration_id="d").sharding_spec.add(tensor_name="h")
    graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, []))
    made = Rename((("s", "scale"),), (), (("h", "middle"),)).run(Model.from_proto(model.proto)).model.proto.graph
    assert [info.name for info in (*made.input, *made.value_info)] == ["x", "scale", "middle"]
    assert made.initializer[0].name == "scale"
    assert made.quantization_annotation[0].tensor_name == "middle"
    assert made.quantization_annotation[0].quant_parameter_tensor_names[0].value == "scale"
    assert made.node[0].device_configurations[0].sharding_spec[0].tensor_name == "middle"


def test_a_sparse_initializer_follows() -> None:
    model = model_of("agraph (float[3] x) => (float[3] y) { y = Add (x, w) }", w=[0.0])
    values = numpy_helper.from_array(numpy_helper.to_array(model.proto.graph.initializer.pop()).astype("float32"), "w")
    indices = helper.make_tensor("w_indices", TensorProto.INT64, [1], [1])
    model.proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    made = Rename(values=(("w", "weight"),)).run(Model.from_proto(model.proto)).model.proto.graph
    assert (made.sparse_initializer[0].values.name, list(made.node[0].input)) == ("weight", ["x", "weight"])


def test_a_symbol_follows_in_expressions_bodies_and_inner_types() -> None:
    model = model_of("""
        agraph (float[N, 2] x, bool c) => (float[P, 2] y) {
            d = Concat <axis = 0> (x, x)
            y = If (c) <
                then_branch = g1 () => (float[P, 2] s) { s = Neg (d) },
                else_branch = g2 () => (float[P, 2] t) { t = Exp (d) }
            >
        }""")
    for info in (model.proto.graph.output[0], model.proto.graph.node[1].attribute[0].g.output[0]):
        info.type.tensor_type.shape.dim[0].dim_param = "2*N"
    result = renamed(Model.from_proto(model.proto), Rename(dims=(("N", "batch"),)))
    assert "(float[batch,2] x, bool c) => (float[2*batch,2] y)" in text(result)
    assert "g1 () => (float[2*batch,2] s)" in text(result)


def test_a_symbol_that_the_graph_forces_to_be_equal_gets_the_same_name() -> None:
    model = model_of("""
        agraph (float[A, 4] x, float[B, 4] z, float[C, 4] v) => (float[M, 8] y, float[L, 4] w) {
            y = Concat <axis = 1> (x, z)
            w = Add (v, x)
        }""")
    outcome = Rename(dims=(("B", "batch"),)).run(model)
    assert text(outcome.model).startswith(
        "agraph (float[batch,4] x, float[batch,4] z, float[C,4] v) => (float[batch,8] y,"
    )  # C and A broadcast: one of them may be 1
    assert outcome.changes == (
        "B is called batch, and so is A, equal to it",
        "2 outputs redeclared with the inferred dims",
    )


def test_pasts_of_one_layer_are_one_symbol_and_equalities_chain() -> None:
    model = model_of("""
        agraph (float[N, past_a, 4] k, float[N, past_b, 4] v, float[N, L, 4] new) => (float[N, L, 4] y) {
            keys = Concat <axis = 1> (k, new)
            values = Concat <axis = 1> (v, new)
            turned = Transpose <perm = [0, 2, 1]> (keys)
            scores = MatMul (new, turned)
            y = MatMul (scores, values)
        }""")
    result = renamed(model, Rename(dims=(("past_b", "past"),)))
    assert text(result).startswith("agraph (float[N,past,4] k, float[N,past,4] v, float[N,L,4] new)")


def test_two_symbols_become_one_only_where_the_graph_forces_it() -> None:
    model = model_of(
        "agraph (float[A, 4] x, float[B, 4] z, float[C] v) => (float[A, 8] y) { y = Concat <axis = 1> (x, z) }"
    )
    assert text(renamed(model, Rename(dims=(("B", "A"),)))).startswith(
        "agraph (float[A,4] x, float[A,4] z, float[C] v)"
    )
    assert refused(model, Rename(dims=(("A", "C"),))) == (
        "'A' cannot be 'C', which is another dim that may differ from it - choose another name"
    )
    assert refused(model, Rename(dims=(("A", "one"), ("C", "one")))) == (
        "'A' and 'C' cannot both be 'one', for they may differ"
    )
    assert refused(model, Rename(dims=(("A", "one"), ("B", "two")))) == (
        "the graph forces 'A' to equal 'B', so they cannot be 'one' and 'two'"
    )


def test_a_dim_without_a_symbol_gets_one() -> None:
    model = model_of("agraph (float[N, L] x) => (float[N, L] y) { y = Neg (x) }")
    model.proto.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    result = renamed(Model.from_proto(model.proto), Rename(dims=(("x.1", "length"),)))
    assert text(result).startswith("agraph (float[N,length] x) => (float[N,length] y)")


def test_symbols_may_be_swapped() -> None:
    result = renamed(model_of(PLAIN), Rename(dims=(("N", "L"), ("L", "N"))))
    assert text(result).startswith("agraph (float[L,N] x) => (float[L,N] y)")


def test_a_new_name_with_other_bounds_does_not_change_what_is_declared() -> None:
    model = model_of(
        "agraph (float[past, 2] x) => (float[P, 2] y) { y = Slice (x, low, high, axes) }", low=[1], high=[99], axes=[0]
    )
    before = Rename(dims=(("past", "past_2"),)).run(model).model.proto.graph.output[0].type.tensor_type.shape.dim[0]
    after = Rename(dims=(("past", "N"),)).run(model).model.proto.graph.output[0].type.tensor_type.shape.dim[0]
    assert after.dim_param == before.dim_param.replace("past_2", "N")
    assert after.dim_param == "min(99, N) - min(1, N)"  # 0 where the past is empty, which a plain N never is


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Rename(inputs=(("xx", "a"),)), "there is no input 'xx' - did you mean 'x'?"),
        (Rename(inputs=(("y", "a"),)), "there is no input 'y' - there are x"),
        (Rename(outputs=(("q", "a"),)), "there is no output 'q' - there are y"),
        (Rename(values=(("q", "a"),)), "there is no value 'q' - `graphkit shapes` lists the values"),
        (Rename(dims=(("batch", "a"),)), "no dim is called 'batch' - there are L, N"),
        (
            Rename(inputs=(("x", "h"),)),
            "'x' cannot be 'h', as another value of the graph is called - choose another name, or rename that one too",
        ),
        (Rename(inputs=(("x", "a"),), values=(("h", "a"),)), "'x' and 'h' cannot both be 'a'"),
        (Rename(inputs=(("x", "a"),), values=(("x", "b"),)), "'x' is to be both 'a' and 'b' - give one name"),
    ],
)  # fmt: skip
def test_what_cannot_be_renamed_is_refused(step: Rename, reason: str) -> None:
    assert refused(model_of(PLAIN), step) == reason


@pytest.mark.parametrize("name", ["8", "-1", "'n'", "?a"])
def test_a_dim_is_called_by_a_word(name: str) -> None:
    reason = f"'{name}' is no name of a dim - write a word; `graphkit set-dims` sets a size"
    assert refused(model_of(PLAIN), Rename(dims=(("N", name),))) == reason


def odd_names(*names: str) -> Model:
    """Return a model of one input, whose dims are called as no exporter should."""
    letters = [f"D{axis}" for axis in range(len(names))]
    model = model_of(f"agraph (float[{','.join(letters)}] x) => (float[{','.join(letters)}] y) {{ y = Neg (x) }}")
    for info in (model.proto.graph.input[0], model.proto.graph.output[0]):
        for dim, name in zip(info.type.tensor_type.shape.dim, names, strict=True):
            dim.dim_param = name
    return Model.from_proto(model.proto)


@pytest.mark.parametrize("name", ["-1", "8", "2*n", "hauteur d'image", "x.1"])
def test_a_dim_may_be_called_anything(name: str) -> None:
    result = renamed(odd_names(name, "N"), Rename(dims=((name, "rows"),)))
    assert text(result).startswith("agraph (float[rows,N] x) => (float[rows,N] y)")


@pytest.mark.parametrize("name", ["?", "None"])
def test_dims_of_one_name_that_nothing_relates_get_names_of_their_own(name: str) -> None:
    result = Rename(dims=(("x.0", "rows"), ("x.1", "columns"))).run(odd_names(name, name, "N")).model
    assert text(result).startswith("agraph (float[rows,columns,N] x) => (float[rows,columns,N] y)")


def test_a_name_of_several_dims_is_renamed_in_all() -> None:
    result = renamed(odd_names("None", "None"), Rename(dims=(("None", "side"),)))
    assert text(result).startswith("agraph (float[side,side] x) => (float[side,side] y)")


def test_a_dim_that_is_a_number_has_no_name() -> None:
    model = model_of("agraph (float[3, N] x) => (float[3, N] y) { y = Neg (x) }")
    assert refused(model, Rename(dims=(("x.0", "rows"),))) == "'x.0' is the number 3, and has no name - leave it out"


MASKED = """
agraph (float[N, past, 4] k, float[N, seq, 4] new, float[N, seq, total] mask) => (float[N, seq, 4] y) {
    keys = Concat <axis = 1> (k, new)
    turned = Transpose <perm = [0, 2, 1]> (keys)
    scores = MatMul (new, turned)
    masked = Add (scores, mask)
    y = MatMul (masked, keys)
}"""


def test_a_dim_that_the_graph_needs_to_be_a_sum_is_called_that() -> None:
    outcome = Rename(dims=(("total", "past + seq"),)).run(model_of(MASKED))
    assert text(outcome.model).startswith(
        "agraph (float[N,past,4] k, float[N,seq,4] new, float[N,seq,past + seq] mask)"
    )
    assert outcome.changes == ("total is past + seq",)


def test_who_calls_a_dim_an_expression_asks_for_no_other_size() -> None:
    """The mask may be broadcast, too, which its new dims no longer say."""
    scores = MASKED.replace("masked = Add (scores, mask)", "").replace("MatMul (masked, keys)", "Mul (scores, mask)")
    model = model_of(scores.replace("float[N, seq, 4] y)", "float[N, seq, t] y)"))
    step = Rename(dims=(("total", "past + seq"),))
    result = step.run(model).model
    assert not verify_rewrite(model, result).passed
    found = verify_rewrite(model, result, options=RewriteProofOptions(symbols=step.dims))
    assert found.passed
    assert "mask.2 = past + seq" in found.proven()


def test_a_dim_and_those_in_its_expression_are_renamed_at_once() -> None:
    result = Rename(dims=(("past", "old"), ("total", "old + seq"))).run(model_of(MASKED)).model
    assert text(result).startswith("agraph (float[N,old,4] k, float[N,seq,4] new, float[N,seq,old + seq] mask)")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("total", "2*past", "no node says that it is"),
        ("past", "past + seq", "that has it itself"),
    ],
)  # fmt: skip
def test_a_dim_is_no_expression_that_no_node_needs(old: str, new: str, reason: str) -> None:
    assert refused(model_of(MASKED), Rename(dims=((old, new),))) == (
        f"'{old}' cannot be '{new}', for {reason} - give another expression, or a word"
    )


def test_an_expression_in_a_name_that_no_dim_has_is_refused() -> None:
    reason = "no dim is called 'new' - there are N, past, seq, total"
    assert refused(model_of(MASKED), Rename(dims=(("total", "past + new"),))) == reason


JOINED = "agraph (float[past, 4] old, float[seq, 4] new) => (float[total, 4] y) { y = Concat <axis = 0> (old, new) }"


@pytest.mark.parametrize("new", ["past + seq", "total_length"])
def test_a_dim_that_outputs_alone_declare_is_called_what_it_is_or_by_a_word(new: str) -> None:
    outcome = Rename(dims=(("total", new),)).run(model_of(JOINED))
    assert text(outcome.model).startswith(f"agraph (float[past,4] old, float[seq,4] new) => (float[{new},4] y)")
    assert [change.split()[0] for change in outcome.changes] == ["total"]


def test_a_dim_of_outputs_that_is_another_expression_is_told_which() -> None:
    assert refused(model_of(JOINED), Rename(dims=(("total", "past + 2*seq"),))) == (
        "'total' cannot be 'past + 2*seq', for the graph needs it to be past + seq - give another expression, or a word"
    )


def test_dims_without_a_name_are_not_renamed_as_if_they_were_one() -> None:
    reason = "no dim is called '?' - dims without a name are INPUT.AXIS, such as x.0"
    assert refused(odd_names("?", "?"), Rename(dims=(("?", "side"),))) == reason


def test_a_dim_that_the_graph_needs_to_be_another_expression_is_told_which() -> None:
    model = model_of("""
        agraph (float[A, 4] x, float[B, 4] z) => (float[B, 8] y) {
            twice = Concat <axis = 0> (x, x)
            y = Concat <axis = 1> (twice, z)
        }""")
    assert refused(model, Rename(dims=(("B", "A + 1"),))) == (
        "'B' cannot be 'A + 1', for the graph needs it to be 2*A - give another expression, or a word"
    )
    assert text(Rename(dims=(("B", "2*A"),)).run(model).model).startswith("agraph (float[A,4] x, float[2*A,4] z)")


def test_values_of_bodies_are_renamed() -> None:
    result = renamed(model_of(BRANCHES), Rename(values=(("inner", "negative"),)))
    assert "g1 () => (float[N] s) { negative = Neg (h) s = Mul (negative, h) }" in text(result)


BOTH = """
agraph (float[N] x, bool c) => (float[N] y) {
    y = If (c) <
        then_branch = g1 () => (float[N] s) { v = Neg (x)  s = Exp (v) },
        else_branch = g2 () => (float[N] t) { v = Exp (x)  t = Neg (v) }
    >
}"""


def test_a_name_in_several_bodies_is_renamed_in_all_or_in_one() -> None:
    everywhere, one = (renamed(model_of(BOTH), Rename(values=((name, "w"),))) for name in ("v", "If#0/else_branch::v"))
    assert "w = Neg (x) s = Exp (w)" in text(everywhere)
    assert "w = Exp (x) t = Neg (w)" in text(everywhere)
    assert "v = Neg (x) s = Exp (v)" in text(one)
    assert "w = Exp (x) t = Neg (w)" in text(one)


def test_a_value_of_a_body_cannot_have_the_name_of_one_that_it_sees() -> None:
    assert refused(model_of(BOTH), Rename(values=(("If#0/else_branch::v", "x"),))) == (
        "'v' cannot be 'x', as another value of the graph is called - choose another name, or rename that one too"
    )


def test_a_name_that_a_body_defines_for_itself_is_refused() -> None:
    assert refused(model_of(BRANCHES), Rename(values=(("h", "inner"),))) == (
        "'h' cannot be 'inner', as another value of 'If#1/then_branch' is called - choose another name, or rename that "
        "one too"
    )


def test_what_is_input_and_output_is_renamed_as_a_value() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y, float[N] x) { y = Neg (x) }")
    assert refused(model, Rename(inputs=(("x", "a"),))) == (
        "'x' is an input and an output - rename both with --value-name x=NEW"
    )
    assert text(Rename(values=(("x", "a"),)).run(model).model) == (
        "agraph (float[N] a) => (float[N] y, float[N] a) { y = Neg (a) }"
    )


def test_a_model_with_graphs_for_training_is_refused() -> None:
    model = model_of(PLAIN)
    model.proto.training_info.add().algorithm.name = "training"
    assert refused(Model.from_proto(model.proto), Rename(inputs=(("x", "a"),))) == (
        "has graphs for training, whose names would not fit - drop them first"
    )


def test_nothing_to_rename_gives_the_same_model() -> None:
    model = model_of(PLAIN)
    assert Rename(inputs=(("x", "x"),)).run(model).model is model


def test_a_proof_by_other_names_sees_a_crossed_output() -> None:
    two = model_of("agraph (float[N] x) => (float[N] y, float[N] z) { y = Neg (x)  z = Exp (x) }")
    crossed = model_of("agraph (float[N] x) => (float[N] b, float[N] a) { b = Exp (x)  a = Neg (x) }")
    assert not verify_rewrite(
        two,
        crossed,
        options=RewriteProofOptions(
            names=(
                ("y", "b"),
                ("z", "a"),
            ),
            runs=2,
        ),
    ).passed


def test_dims_are_named_by_what_they_are(tmp_path: Path) -> None:
    folder = unpacked_export("qwen3-padded", tmp_path)
    declared = {}
    for name in ("prefill", "decode"):
        model = load(folder / f"{name}.onnx")
        made = Rename(dims=dims_by_role(model)).run(model).model
        assert dims_by_role(made) == ()
        declared[name] = {value.name: declared_dims(value) for value in made.graph.inputs}
    assert declared["prefill"]["input_ids"] == ("batch", "sequence")
    assert declared["decode"]["input_ids"] == ("batch", 1)
    assert declared["decode"]["attention_mask"][1] == "total"
    assert declared["decode"]["attention_mask"][0] != "batch"  # it may broadcast
    assert declared["decode"]["input.cache.layers.0.keys"][::2] == ("batch", "past")


def test_names_of_dims_that_tell_stay() -> None:
    assert dims_by_role(load("example:merged-decoder")) == ()
