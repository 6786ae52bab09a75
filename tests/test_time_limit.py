from __future__ import annotations

import pytest

from graphkit.progress import OutOfTimeError, check_time, time_limit


def test_work_ends_where_its_time_is_over() -> None:
    with (
        time_limit("model.onnx: folding", 1e-9),
        pytest.raises(OutOfTimeError, match=r"model.onnx: folding does not finish in 1e-09 s - raise --timeout to all"),
    ):
        check_time()
    check_time()


def test_work_without_a_limit_goes_on() -> None:
    with time_limit("folding", 1e-9), time_limit("something else", None):
        check_time()
    with time_limit("folding", 1e9):
        check_time()
