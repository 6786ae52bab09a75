from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import onnx.parser
import pytest
from builders import model_with_constants as model
from msgspec.structs import replace

from graphkit.analysis.hazards import SHOWN, Check, Hazard, Hazards, LegalSizes, hazards
from graphkit.errors import ModelError
from graphkit.model import Model, load
from graphkit.render.result import Sizes
from graphkit.runtime.session import Session

RealModel = Callable[[str], Model]


EXPECTED: dict[str, tuple[tuple[str, str], ...]] = {
    "bert-fill-mask/model": (
        (
            "limit",
            "at sequence_length=65, Add '/bert/embeddings/Add_1' fails: dims that do not broadcast: "
            "sequence_length is 65 and min(64, sequence_length) is 64",
        ),
    ),
    "cache-styles/stacked": (
        (
            "limit",
            "at seq=65, past_len=0 or seq=3, past_len=62, Gather '/pos/Gather' fails: index 64 (past_len + seq - "
            "1) into an axis of 64",
        ),
    ),
    "cache-styles/static-cache": (),
    "detr-resnet-50/model_quantized": (
        (
            "sizes",
            "at num_channels=2 or num_channels=4, ConvInteger "
            "'/model/backbone/conv_encoder/model/conv1/Conv_quant' fails: channels of input and weight differ: "
            "num_channels is 2, not 3",
        ),
    ),
    "gemma-270m/model": (
        (
            "fit",
            "at sequence_length=4, total_sequence_length=3, past_sequence_length=0 or sequence_length=3, "
            "total_sequence_length=2, past_sequence_length=0 or sequence_length=3, total_sequence_length=3, "
            "past_sequence_length=1, Gather '/model/Gather_5' fails: index 6 (batch_size*total_sequence_length + "
            "past_sequence_length + sequence_length - total_sequence_length - 1) into an axis of 6 "
            "(batch_size*total_sequence_length)",
        ),
    ),
    "gpt2-tiny/decoder_model_merged": (
        (
            "fit",
            "at sequence_length=4, attention_mask.1=3 or sequence_length=3, attention_mask.1=2, Gather "
            "'optimum::if/else_branch//transformer/Gather_6' fails: index 6 (attention_mask.1*batch_size - "
            "attention_mask.1 + sequence_length - 1) into an axis of 6 (attention_mask.1*batch_size)",
        ),
        (
            "fit",
            "at sequence_length=4, attention_mask.1=3, past_sequence_length=0 or sequence_length=3, "
            "attention_mask.1=2, past_sequence_length=0 or sequence_length=3, attention_mask.1=3, "
            "past_sequence_length=1, Gather 'optimum::if/then_branch//transformer/Gather_7' fails: index 6 "
            "(attention_mask.1*batch_size - attention_mask.1 + past_sequence_length + sequence_length - 1) "
            "into an axis of 6 (attention_mask.1*batch_size)",
        ),
    ),
    "llama-int4/model": (
        (
            "limit",
            "at sequence_length=129, total_sequence_length=129, com.microsoft.GroupQueryAttention "
            "'/model/layers.0/attn/GroupQueryAttention' fails: more positions than the table has: "
            "total_sequence_length is 129, more than 128",
        ),
        (
            "fit",
            "at batch_size=2, sequence_length=3, total_sequence_length=4, past_sequence_length=1, "
            "com.microsoft.GroupQueryAttention '/model/layers.0/attn/GroupQueryAttention' fails: 3 new positions "
            "of 4 in a batch of 2",
        ),
        (
            "fit",
            "at sequence_length=3, total_sequence_length=2, past_sequence_length=0, "
            "com.microsoft.GroupQueryAttention '/model/layers.0/attn/GroupQueryAttention' fails: total, past and "
            "new positions that do not go together: total_sequence_length is 2, past_sequence_length is 0, "
            "sequence_length is 3",
        ),
    ),
    "marian-tiny/decoder_model_merged": (
        (
            "limit",
            "at decoder_sequence_length=65, Gather "
            "'optimum::if/else_branch//model/decoder/embed_positions/Gather' fails: index 64 "
            "(decoder_sequence_length - 1) into an axis of 64",
        ),
        (
            "limit",
            "at decoder_sequence_length=65, past_decoder_sequence_length=0 or decoder_sequence_length=3, "
            "past_decoder_sequence_length=62, Gather "
            "'optimum::if/then_branch//model/decoder/embed_positions/Gather' fails: index 64 "
            "(decoder_sequence_length + past_decoder_sequence_length - 1) into an axis of 64",
        ),
    ),
    "nllb-600m/decoder_model": (
        (
            "limit",
            "at decoder_sequence_length=1025, Gather '/model/decoder/embed_positions/Gather_2' fails: index 1026 "
            "(decoder_sequence_length + 1) into an axis of 1026",
        ),
    ),
    "nllb-600m/decoder_with_past_model": (
        (
            "limit",
            "at past_decoder_sequence_length=1024, Gather '/model/decoder/embed_positions/Gather_2' fails: index "
            "1026 (past_decoder_sequence_length + 2) into an axis of 1026",
        ),
    ),
    "opus-mt-en-fr/encoder_model": (
        (
            "limit",
            "at encoder_sequence_length=513, Gather '/embed_positions/Gather' fails: index 512 "
            "(encoder_sequence_length - 1) into an axis of 512",
        ),
    ),
    "patchtst/model": (
        (
            "sizes",
            "at sequence_length=7, MatMul '/model/encoder/embedder/input_embedding/MatMul' fails: the inner dims "
            "of a product differ: min(8, sequence_length) is 7, not 8",
        ),
        (
            "sizes",
            "at sequence_length=9, Concat '/model/patchifier/Concat' fails: shapes that cannot be joined at axis "
            "2: [2, 3, 1, 8], [2, 3, 1, 1], [2, 3, 1, 0] and [2, 3, 1, 0]",
        ),
    ),
    "search/loop-greedy": (),
    "vit-qdq/model": (
        (
            "sizes",
            "at num_channels=2 or num_channels=4, Conv '/vit/embeddings/patch_embeddings/projection/Conv' fails: "
            "channels of input and weight differ: num_channels is 2, not 3",
        ),
        (
            "sizes",
            "at height=40, width=32 or height=32, width=40 or height=31, width=32 or height=32, width=31, Add "
            "'/vit/embeddings/Add' fails: dims that do not broadcast: (height // 8)*(width // 8) + 1 is 21 and 17",
        ),
    ),
    "whisper-tiny/decoder_model_merged": (
        (
            "limit",
            "at decoder_sequence_length=65, Gather "
            "'optimum::if/else_branch//model/decoder/embed_positions/Gather' fails: index 64 "
            "(decoder_sequence_length - 1) into an axis of 64",
        ),
        (
            "limit",
            "at decoder_sequence_length=65, past_decoder_sequence_length=0 or decoder_sequence_length=3, "
            "past_decoder_sequence_length=62, Gather "
            "'optimum::if/then_branch//model/decoder/embed_positions/Gather' fails: index 64 "
            "(decoder_sequence_length + past_decoder_sequence_length - 1) into an axis of 64",
        ),
    ),
}


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", EXPECTED)
def test_hazards_of_real_exports(name: str, real_model: RealModel) -> None:
    found = hazards(real_model(name))
    assert (found.undecided, tuple((one.kind, str(one)) for one in found.hazards)) == ("", EXPECTED[name])


