"""Costs of two models side by side in a diff."""

from __future__ import annotations

import onnx.parser

import graphkit
from graphkit.analysis.cost_changes import CostChange
from graphkit.model import Model
from graphkit.model_diff import COSTS
from graphkit.model_diff.model_diff import cost_blocks, is_dearer
from graphkit.render.document_blocks import Prose, Table, cell_text
from graphkit.render.result import Sizes

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
ONE = "g (float[n, 16] x, float[16, 16] w) => (float[n, 16] y) { y = MatMul (x, w) }"
TWO = "g (float[n, 16] x, float[16, 16] w) => (float[n, 16] y) { a = MatMul (x, w) y = MatMul (a, w) }"


def model(text: str) -> Model:
    return Model.from_proto(onnx.parser.parse_model(f"{HEAD} {text}"))


def test_the_costs_of_both_are_shown() -> None:
    found = graphkit.diff(model(ONE), model(TWO))
    table = next(block for block in found.blocks() if isinstance(block, Table))  # before what follows from it
    assert (table.title, [column.name for column in table.columns]) == ("Costs at n 1", ["Cost", "A", "B", "Ratio"])
    assert "multiply-accumulates (MACs) 2.00" in " ".join(found.to_text().split())
    assert tuple(map(cell_text, table.rows[2])) == ("multiply-accumulates (MACs)", "256", "512", "2.00")
    assert COSTS not in found.differing


def test_more_costs_fail_where_that_is_asked_for() -> None:
    found = graphkit.diff(model(ONE), model(TWO))
    assert found.failing({COSTS}) == (COSTS,)
    assert found.failing({"nodes", COSTS}) == ("nodes", COSTS)
    assert found.failing({"nodes"}) == ("nodes",)
    assert graphkit.diff(model(TWO), model(ONE)).failing({COSTS}) == ()


def test_equal_models_have_no_costs_to_show() -> None:
    renamed = TWO.replace("a = ", "b = ").replace("(a, w)", "(b, w)")
    found = graphkit.diff(model(TWO), model(renamed))
    assert (found.is_equal, found.failing({COSTS})) == (True, ())
    assert "Costs" not in found.to_text()


def test_costs_that_cannot_be_counted_say_why_and_do_not_fail() -> None:
    unknown = CostChange("", Sizes(), None, None, unknown="its weights are nowhere")
    _, prose = cost_blocks(unknown)
    assert prose == Prose("Costs are not counted: its weights are nowhere.")
    assert not is_dearer(unknown)
