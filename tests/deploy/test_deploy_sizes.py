"""The sizes at which exports are lowered and bundled, by the names that users give."""

from __future__ import annotations

from small_models import model

from graphkit.deploy.deploy_sizes import _sizes_of_names

PICTURES = """g (float[b, 3, h, w] pixel_values, int64[b, h, w] pixel_mask) => (float[b, 3] y, int64[b, h, w] m) {
    y = ReduceMean <keepdims = 0> (pixel_values, last)
    m = Identity (pixel_mask)
}"""


def test_a_size_of_a_name_is_that_of_all_dims_of_the_name() -> None:
    """No node relates the pixels of this mask to those of the picture, and whoever gives `h` means both."""
    pictures = model(PICTURES, last=[2, 3])
    assert _sizes_of_names(pictures, {"h": 64, "w": 48}) == {"h": 64, "pixel_mask.1": 64, "w": 48, "pixel_mask.2": 48}
    assert _sizes_of_names(pictures, {"h": 64, "pixel_mask.1": 8}) == {"h": 64, "pixel_mask.1": 8}