def test_a_hazard_in_full(real_model: RealModel) -> None:
    (one,) = hazards(real_model("bert-fill-mask/model")).hazards
    assert one == Hazard(
        kind="limit",
        op="Add",
        input="",
        nodes=("/bert/embeddings/Add_1",),
        problem="dims that do not broadcast: sequence_length is 65 and min(64, sequence_length) is 64",
        says="broadcast",
        shape=None,
        dims=(("batch_size", 2), ("sequence_length", 65)),
        fine=(("batch_size", 2), ("sequence_length", 64)),
        examples=((("sequence_length", 65),),),
    )


LAYERS = model(
    "(float[b, past_n, 8] x) => (float[A, B, C, D] y, float[E, F, G, H] v)",
    """w = Neg(x)  s = Shape(x)  b = Gather(s, i0)  n = Gather(s, i1)  m = Constant <value_ints = [2, -1]> ()
    t = Concat <axis = 0> (b, n, m)  [one] y = Reshape(x, t)  [two] v = Reshape(w, t)""",
)


def test_nodes_that_need_the_same_are_one_hazard() -> None:
    (one,) = hazards(LAYERS).hazards
    assert (one.kind, one.op, one.input, one.nodes) == ("empty", "Reshape", "shape", ("one", "two"))


def test_as_text() -> None:
    assert hazards(LAYERS).to_text() == (
        """\
Hazards

Dims that the inputs allow, the nodes that cannot handle them, and what
onnxruntime does.

#  Dims      Kind   Nodes
──────────────────────────
1  past_n=0  empty      2
     Reshape (shape): [3, 0, 8] to [b, past_n, 2, -1] = [3, 0, 2, -1]: -1 beside
     0 cannot be inferred
     at one, two
     onnxruntime: an error with "cannot be reshaped to the requested shape"

empty: fails if a dim is 0.

"""
    )


