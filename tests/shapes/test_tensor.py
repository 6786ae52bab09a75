from __future__ import annotations

import pytest

from graphkit.dtypes import INT32_MAX, INT64_MAX
from graphkit.ops.tensor import is_to_the_end


@pytest.mark.parametrize(
    ("bound", "expected"),
    [(None, False), (-1, False), (0, False), (INT32_MAX - 1, False), (INT32_MAX, True), (INT64_MAX, True)],
)
def test_to_the_end(bound: int | None, expected: bool) -> None:
    assert is_to_the_end(bound) == expected
