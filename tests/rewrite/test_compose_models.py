"""Two models in one: what the first gives the second reads, and everything else stays what it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx import helper, numpy_helper, parser
from rewriting import model_of
from sessions import run

from graphkit.errors import ModelError, UsageError
from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model, load
from graphkit.passes.state.join_encoder import compose_models
from graphkit.rewrite.new_interface import declared_dims_in
from graphkit.save import save_models

FIRST = "g (float[N, L] x, float[N, L] bias) => (float[N, L] h, float[N, L] more) { h = Add (x, bias) more = Neg (h) }"
SECOND = "g (float[N, M] h, float[N, M] x) => (float[N, M] y) { more = Mul (h, x) y = Abs (more) }"


def ports(model: Model) -> list[tuple[str, object]]:
    return [(value.name, declared_dims(value)) for value in (*model.graph.inputs, *model.graph.outputs)]


def test_names_of_the_first_get_a_prefix() -> None:
    made = compose_models(model_of(FIRST), model_of(SECOND), {"h": "h"}, "a/")
    onnx.checker.check_model(made.proto, full_check=True)
    assert ports(made) == [
        ("a/x", ("a/N", "L")),
        ("a/bias", ("a/N", "L")),
        ("x", ("N", "M")),
        ("a/more", ("a/N", "L")),
        ("y", ("N", "M")),
    ]
    x = np.array([[1, -2, 3]], np.float32)
    more, y = run(made, {"a/x": x, "a/bias": x, "x": -x})
    np.testing.assert_array_equal(more, -2 * x)
    np.testing.assert_array_equal(y, np.abs(2 * x * -x))


def test_lengths_of_one_name_are_told_apart_and_the_batch_is_one() -> None:
    first = model_of("g (float[batch, L] x) => (float[batch, L] h) { h = Neg (x) }")
    second = model_of(
        "g (float[batch, L] ids, float[batch, S] h) => (float[batch, L] y, float[batch, S] z) {"
        " y = Abs (ids) z = Abs (h) }"
    )
    made = compose_models(first, second, {"h": "h"}, "a/")
    assert ports(made) == [
        ("a/x", ("batch", "a/L")),
        ("ids", ("batch", "L")),
        ("y", ("batch", "L")),
        ("z", ("batch", "S")),
    ]
    y, z = run(made, {"a/x": np.ones((2, 5), np.float32), "ids": np.ones((2, 1), np.float32)})
    assert (y.shape, z.shape) == ((2, 1), (2, 5))


def test_symbols_that_shape_inference_made_up_are_told_apart() -> None:
    """onnxruntime plans one buffer for tensors whose dims have the same symbols."""
    first = model_of("""g (float[N, L] x) => (float[N, S] h) <float[N, unk__0] a, float[N, unk__0] b> {
        a = Neg (x) b = Abs (a) h = Exp (b)
    }""")
    second = model_of("""g (float[N, S] h, float[N, M] x) => (float[N, S] y, float[N, M] z)
    <float[N, unk__0] c, float[N, unk__0] d> {
        c = Neg (x) d = Abs (c) z = Exp (d) y = Neg (h)
    }""")
    made = compose_models(first, second, {"h": "h"}, "a/")
    declared = {info.name: [dim.dim_param for dim in declared_dims_in([info])] for info in made.proto.graph.value_info}
    assert [declared[name] for name in ("a/a", "a/b")] == [["a/N", "a/unk__0"]] * 2
    assert [declared[name] for name in ("c", "d")] == [["N", "unk__0"]] * 2
    y, z = run(made, {"a/x": np.ones((1, 3), np.float32), "x": np.ones((1, 700), np.float32)})
    assert (y.shape, z.shape) == ((1, 3), (1, 700))


def test_a_symbol_that_the_link_equates_keeps_its_name() -> None:
    first = model_of(
        "g (float[batch, S] x) => (float[batch, S] h, float[batch, S] more) { h = Neg (x) more = Abs (x) }"
    )
    second = model_of("g (float[batch, S] h) => (float[batch, S] y) { y = Abs (h) }")
    assert ports(compose_models(first, second, {"h": "h"}, "a/")) == [
        ("a/x", ("batch", "S")),
        ("a/more", ("batch", "S")),
        ("y", ("batch", "S")),
    ]


def test_a_symbol_on_another_axis_of_the_link_is_told_apart() -> None:
    first = model_of("g (float[S, F] x) => (float[F, S] h) { h = Transpose (x) }")
    second = model_of("g (float[S, 1] h) => (float[S, 1] y) { y = Abs (h) }")
    assert ports(compose_models(first, second, {"h": "h"}, "a/")) == [("a/x", ("a/S", "F")), ("y", ("S", 1))]


def test_bodies_read_what_lies_outside() -> None:
    first = model_of("""g (float[N] x, bool c) => (float[N] h) {
        t = Neg (x)
        h = If (c) <then_branch = yes () => (float[N] r) { r = Abs (t) },
            else_branch = no () => (float[N] r) { r = Add (t, x) }>
    }""")
    second = model_of("g (float[N] h) => (float[N] y) { t = Neg (h) y = Add (t, h) r = Abs (y) }")
    made = compose_models(first, second, {"h": "h"}, "a/")
    onnx.checker.check_model(made.proto, full_check=True)
    x = np.array([1, -2], np.float32)
    for condition in (True, False):
        (h,) = run(first, {"x": x, "c": np.array(condition)})
        np.testing.assert_array_equal(run(made, {"a/x": x, "a/c": np.array(condition)})[0], run(second, {"h": h})[0])


def test_bodies_of_the_second_read_what_the_first_gives() -> None:
    second = model_of("""g (float[N] h, bool c) => (float[N] y) {
        y = If (c) <then_branch = yes () => (float[N] r) { r = Abs (h) },
            else_branch = no () => (float[N] r) { r = Neg (h) }>
    }""")
    made = compose_models(model_of("g (float[N] x) => (float[N] z) { z = Add (x, x) }"), second, {"h": "z"}, "a/")
    onnx.checker.check_model(made.proto, full_check=True)
    x = np.array([1, -2], np.float32)
    np.testing.assert_array_equal(run(made, {"a/x": x, "c": np.array(True)})[0], np.abs(2 * x))
    np.testing.assert_array_equal(run(made, {"a/x": x, "c": np.array(False)})[0], -2 * x)


def with_function(body: str) -> Model:
    return Model.from_proto(
        parser.parse_model(
            f"""<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
            g (float[N] x) => (float[N] y) {{ y = local.f (x) }}
            <domain: "local", opset_import: ["" : 17]> f (a) => (b) {{ {body} }}"""
        )
    )


def test_functions_of_one_name_are_told_apart() -> None:
    first, second = with_function("b = Neg (a)"), with_function("b = Abs (a)")
    made = compose_models(first, second, {"x": "y"}, "a/")
    onnx.checker.check_model(made.proto)
    x = np.array([1, -2], np.float32)
    np.testing.assert_array_equal(run(made, {"a/x": x})[0], np.abs(-x))


def test_metadata_of_both_stays_and_the_second_has_its_own() -> None:
    models = [model_of("g (float[N] x) => (float[N] y) { y = Neg (x) }") for _ in range(2)]
    for place, model in enumerate(models):
        helper.set_model_props(model.proto, {"place": str(place), f"only_{place}": "kept"})
        model.proto.producer_name = f"exporter {place}"
        model.proto.graph.doc_string = f"graph {place}"
        model.proto.ir_version = 9 - place
        entry = onnx.StringStringEntryProto(key="SCALE_TENSOR", value="x")
        note = onnx.TensorAnnotation(tensor_name="y", quant_parameter_tensor_names=[entry])
        model.proto.graph.quantization_annotation.append(note)
    made = compose_models(*models, {"x": "y"}, "a/").proto
    assert {entry.key: entry.value for entry in made.metadata_props} == {
        "place": "1",
        "only_1": "kept",
        "only_0": "kept",
    }
    assert (made.producer_name, made.graph.doc_string, made.ir_version) == ("exporter 1", "graph 1", 9)
    notes = [(n.tensor_name, n.quant_parameter_tensor_names[0].value) for n in made.graph.quantization_annotation]
    assert notes == [("a/y", "a/x"), ("y", "a/y")]


def test_neither_model_changes() -> None:
    first, second = model_of(FIRST), model_of(SECOND)
    before = [model.proto.SerializeToString(deterministic=True) for model in (first, second)]
    compose_models(first, second, {"h": "h"}, "a/")
    assert [model.proto.SerializeToString(deterministic=True) for model in (first, second)] == before


# What cannot be composed


def test_opsets_that_differ_are_an_error() -> None:
    first, second = model_of(FIRST, 17), model_of(SECOND, 18)
    with pytest.raises(UsageError, match=r"g has opset 17 of ai\.onnx, g has 18 - convert one with convert-opset"):
        compose_models(first, second, {"h": "h"}, "a/")


def test_opsets_of_both_are_there() -> None:
    first, second = model_of(FIRST), model_of(SECOND)
    del first.proto.opset_import[1:], second.proto.opset_import[1:]
    first.proto.opset_import.append(helper.make_opsetid("custom", 2))
    made = compose_models(first, second, {"h": "h"}, "a/").proto
    assert {entry.domain: entry.version for entry in made.opset_import} == {"": 17, "custom": 2}


@pytest.mark.parametrize("links", [{"h": "nothing"}, {"nothing": "h"}])
def test_a_link_of_what_is_not_there_is_an_error(links: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="g and g cannot be composed: "):
        compose_models(model_of(FIRST), model_of(SECOND), links, "a/")


def test_names_that_both_have_are_an_error() -> None:
    with pytest.raises(UsageError, match="g and g cannot be composed: "):
        compose_models(model_of(FIRST), model_of(SECOND), {"h": "h"}, "")


# Weights


def external(folder: Path, array: np.ndarray, op: str) -> Model:
    """Return a model in a folder of its own, whose weight `w` lies in `weights.bin` beside it."""
    folder.mkdir()
    model = model_of(f"g (float[N, 64] x) => (float[N, 64] y) {{ y = {op} (x, w) }}", w=array.astype(np.float32))
    onnx.save(
        model.proto,
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
        convert_attribute=False,
    )
    return load(folder / "model.onnx", threshold=0)


def test_weights_of_both_are_found_and_saved(tmp_path: Path) -> None:
    """Files of one name in two folders, and tensors that a rewrite has made."""
    one, two = np.arange(64.0), np.arange(64.0)[::-1]
    first, second = external(tmp_path / "one", one, "Add"), external(tmp_path / "two", two, "Mul")
    inline = model_of("g (float[N, 64] x) => (float[N, 64] y) { y = Sub (x, w) }", w=np.full(64, 2, np.float32))
    made = first.make_tensor("w", onnx.TensorProto.FLOAT, [64], [(one + 1).astype(np.float32).tobytes()])
    scratch = first.proto.__class__.FromString(first.proto.SerializeToString())
    scratch.graph.initializer[0].CopyFrom(made)
    both = compose_models(first.with_proto(scratch), second, {"x": "y"}, "a/")
    every = compose_models(compose_models(first, both, {"a/x": "y"}, "b/"), inline, {"x": "y"}, "c/")
    arrays = {tensor.name: every.array(tensor) for tensor in every.proto.graph.initializer}
    np.testing.assert_array_equal(arrays["c/b/w"], one)
    np.testing.assert_array_equal(arrays["c/a/w"], one + 1)
    np.testing.assert_array_equal(arrays["c/w"], two)
    np.testing.assert_array_equal(arrays["w"], 2)
    out = tmp_path / "out"
    out.mkdir()
    save_models({out / "every.onnx": every, out / "second.onnx": second}, data_name="all.data")
    x = np.ones((1, 64), np.float32)
    (y,) = run(out / "every.onnx", {"c/b/x": x})
    np.testing.assert_array_equal(y, (x + one + one + 1).astype(np.float32) * two.astype(np.float32) - 2)
    data = [numpy_helper.to_array(t) for t in onnx.load(out / "every.onnx").graph.initializer]
    assert len(data) == 4
    assert {path.name for path in every.files} >= {"weights.bin"}


def test_weights_that_are_gone_are_an_error(tmp_path: Path) -> None:
    first, second = external(tmp_path / "one", np.ones(64), "Add"), external(tmp_path / "two", np.ones(64), "Mul")
    (tmp_path / "one" / "weights.bin").unlink()
    both = compose_models(first, second, {"x": "y"}, "a/")
    for use in (lambda: both.array(both.proto.graph.initializer[0]), lambda: save_models({tmp_path / "x.onnx": both})):
        with pytest.raises(ModelError, match=r"one/weights\.bin.*its data file is missing"):
            use()
