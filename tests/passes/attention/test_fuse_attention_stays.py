"""What `fuse-attention` leaves as it is, and what it says of it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from attentions import APART, BACK, MIXED, PLAIN, SCORES, THREE, TURNED, attention
from fusing import random_model
from rewriting import reasons

from graphkit.model import Model
from graphkit.passes.attention.fuse_attention import FuseAttention

PASS = FuseAttention()
START = THREE + APART + TURNED
STAYS: dict[str, tuple[Model, str]] = {
    "an old operator set": (
        attention(opset=12, ir=7),
        "its operator set is below 13: run convert-opset first",
    ),
    "a mask": (
        attention(START + "s = MatMul (qt, kt) a = Add (s, mask) t = Mul (a, c) " + MIXED + BACK, mask=(5, 5)),
        "a mask or a bias is added to its scores, which the fused node would need as an input",
    ),
    "a causal mask": (
        attention(
            START + "s = MatMul (qt, kt) t = Where (seen, s, c) " + MIXED + BACK,
            head="g (float[N, S, 6] x, bool[S, S] seen) => (y)",
        ),
        "a mask or a bias is added to its scores, which the fused node would need as an input",
    ),
    "a scale for each head": (
        attention(START + "s = MatMul (qt, kt) t = Mul (s, e) " + MIXED + BACK, e=(2, 1, 1)),
        "'Mul#10' scales its scores by other than one constant number",
    ),
    "a scale at run time": (
        attention(
            START + "s = MatMul (qt, kt) t = Mul (s, e) " + MIXED + BACK, head="g (float[N, S, 6] x, float e) => (y)"
        ),
        "'Mul#10' scales its scores by other than one constant number",
    ),
    "another axis": (
        attention(START + SCORES + "p = Softmax <axis = 1> (t) m = MatMul (p, vt) " + BACK),
        "the rank of its scores is not known, or its Softmax is over another axis than the last one",
    ),
    "a past": (
        attention(
            START + "kc = Concat <axis = 3> (past, kt) s = MatMul (qt, kc) t = Mul (s, c) p = Softmax (t) "
            "vc = Concat <axis = 2> (past_v, vt) m = MatMul (p, vc) " + BACK,
            head="g (float[N, S, 6] x, float[N, 2, 4, M] past, float[N, 2, M, 4] past_v) => (y)",
        ),
        "its keys are an input, or joined with others, such as a past",
    ),
    "another tensor": (
        attention(PLAIN.replace("(x, wk)", "(o, wk)"), head="g (float[N, S, 6] x, float[N, S, 6] o) => (y)"),
        "its queries, keys and values are made from different tensors",
    ),
    "a weight at run time": (
        attention(head="g (float[N, S, 6] x, float[6, 8] wq) => (y)"),
        "its queries are not made by a MatMul with a constant weight",
    ),
    "a bias for each row": (
        attention(PLAIN.replace("v = MatMul (x, wv)", "vp = MatMul (x, wv) v = Add (vp, e)"),
                  head="g (float[N, 5, 6] x) => (y)", e=(5, 1)),
        "what is added to its values is not one constant number for each column",
    ),
    "rotated queries": (
        attention(PLAIN.replace("(qt, kt)", "(qr, kt)").replace(" s = ", " qr = Mul (qt, e) s = "),
                  head="g (float[N, 5, 6] x) => (y)", e=(5, 4)),
        "'Mul#9' does something else to its queries than to tell heads apart",
    ),
    "a normalization of queries": (
        attention(PLAIN.replace("(qt, kt)", "(qr, kt)").replace(" s = ", " qr = Relu (qt) s = ")),
        "its queries are not made by a MatMul with a constant weight",
    ),
    "rank 4": (
        attention(
            "q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv) kt = Transpose <perm = [0, 1, 3, 2]> (k) "
            "t = MatMul (q, kt) p = Softmax (t) y = MatMul (p, v)",
            head="g (float[N, 2, S, 6] x) => (y)",
        ),
        "its queries are not made by a MatMul of a tensor of rank 3 and a matrix",
    ),
    "float16": (
        attention(head="g (float16[N, S, 6] x) => (y)", dtype=np.float16),
        "it is not of float32, for which alone onnxruntime has a kernel on the CPU",
    ),
    "scaled values": (
        attention(START + "vs = Mul (vt, c) t = MatMul (qt, kt) p = Softmax (t) m = MatMul (p, vs) " + BACK),
        "its values are scaled",
    ),
    "no scores": (attention(c=np.float32(0.0)), "its scale is 0 or not finite"),
    "heads that stay apart": (
        attention(START + SCORES + "p = Softmax (t) y = MatMul (p, vt) "),
        "what it gives is not put side by side by heads",
    ),
    "sizes before heads": (
        attention(START + SCORES + MIXED + "u = Transpose <perm = [0, 2, 3, 1]> (m) y = Reshape (u, flat) "),
        "what it gives is not put side by side by heads",
    ),
    "other heads of values": (
        attention(
            THREE + APART.replace("(v, heads)", "(v, wide)") + TURNED + SCORES + MIXED + BACK,
            wide=[0, 0, 1, 8],
            flat=[0, 0, 16],
        ),
        "its queries, keys and values have not the same heads",
    ),
    "windows of rows": (
        attention(
            START.replace("(q, heads)", "(q, w)").replace("(k, heads)", "(k, w)").replace("(v, heads)", "(v, w)")
            + SCORES + MIXED + "u = Transpose <perm = [0, 2, 1, 3]> (m) y = Reshape (u, all)",
            head="g (float[3, 4, 6] x) => (y)",
            w=[6, 2, 2, 4],
            all=[3, 4, 8],
        ),
        "it does not compare the rows of each batch",
    ),
    "probabilities as an output": (
        attention(head="g (float[N, S, 6] x) => (y, float[N, 2, S, S] p)"),
        "'p' is an output",
    ),
    "probabilities that others read": (
        attention(PLAIN + "z = ReduceMax (p)", head="g (float[N, S, 6] x) => (y, float[1, 1, 1, 1] z)"),
        "'p' is read elsewhere too",
    ),
    "values that others read": (
        attention(PLAIN + "z = Relu (v)", head="g (float[N, S, 6] x) => (y, float[N, S, 8] z)"),
        "'v' is read elsewhere too",
    ),
    "a weight that others read": (
        attention(PLAIN + "z = MatMul (x, wk)", head="g (float[N, S, 6] x) => (y, float[N, S, 8] z)"),
        "its weight 'wk' is read elsewhere too",
    ),
    "an IR version without functions": (
        attention(opset=13, ir=3),
        "its IR version is below 4, and functions need 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "reason"), STAYS.values(), ids=STAYS)
def test_it_stays(model: Model, reason: str) -> None:
    outcome = PASS.run(model)
    assert outcome.model is model
    (found,) = reasons(outcome)
    assert found.partition(": ")[2] == reason


def test_a_product_in_another_graph_stays() -> None:
    then = PLAIN.removeprefix("q = MatMul (x, wq) ").replace("y = ", "z = ")
    model = attention(
        f"q = MatMul (x, wq) y = If (f) <then_branch = a () => (float[N, S, 8] z) {{ {then} }}, "
        "else_branch = b () => (float[N, S, 8] o) { o = Identity (q) }>",
        head="g (float[N, S, 6] x, bool f) => (float[N, S, 8] y)",
    )
    (reason,) = reasons(PASS.run(model))
    assert reason.endswith("its nodes are in several graphs")


def with_function(model: Model, text: str, domain: str = "com.microsoft") -> Model:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    function = f'<domain: "{domain}", opset_import: ["" : 17]> Attention (a) => (b) {{ b = {text} (a) }}'
    proto.functions.append(onnx.parser.parse_function(function))
    return Model.from_proto(proto)


def test_another_function_of_the_name_stays() -> None:
    (reason,) = reasons(PASS.run(with_function(attention(), "Relu")))
    assert reason.endswith("the model has another function 'com.microsoft.Attention'")
    assert PASS.run(with_function(attention(), "Relu", "local")).changes


def test_nodes_without_a_function_stay_what_they_are() -> None:
    body = PLAIN + "z = com.microsoft.Attention <num_heads = 2> (x, w, b)"
    model = attention(body, head="g (float[N, S, 6] x) => (y, float[N, S, 8] z)", w=(6, 24), b=(24,))
    (reason,) = reasons(PASS.run(model))
    assert reason.endswith("nodes of com.microsoft.Attention, which the function would redefine for other runtimes")


def test_what_is_no_attention_is_not_spoken_of() -> None:
    model = random_model("g (float[N, S, 4] x) => (y) { a = Softmax (x) y = MatMul (a, w) }", w=(4, 3))
    outcome = PASS.run(model)
    assert outcome.model is model
    assert not outcome.declined