def test_a_check_is_told_in_the_place_of_what_is_foretold() -> None:
    (one,) = hazards(LAYERS).hazards
    texts = []
    for confirmed in (True, False, None):
        checked = replace(one, check=Check(confirmed, "so it is"))
        text = Hazards((checked,)).to_text()
        texts += [line.strip() for line in text.splitlines() if "so it is" in line or "onnxruntime:" in line]
    assert texts == [
        "confirmed: so it is",
        'onnxruntime: an error with "cannot be reshaped to the requested shape"',
        "not confirmed: so it is",
        'onnxruntime: an error with "cannot be reshaped to the requested shape"',
        "not run: so it is",
    ]


def test_a_model_without_hazards_says_so() -> None:
    text = hazards(model("(float[n] x) => (float[A] y)", "y = Relu(x)")).to_text()
    assert text == "Hazards\n\nNone found: at all dims that were tried, the preconditions of every node hold.\n\n"


def test_where_no_dims_fit_that_is_told() -> None:
    found = hazards(
        model(
            "(float[n] x, float[m] w) => (float y, float v)",
            "a = Concat <axis = 0> (x, x)  b = Concat <axis = 0> (w, w)"
            "  [one] y = MatMul(a, w)  [two] v = MatMul(x, b)",
        )
    )
    assert found.to_text() == (
        """\
Hazards

Warning: Not looked for: no dims were found at which the preconditions of these
nodes hold: MatMul two.

"""
    )


def test_a_size_that_one_node_needs_of_another_is_a_hazard_although_no_shape_says_it() -> None:
    """The Reshape's rows are known from the first MatMul alone, and the second one needs them too."""
    found = hazards(
        model(
            "(float[n, k] x, int64[2] t, float[m, l] b, float[4, p] c) => (float[A, B] y, float[C, D] z)",
            "r = Reshape(x, t)  [first] y = MatMul(b, r)  [second] z = MatMul(c, r)",
        )
    )
    assert [(one.kind, one.op, one.nodes) for one in found.hazards] == [("fit", "MatMul", ("second",))]
    assert found.hazards[0].examples[0] == (("l", 3), ("p", 2))


def test_what_never_runs_comes_first_and_is_a_finding() -> None:
    found = hazards(
        model(
            "(float[n, 4] x, float[n] w, float[m] v) => (float[A] y, float[B] u)",
            "[no] y = MatMul(x, i)  u = Add(w, v)  i = Constant <value_floats = [1.0, 2.0]> ()",
        )
    )
    assert [(one.kind, one.op) for one in found.hazards] == [("never", "MatMul"), ("fit", "Add")]
    assert found.findings() == ("at any dims, MatMul 'no' fails: the inner dims of a product: 4 is not 2",)


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("MaxPool <kernel_shape = [3, 3]> (x)", "the attribute kernel_shape has 2 numbers, not 1"),
        ("AveragePool <kernel_shape = [3], strides = [1, 1]> (x)", "the attribute strides has 2 numbers, not 1"),
        ("ConvTranspose (x, w)", "an input of rank 3, a weight of rank 4"),
    ],
)
def test_windows_of_other_axes_than_the_input_has_never_run(node: str, problem: str) -> None:
    """SuperPoint by TorchScript pools three axes by a window of two, which onnxruntime does not load."""
    text = f"g (float[1, 4, 8] x, float[4, 4, 3, 3] w) => (float[a, c, d] y) {{ y = {node} }}"
    found = Model.from_proto(onnx.helper.make_model(onnx.parser.parse_graph(text)))
    assert [(one.kind, one.problem) for one in hazards(found).hazards] == [("never", problem)]
    with pytest.raises(ModelError):
        Session(found)


