from __future__ import annotations

import pytest

from graphkit.rewrite.outcome import grouped


@pytest.mark.parametrize(
    ("declined", "told"),
    [
        ([], ()),
        (["a: no", "b: no", "c: why"], ("a, b: no", "c: why")),
        (
            [f"/layers.{layer}/attn/Reshape: no" for layer in range(18)] + ["/head/Reshape: no"],
            ("/layers.{0-17}/attn/Reshape, /head/Reshape: no",),
        ),
        (
            [f"/layers.{layer}/Add: its mask '/layers.{layer}/mask' is data" for layer in (0, 1, 2, 5)],
            ("/layers.{i=0-2,5}/Add: its mask '/layers.{i}/mask' is data",),
        ),
        ([f"{letter}: no" for letter in "abcdefgh"], ("a, b, c and 5 more: no",)),
    ],
)
def test_a_reason_is_told_once_with_the_families_it_holds_for(declined: list[str], told: tuple[str, ...]) -> None:
    assert grouped(declined) == told
