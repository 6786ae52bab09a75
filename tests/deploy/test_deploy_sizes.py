"""The sizes at which exports are lowered and bundled, by the names that users give."""

from __future__ import annotations

import pytest
from small_models import model

from graphkit.deploy.deploy_sizes import _sizes_of_names, with_input_sizes
from graphkit.errors import UsageError
from graphkit.examples import resolve
from graphkit.model import Model, load
from graphkit.options import BundleOptions, LowerOptions

PICTURES = """g (float[b, 3, h, w] pixel_values, int64[b, h, w] pixel_mask) => (float[b, 3] y, int64[b, h, w] m) {
    y = ReduceMean <keepdims = 0> (pixel_values, last)
    m = Identity (pixel_mask)
}"""


def test_a_size_of_a_name_is_that_of_all_dims_of_the_name() -> None:
    """No node relates the pixels of this mask to those of the picture, and whoever gives `h` means both."""
    pictures = model(PICTURES, last=[2, 3])
    assert _sizes_of_names(pictures, {"h": 64, "w": 48}) == {"h": 64, "pixel_mask.1": 64, "w": 48, "pixel_mask.2": 48}
    assert _sizes_of_names(pictures, {"h": 64, "pixel_mask.1": 8}) == {"h": 64, "pixel_mask.1": 8}


@pytest.fixture(scope="module")
def pair() -> list[Model]:
    """An encoder and a merged decoder, both with `input_ids`."""
    return [load(resolve(f"example:{name}")) for name in ("encoder", "merged-decoder")]


def test_the_shape_of_an_input_is_that_of_the_encoder_where_it_has_it(pair: list[Model]) -> None:
    asked = LowerOptions(inputs=(("input_ids", (2, 16)),))
    assert with_input_sizes(asked, pair) == LowerOptions(batch=2, src_len=16)
    assert with_input_sizes(BundleOptions(inputs=asked.inputs), pair) == BundleOptions(batch=2, max_source=16)
    pictures = model(PICTURES, last=[2, 3])
    given = with_input_sizes(LowerOptions(inputs=(("pixel_values", (2, 3, 8, 9)),)), [pictures])
    assert (given.batch, given.src_len, dict(given.dims)) == (2, LowerOptions().src_len, {"h": 8, "w": 9})


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"inputs": (("input_id", (1, 2)),)}, "--input input_id: no model has it - did you mean 'input_ids'?"),
        ({"inputs": (("input_ids", (1, 2, 3)),)}, "input 'input_ids' has 2 dims - 1x2x3 has 3"),
        ({"inputs": (("input_ids", (1, 16)),), "src_len": 8}, "'encoder_sequence_length' is 16 here, and 8 elsewhere"),
        (
            {"inputs": (("input_ids", (1, 16)), ("attention_mask", (1, 9)))},
            "'encoder_sequence_length' is 9 here, and 16 elsewhere",
        ),
        ({"inputs": (("input_ids", (1, 8)), ("attention_mask", (2, 8)))}, "'batch_size' is 2 here, and 1 elsewhere"),
    ],
)
def test_shapes_that_contradict_each_other_are_refused(pair: list[Model], asked: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError) as error:
        with_input_sizes(LowerOptions(**asked), pair)  # type: ignore[arg-type]
    assert says in str(error.value)


def test_the_length_of_new_tokens_is_no_option(pair: list[Model]) -> None:
    with pytest.raises(UsageError, match="counts new tokens, which no option sets - leave it out"):
        with_input_sizes(LowerOptions(inputs=(("input_ids", (1, 2)),)), pair[1:])