def test_a_wrong_shape_and_an_empty_dim_are_findings_and_a_limit_is_not(real_model: RealModel) -> None:
    assert hazards(LAYERS).findings() == tuple(map(str, hazards(LAYERS).hazards))
    assert hazards(real_model("bert-fill-mask/model")).findings() == ()


def test_the_worst_comes_first() -> None:
    found = hazards(
        model(
            "(float[n] x, float[m] w, float[past_n, 4, past_n] p) => (float[A] y, float[B, C] v)",
            "y = Add(x, w)  s = Shape(p)  n = Gather(s, i0)  m = Mul(n, i4)  t = Concat <axis = 0> (n, m)"
            "  v = Reshape(p, t)",
        )
    )
    assert [one.kind for one in found.hazards] == ["wrong shape", "fit"]


def test_what_a_reader_need_not_know_is_left_out_of_the_dims() -> None:
    found = hazards(model("(float[b, k, n] x, float[m] w) => (float[A, B, C] y)", "y = Add(x, w)"))
    assert found.hazards[0].examples[0] == (("n", 2), ("m", 3))
    assert found.hazards[0].dims == (("b", 3), ("k", 3), ("n", 2), ("m", 3))


def test_many_hazards_are_bounded_in_text_and_complete_in_json() -> None:
    (one,) = hazards(LAYERS).hazards
    found = Hazards((one,) * (SHOWN + 2))
    assert "2 more in the JSON report." in found.to_text()
    assert len(json.loads(found.to_json())["hazards"]) == SHOWN + 2


def test_json_has_everything() -> None:
    (one,) = json.loads(hazards(LAYERS).to_json())["hazards"]
    assert one == {
        "kind": "empty",
        "op": "Reshape",
        "input": "shape",
        "nodes": ["one", "two"],
        "problem": "[3, 0, 8] to [b, past_n, 2, -1] = [3, 0, 2, -1]: -1 beside 0 cannot be inferred",
        "says": "cannot be reshaped to the requested shape",
        "shape": None,
        "dims": {"b": 3, "past_n": 0},
        "fine": {"b": 3, "past_n": 1},
        "examples": [{"past_n": 0}],
        "also": [],
        "check": None,
    }


def test_equal_hazards_of_both_branches_are_one() -> None:
    found = hazards(
        model(
            "(bool c, float[n] x, float[m] w) => (float[A] y)",
            """[if] y = If (c) <
                then_branch = t () => (float[B] p) { p = Add(x, w) },
                else_branch = e () => (float[D] q) { q = Add(w, x) }
            >""",
        )
    )
    assert [one.nodes for one in found.hazards] == [("if/then_branch/Add#0",), ("if/else_branch/Add#0",)]


def test_a_branch_does_not_hide_what_fails_in_the_other_one() -> None:
    found = hazards(
        model(
            "(bool c, float[n] x, float[8] t) => (float[A] y)",
            """s = Shape(x)  n = Squeeze(s)  r = Range(z, n, o)  [if] y = If (c) <
                then_branch = a () => (float[B] p) { p = Gather(t, r) },
                else_branch = b () => (float[D] q) { k = Add(r, o)  q = Gather(t, k) }
            >""",
        )
    )
    assert [(one.examples, one.nodes) for one in found.hazards] == [
        (((("n", 8),),), ("if/else_branch/Gather#1",)),
        (((("n", 9),),), ("if/then_branch/Gather#0",)),
    ]


PYRAMID = """
    a = MaxPool <kernel_shape = [2], strides = [2], ceil_mode = CEIL> (x)
    b = MaxPool <kernel_shape = [2], strides = [2], ceil_mode = CEIL> (a)
    c = Resize <mode = "nearest"> (b, none, scales)
    y = Concat <axis = 1> (a, c)
"""


