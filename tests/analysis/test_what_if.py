from __future__ import annotations

from collections.abc import Callable

import pytest
from builders import model_with_constants as model
from real_models import params

from graphkit.analysis.shape_origins import MAX_SYMBOLS, Freeze, OpCount, Stay, WhatIf, what_if
from graphkit.model import Model, load
from graphkit.shapes import infer

FROZEN = (
    "bert-fill-mask/model",
    "cache-styles/stacked",
    "detr-resnet-50/model_quantized",
    "gpt2-tiny/decoder_model_merged",
    "vit-qdq/model",
    "whisper-tiny/decoder_model_merged",
)
RealModel = Callable[[str], Model]
WORDS = "<int64 z = {0}, int64 o = {1}, int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] m1 = {-1}>"


def removes(found: WhatIf) -> dict[str, int]:
    return {",".join(one.symbols): one.removes for one in found.freezes}


FLAT = model(
    "(float[b, n, 8] x) => (float[A, B] y)",
    """s = Shape(x)  b = Gather(s, z)  bu = Unsqueeze(b, i0)  n = Gather(s, o)  nu = Unsqueeze(n, i0)
    bn = Mul(bu, nu)  t = Concat <axis = 0> (bn, m1)  y = Reshape(x, t)""",
)


def test_a_node_vanishes_where_its_elements_are_numbers_or_nothing_reads_them() -> None:
    found = what_if(FLAT)
    assert found.total == 7
    # b: its Gather and Unsqueeze; both: all the rest too, the Shape because nothing reads it any more
    assert removes(found) == {"": 0, "b": 2, "n": 2, "b,n": 7}


def test_a_sum_counts_as_its_symbol() -> None:
    found = what_if(
        model(
            "(float[past_n, 4] x) => (float[A] y)", "s = Shape(x)  n = Gather(s, i0)  k = Add(n, i1)  y = Expand(x, k)"
        )
    )
    assert removes(found) == {"": 0, "past_n": 3}


def test_what_is_a_number_whatever_the_dims_is_told() -> None:
    found = what_if(
        model(
            "(float[b, 8] x) => (float[A, B] y)",
            "s = Shape(x)  h = Gather(s, i1)  k = Mul(h, h)  t = Concat <axis = 0> (m1, k)  y = Reshape(x, t)",
        )
    )
    assert found.today == (OpCount("Concat", 1), OpCount("Gather", 1), OpCount("Mul", 1), OpCount("Shape", 1))
    assert found.freezes == (Freeze((), 4), Freeze(("b",), 4))


def test_what_only_constants_make_is_a_number() -> None:
    body = "t = ConstantOfShape(i1)  k = Concat <axis = 0> (t, m1)  y = Reshape(x, k)"
    found = what_if(model("(float[b, 8] x) => (float[A, B] y)", body))
    assert found.today == (OpCount("Concat", 1), OpCount("ConstantOfShape", 1))


def test_constants_are_no_shape_ops() -> None:
    body = "t = Constant <value_ints = [-1, 4]> ()  y = Reshape(x, t)"
    assert what_if(model("(float[b, 8] x) => (float[A, B] y)", body)) == WhatIf(
        0, (), (Freeze((), 0), Freeze(("b",), 0)), ()
    )


def test_what_rests_on_data_stays_and_says_why() -> None:
    found = what_if(
        model(
            "(float[b] x) => (float[A] y)",
            "w = NonZero(x)  s = Shape(w)  n = Gather(s, i1)  y = Slice(x, i0, n)",
        )
    )
    assert removes(found) == {"": 0, "b": 0}
    assert found.stays == (Stay("it is how many elements of 'x' are not zero", ("Shape#1", "Gather#2")),)


def test_an_output_of_the_graph_is_needed() -> None:
    body = "s = Shape(x)  n = Gather(s, i0)  y = Expand(x, n)"
    alive = what_if(model("(float[b, 8] x) => (float[A] y, int64[2] s)", body))
    dead = what_if(model("(float[b, n] x) => (float[A] y)", body))
    assert removes(alive) == {"": 0, "b": 2}
    assert removes(dead) == {"": 0, "b": 2, "n": 0}
    kept = what_if(model("(float[b, n] x) => (float[A] y, int64[2] s)", body))
    assert removes(kept) == {"": 0, "b": 1, "n": 0, "b,n": 2}


