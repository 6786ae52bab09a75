"""Positions that are a part of a table: what is added to them is as long, as far as the table goes."""

from __future__ import annotations

import numpy as np
import pytest
from builders import model_of
from sessions import run

from graphkit.equivalence import check_equivalence
from graphkit.equivalence.equivalence_summary import EquivalenceSummary
from graphkit.model import Model
from graphkit.ops.rule_context import _end_in_table
from graphkit.passes.fold_pipeline import fold
from graphkit.shapes import infer, parse
from graphkit.shapes.constraints.legal_sizes import legal_sizes

INPUTS = "int64[b, s] input_ids, float[b, 1, past, 4] past_0_key"
POSITIONS = """
    ids = Shape (input_ids)  new = Gather (ids, one)  cache = Shape (past_0_key)  before = Gather (cache, two)
    end = Add (new, before)  stop = Unsqueeze (end, first)  start = Unsqueeze (before, first)
    rows = Gather (tokens, input_ids)  places = Slice (table, start, stop, first, step)  y = Add (rows, places)
"""
CONSTANTS = {"one": np.array(1), "two": np.array(2), "first": np.array([0]), "step": np.array([1])}


@pytest.fixture
def decoder() -> Model:
    tables = {name: np.ones((16, 8), np.float32) for name in ("tokens", "table")}
    return model_of(f"({INPUTS}) => (y) {{ {POSITIONS} }}", 18, **CONSTANTS, **tables)


@pytest.mark.parametrize(("past", "count"), [(12, 1), (15, 1), (16, 0)])
def test_past_the_table_nothing_is_left(decoder: Model, past: int, count: int) -> None:
    feeds = {"input_ids": np.ones((1, 1), np.int64), "past_0_key": np.zeros((1, 1, past, 4), np.float32)}
    assert run(decoder, feeds)[0].shape == (1, count, 8)


def test_up_to_there_it_is_as_long_as_the_tokens(decoder: Model) -> None:
    shapes = infer(decoder)
    assert str(shapes["y"]) == "[b, s, 8]"
    assert [str(limit) for limit in shapes.limits] == ["past + s <= 16"]
    found = next(legal_sizes(decoder).near({"b": 1, "s": 1, "past": 40}))
    assert found["s"] + found["past"] <= 16


def test_a_proof_says_so(decoder: Model) -> None:
    found = check_equivalence(decoder, fold(decoder).model)
    assert found.is_proven
    assert EquivalenceSummary.of(found).limits == ("past + s <= 16",)


def test_another_part_is_not_known_to_be_as_long(decoder: Model) -> None:
    proto = decoder.restore()
    cut = next(node for node in proto.graph.node if node.op_type == "Slice")
    cut.input[1] = "first"  # from the first row on
    shapes = infer(Model.from_proto(proto))
    assert str(shapes["y"]) == "[b, max(min(16, past + s), s), 8]"
    assert shapes.limits == ()


@pytest.mark.parametrize(
    ("cut", "whole", "limit"),
    [
        ("min(16, past + s) - min(16, past)", "s", "past + s <= 16"),
        ("min(16, past + s) - min(8, past)", "s", ""),
        ("min(16, past + s) - min(16, past)", "s + 1", ""),
        ("min(n, past + s) - min(n, past)", "s", ""),
        ("max(16, past + s) - max(16, past)", "s", ""),
    ],
)
def test_both_ends_are_cut_by_one_table(cut: str, whole: str, limit: str) -> None:
    found = _end_in_table(parse(cut), parse(whole))
    assert (f"{found[0]} <= {found[1]}" if found is not None else "") == limit
