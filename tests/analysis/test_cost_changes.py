"""Costs before and after a rewrite, at the same sizes of both."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from graphkit.analysis.cost_changes import (
    BeforeAndAfter,
    CostChange,
    CostFigures,
    Latency,
    cost_change,
    cost_change_blocks,
)
from graphkit.analysis.node_costs import Quantity, node_costs
from graphkit.analysis.typical_sizes import TypicalSizes
from graphkit.examples import EXAMPLES
from graphkit.model import Model, load
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.passes.interface.rename import Rename
from graphkit.passes.shapes.declare_shapes import SetDims
from graphkit.render.document_blocks import Prose, Table, cell_text
from graphkit.shapes import AS_DECLARED, DimSpec, infer, symbol

CAUSAL = "example:causal-attention"
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


def model(text: str) -> Model:
    return Model.from_proto(onnx.parser.parse_model(f"{HEAD} {text}"))


N7 = DimSpec.of({"n": 7})
PRODUCT = "g (float[n, 16] x, float[16, 8] w) => (float[m, 8] y) { a = Relu (x) y = MatMul (a, w) }"


def figures(change: CostChange) -> list[tuple[int | None, ...]]:
    assert (change.unknown, change.before is None, change.after is None) == ("", False, False)
    parts = [part for part in (change.before, change.after) if part is not None]
    return [(part.nodes, part.macs.value, part.peak_bytes.value) for part in parts]


def test_a_fold_has_fewer_nodes_and_the_same_products() -> None:
    original = load(CAUSAL)
    (nodes, macs, _), (after, same, _) = figures(
        change := cost_change(BeforeAndAfter([original], fold(original).model))
    )
    assert (nodes, after, macs, same) == (213, 80, 294912, 294912)
    assert dict(change.sizes) == {"batch_size": 1, "sequence_length": 32}  # more have no positions
    assert change.before is not None
    assert change.before.bytes == 60638  # of its file


def test_the_original_has_the_sizes_that_are_numbers_in_the_result() -> None:
    original = load(CAUSAL)
    frozen = SetDims((("batch_size", 3),)).run(original).model
    change = cost_change(BeforeAndAfter([original], frozen))
    assert dict(change.sizes) == {"batch_size": 3, "sequence_length": 32}
    before, after = figures(change)
    assert before == after


def test_sizes_that_are_given_are_those_of_both() -> None:
    change = cost_change(BeforeAndAfter([load(CAUSAL)], load(CAUSAL), DimSpec.of({"sequence_length": 8})))
    assert dict(change.sizes) == {"sequence_length": 8, "batch_size": 1}
    before, after = figures(change)
    assert (before, after[1]) == (after, 61440)


def test_a_symbol_of_another_name_has_the_size_of_its_input() -> None:
    original = model(PRODUCT)
    renamed = Rename(dims=(("n", "positions"),)).run(original).model
    before, after = figures(cost_change(BeforeAndAfter([original], renamed, DimSpec.of({"n": 5}))))
    assert before == after == (2, 5 * 16 * 8, 5 * 16 * 4 + 5 * 8 * 4)


def test_dims_of_one_name_that_no_node_relates_have_the_size_of_their_name() -> None:
    both = "g (float[n, 16] x, float[n, 16] v) => (float[m, 16] y, float[k, 16] z) { y = Relu (x) z = Exp (v) }"
    renamed = model(
        both.replace(" x", " left").replace(" v", " right").replace("(x)", "(left)").replace("(v)", "(right)")
    )
    change = cost_change(BeforeAndAfter([model(both.replace("float[n, 16] v", "float[16, 16] v"))], renamed, N7))
    assert figures(change)[1][2] == 2 * 7 * 16 * 4
    linked = cost_change(BeforeAndAfter([model(PRODUCT)], renamed, N7, sizes={"n": symbol("n") + 1}))
    assert figures(linked)[1][2] == 2 * 8 * 16 * 4


def test_a_symbol_of_the_result_is_linked_to_the_dim_that_it_is_in_the_original() -> None:
    original = model(PRODUCT)
    renamed = model(PRODUCT.replace("float[n, 16] x", "float[rows, 16] x"))
    change = cost_change(BeforeAndAfter([original], renamed, DimSpec.of(), sizes={"slots": symbol("n") + 1}))
    assert {name: str(dim) for name, dim in change.links.items()} == {"rows": "n", "slots": "n + 1"}


def test_values_of_the_result_have_the_sizes_of_the_original() -> None:
    text = "g (float[n] x, int64[1] count) => (float[m] y) { a = Expand (x, count) y = Relu (a) }"
    models = [model("g (float[n] x) => (float[n] y) { y = Relu (x) }"), model(text)]
    counts = {"count": np.full([1], symbol("n"), object)}
    both = BeforeAndAfter(models[:1], models[1], DimSpec.of(), wish={"batch": 7}, values=counts)
    originals, result = both.choose_sizes()
    assert (originals[0].sizes["n"], str(result.shapes["y"])) == (7, "[n]")
    (count,) = both.values_at(result.sizes).values()
    assert (count.dtype, count.tolist()) == (np.int64, [7])


def test_a_part_begins_at_a_value_of_the_original() -> None:
    original = model(
        "g (float[n, 16] x, float[16, 8] w) => (float[m, 8] y) { a = Concat <axis = 0> (x, x) y = MatMul (a, w) }"
    )
    part = ExtractSubgraph(("y",), ("a",)).run(original).model
    before, after = figures(cost_change(BeforeAndAfter([original], part, DimSpec.of({"n": 5}))))
    assert (before[:2], after[:2]) == ((2, 10 * 16 * 8), (1, 10 * 16 * 8))


def test_models_that_run_one_after_the_other_are_added_and_the_largest_peak_counts() -> None:
    one = model(PRODUCT)
    before, after = figures(cost_change(BeforeAndAfter([one, one], one, DimSpec.of({"n": 5}))))
    assert before == (2 * after[0], 2 * (after[1] or 0), after[2])


def test_other_sizes_are_wished_for_by_role() -> None:
    change = cost_change(
        BeforeAndAfter([load("example:merged-decoder")], load("example:merged-decoder"), wish={"past": 0, "encoder": 7})
    )
    assert dict(change.sizes) == {
        "batch_size": 1,
        "decoder_sequence_length": 32,
        "past_decoder_sequence_length": 0,
        "encoder_sequence_length": 7,
    }


def test_what_cannot_be_counted_says_why() -> None:
    change = cost_change(BeforeAndAfter([load(CAUSAL)], load(CAUSAL), DimSpec.of({"nothing": 8})))
    assert (change.before, change.after) == (None, None)
    assert change.unknown.startswith("no input has a dim 'nothing'")
    (_, prose) = cost_change_blocks([change])
    assert isinstance(prose, Prose)
    assert prose.text.startswith("Costs are not counted: no input has a dim 'nothing'")


def test_how_it_looks() -> None:
    one = model(PRODUCT)
    change = cost_change(BeforeAndAfter([one], one, DimSpec.of({"n": 5})), what="y.onnx")
    latency = Latency(before_ms=2.0, after_ms=1.0, ratio=0.5, low=0.4, high=0.75, rounds=9, threads=1)
    timed = CostChange("y.onnx", change.sizes, change.before, change.after, latency=latency)
    _, prose, table = cost_change_blocks([timed])
    assert isinstance(table, Table)
    assert table.title == "Costs of y.onnx at n 5"
    assert [tuple(map(cell_text, row)) for row in table.rows] == [
        ("file and weights", "115 B", "115 B", "1.00"),
        ("nodes", "2", "2", "1.00"),
        ("multiply-accumulates (MACs)", "640", "640", "1.00"),
        ("peak memory of activations", "480 B", "480 B", "1.00"),
        ("latency", "2 ms", "1 ms", "0.50 (0.40 to 0.75)"),
    ]
    assert isinstance(prose, Prose)
    assert prose.text.startswith(
        "Latency: 2 ms before, 1 ms after, 0.50. That is the median of 9 rounds in onnxruntime, "
    )
    assert list(cost_change_blocks([])) == []


def test_dims_that_are_numbers_need_no_sizes() -> None:
    one = model("g (float[5, 16] x) => (float[5, 16] y) { y = Relu (x) }")
    _, table = cost_change_blocks([cost_change(BeforeAndAfter([one], one))])
    assert isinstance(table, Table)
    assert table.title == "Costs"


@pytest.mark.parametrize("untimed", ["its weights are missing"])
def test_why_it_is_not_timed(untimed: str) -> None:
    one = model(PRODUCT)
    change = cost_change(BeforeAndAfter([one], one))
    *_, prose = cost_change_blocks([CostChange("", change.sizes, change.before, change.after, untimed=untimed)])
    assert isinstance(prose, Prose)
    assert prose.text == "Latency was not measured: its weights are missing."


@pytest.mark.parametrize(("uncounted", "ratio"), [(0, "0.50"), (1, "")])
def test_each_cell_is_of_its_side_and_what_is_not_whole_has_no_ratio(uncounted: int, ratio: str) -> None:
    before = CostFigures(8, 20, Quantity(6, "6"), Quantity(40, "40"))
    after = CostFigures(2, 15, Quantity(3, "3", uncounted), Quantity(4, "4"))
    _, costs = cost_change_blocks([CostChange("", (), before, after)])
    assert isinstance(costs, Table)
    assert [tuple(map(cell_text, row[1:])) for row in costs.rows] == [
        ("8 B", "2 B", "0.25"),
        ("20", "15", "0.75"),
        ("6", ">= 3" if uncounted else "3", ratio),
        ("40 B", "4 B", "0.10"),
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_multiply_accumulates_alone_are_those_among_all_costs(name: str) -> None:
    shapes = infer(load(f"example:{name}"))
    sizes = TypicalSizes(shapes.model, AS_DECLARED, shapes).sizes
    alone, every = node_costs(shapes, sizes, ("macs",)).nodes, node_costs(shapes, sizes).nodes
    assert [(cost.node, cost.costs.get("macs")) for cost in alone] == [
        (cost.node, cost.costs.get("macs")) for cost in every
    ]
