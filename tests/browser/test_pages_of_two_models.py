"""Pages of two models: a rewrite's before and after, and a diff."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_checks import expect, heads

import graphkit
from graphkit.analysis.costs.cost_formulas import formula

Page = Any  # Playwright's, which is installed for the tests of pages alone
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("fold") / "folded.onnx"
    options = graphkit.FoldOptions(verify=False, spec=graphkit.DimSpec.of({"batch_size": 1}))
    return graphkit.fold_file("example:causal-attention", file, options).to_html()


def test_a_node_leads_to_what_it_became(open_page: Open, folded: str) -> None:
    page = open_page(folded, "#node=%2Fblocks.0%2FSoftmax")
    heads(page, "/blocks.0/Softmax")
    rows = page.locator("#panel h3:has-text('In the result') ~ .scroll >> nth=0 >> tr")
    types = [
        "float32 [batch_size, 2, sequence_length, sequence_length]",
        "float32 [1, 2, sequence_length, sequence_length]",
    ]
    expect(rows.nth(1).locator("td")).to_have_text(["Input 0", *types])
    page.click("#panel a.twin")
    expect(page).to_have_url(re.compile("#model=1&"))
    heads(page, "/blocks.0/Softmax")
    expect(page.locator("#panel h3").first).to_have_text("In the original: Softmax /blocks.0/Softmax")


def test_a_node_that_was_folded_is_in_one_model_alone(open_page: Open, folded: str) -> None:
    page = open_page(folded, "#node=%2FShape")
    heads(page, "/Shape")
    expect(page.locator("#panel .alone")).to_have_text(
        "This node is in the original alone: no node of the result matches it."
    )


def test_one_slider_moves_both(open_page: Open, folded: str) -> None:
    page = open_page(folded, "#node=%2Fblocks.0%2FSoftmax")
    expect(page.locator(".sizes")).to_have_count(1)
    page.get_by_label("sequence_length, as a number", exact=True).fill("9")
    dims = page.locator("#panel data[data-unit=dims]").first
    expect(dims).to_have_text("= [1, 2, 9, 9]")
    page.click("#panel a.twin")
    expect(page.locator("#panel h3").first).to_have_text("In the original: Softmax /blocks.0/Softmax")
    expect(dims).to_have_text("= [1, 2, 9, 9]")


def test_a_search_looks_into_both(open_page: Open, folded: str) -> None:
    page = open_page(folded)
    page.fill("#search", "softmax")
    expect(page.locator("#panel h2")).to_have_text(["2 matches in the original", "2 matches in the result"])


def test_the_page_of_a_diff_shows_a_changed_attribute(open_page: Open) -> None:
    model = graphkit.load("example:causal-attention")
    proto = copy.deepcopy(model.proto)
    node = next(node for node in proto.graph.node if node.op_type == "Softmax")
    node.attribute[0].i = 2
    page = open_page(graphkit.diff(model, graphkit.Model.from_proto(proto)).to_html(), "#node=%2Fblocks.0%2FSoftmax")
    rows = page.locator("#panel h3:has-text('In B') ~ .scroll >> nth=0 >> tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(1).locator("td")).to_have_text(["axis", "-1", "2"])


def test_costs_before_and_after_move_too(open_page: Open, folded: str) -> None:
    page = open_page(folded)
    rows = page.locator("tr", has_text="multiply-accumulates")
    first = rows.locator("data").all_inner_texts()
    page.get_by_label("sequence_length, as a number", exact=True).fill("9")
    found = graphkit.costs("example:causal-attention", dims={"batch_size": 1, "sequence_length": 9})
    expect(rows.locator("data")).to_have_text([formula(found.macs).text, formula(found.macs).text, "1.00"])
    assert first[:2] != rows.locator("data").all_inner_texts()[:2]
    result = graphkit.fold("example:causal-attention", graphkit.DimSpec.of({"batch_size": 1})).model
    peaks = found.peak.bytes, graphkit.costs(result, dims={"sequence_length": 9}).peak.bytes
    texts = [formula(peak, "B").text for peak in peaks]
    ratio = f"{(peaks[1].value or 0) / (peaks[0].value or 1):.2f}"
    expect(page.locator("tr", has_text="peak memory").locator("data")).to_have_text([*texts, ratio])
    expect(page.locator("main data.stays")).to_have_count(0)
