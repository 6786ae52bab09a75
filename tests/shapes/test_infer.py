from __future__ import annotations

import cProfile

import numpy as np
import onnx
import pytest
from graphs import model, shapes

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.shapes import Shapes, infer, symbol

DECODER = """g (float[batch, past_len, 8] past, float[batch, seq, 8] x, float[batch, "past_len + seq"] mask) => (y, z) {
  y = Concat<axis = 1>(past, x)
  t = Transpose<perm = [0, 2, 1]>(y)
  w = MatMul(x, t)
  a = Constant<value_ints = [1]>()
  m = Unsqueeze(mask, a)
  z = Add(w, m)
}"""


def found(**options: object) -> Shapes:
    return infer(model(DECODER.replace('"past_len + seq"', "total")), **options)


def test_dims_are_expressions_in_input_dims():
    result = found()
    assert str(result["y"]) == "[batch, past_len + seq, 8]"
    assert result["y"].dims == (symbol("batch"), symbol("past_len") + symbol("seq"), 8)
    assert str(result["z"]) == "[batch, seq, max(past_len + seq, total)]"


def test_symbols_become_numbers():
    assert str(found(dims={"batch": 1, "past_len": 0})["y"]) == "[1, seq, 8]"
    assert str(found(inputs={"x": (2, 3, 8)})["y"]) == "[2, past_len + 3, 8]"


def test_ranges_are_believed():
    assert str(found(ranges={"total": (1, 1)})["z"]) == "[batch, seq, past_len + seq]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"nothing": 1}}, "no input has a dim 'nothing'"),
        ({"inputs": {"nothing": (1,)}}, "no input 'nothing'"),
        ({"inputs": {"x": (1, 2)}}, "has 3 dims"),
        ({"inputs": {"x": (1, 2, 9)}}, "is 8 - it cannot be 9"),
        ({"dims": {"batch": 2}, "inputs": {"x": (1, 2, 8)}}, "cannot be 1 too"),
        ({"inputs": {"x": (1, 2, 8), "past": (3, 2, 8)}}, "cannot be 3 too"),
        ({"dims": {"batch": 0}}, "out of its range"),
        ({"values": {"x": [[1.0]]}}, "has 3 dims"),
        ({"ranges": {"nothing": (0, 1)}}, "no input has a dim"),
    ],
)
def test_contradicting_wishes_are_errors(options, message):
    with pytest.raises(UsageError, match=message):
        found(**options)


def test_expressions_in_input_dims_share_their_symbols():
    text = "g (float[b] x, float[past_length] p) => (y) { y = Relu(x) }"
    m = model(text)
    m.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "past_length + 1"
    assert str(infer(m)["y"]) == "[past_length + 1]"
    assert str(infer(m, inputs={"x": (5,)})["y"]) == "[5]"
    with pytest.raises(UsageError, match="out of its range"):
        infer(m, inputs={"x": (0,)})


def test_unnamed_dims_are_called_after_their_input():
    assert str(shapes("g (float[?, 4] x) => (y) { y = Relu(x) }")["y"]) == "[x.0, 4]"


def test_an_input_without_rank_says_so():
    m = model("g (float[b] x) => (y) { y = Relu(x) }")
    m.proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert infer(m).reason("y") == "the input 'x' is declared without rank"
    assert str(infer(m, inputs={"x": (2, 3)})["y"]) == "[2, 3]"


def test_declared_outputs_are_not_believed():
    result = shapes("g (float[b, s] x) => (float[b, 77] y) { y = Relu(x) }")
    assert str(result["y"]) == "[b, s]"


def test_a_declaration_is_a_hint_for_a_reader_where_nothing_else_is_known():
    result = shapes("g (float[b, s] x) => (float[b, 77] y) { y = custom.Nothing(x) }")
    assert result["y"].dims is None
    assert result["y"].dtype == 0
    assert result.reason("y") == "Nothing#0: there is no rule for custom.Nothing (declared as float32 [b, 77])"


