from __future__ import annotations

import time

import pytest

from graphkit.errors import did_you_mean


@pytest.mark.parametrize(
    ("wanted", "known", "hint"),
    [
        ("batch", ["batch_size", "sequence_length"], "did you mean 'batch_size'?"),
        ("Batch_Size", ["batch_size"], "did you mean 'batch_size'?"),
        ("attn", ["/layers.0/self_attn/Add_output_0", "x"], "did you mean '/layers.0/self_attn/Add_output_0'?"),
        ("past.4.key", ["past.0.key", "past.0.value"], "did you mean 'past.0.key' or 'past.0.value'?"),
        ("qq", ["batch_size", "x"], "there are batch_size, x"),
        ("qq", [], "there are none"),
        ("77", list("abcdefghijklmnopqr"), f"there are {', '.join('abcdefghijklmnop')} and 2 more"),
    ],
)
def test_what_is_meant(wanted: str, known: list[str], hint: str) -> None:
    assert did_you_mean(wanted, known) == hint


def test_where_nothing_is_like_it_the_hint_may_be_another() -> None:
    assert did_you_mean("qq", ["batch_size"], "list them") == "list them"


def test_many_long_names_take_no_time() -> None:
    start = time.process_time()
    did_you_mean("a" * 5_000, ["b" * 100_000 + str(number) for number in range(300)])
    assert time.process_time() - start < 5
