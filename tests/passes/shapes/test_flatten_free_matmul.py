from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser
from properties import examples
from sessions import run, session_of

from graphkit.graph.view import Node, all_nodes
from graphkit.model import Model, load
from graphkit.options import RewriteProofOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.shapes.flatten_free_matmul import FlattenFreeMatmul
from graphkit.passes.shapes.simplify_reshape import MergeChains
from graphkit.rewrite.fixpoint import run_to_fixpoint
from graphkit.shapes import infer
from graphkit.verify.rewrite_verifier import verify_rewrite


def model_of(text: str, opset: int = 18) -> Model:
    return Model.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}'))


def feed(model: Model, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    arrays = {}
    for info in model.proto.graph.input:
        tensor = info.type.tensor_type
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        array = np.random.default_rng(len(arrays)).standard_normal(shape) * 4
        arrays[info.name] = array.astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return arrays


def assert_same(before: Model, after: Model, *sizes: Mapping[str, int]) -> None:
    """Outputs are equal to the last bit."""
    onnx.checker.check_model(after.proto, full_check=True)
    first, second = session_of(before), session_of(after)
    for size in sizes:
        arrays = feed(before, size)
        for one, other in zip(first.run(None, arrays), second.run(None, arrays), strict=True):
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes()


def operators(model: Model) -> list[str]:
    return [node.op_type for node in all_nodes(model.scopes)]


BATCHES = [{"N": n} for n in (0, 1, 3)]

# A block as torch exports it: both lengths dynamic, the mask added with four dims

ATTENTION = """
    agraph (float[N, L, 32] q, float[N, S, 32] k, float[N, S, 32] v, float[N, 1, L, S] mask) => (float[N, L, 32] y)
    <int64[4] split = {0, 0, 4, 8}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] four = {4}, int64[1] eight = {8},
     int64[3] join = {0, 0, 32}, float half = {0.5}> {
        q_shape = Shape (q)
        k_shape = Shape (k)
        n = Gather (q_shape, zero)
        l = Gather (q_shape, one)
        s = Gather (k_shape, one)
        n4 = Mul (n, four)
        flat_q = Concat <axis = 0> (n4, l, eight)
        flat_k = Concat <axis = 0> (n4, s, eight)
        scores = Concat <axis = 0> (n, four, l, s)
        flat_scores = Concat <axis = 0> (n4, l, s)
        heads = Concat <axis = 0> (n, four, l, eight)
        scaled = Mul (q, half)
        q4 = Reshape (scaled, split)
        k4 = Reshape (k, split)
        v4 = Reshape (v, split)
        qt = Transpose <perm = [0, 2, 1, 3]> (q4)
        kt = Transpose <perm = [0, 2, 1, 3]> (k4)
        vt = Transpose <perm = [0, 2, 1, 3]> (v4)
        q3 = Reshape (qt, flat_q)
        k3 = Reshape (kt, flat_k)
        v3 = Reshape (vt, flat_k)
        k3t = Transpose <perm = [0, 2, 1]> (k3)
        [product] w = MatMul (q3, k3t)
        w4 = Reshape (w, scores)
        masked = Add (w4, mask)
        masked3 = Reshape (masked, flat_scores)
        p = Softmax <axis = -1> (masked3)
        o = MatMul (p, v3)
        o4 = Reshape (o, heads)
        ot = Transpose <perm = [0, 2, 1, 3]> (o4)
        y = Reshape (ot, join)
    }"""
LENGTHS = [{"N": n, "L": length, "S": s} for n, length, s in ((1, 1, 1), (2, 5, 7), (3, 17, 33))]


def test_attention_keeps_its_four_dims() -> None:
    model = model_of(ATTENTION)
    result = FlattenFreeMatmul().run(model)
    assert result.changes == ("6 Reshapes around batched nodes removed",)
    assert result.declined == ()
    expected = [
        "Mul",
        *["Reshape"] * 3,
        *["Transpose"] * 4,
        "MatMul",
        "Add",
        "Softmax",
        "MatMul",
        "Transpose",
        "Reshape",
    ]
    assert operators(result.model) == expected
    shapes = infer(result.model)
    assert str(shapes["w_lifted"]) == "[N, 4, L, S]"
    assert str(shapes["k3t_lifted"]) == "[N, 4, 8, S]"
    assert next(node.label for node in result.model.graph.nodes if node.op_type == "MatMul") == "product"
    assert_same(model, result.model, *LENGTHS)


def test_softmax_of_opset_12_flattens_to_rows_either_way() -> None:
    text = ATTENTION.replace("axis = -1", "axis = 2").replace("Softmax <axis = 2> (masked3)", "Softmax (masked3)")
    model = model_of(text, opset=12)  # axis 1: one distribution over the last two dims
    result = FlattenFreeMatmul().run(model)
    assert result.changes == ("6 Reshapes around batched nodes removed",)
    assert next(node for node in result.model.graph.nodes if node.op_type == "Softmax").attributes["axis"].i == 2
    assert_same(model, result.model, *LENGTHS)


# One operator between [4*N, 6, 8] and [N, 4, ...]


def between(operator: str, rest: tuple[int, ...], constants: str = "", inputs: str = "", opset: int = 18) -> Model:
    """Return a model that applies an operator from a to c."""
    back = ", ".join(map(str, (-1, 4, *rest)))
    constants = f"int64[3] flat = {{-1, 6, 8}}, int64[{len(rest) + 2}] back = {{{back}}}" + constants
    return model_of(
        f"""agraph (float[N, 4, 6, 8] x{inputs}) => (float[{", ".join(map(str, ("N", 4, *rest)))}] y) <{constants}> {{
            a = Reshape (x, flat)
            {operator}
            d = Reshape (c, back)
            y = Cast <to = 1> (d)
        }}""",
        opset,
    )


WEIGHTS = ", float[8, 8] w = {" + ", ".join(str(n % 7 - 3) for n in range(64)) + "}"
BYTES = ", int8[8, 8] w = {" + ", ".join(str(n % 7 - 3) for n in range(64)) + "}"
EIGHT = ", float[8] e = {1, 2, 3, 4, 5, 6, 7, 8}"
SCALE = ", float s = {0.5}, uint8 z = {3}"

LIFTED = [
    ("c = Relu (a)", (6, 8), ""),
    ("c = Cast <to = 7> (a)", (6, 8), ""),
    ("c = Add (a, a)", (6, 8), ""),
    ("c = Add (e, a)", (6, 8), EIGHT),
    ("c = Mul (a, e)", (6, 8), ", float[1, 6, 1] e = {1, 2, 3, 4, 5, 6}"),
    ("c = Mul (a, e)", (6, 8), ", float e = {0.3}"),
    ("c = Clip (a, , e)", (6, 8), ", float e = {0.3}"),
    ("b = Neg (a)  g = Greater (a, b)  c = Where (g, e, b)", (6, 8), EIGHT),
    ("c = Transpose <perm = [0, 2, 1]> (a)", (8, 6), ""),
    ("b = Transpose <perm = [0, 2, 1]> (a)  c = MatMul (a, b)", (6, 6), ""),
    ("c = MatMul (a, w)", (6, 8), WEIGHTS),
    (
        "q, s, z = DynamicQuantizeLinear (a)  b = MatMulInteger (q, w, z)  f = Cast <to = 1> (b)  c = Mul (f, s)",
        (6, 8),
        BYTES,
    ),
    ("q = QuantizeLinear (a, s, z)  c = DequantizeLinear (q, s, z)", (6, 8), SCALE),
    ("q = QuantizeLinear <axis = 2> (a, e)  c = DequantizeLinear <axis = -1> (q, e)", (6, 8), EIGHT),
    (
        "q = QuantizeLinear (a, s, z)  m = QLinearMatMul (q, s, z, v, s, z, s, z)  c = DequantizeLinear (m, s, z)",
        (6, 2),
        SCALE + ", uint8[8, 2] v = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}",
    ),
    ("c = Softmax (a)", (6, 8), ""),
    ("c = LogSoftmax <axis = 1> (a)", (6, 8), ""),
    ("c = LayerNormalization (a, e)", (6, 8), EIGHT),
    ("c = ReduceSum (a, i)", (6, 1), ", int64[1] i = {2}"),
    ("c = ReduceSum (a, i)", (6, 1), ", int64[1] i = {-1}"),
    ("c = ReduceMean <keepdims = 0> (a, i)", (8,), ", int64[1] i = {1}"),
    ("c = ReduceMax <keepdims = 0> (a, i)", (), ", int64[2] i = {1, 2}"),
    ("c = ArgMax <axis = 1> (a)", (1, 8), ""),
    ("c = CumSum (a, i)", (6, 8), ", int32 i = {1}"),
    ("c = Concat <axis = 2> (a, a)", (6, 16), ""),
    ("b, c = Split <axis = 1> (a, i)", (4, 8), ", int64[2] i = {2, 4}"),
    ("c = Slice (a, i, j, k)", (3, 6), ", int32[2] i = {3, 0}, int32[2] j = {6, 6}, int32[2] k = {1, -1}"),
    ("c = Gather <axis = 2> (a, i)", (6, 2), ", int64[2] i = {7, 0}"),
    ("c = Gather <axis = 1> (a, i)", (8,), ", int64 i = {5}"),
    ("b = Unsqueeze (a, i)  c = Squeeze (b, i)", (6, 8), ", int64[2] i = {1, -1}"),
]


LIFTED_LATER = [
    ("c = Swish (a)", 24),
    ("b = Cast <to = 2> (a)  c = BitwiseAnd (b, b)", 18),
    ('b = Cast <to = 2> (a)  c = BitShift <direction = "RIGHT"> (b, b)', 11),
    ("c = Add (a, a)", 7),
    ('b = Cast <to = 8> (a)  s = StringConcat (b, b)  c = RegexFullMatch <pattern = "a"> (s)', 20),
]


@pytest.mark.parametrize(("operator", "opset"), LIFTED_LATER)
def test_elementwise_operators_of_other_opsets_are_lifted(operator: str, opset: int) -> None:
    result = FlattenFreeMatmul().run(between(operator, (6, 8), opset=opset))
    assert result.changes == ("2 Reshapes around batched nodes removed",)


@pytest.mark.parametrize(
    ("operator", "rest", "constants"), LIFTED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_operators_are_lifted(operator: str, rest: tuple[int, ...], constants: str) -> None:
    model = between(operator, rest, constants)
    result = FlattenFreeMatmul().run(model)
    assert result.changes == ("2 Reshapes around batched nodes removed",)
    assert "Reshape" not in operators(result.model)
    assert_same(model, result.model, *BATCHES)


def test_a_matrix_by_a_batch_is_lifted_where_the_batch_is_not_empty() -> None:
    model = between("b = Transpose <perm = [0, 2, 1]> (a)  c = MatMul (w, b)", (8, 6), WEIGHTS)
    result = FlattenFreeMatmul().run(model)
    assert operators(result.model) == ["Transpose", "MatMul", "Cast"]
    assert_same(model, result.model, {"N": 1}, {"N": 3})
    assert FlattenFreeMatmul(ranges=(("N", 0, None),)).run(model).changes == ()


def test_a_mask_that_broadcasts_stays_and_one_that_is_flattened_too_is_reshaped_otherwise() -> None:
    """As in Bloom, whose ALiBi bias has three dims."""
    model = model_of("""
        agraph (float[N, 4, 6, 8] x, float[N, 4, 6] bias, float[1, 6, 6] mask) => (float[N, 4, 6, 6] y)
        <int64[3] flat = {-1, 6, 8}, int64[3] row = {-1, 1, 6}, int64[4] back = {-1, 4, 6, 6}> {
            a = Reshape (x, flat)
            e = Reshape (bias, row)
            t = Transpose <perm = [0, 2, 1]> (a)
            c = MatMul (a, t)
            f = Add (e, c)
            g = Add (mask, f)
            d = Reshape (g, back)
            y = Neg (d)
        }""")
    result = FlattenFreeMatmul().run(model)
    assert result.changes == ("2 Reshapes around batched nodes removed",)
    assert operators(result.model) == ["Reshape", "Transpose", "MatMul", "Add", "Add", "Neg"]
    assert str(infer(result.model)["e_lifted"]) == "[N, 4, 1, 6]"
    assert_same(model, result.model, *BATCHES)


def test_rows_of_a_matrix_keep_their_dims() -> None:
    """As in a linear layer that flattens batch and sequence, here of an embedding that is looked up flat."""
    model = model_of(f"""
        agraph (int64[N, L] ids, float[L] x) => (float[N, L, 8] y)
        <int64[1] all = {{-1}}, int64[2] one = {{1, 1}} {WEIGHTS}> {{
            s = Shape (ids)
            width = Constant <value_ints = [8]> ()
            back = Concat <axis = 0> (s, width)
            a = Reshape (ids, all)
            b = Gather (w, a)
            c = MatMul (b, w)
            d = Reshape (c, back)
            y = Neg (d)
        }}""")
    result = FlattenFreeMatmul().run(model)
    assert operators(result.model) == ["Gather", "MatMul", "Neg"]
    assert_same(model, result.model, {"N": 2, "L": 3}, {"N": 1, "L": 1}, {"N": 0, "L": 2})


def test_an_exit_to_another_shape_takes_a_shape_for_the_lifted_tensor() -> None:
    model = model_of("""
        agraph (float[N, 4, L, 8] x) => (float[N, M] y)
        <int64[1] zero = {0}, int64[1] two = {2}, int64[1] rest = {-1}, int64[1] eight = {8}> {
            s = Shape (x)
            n = Gather (s, zero)
            l = Gather (s, two)
            flat = Concat <axis = 0> (rest, l, eight)
            to = Concat <axis = 0> (n, rest)
            a = Reshape (x, flat)
            c = Softmax (a)
            y = Reshape <allowzero = 1> (c, to)
        }""")
    result = FlattenFreeMatmul().run(model)
    assert operators(result.model) == ["Softmax", "Reshape"]
    assert infer(result.model)["y_shape"].data.tolist() == [0, -1]
    assert_same(model, result.model, {"N": 1, "L": 1}, {"N": 2, "L": 5})


def test_of_heads_and_their_repetitions_the_dims_are_those_that_most_reshapes_have() -> None:
    """As in grouped-query attention: the keys are [N, 2, 2, 6, 8], the queries [N, 4, 6, 8]."""
    model = model_of("""
        agraph (float[N, 2, 2, 6, 8] k, float[N, 4, 6, 8] q) => (float[N, 4, 6, 6] y)
        <int64[3] flat = {-1, 6, 8}, int64[4] back = {-1, 4, 6, 6}> {
            a = Reshape (k, flat)
            b = Reshape (q, flat)
            t = Transpose <perm = [0, 2, 1]> (a)
            c = MatMul (b, t)
            d = Reshape (c, back)
            y = Neg (d)
        }""")
    result = FlattenFreeMatmul().run(model)
    assert operators(result.model) == ["Reshape", "Transpose", "MatMul", "Neg"]
    assert_same(model, result.model, *BATCHES)


def test_the_flat_tensor_stays_for_others_that_read_it() -> None:
    model = model_of("""
        agraph (float[N, 4, 6, 8] x) => (float[N, 4, 6, 6] y, float[M, 8, 6] z)
        <int64[3] flat = {-1, 6, 8}, int64[4] back = {-1, 4, 6, 6}> {
            a = Reshape (x, flat)
            t = Transpose <perm = [0, 2, 1]> (a)
            c = MatMul (a, t)
            d = Reshape (c, back)
            y = Neg (d)
            z = Transpose <perm = [0, 2, 1]> (a)
        }""")
    result = FlattenFreeMatmul().run(model)
    assert result.changes == ("1 Reshape around batched nodes removed",)
    assert operators(result.model) == ["Reshape", "Transpose", "MatMul", "Neg", "Transpose"]
    assert_same(model, result.model, *BATCHES)


def test_bodies_read_the_lifted_tensors_of_the_graph_around_them() -> None:
    model = model_of("""
        agraph (float[N, 4, 6, 8] x, bool flag) => (float[N, 4, 6, 6] y)
        <int64[3] flat = {-1, 6, 8}, int64[4] back = {-1, 4, 6, 6}> {
            a = Reshape (x, flat)
            b = Relu (a)
            y = If (flag) <
                then_branch = g1 () => (float[N, 4, 6, 6] p) {
                    t = Transpose <perm = [0, 2, 1]> (b)
                    c = MatMul (a, t)
                    p = Reshape (c, back)
                },
                else_branch = g2 () => (float[N, 4, 6, 6] q) {
                    u = Transpose <perm = [0, 2, 1]> (b)
                    e = MatMul (b, u)
                    f = Reshape (e, back)
                    q = Neg (f)
                }
            >
        }""")
    result = FlattenFreeMatmul().run(model)
    assert result.changes == ("3 Reshapes around batched nodes removed",)
    assert operators(result.model) == ["Relu", "If", "Transpose", "MatMul", "Identity", "Transpose", "MatMul", "Neg"]
    for flag in (False, True):
        arrays = {"x": feed(between("c = Relu (a)", (6, 8)), {"N": 2})["x"], "flag": np.array(flag)}
        runs = [run(one, arrays)[0] for one in (model, result.model)]
        assert runs[0].tobytes() == runs[1].tobytes()


# Reasons to leave it

STAYS = [
    ("c = Softmax <axis = 0> (a)", (6, 8), "", "", "Softmax 'Softmax#1' reads 'a' flat"),
    ("t = Relu (a)  c = CumSum (t, i)", (6, 8), ", int64 i = {0}", "", "CumSum 'CumSum#2' reads 't' flat"),
    ("t = Relu (a)  r = ReduceMax (t, i)  c = Add (t, r)", (6, 8), ", int64[2] i = {0, 2}", "", "ReduceMax"),
    ("t = Relu (a)  r = ReduceSum (t)  c = Add (t, r)", (6, 8), "", "", "ReduceSum"),
    ("t = Relu (a)  c = Concat <axis = 0> (t, t)", (6, 16), "", "", "Concat"),
    ("t = Relu (a)  c = Concat <axis = 1> (t, m)", (12, 8), "", ", float[M, 6, 8] m", "Concat"),
    (
        "t = Relu (a)  u = Reshape (m, flat)  c = Concat <axis = 1> (t, u)",
        (12, 8),
        "",
        ", float[M, 2, 6, 8] m",
        "Concat",
    ),
    ("t = Relu (a)  c, b = Split <axis = 0> (t, i)", (6, 4), ", int64[2] i = {4, 4}", "", "Split"),
    ("t = Relu (a)  c = Slice (t, i, i, i)", (6, 8), ", int64[1] i = {0}", "", "Slice"),
    ("t = Relu (a)  c = Gather (t, i)", (6, 8), ", int64[4] i = {0, 1, 2, 3}", "", "Gather"),
    ("t = Relu (a)  c = Transpose <perm = [1, 0, 2]> (t)", (6, 8), "", "", "Transpose"),
    ("t = Relu (a)  c = Transpose (t)", (6, 8), "", "", "Transpose"),
    ("t = Relu (a)  c = Unsqueeze (t, i)", (6, 8), ", int64[1] i = {0}", "", "Unsqueeze"),
    ("t = Relu (a)  c = MatMul (m, t)", (6, 8), "", ", float[M, 6, 6] m", "MatMul"),
    ("t = Relu (a)  c = Add (t, m)", (6, 8), "", ", float[M, 1, 8] m", "Add"),
    ("t = Relu (a)  c = Add (t, m)", (6, 8), "", ", float[2, 1, 6, 8] m", "Add"),
    ("t = Relu (a)  c = QuantizeLinear <axis = 0> (t, s)", (6, 8), ", float[4] s = {1, 2, 3, 4}", "", "QuantizeLinear"),
    ("t = Relu (a)  u = Shape (t)  c = Expand (t, u)", (6, 8), "", "", "Shape"),
    ("t = Relu (a)  c = MyOwn (t)", (6, 8), "", "", "MyOwn"),
    (
        "t, s, z = DynamicQuantizeLinear (a)  c = MatMulInteger (t, w, p)",
        (6, 8),
        BYTES,
        ", uint8[6] p",
        "MatMulInteger",
    ),
    ("t = Relu (a)  c, m = LayerNormalization (t, e)  n = Neg (m)", (6, 8), EIGHT, "", "LayerNormalization"),
]


@pytest.mark.parametrize(
    ("operator", "rest", "constants", "inputs", "reason"),
    STAYS,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_works_on_the_leading_dim_needs_the_flat_tensor(
    operator: str, rest: tuple[int, ...], constants: str, inputs: str, reason: str
) -> None:
    model = between(operator, rest, constants, inputs)
    result = FlattenFreeMatmul().run(model)
    assert result.model is model
    assert result.declined[0].where == "Reshape#0"
    assert result.declined[0].reason.startswith("its flat form stays: ")
    assert reason in result.declined[0].reason


def test_outputs_need_the_flat_tensor() -> None:
    model = model_of("""
        agraph (float[N, 4, 6, 8] x) => (float[M, 6, 8] c, float[N, 4, 6, 8] y)
        <int64[3] flat = {-1, 6, 8}, int64[4] back = {-1, 4, 6, 8}> {
            a = Reshape (x, flat)
            b = Relu (a)
            c = Softmax (b)
            d = Reshape (c, back)
            y = Neg (d)
        }""")
    result = FlattenFreeMatmul().run(model)
    assert result.model is model
    assert [str(one) for one in result.declined] == ["Reshape#0: its flat form stays: 'c' is an output"]


def test_nothing_is_lifted_where_no_reshape_would_go() -> None:
    model = model_of("""
        agraph (float[N, 4, 6, 8] x) => (float[N, 192] y, float[M, 8, 6] z)
        <int64[3] flat = {-1, 6, 8}, int64[2] back = {-1, 192}> {
            a = Reshape (x, flat)
            c = Relu (a)
            y = Reshape (c, back)
            z = Transpose <perm = [0, 2, 1]> (a)
        }""")
    result = FlattenFreeMatmul().run(model)
    assert result.model is model
    assert [one.reason for one in result.declined] == ["its flat form stays: 'z' is an output"]


def unchanged(text: str) -> bool:
    model = model_of(text)
    return FlattenFreeMatmul().run(model).model is model


def test_a_product_of_what_no_rule_knows_is_left() -> None:
    text = """g (float[N, 4, 5, 8] q, float[N, 4, 8, 5] k) => (float[N, 4, 5, 5] y)
    <int64[3] columns = {-1, 8, 5}, int64[4] heads = {-1, 4, 5, 5}> {
        a = com.microsoft.Opaque (q)
        b = Reshape (k, columns)
        c = MatMul (a, b)
        y = Reshape (c, heads)
    }"""
    model = Model.from_proto(
        parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]> {text}')
    )
    assert operators(FlattenFreeMatmul().run(model).model) == ["Opaque", "Reshape", "MatMul", "Reshape"]


def test_dims_that_happen_to_be_alike_do_not_mislead() -> None:
    text = """
        agraph (float[2, 4, 8, 8] x, float[2, 4, 8] z, float[8, 8] w, float[8, 8, 8] v) => (float[2, 4, N, 8] y)
        <int64[3] cube = {8, 8, 8}, int64[2] square = {8, 8}, int64[3] slab = {8, 1, 8},
         int64[4] back = {2, 4, -1, 8}> {
            a = Reshape (x, cube)
            b = Reshape (z, square)
            e = Reshape (z, slab)
            %s
            d = Reshape (c, back)
            y = Neg (d)
        }"""
    assert not unchanged(text % "c = Softmax (a)")
    assert not unchanged(text % "c = MatMul (b, w)")
    assert unchanged(text % "c = MatMul (w, b)")
    assert unchanged(text % "c = Transpose <perm = [2, 1, 0]> (a)")
    assert unchanged(text % "c = Add (b, e)")
    assert unchanged(text % "c = Add (a, b)")
    assert unchanged(text % "c = Add (a, v)")
    assert not unchanged(text % "c = Concat <axis = 1> (a, a)")
    assert unchanged(text % "c = Concat <axis = 1> (a, v)")


def test_a_reshape_that_changes_other_dims_as_well_begins_nothing() -> None:
    assert unchanged("""
        agraph (float[N, 4, 8, 6] x) => (float[N, 4, 6, 8] y)
        <int64[3] flat = {-1, 6, 8}, int64[4] back = {-1, 4, 6, 8}> {
            a = Reshape (x, flat)
            c = Relu (a)
            d = Reshape (c, back)
            y = Neg (d)
        }""")


def test_tensors_of_unknown_rank_stay() -> None:
    model = between("t = Relu (a)  c = Gather <axis = 1> (t, i)", (6, 8), inputs=", int64[6] i")
    assert FlattenFreeMatmul().run(model).changes == ("2 Reshapes around batched nodes removed",)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    proto.graph.input[1].type.tensor_type.ClearField("shape")
    (declined,) = FlattenFreeMatmul().run(Model.from_proto(proto)).declined
    assert declined.reason == "its flat form stays: Gather 'Gather#2' reads 't' flat"


def test_a_scale_that_is_an_output_keeps_its_node() -> None:
    model = model_of("""
        agraph (float[N, 4, 6, 8] x) => (float[N, 4, 6, 8] y, float s)
        <int64[3] flat = {-1, 6, 8}, int64[4] back = {-1, 4, 6, 8}> {
            a = Reshape (x, flat)
            c, s, z = DynamicQuantizeLinear (a)
            d = Reshape (c, back)
            y = Cast <to = 1> (d)
        }""")
    assert FlattenFreeMatmul().run(model).model is model


SHARED = """
    agraph (float[N, 4, 6, L] x, float[N, 4, L] bias) => (float[N, 4, 6, L] y, float[N, 4, 6, L] z, %s u)
    <int64[1] zero = {0}, int64[1] last = {-1}, int64[1] four = {4}, int64[1] six = {6}, int64[1] one = {1}> {
        s = Shape (bias)
        n = Gather (s, zero)
        l = Gather (s, last)
        n4 = Mul (n, four)
        flat = Concat <axis = 0> (n4, six, l)
        row = Concat <axis = 0> (n4, one, l)
        back = Concat <axis = 0> (n, four, six, l)
        other = Concat <axis = 0> (%s)
        a = Reshape (x, flat)
        e = Reshape (bias, row)
        b = Add (a, e)
        d = Reshape (b, back)
        y = Neg (d)
        f = Relu (a)
        g = Mul (f, e)
        h = Reshape (g, back)
        z = Neg (h)
        o = Reshape (g, other)
        u = Neg (o)
    }"""


def test_what_another_region_needs_flat_is_not_had_twice() -> None:
    """e is [4*N, 1, L], of a tensor of [N, 4, L]: lifted for b, it would be one Reshape more where g needs it flat."""
    good, bad = ("float[N, 24, L]", "n, last, l"), ("float[L, N, 24]", "l, n, last")
    result = FlattenFreeMatmul().run(model_of(SHARED % good))
    assert result.changes == ("3 Reshapes around batched nodes removed",)
    assert unchanged(SHARED % bad)
    assert FlattenFreeMatmul().run(model_of(SHARED % bad)).declined[0].reason == (
        "its flat form stays: Reshape 'Reshape#17' reads 'g' flat"
    )


def test_a_reshape_between_two_others_is_the_end_of_one_region_only() -> None:
    """m is made of w, which t needs as flat as m does."""
    model = model_of("""
        agraph (float[N, 4, 6, 8] x, float[N, 192] k) => (float[N, 4, 6, 8] y)
        <int64[3] flat = {-1, 6, 8}, int64[3] turned = {-1, 8, 6}, int64[4] back = {-1, 4, 6, 8}> {
            a = Reshape (x, flat)
            w = Reshape (k, flat)
            m = Reshape (w, turned)
            c = MatMul (a, m)
            t = Add (a, w)
            g = MatMul (c, t)
            d = Reshape (g, back)
            y = Neg (d)
        }""")
    assert FlattenFreeMatmul().run(model).model is model


def test_what_an_edit_of_this_sweep_reads_is_not_computed_twice() -> None:
    """The two Reshapes after b undo each other, so that its flat form is read by f from this round on."""
    model = model_of("""
        agraph (float[N, 4, 6, 8] x) => (float[N, 4, 6, 8] y, float[M, 6, 8] z)
        <int64[3] flat = {-1, 6, 8}, int64[4] back = {-1, 4, 6, 8}> {
            a = Reshape (x, flat)
            b = Relu (a)
            d = Reshape (b, back)
            y = Neg (d)
            e = Reshape (d, flat)
            f = Softmax <axis = 0> (e)
            z = Neg (f)
        }""")
    assert operators(run_to_fixpoint(model, [MergeChains(), FlattenFreeMatmul()]).model).count("Relu") == 1


def test_another_split_that_no_constant_shape_gives_stays() -> None:
    """The queries have the dims [N, H], the keys are a tensor of [K, 6, 8] that happens to have as many rows."""
    model = model_of("""
        agraph (float[N, H, 6, 8] q, float[T, 48] k) => (float[N, H, 6, 6] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[2] row = {6, 8}, int64[2] column = {8, 6},
         int64[2] end = {6, 6}> {
            s = Shape (q)
            n = Gather (s, zero)
            h = Gather (s, one)
            nh = Mul (n, h)
            rows = Concat <axis = 0> (nh, row)
            columns = Concat <axis = 0> (nh, column)
            back = Concat <axis = 0> (n, h, end)
            a = Reshape (q, rows)
            b = Reshape (k, columns)
            c = MatMul (a, b)
            d = Reshape (c, back)
            y = Neg (d)
        }""")
    result = FlattenFreeMatmul().run(model)
    assert result.model is model
    assert {one.reason for one in result.declined} == {"its flat form stays: no constant shape gives [N, H, 8, 6]"}


def test_edits_of_this_sweep_are_waited_for() -> None:
    """The Identity goes in the first round, what reads it is lifted in the second."""
    model = between("b = Relu (a)  i = Identity (b)  c = Softmax (i)", (6, 8))
    result = fold(model).model
    assert operators(result) == ["Relu", "Softmax"]
    assert_same(model, result, *BATCHES)


# Random chains of operators that keep the leading dim and such that do not


@st.composite
def chains(draw: st.DrawFn) -> tuple[Model, bool]:
    """Return a model, and whether all that it does to the flat tensor can be lifted."""
    lead = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    rest = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    shape, is_liftable, current = list(rest), True, "a"
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []

    def constant(array: object, dtype: type = np.int64) -> str:
        tensors.append(numpy_helper.from_array(np.array(array, dtype), f"k{len(tensors)}"))
        return tensors[-1].name

    def add(op: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    add("Reshape", "x", constant([-1, *rest]))
    nodes[-1].output[0] = "a"
    for _ in range(draw(st.integers(1, 5))):
        axis = draw(st.integers(0, len(shape) - 1))
        place = draw(st.sampled_from([axis + 1, axis - len(shape)]))  # in the flat tensor
        match draw(st.integers(0, 9)):
            case 0:
                current = add("Sigmoid", current)
            case 1:
                array = np.random.default_rng(axis).standard_normal([*shape[axis:]])
                current = add(draw(st.sampled_from(["Add", "Mul"])), constant(array, np.float32), current)
            case 2:
                current = add("Softmax", current, axis=place)
            case 3:
                perm = draw(st.permutations(range(len(shape))))
                current = add("Transpose", current, perm=[0, *(old + 1 for old in perm)])
                shape = [shape[old] for old in perm]
            case 4:
                keeps = draw(st.booleans()) or len(shape) == 1
                current = add("ReduceSum", current, constant([place]), keepdims=int(keeps))
                shape[axis : axis + 1] = [1] if keeps else []
            case 5:
                current, shape = add("Concat", current, current, axis=place), [*shape]
                shape[axis] *= 2
            case 6 if len(shape) > 1:
                other = [*range(len(shape) - 1), len(shape), len(shape) - 1]
                current = add("MatMul", current, add("Transpose", current, perm=other))
                shape[-1] = shape[-2]
            case 7:
                current = add("Add", current, add("ReduceMax", current, constant([place])))
            case 8:
                current, is_liftable = add("CumSum", current, constant(0)), False
            case _:
                weight = np.random.default_rng(axis).standard_normal([shape[-1], 3])
                current = add("MatMul", current, constant(weight, np.float32))
                shape[-1] = 3
    add("Reshape", current, constant([-1, *lead, *shape]))
    nodes[-1].output[0] = "y"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *lead, *rest])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", *lead, *shape])
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(helper.make_graph(nodes, "chain", [x], [y], tensors), opset_imports=opsets, ir_version=8)
    return Model.from_proto(model), is_liftable


@given(chains())
@examples(25, 150)
def test_chains_give_the_same_without_the_flattening(chain: tuple[Model, bool]) -> None:
    model, is_liftable = chain
    result = FlattenFreeMatmul().run(model)
    assert ("Reshape" in operators(result.model)) is not is_liftable
    assert_same(model, result.model, {"N": 1}, {"N": 2})


# Real exports


def of_batches(model: Model) -> list[Node]:
    """Return the MatMuls of two tensors that are computed."""
    found = (node for node in all_nodes(model.scopes) if node.is_op("MatMul"))
    return [node for node in found if not any(value is None or value.is_constant for value in node.inputs)]


@pytest.mark.slow
def test_detr_has_no_flattening_and_no_reshape_whose_shape_is_computed(real_model: Callable[[str], Model]) -> None:
    result = fold(real_model("detr-resnet-50/model_quantized"))
    assert "flatten-free-matmul: 84 Reshapes around batched nodes removed" in result.changes
    shapes = infer(result.model)
    matmuls = of_batches(result.model)
    assert {shapes[value].rank for node in matmuls for value in node.inputs if value} == {4}
    assert len(matmuls) == 36
    reshapes = [node for node in all_nodes(result.model.scopes) if node.is_op("Reshape")]
    assert len(reshapes) == 76 + 18  # which keep Transposes apart for a FusedMatMul
    assert [node.label for node in reshapes if not node.inputs[1].is_constant] == []
    assert [str(one) for one in result.declined if "Reshape" in one.where] == []


@pytest.mark.slow
def test_a_quantised_decoder_with_a_cache_gives_the_same(model_file: Callable[[str], Path]) -> None:
    path = model_file("nllb-tiny/decoder_with_past_model_quantized")
    result = fold(load(path))
    assert "flatten-free-matmul: 50 Reshapes around batched nodes removed" in result.changes
    shapes = infer(result.model)
    assert {shapes[value].rank for node in of_batches(result.model) for value in node.inputs if value} == {4}
    assert verify_rewrite(path, result.model, options=RewriteProofOptions(runs=3)).passed


@pytest.mark.slow
def test_both_branches_of_a_merged_decoder_are_lifted(real_model: Callable[[str], Model]) -> None:
    result = fold(real_model("opus-mt-en-fr/decoder_model_merged"))
    assert "flatten-free-matmul: 102 Reshapes around batched nodes removed" in result.changes
    shapes = infer(result.model)
    assert {shapes[node.inputs[0]].rank for node in of_batches(result.model)} == {4}