def test_a_declaration_with_braces_is_text():
    m = model("g (float[b, s] x) => (float[b, 77] y) { y = custom.Nothing(x) }")
    m.proto.graph.node[0].op_type = "{:>3000000000}{nothing}"
    m.proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "{b}"
    assert infer(Model.from_proto(m.proto)).reason("y") == (
        "{:>3000000000}{nothing}#0: there is no rule for custom.{:>3000000000}{nothing} (declared as float32 [{b}, 77])"
    )


def test_values_of_inputs_decide_a_branch():
    text = (
        "g (float[b, s] x, bool f) => (y) { y = If (f) < then_branch = t () => (float[b] p) { p = Transpose(x) }, "
        "else_branch = e () => (float[b, c] q) { q = Identity(x) } > }"
    )
    assert str(infer(model(text), values={"f": True})["y"]) == "[s, b]"
    assert str(infer(model(text), values={"f": False})["y"]) == "[b, s]"


def test_elements_may_be_expressions() -> None:
    text = "g (float x, int64[1] count) => (float[m] y) { y = Expand (x, count) }"
    shapes = infer(model(text), values={"count": np.full([1], symbol("past") + 2, object)})
    assert str(shapes["y"]) == "[past + 2]"
    with pytest.raises(UsageError, match="it cannot hold past"):
        infer(model(text), values={"count": np.full([1], "past", object)})


@pytest.mark.parametrize(
    ("dtype", "value"), [("int64", 1.5), ("int64", np.inf), ("int64", np.nan), ("int8", 300), ("bool", 2)]
)
def test_values_that_an_input_cannot_hold_are_refused(dtype: str, value: float) -> None:
    made = model(f"g ({dtype} x) => ({dtype} y) {{ y = Identity (x) }}")
    with pytest.raises(UsageError, match=f"input 'x' is of {dtype} - it cannot hold {value}"):
        infer(made, values={"x": value})


def test_values_are_those_of_the_input_dtype() -> None:
    made = model("g (float x, float16 h) => (float y, float16 z) { y = Identity (x) z = Identity (h) }")
    shapes = infer(made, values={"x": 0.1, "h": 0.1})
    assert [float(shapes[name].data) for name in "yz"] == [float(np.float32(0.1)), float(np.float16(0.1))]


def test_elements_of_texts_are_not_known() -> None:
    made = model("g (string[1] x) => (string[1] y) { y = Identity (x) }")
    shapes = infer(made, values={"x": np.array(["1"], object)})
    assert shapes["y"].data is None


def test_what_must_be_equal_simplifies():
    text = """g (float[b, s, 8] x, float[b, t, 8] v, float[b, u] mask) => (y, p) {
      k = Transpose<perm = [0, 2, 1]>(v) w = MatMul(x, k) a = Constant<value_ints = [1]>() m = Unsqueeze(mask, a)
      p = Add(w, m) y = MatMul(p, v)
    }"""
    result = shapes(text)
    assert str(result["p"]) == "[b, s, t]"
    assert [str(fact) for fact in result.equalities] == ["max(t, u) == t"]


def test_a_window_that_must_fit_bounds_a_dim():
    text = """g (float[n, 3, h, w] x, float[8, 3, 16, 16] k) => (y) {
      c = Conv<strides = [16, 16]>(x, k) t = Shape(c) f = Constant<value_ints = [0, 8, -1]>() r = Reshape(c, f)
      y = Reshape(r, t)
    }"""
    result = shapes(text)
    assert str(result["y"]) == "[n, 8, h // 16, w // 16]"
    assert str(result.inequalities[0]) == "h // 16 >= 1"


