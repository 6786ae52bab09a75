"""What a bundle may be off by follows what onnxruntime's own two levels differ by on the export."""

from __future__ import annotations

import pytest
from bundles import decoder

from graphkit.model import Model
from graphkit.verify.bundle_tolerance import Allowed


@pytest.mark.parametrize(
    ("apart", "plain", "fused", "is_raised"),
    [
        (0.0, 1e-5, 1e-4, False),
        (4e-6, 1e-5, 1e-4, False),
        (3e-5, 6.3e-5, 1e-4, True),
        (9.2e-5, 1.9e-4, 1.9e-4, True),
        (1.0, 2.1e-4, 2.1e-4, True),  # a model that the runtime breaks is no licence
    ],
)
def test_it_follows_the_levels_within_bounds(apart: float, plain: float, fused: float, is_raised: bool) -> None:
    model = Model.from_proto(decoder())
    allowed = Allowed.of([model], apart, 1e-5, exact=False)
    assert (allowed.plain, allowed.near, allowed.fused) == (plain, plain, fused)
    assert allowed.is_raised is is_raised
    assert Allowed.of([model], apart, 1e-5, exact=True).plain == 0