def pyramid(ceil: int) -> Model:
    """Return a model that joins an image at half its size with one at a quarter, which is enlarged again."""
    words = "<float[0] none = {}, float[3] scales = {1, 1, 2}>"
    head = '<ir_version: 10, opset_import: ["" : 18]>'
    body = PYRAMID.replace("CEIL", str(ceil))
    text = f"{head} g (float[b, 3, width] x) => (float[b, 6, w] y) {words} {{ {body} }}"
    return Model.from_proto(onnx.parser.parse_model(text))


def runs(model: Model, **sizes: int) -> bool:
    shape = [dim.dim_value or sizes[dim.dim_param] for dim in model.proto.graph.input[0].type.tensor_type.shape.dim]
    try:
        Session(model, threads=1).run({"x": np.zeros(shape, np.float32)})
    except ModelError:
        return False
    return True


CHUNKS = """<ir_version: 8, opset_import: ["": 17]> g (float[s] x) => (float[n] y)
<int64[1] three = {3}, int64[1] four = {4}, float[1] one = {1}> {
  k = Shape (x) up = Add (k, three) n = Div (up, four) m = Min (k, four) length = Mul (n, m)
  ones = Expand (one, length) y = Add (x, ones)
}"""


def test_sizes_within_a_chunk_are_legal_beside_its_multiples() -> None:
    """As of the scans of state space models, which pad the last of several chunks."""
    model = Model.from_proto(onnx.parser.parse_model(CHUNKS))
    (rule,) = hazards(model).legal
    assert rule == LegalSizes("s", "multiples of 4 from 4, or any up to 4", 4, 4, None, 0, 0, 4, True)
    assert [size for size in range(1, 17) if runs(model, s=size)] == [1, 2, 3, 4, 8, 12, 16]


RULES = {
    0: (
        "multiples of 4 from 4, or up to 1 more",
        LegalSizes("width", "", 4, 4, None, 0, 1, 0, True),
    ),
    1: ("multiples of 4 from 4, or up to 1 less", LegalSizes("width", "", 4, 4, None, 1, 0, 0, True)),
}


def unet(up: str) -> Model:
    """Return a UNet of three levels: each is halved, enlarged by UP again, and joined with what it was."""
    shape = "kernel_shape = [2], strides = [2]"
    down = " ".join(f"x{n + 1} = MaxPool <{shape}> (x{n})" for n in range(3))
    body = ""
    for n in (2, 1, 0):
        enlarged = up.replace("SKIP", f"x{n}").replace("BELOW", f"y{n + 1}").replace("N", str(n))
        body += f"{enlarged} m{n} = Concat <axis = 1> (x{n}, u{n}) y{n} = Slice (m{n}, zero, three, one) "
    weights = (
        "<float[0] none = {}, float[3] scales = {1, 1, 2}, "
        "int64[1] zero = {0}, int64[1] three = {3}, int64[1] one = {1}>"
    )
    text = f"g (float[b, 3, height] x0) => (y) {weights} {{ {down} y3 = Identity (x3) {body} y = Identity (y0) }}"
    return Model.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}'))


@pytest.mark.parametrize(
    ("up", "legal", "runs_at", "fails_at"),
    [
        (
            "uN = Resize (BELOW, none, scales)",
            "height: multiples of 8 from 8",
            (8, 16, 64, 72),
            (9, 12, 20, 63, 65),
        ),
        ("sN = Shape (SKIP) uN = Resize (BELOW, none, none, sN)", "height: 8 or more", (8, 9, 12, 63, 65), ()),
    ],
)
def test_legal_heights_of_a_unet(up: str, legal: str, runs_at: tuple[int, ...], fails_at: tuple[int, ...]) -> None:
    model = unet(up)
    found = hazards(model).legal
    assert [f"{each.dim}: {each.text}" for each in found] == [legal]
    for size in runs_at + fails_at:
        proto = onnx.ModelProto.FromString(model.proto.SerializeToString())
        for dim, number in zip(proto.graph.input[0].type.tensor_type.shape.dim, (1, 3, size), strict=True):
            dim.dim_value = number
        feed = {"x0": np.zeros((1, 3, size), np.float32)}
        try:
            Session(Model.from_proto(proto), threads=1).run(feed)
        except ModelError:
            assert size in fails_at
        else:
            assert size in runs_at