def test_why_tells_the_chain_from_the_inputs():
    text = """g (float[b, s, 64] x) => (y) {
      t = Shape(x) i = Constant<value_ints = [0]>() n = Gather(t, i) o = Constant<value_ints = [-1]>()
      u = Concat<axis = 0>(n, o) z = Relu(x) y = Reshape(z, u)
    }"""
    assert shapes(text).why("y") == (
        "x: [b, s, 64], an input",
        "t: [3] = [b, s, 64], Shape of x",
        "n: [1] = [b], Gather of t, i",
        "u: [2] = [b, -1], Concat of n, o",
        "z: [b, s, 64], Relu of x",
        "y: [b, 64*s], Reshape of z, u",
    )


def test_values_are_found_by_name_path_or_themselves():
    result = found()
    value = result.model.graph.values["y"]
    assert result[value] is result["y"] is result["", "y"]
    assert value in list(result)
    with pytest.raises(UsageError, match="no tensor 'nothing'"):
        result["nothing"]


@pytest.mark.parametrize("options", [{}, {"dims": {"batch": 2}}, {"ranges": {"past_len": (0, None)}}])
def test_a_model_is_inferred_once_for_each_specification(options: dict[str, object]) -> None:
    built = model(DECODER)
    assert infer(built, **options) is infer(built, **options)
    assert infer(built, **options) is not infer(built, dims={"batch": 3})


def test_work_is_linear_in_nodes():
    """Calls are counted, not seconds: the count is the same on every machine."""

    def calls(layers: int) -> int:
        steps = "".join(
            f" t{i} = Shape(x{i}) n{i} = Gather(t{i}, zero) u{i} = Concat<axis = 0>(n{i}, rest)"
            f" r{i} = Reshape(x{i}, u{i})"
            f" a{i} = Add(r{i}, r{i}) x{i + 1} = Reshape(a{i}, t{i})"
            for i in range(layers)
        )
        built = model(f"g (float[b, s, 64] x0) => (x{layers}) {{{steps} }}", zero=[0], rest=[-1])
        assert built.scopes
        profile = cProfile.Profile()
        found = profile.runcall(infer, built)
        assert str(found[f"x{layers}"]) == "[b, s, 64]"
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(600) < 10.5 * calls(60)


def test_a_sparse_constant_has_the_dims_that_it_stands_for():
    proto = model("g (float[N, 4] x) => (y) { y = Add (x, w) }").proto
    values = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [5.0, 6.0])
    indices = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [2], [1, 3])
    proto.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4]))
    found = infer(Model.from_proto(proto))
    assert (str(found["w"]), str(found["y"]), found["w"].data) == ("[4]", "[N, 4]", None)


def cache(past: str, name: str = "cache_k_l0", **options: object) -> dict[str, float]:
    """Return the least size of each symbol of a decoder."""
    made = model(f"""g (float[B, H, {past}, 8] {name}, float[B, H, 1, 8] k, int64[B, S] input_ids)
        => (float[B, H, P, 8] new_{name}, z) {{ new_{name} = Concat <axis = 2> ({name}, k) z = Neg (input_ids) }}""")
    found = infer(made, **options)
    dims = [dim for value in made.graph.inputs for dim in found[value].dims]
    return {symbol.name: symbol.lower for dim in dims for symbol in dim.walk_symbols()}


def test_a_cache_may_be_empty_whatever_its_dims_are_called():
    assert cache("s62") == {"B": 1, "H": 1, "S": 1, "s62": 0}


def test_a_cache_that_is_called_as_long_as_the_tokens_may_be_empty():
    assert cache("S") == {"B": 1, "H": 1, "S": 0, "input_ids.1": 1}


def test_what_comes_from_an_encoder_is_not_empty():
    assert cache("s62", "cache_cross_k_l0")["s62"] == 1


def test_the_least_length_of_a_cache_can_be_given():
    assert cache("s62", ranges={"s62": (2, None)})["s62"] == 2
    assert cache("s62", ranges={"s62": (None, 9)})["s62"] == 0