def test_a_body_reads_what_is_outside() -> None:
    found = what_if(
        model(
            "(bool c, float[b, n] x) => (float[A, B] y)",
            """s = Shape(x)  n = Gather(s, i1)  y = If (c) <
                then_branch = t () => (float[C, D] p) { k = Concat <axis = 0> (m1, n)  p = Reshape(x, k) },
                else_branch = e () => (float[E, F] q) { q = Identity(x) }
            >""",
        )
    )
    assert removes(found) == {"": 0, "b": 0, "n": 3}


def test_sets_that_add_nothing_are_left_out() -> None:
    body = "s = Shape(x)  a = Gather(s, i0)  b = Gather(s, i1)  y = Expand(w, a)  v = Expand(w, b)"
    found = what_if(model("(float[a, b] x, float[1] w) => (float[A] y, float[B] v)", body))
    assert removes(found) == {"": 0, "a": 1, "b": 1, "a,b": 3}


def test_many_symbols_are_bounded() -> None:
    count = MAX_SYMBOLS + 4
    dims = ", ".join(f"d{index}" for index in range(count))
    found = what_if(model(f"(float[{dims}] x) => (y)", "s = Shape(x)  y = ConstantOfShape(s)"))
    assert len(found.freezes) == 1 + count + 1
    assert found.freezes[count].symbols == (f"d{count - 1}",)
    assert found.freezes[-1] == Freeze(tuple(f"d{index}" for index in range(count)), 1)


def test_as_text() -> None:
    found = what_if(
        model(
            "(float[b, n] x, float[k] w) => (float[A, B] y, float[C] v)",
            """s = Shape(x)  b = Gather(s, i0)  n = Gather(s, i1)  t = Concat <axis = 0> (b, n, i1)  y = Reshape(x, t)
            u = Shape <start = 0, end = 0> (x)  a = NonZero(w)  e = Shape(a)  f = Gather(e, i1)  v = Slice(w, i0, f)
            h = Expand(x, u)""",
        )
    )
    assert found.to_text() == (
        """\
What if

7 nodes compute shapes, operators of arithmetic on them included.

Numbers already, at any dims: 1 (Shape 1).

Of 7 shape ops, with input dims frozen
Frozen   Removes  Leaves
─────────────────────────
nothing        1       6
b              2       5
n              2       5
b, n           5       2

Freezing these alone removes nothing more: k.

2 nodes stay even so, such as Shape#7: it is how many elements of 'w' are not
zero.

"""
    )


def test_a_model_without_shape_ops_says_so() -> None:
    text = what_if(model("(float[b] x) => (float[A] y)", "y = Relu(x)")).to_text()
    assert text == "What if\n\nNo node computes a shape.\n\n"


def test_the_merged_example() -> None:
    found = what_if(load("example:merged-decoder"))
    assert found.total == 234
    assert removes(found)["batch_size"] == 106


@pytest.mark.cases("bert-fill-mask", "stacked")
@pytest.mark.parametrize("name", params(FROZEN, ["detr-resnet-50/model_quantized"]))
def test_as_many_vanish_as_when_the_dims_are_really_frozen(name: str, real_model: RealModel) -> None:
    found = real_model(name)
    told = what_if(found)
    for freeze in told.freezes:
        sizes = {symbol: _size(symbol, index) for index, symbol in enumerate(freeze.symbols)}
        frozen = what_if(found, shapes=infer(found, dims=sizes))
        assert (freeze.symbols, frozen.freezes[0].removes) == (freeze.symbols, freeze.removes)


def _size(symbol: str, index: int) -> int:
    if "channels" in symbol:
        return 3
    return 64 if symbol in ("height", "width") else 33 + 2 * index


def test_gemma_needs_three_dims(real_model: RealModel) -> None:
    found = removes(what_if(real_model("gemma-270m/model")))
    assert found == {
        "": 736,
        "batch_size": 1003,
        "sequence_length": 850,
        "past_sequence_length": 739,
        "total_sequence_length": 736,
        "batch_size,sequence_length": 1189,
        "sequence_length,past_sequence_length": 1057,
        "batch_size,sequence_length,past_sequence_length": 1548,
    }


def test_detr_needs_its_whole_image(real_model: RealModel) -> None:
    found = what_if(real_model("detr-resnet-50/model_quantized"))
    assert (found.total, found.stays) == (660, ())
    assert removes(found) == {
        "": 137,
        "batch_size": 502,
        "height": 140,
        "width": 140,
        "num_channels": 137,
        "height,width": 240,
        "batch_size,height,width": 660,
    }
