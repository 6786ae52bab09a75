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
    expect(page.locator("#panel thead th")).to_have_text(["", "the original", "the result"])
    page.click("#panel summary:has-text('Around it in the result')")
    box = page.locator("#panel details .neighbourhood a", has=page.locator("rect.centre"))
    expect(box).to_have_attribute("href", "#model=1&node=%2Fblocks.0%2FSoftmax")
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
    expect(rows.locator("data")).to_have_text([found.macs.cell().text, found.macs.cell().text, "1.00"])
    assert first[:2] != rows.locator("data").all_inner_texts()[:2]
    result = graphkit.fold("example:causal-attention", graphkit.DimSpec.of({"batch_size": 1})).model
    peaks = found.peak.bytes, graphkit.costs(result, dims={"sequence_length": 9}).peak.bytes
    texts = [peak.cell("B").text for peak in peaks]
    ratio = f"{(peaks[1].value or 0) / (peaks[0].value or 1):.2f}"
    expect(page.locator("tr", has_text="peak memory").locator("data")).to_have_text([*texts, ratio])
    expect(page.locator("main data.stays")).to_have_count(0)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> graphkit.SplitReport:
    return graphkit.split_file(
        "example:merged-decoder", tmp_path_factory.mktemp("split"), graphkit.SplitOptions(verify=False)
    )


def test_a_node_of_a_branch_leads_to_both_models_of_a_split(open_page: Open, split: graphkit.SplitReport) -> None:
    name = "/model/decoder/layers.0/self_attn/Softmax"
    assert split.graphs()[0]["model"] == "the original merged-decoder.onnx"
    page = open_page(split.to_html(), f"#model=1&node={name}")
    for model, file in ((1, "decoder_model.onnx"), (2, "decoder_with_past_model.onnx")):
        page.evaluate(f"location.hash = '#model={model}&node={name}'")
        expect(page.locator("#panel h3").first).to_contain_text("In the original merged-decoder.onnx: Softmax")
        page.click("#panel a.twin")
        expect(page).to_have_url(re.compile(r"#node=optimum"))
        expect(page.locator("#panel h3").first).to_contain_text(f"In {file}: Softmax {name}")


def test_nodes_of_a_branch_are_those_of_the_model_that_was_made_of_it(split: graphkit.SplitReport) -> None:
    original, *models = split.graphs()
    for number, made in enumerate(models, 1):
        pairs = made["twins"][0]  # type: ignore[index]
        alone = [label for at, (label, *_) in enumerate(made["nodes"]) if at not in pairs]  # type: ignore[arg-type, misc]
        assert alone == ([] if number == 1 else ["Constant_349"])  # the name of two nodes of the branch
        scopes = {original["nodes"][twin][1] for twin in pairs.values()}  # type: ignore[index]
        branch = "optimum::if/else_branch" if number == 1 else "optimum::if/then_branch"
        assert {original["scopes"][scope][0] for scope in scopes} == {branch}  # type: ignore[index]
        assert original["twins"][number] == {twin: node for node, twin in pairs.items()}  # type: ignore[index]


def test_costs_of_each_model_of_a_split_move(open_page: Open, split: graphkit.SplitReport) -> None:
    page = open_page(split.to_html())
    sizes = {"batch_size": 2, "decoder_sequence_length": 1, "encoder_sequence_length": 50}
    page.get_by_label("batch_size, as a number", exact=True).fill("2")
    page.get_by_label("encoder_sequence_length, as a number", exact=True).fill("50")
    page.get_by_label("past_decoder_sequence_length, as a number", exact=True).fill("20")
    costs = graphkit.costs("example:merged-decoder", dims={**sizes, "past_decoder_sequence_length": 20})
    last = page.locator("table", has=page.locator("caption", has_text="decoder_with_past_model.onnx"))
    for name, cell in (("multiply-accumulates", costs.macs.cell()), ("peak memory", costs.peak.bytes.cell("B"))):
        expect(last.locator("tr", has_text=name).locator("data").first).to_have_text(cell.text)


def move_all(page: Page) -> list[str]:
    """Move each slider by one, that of a past back, and return the names of the sizes that have one."""
    fields = page.locator(".sizes input[type=number]")
    for field in fields.all():
        is_past = "past" in str(field.get_attribute("aria-label"))
        field.fill(str(int(field.input_value()) + (-1 if is_past else 1)))
    return [str(name) for name in page.locator(".sizes code").all_inner_texts()]


