from __future__ import annotations

import pytest
from fusing import check_close, operators, random_model
from rewriting import lines, reasons

from graphkit.model import Model
from graphkit.options import FoldingOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.fusion.fuse_into_linear import FusePads

PASS = FusePads()
IMAGE = "g (float[N, 2, 5, 4] x) => (float[n, m, h, w] y) "
AROUND = "<int64[8] p = {0, 0, 0, 1, 0, 0, 2, 3}>"
CONV = "{ a = Pad (x, p) y = Conv (a, k) }"


def image(nodes: str, inits: str = AROUND, opset: int = 17) -> Model:
    return random_model(IMAGE + inits + nodes, opset, k=(3, 2, 3, 3))


FUSED = {
    "a Conv without pads": (image(CONV), "pads: ints = [0, 1, 2, 3]"),
    "a Conv with pads, strides and dilations": (
        image("{ a = Pad (x, p) y = Conv <pads = [1, 0, 0, 2], strides = [2, 1], dilations = [1, 2]> (a, k) }"),
        "dilations: ints = [1, 2], pads: ints = [1, 1, 2, 5], strides: ints = [2, 1]",
    ),
    "no padding by auto_pad": (
        image('{ a = Pad (x, p) y = Conv <auto_pad = "VALID", kernel_shape = [3, 3]> (a, k) }'),
        "kernel_shape: ints = [3, 3], pads: ints = [0, 1, 2, 3]",
    ),
    "zeros that are written out": (
        image('{ a = Pad <mode = "constant"> (x, p, zero) y = Conv (a, k) }', f"{AROUND[:-1]}, float zero = {{0.0}}>"),
        "pads: ints = [0, 1, 2, 3]",
    ),
    "chosen axes": (
        image("{ a = Pad (x, p, , axes) y = Conv (a, k) }", "<int64[4] p = {1, 2, 3, 4}, int64[2] axes = {-1, 2}>", 18),
        "pads: ints = [2, 1, 4, 3]",
    ),
    "more zeros than the kernel has weights": (
        image(CONV, "<int64[8] p = {0, 0, 9, 0, 0, 0, 0, 9}>"),
        "pads: ints = [9, 0, 0, 9]",
    ),
}


@pytest.mark.parametrize(("model", "attributes"), FUSED.values(), ids=FUSED)
@pytest.mark.parametrize("batch", [0, 3])
def test_it_goes_into_the_conv(model: Model, attributes: str, batch: int) -> None:
    outcome = check_close(PASS, model, {"N": batch})
    assert lines(outcome.model) == [f"y = Conv <{attributes}> (x, k)"]


def test_an_axis_without_elements() -> None:
    model = random_model(
        "g (float[1, 2, L] x) => (y) <int64[6] p = {0, 0, 2, 0, 0, 2}> { a = Pad (x, p) y = Conv (a, k) }", k=(1, 2, 3)
    )
    for length in (0, 1):
        assert operators(check_close(PASS, model, {"L": length}).model) == ["Conv"]


def test_two_pads_in_a_row() -> None:
    model = image("{ b = Pad (x, p) a = Pad (b, p) y = Conv (a, k) }")
    assert lines(check_close(PASS, model).model) == ["y = Conv <pads: ints = [0, 2, 4, 6]> (x, k)"]


def test_other_readers_keep_the_pad() -> None:
    model = random_model("g (float[N, 2, 5, 4] x) => (y, z)" + AROUND + CONV[:-1] + "z = Neg (a) }", k=(3, 2, 3, 3))
    assert operators(check_close(PASS, model).model) == ["Pad", "Conv", "Neg"]


KEPT = {
    "another number": (
        image("{ a = Pad (x, p, one) y = Conv (a, k) }", f"{AROUND[:-1]}, float one = {{1.0}}>"),
        ["Conv#1: 'Pad#0' adds something else than zeros"],
    ),
    "reflected elements": (
        image('{ a = Pad <mode = "reflect"> (x, p) y = Conv (a, k) }'),
        ["Conv#1: 'Pad#0' adds something else than zeros"],
    ),
    "a cut": (image(CONV, "<int64[8] p = {0, 0, 1, 1, 0, 0, -1, 0}>"), ["Conv#1: 'Pad#0' takes elements away"]),
    "channels": (
        random_model(IMAGE + "<int64[8] p = {0, 1, 0, 0, 0, 0, 0, 0}>" + CONV, k=(3, 3, 3, 3)),
        ["Conv#1: 'Pad#0' adds batches or channels"],
    ),
    "an axis twice": (
        image("{ a = Pad (x, p, , axes) y = Conv (a, k) }", "<int64[4] p = {1, 2, 0, 0}, int64[2] axes = {2, -2}>", 18),
        ["Conv#1: 'Pad#0' names an axis twice"],
    ),
    "a default that a caller may change": (
        random_model(
            "g (float[N, 2, 5, 4] x, int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}) => (float[n, m, h, w] y)" + CONV,
            k=(3, 2, 3, 3),
        ),
        ["Conv#1: how much 'Pad#0' adds is not known"],
    ),
    "padding of its own": (
        image('{ a = Pad (x, p) y = Conv <auto_pad = "SAME_UPPER"> (a, k) }'),
        ["Conv#1: it chooses its own padding"],
    ),
    "an old Pad": (
        image("{ a = Pad <pads = [0, 0, 1, 1, 0, 0, 1, 1]> (x) y = Conv (a, k) }", "", 10),
        ["Conv#1: 'Pad#0' is of an opset before 11"],
    ),
}


@pytest.mark.parametrize(("model", "expected"), KEPT.values(), ids=KEPT)
def test_it_stays(model: Model, expected: list[str]) -> None:
    outcome = PASS.run(model)
    assert outcome.model is model
    assert reasons(outcome) == expected


def test_a_pad_without_effect_is_not_counted() -> None:
    model = image(
        "{ a = Pad (x, none) b = Conv <pads = [1, 1, 1, 1]> (a, k) c = Pad (b, p) y = Conv (c, l) }",
        f"{AROUND[:-1]}, int64[8] none = {{{', '.join('0' * 8)}}}, float[1, 3, 1, 1] l = {{1, 2, 3}}>",
    )
    changes = fold(model, options=FoldingOptions(fuse=True)).changes
    assert changes == (
        "eliminate-identity: 1 node without effect removed",
        "fuse-pads: 1 Pad put into the pads of a Conv",
    )