@pytest.mark.parametrize("ceil", RULES)
def test_sizes_that_must_be_multiples(ceil: int) -> None:
    model, (text, rule) = pyramid(ceil), RULES[ceil]
    found = hazards(model)
    assert found.legal == (replace(rule, text=text),)
    assert {one.kind for one in found.hazards} == {"sizes"}
    assert [(one.kind, one.where) for one in found.found()] == [("legal-sizes", f"width: {text}")]
    assert runs(model, **dict(found.works))
    for size in (*range(2, 18), 61, 63, 64, 65, 66, 1022, 1023, 1024, 1025, 1026):
        near = (size + 1) // 4 * 4
        assert runs(model, b=1, width=size) == (near >= 4 and -rule.less <= size - near <= rule.more), size


def test_legal_sizes_as_text() -> None:
    assert hazards(pyramid(1)).to_text() == (
        """\
Hazards

Legal sizes: width: multiples of 4 from 4, or up to 1 less. Such sizes are b=3,
width=32.

Dims that the inputs allow, the nodes that cannot handle them, and what
onnxruntime does.

#  Dims      Kind   Nodes
──────────────────────────
1  width=30  sizes      1
     Concat: shapes that cannot be joined at axis 1: [3, 3, 15] and [3, 3, 16]
     at Concat#3
     onnxruntime: an error with "Non concat axis dimensions must match"

sizes: fails at sizes that are not legal.

"""
    )


def test_a_dim_whose_legal_sizes_depend_on_another_has_no_rule() -> None:
    found = hazards(model("(float[n] x, float[m] z) => (float[k] y)", "a = Concat <axis = 0> (x, x) y = Add (a, z)"))
    assert (found.legal, found.works) == ((), Sizes())


def test_two_dims_that_may_leave_their_rules_together_have_other_legal_sizes() -> None:
    """As many patches may lie in other rows: 4 x 16 are as many as 8 x 8."""
    image = Model.from_proto(
        onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[1, 1, height, width] x) => (float[1, places, 1] y)
        <float[1, 1, 4, 4] w = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, int64[3] rows = {1, -1, 1},
         int64[6] front = {0, 1, 0, 0, 0, 0}, float[5, 1] positions = {1, 2, 3, 4, 5}> {
            patches = Conv <strides = [4, 4]> (x, w)
            flat = Reshape (patches, rows)
            with_token = Pad (flat, front)
            y = Add (with_token, positions)
        }""")
    )
    found = hazards(image)
    assert not any(rule.is_exact for rule in found.legal)
    assert {rule.dim for rule in found.legal} == {"height", "width"}
    assert all(rule.text.endswith(", and some others") for rule in found.legal)
    sizes = dict(found.works)
    assert runs(image, **sizes)
    assert runs(image, height=8, width=8)


def test_legal_sizes_hold_only_as_far_as_shapes_are_known() -> None:
    text = pyramid(0).proto
    text.graph.node.extend(onnx.parser.parse_graph("g (float[n] y) => (t) { t = NonZero (y) }").node)
    found = hazards(Model.from_proto(text))
    assert not found.is_complete
    assert "Legal sizes, as far as shapes are known: width: multiples of 4" in found.to_text()
    assert found.found()[0].where.startswith(
        "width: multiples of 4 from 4, or up to 1 more, as far as shapes are known"
    )
    assert found.found()[0].text.startswith("as far as shapes are known, legal sizes are width")
    assert hazards(pyramid(0)).found()[0].where.startswith("width: multiples of 4")


def test_sizes_that_only_have_to_fit_each_other_are_no_limit() -> None:
    """A mask over past and new tokens may be as long as the past is."""
    assert {hazard.kind for hazard in hazards(load("example:decode")).hazards} == {"fit"}


def test_a_length_that_an_exporter_froze_beside_a_recurrent_state_is_the_only_one() -> None:
    """A Reshape to 5 steps takes other lengths for other batches, which the state has not."""
    tagger = Model.from_proto(
        onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[b, t, 3] x, float[1, b, 2] state) => (float[5, 1, b, 2] y)
        <float[1, 6, 3] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
         float[1, 6, 2] r = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, int64[3] steps = {5, -1, 3}> {
            rows = Transpose <perm = [1, 0, 2]> (x)
            lines = Reshape (rows, steps)
            y = GRU <hidden_size = 2> (lines, w, r, , , state)
        }""")
    )
    assert "Legal sizes: t: only 5." in hazards(tagger).to_text()