def test_all_numbers_of_a_split_move(open_page: Open, split: graphkit.SplitReport) -> None:
    page = open_page(split.to_html())
    move_all(page)
    first, last = (
        page.locator("main table", has=page.locator("caption", has_text=f"Costs of {name}"))
        for name in ("decoder_model.onnx", "decoder_with_past_model.onnx")
    )
    for table, tokens, past in ((first, 32, 0), (last, 2, 30)):  # a prompt keeps its length, it is no step
        own = {"decoder_sequence_length": tokens, "past_decoder_sequence_length": past}
        costs = graphkit.costs("example:merged-decoder", dims={"batch_size": 2, "encoder_sequence_length": 129, **own})
        expect(table.locator("tr", has_text="multiply").locator("data").first).to_have_text(costs.macs.cell().text)
        peak = costs.peak.bytes.cell("B").text  # of the branch that runs, of which the page has a plan each
        expect(table.locator("tr", has_text="peak").locator("data").first).to_have_text(peak)
    expect(page.locator("main data.stays")).to_have_count(0)
    expect(first.locator("caption")).to_have_text(
        "Costs of decoder_model.onnx at batch_size 2, decoder_sequence_length 32, past_decoder_sequence_length 0 "
        "and encoder_sequence_length 129"
    )
    expect(last.locator("caption")).to_contain_text("past_decoder_sequence_length 30")


def test_the_step_of_a_bundle_costs_what_that_of_the_export_does(open_page: Open, bundles: Path) -> None:
    (bundles / "export").mkdir()
    for name in ("encoder", "merged-decoder"):
        graphkit.load(f"example:{name}").save(bundles / "export" / f"{name}.onnx")
    options = graphkit.BundleOptions(max_cache=16, max_source=16, verify=False)
    page = open_page(graphkit.bundle_folder(bundles / "export", bundles / "translation", options).to_html())
    moved = ["batch_size", "encoder_sequence_length", "decoder_sequence_length", "past_decoder_sequence_length"]
    assert move_all(page) == moved
    expect(page.locator("main data.stays")).to_have_count(0)
    step = page.locator("main tr", has_text="multiply").last.locator("data")
    sizes = dict.fromkeys(moved, 2) | {"encoder_sequence_length": 17, "past_decoder_sequence_length": 14}
    costs = graphkit.costs("example:merged-decoder", dims={name: sizes[name] for name in moved})
    expect(step).to_have_text([costs.macs.cell().text, costs.macs.cell().text, "1.00"])


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


def test_all_numbers_of_a_bundle_move(open_page: Open, bundles: Path) -> None:
    """A step of two tokens: the result has a symbol of its own for the slots in use."""
    options = graphkit.BundleOptions(max_cache=24, verify=False)
    report = graphkit.bundle_folder("example:sliding-window", bundles / "decoder", options)
    page = open_page(report.to_html())
    assert move_all(page) == ["batch_size", "sequence_length", "past_sequence_length"]
    expect(page.locator("main data")).not_to_have_count(0)
    expect(page.locator("main data.stays")).to_have_count(0)
    step = page.locator("main table", has=page.locator("caption", has_text="Costs of step.onnx"))
    sizes = {"batch_size": 2, "sequence_length": 2, "past_sequence_length": 22}
    before = graphkit.costs("example:sliding-window", dims=sizes)
    cells = step.locator("tr", has_text="multiply").locator("data")
    expect(cells.first).to_have_text(before.macs.cell().text)
    expect(step.locator("tr", has_text="peak").locator("data").first).to_have_text(before.peak.bytes.cell("B").text)
    expect(step.locator("caption")).to_contain_text("batch_size 2, sequence_length 2 and past_sequence_length 22")
    first = page.locator("caption", has_text="Costs of prefill.onnx")
    expect(first).to_contain_text("batch_size 2, sequence_length 23 and past_sequence_length 0")  # a prompt, not a step


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("report", "model", "node", "other"),
    [
        ("marian-tiny-mt8371", 5, "/lm_head/MatMul", "the original decoder_model_merged.onnx"),
        ("marian-tiny-bundle", 3, "/lm_head/MatMul", "the original decoder_model_merged.onnx"),
        ("nllb-tiny-split", 2, "/model/decoder/layers.0/self_attn/Softmax", "the original decoder_model_merged"),
    ],
)
def test_the_page_of_an_example_shows_a_node_before_and_after(
    open_page: Open, report: str, model: int, node: str, other: str
) -> None:
    html = (Path(__file__).parents[2] / "reports" / f"{report}.html").read_text("utf-8")
    assert len(html.encode()) < 3_000_000
    page = open_page(html, f"#model={model}&node={node}")
    expect(page.locator("#panel h3").first).to_contain_text(f"In {other}")
    page.click("#panel a.twin")
    expect(page.locator("#panel a.twin")).not_to_have_count(0)
    fixed = report == "marian-tiny-mt8371"  # all sizes of what was lowered are numbers
    expect(page.locator(".sizes")).to_have_count(0 if fixed else 1)


def test_the_contents_lead_to_the_parts_of_each_model(open_page: Open) -> None:
    """And the bar at the top does not hide their headings."""
    models = [graphkit.load(f"example:{name}") for name in ("causal-attention", "merged-decoder")]
    page = open_page(graphkit.compare(models).to_html())
    page.locator(".contents ol ol a", has_text="Hazards").last.click()
    expect(page).to_have_url(re.compile(r"#example-merged-decoder\.hazards$"))
    heading = page.locator("[id='example-merged-decoder.hazards']")
    expect(heading).to_be_in_viewport()
    bar, place = page.locator("header.bar").bounding_box(), heading.bounding_box()
    assert place["y"] >= bar["y"] + bar["height"]
