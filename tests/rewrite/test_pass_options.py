from __future__ import annotations

import pytest

from graphkit.errors import UsageError
from graphkit.passes.clean_up.fold_constants import FoldConstants, FoldShapes
from graphkit.passes.registry import parse_pipeline
from graphkit.passes.shapes.declare_shapes import FreezeDims
from graphkit.rewrite.base import parse_bounds, parse_shape, parse_size, read_option


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("freeze-dims{dims=batch_size=1;sequence_length=8}", FreezeDims((("batch_size", 1), ("sequence_length", 8)))),
        ("freeze-dims{dims=a=b=1}", FreezeDims((("a=b", 1),))),
        ("freeze-dims{inputs=x=1x3x8;y=2}", FreezeDims((), (("x", (1, 3, 8)), ("y", (2,))))),
        ("freeze-dims{dims=n=1, inputs = x = 2 }", FreezeDims((("n", 1),), (("x", (2,)),))),
        ("freeze-dims{dims=n=1;}", FreezeDims((("n", 1),))),
        ("fold-shapes{ranges=a=0:5;b=:5;c=5:}", FoldShapes(ranges=(("a", 0, 5), ("b", None, 5), ("c", 5, None)))),
        ("fold-constants{limit=64}", FoldConstants(64)),
    ],
)
def test_options_of_several_values(text: str, step: object) -> None:
    assert parse_pipeline(text) == (step,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "freeze-dims{dims=n}",
            "freeze-dims: option 'dims': 'n' is not NAME=VALUE - write it as in batch_size=1;sequence_length=8",
        ),
        ("freeze-dims{dims=n=-1}", "freeze-dims: option 'dims': '-1' is not a size - write a number of at least 0"),
        ("freeze-dims{dims=n=1;n=2}", "freeze-dims: option 'dims': 'n' is given twice - give it once"),
        ("freeze-dims{inputs=x=1x}", "freeze-dims: option 'inputs': '' is not a size - write a number of at least 0"),
        ("fold-shapes{ranges=n=1:b}", "fold-shapes: option 'ranges': 'b' is not a size - write a number of at least 0"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_pipeline(text)
    assert str(error.value) == message


@pytest.mark.parametrize("text", ["", "x", "1.5", "-1", "１", "9" * 19])  # noqa: RUF001
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_sizes_shapes_and_bounds() -> None:
    assert (parse_size("0"), parse_size("800")) == (0, 800)
    assert (parse_shape("1x0x3"), parse_shape("7")) == ((1, 0, 3), (7,))
    assert [parse_bounds(text) for text in ("0:5", "5:", ":5", "8", ":")] == [
        (0, 5), (5, None), (None, 5), (8, 8), (None, None)
    ]  # fmt: skip


def test_bounds_of_nothing_are_none() -> None:
    with pytest.raises(UsageError, match="'' is not a size"):
        parse_bounds("")


def test_other_types_are_not_read_here() -> None:
    assert read_option("int | None", "3") is None
