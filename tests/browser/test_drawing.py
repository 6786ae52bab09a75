"""The drawing of a model on its page: modules that open, colours, keys, two models, and its file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import onnx
import pytest
from onnx import TensorProto, helper
from page_checks import HOSTILE, chain_of, expect, heads

import graphkit
from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.targets import load_target

Page = Any  # Playwright's, which is installed for the tests of pages alone
Open = Callable[..., Page]
REPORTS = Path(__file__).parents[2] / "reports"


@pytest.fixture(scope="module")
def attention() -> str:
    options = graphkit.ReportOptions(also=("costs",), target=load_target("ethos-u85"))
    return graphkit.report("example:causal-attention", options).to_html()


@pytest.fixture(scope="module")
def merged() -> str:
    return graphkit.report("example:merged-decoder").to_html()


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("fold") / "folded.onnx"
    options = graphkit.FoldOptions(verify=False, spec=graphkit.DimSpec.of({"batch_size": 1}))
    return graphkit.fold_file("example:causal-attention", file, options).to_html()


def box(page: Page, name: str) -> Any:
    """Return the box that says this first: a closed part begins with ▸, an open one with ▾."""
    return page.locator(".drawing .box", has=page.locator(f"xpath=./*[name()='text'][1][starts-with(., '{name}')]"))


def paint(page: Page, colour: str) -> None:
    page.get_by_label("Colours of the drawing").select_option(colour)


def test_modules_open_and_close(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    closed, inside = box(page, "▸ model/decoder").first, box(page, "▾ model/decoder")
    expect(closed).to_have_attribute("aria-expanded", "false")
    closed.click()
    expect(inside).to_have_attribute("aria-expanded", "true")
    expect(box(page, "Trilu")).to_have_count(1)
    inside.locator("> text").first.click()
    expect(inside).to_have_count(0)


def test_repeated_layers_are_one_box_with_their_count(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    expect(box(page, "▸ blocks.0-1").locator("text")).to_have_text(["▸ blocks.0-1", re.compile(r"2 . 69 nodes")])
    box(page, "▸ blocks.0-1").click()
    expect(page.locator(".drawing .head")).to_have_text("▾ blocks.0  of 2, all built alike")
    page.locator(".drawing .turn").last.click()
    expect(page.locator(".drawing .head")).to_have_text("▾ blocks.1  of 2, all built alike")


@pytest.mark.cases("causal-attention")
@pytest.mark.parametrize("name", ["causal-attention", "merged-decoder"])
def test_every_node_is_in_the_drawing_once(open_page: Open, name: str) -> None:
    model = graphkit.load(f"example:{name}")
    page = open_page(graphkit.report(model).to_html())
    seen = page.evaluate("""() => {
        const press = (place) => place.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        for (let next; (next = document.querySelector(".drawing [aria-expanded=false]")); ) press(next);
        return [...document.querySelectorAll(".drawing a.box[href^='#node']")]
            .map((each) => new URLSearchParams(each.getAttribute("href").slice(1)).get("node"));
    }""")
    every = {node.path for node in all_nodes(model.scopes) if not node.is_op("Constant")}
    first = {re.sub(r"(layers|blocks)\.\d", r"\1.0", path) for path in every}  # of repeated layers, one is drawn
    assert sorted(seen) == sorted(first)


def test_a_box_says_operator_constants_and_the_shape_that_it_gives(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    expect(box(page, "MatMul").locator("text")).to_have_text(["MatMul", "lm_head", "[16, 64]"])
    gives = page.locator(".drawing > .gives", has_text=", 64]")
    sizes = dict(graphkit.costs("example:causal-attention").sizes)
    expect(gives).to_have_text(f"[{sizes['batch_size']}, {sizes['sequence_length']}, 64]")
    page.get_by_label("sequence_length, as a number", exact=True).fill("9")  # numbers at the sizes that are set
    expect(gives).to_have_text(f"[{sizes['batch_size']}, 9, 64]")
    expect(box(page, "input_ids").locator("text").last).to_have_text(f"int64 [{sizes['batch_size']}, 9]")
    box(page, "MatMul").click()
    heads(page, "/lm_head/MatMul")


def test_a_line_says_which_tensors_it_carries(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    titles = page.locator(".drawing .line > title").all_text_contents()
    assert "/lm_head/MatMul_output_0: float32 [batch_size, sequence_length, 64]" in titles or any(
        title.startswith("logits: float32 [batch_size, sequence_length, 64]") for title in titles
    )


def test_inputs_of_a_family_are_one_box_that_leads_to_a_search(open_page: Open) -> None:
    page = open_page((REPORTS / "marian-tiny-merged.html").read_text("utf-8"))
    box(page, "…st_key_values.*.decoder.key").click()
    expect(page.locator("#search")).to_have_value("past_key_values.*.decoder.key")
    heads(page, "6 matches")


def test_costs_are_shares_that_move_with_the_sizes(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    paint(page, "Multiply-accumulates")
    blocks = box(page, "▸ blocks.0-1").locator("text").last
    first = blocks.text_content()
    costs = graphkit.costs("example:causal-attention")
    shares = page.locator(".drawing .box > text:last-of-type", has_text=re.compile(" % · ")).all_text_contents()
    assert sum(float(text.partition(" %")[0]) for text in shares) == pytest.approx(100, abs=1)
    assert costs.macs.value
    page.get_by_label("sequence_length, as a number", exact=True).fill("2048")
    expect(blocks).not_to_have_text(str(first))


def test_blockers_and_origins_are_colours(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    options = page.get_by_label("Colours of the drawing").locator("option").all_text_contents()
    assert options[:4] == ["Operators", "Shape origins", "Findings", "Blockers for ethos-u85"]
    paint(page, "Blockers for ethos-u85")
    expect(page.locator("#drawing .kinds span").first).to_have_text("refused")
    refused = graphkit.blockers("example:causal-attention", "ethos-u85")
    nodes = {obstacle.path for obstacle in refused.blockers if obstacle.path.startswith("/blocks.")}
    expect(box(page, "▸ blocks.0-1").locator("text").last).to_have_text(re.compile(f"^{len(nodes)} refused"))
    paint(page, "Shape origins")
    expect(page.locator("#drawing .kinds span")).not_to_have_count(0)


def test_places_on_a_provider_are_colours(open_page: Open) -> None:
    html = graphkit.report("example:causal-attention", graphkit.ReportOptions(provider="cpu")).to_html()
    page = open_page(html)
    paint(page, "Placement on cpu")
    expect(box(page, "MatMul").locator("rect")).to_have_class(re.compile("fine"))


def test_a_drawing_is_worked_by_keys(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    first = page.locator(".drawing .box[tabindex='0']")
    expect(first).to_have_count(1)
    first.focus()
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    expect(box(page, "logits")).to_be_focused()
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    expect(box(page, "▸ blocks.0-1")).to_be_focused()
    page.keyboard.press("Enter")
    expect(box(page, "▾ blocks.0")).to_be_focused()
    page.keyboard.press(">")
    expect(box(page, "▾ blocks.1")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".drawing .box:focus")).to_have_attribute("href", re.compile("^#node=%2Fblocks.1%2F"))
    wide = page.locator(".drawing").bounding_box()["width"]
    page.keyboard.press("+")
    assert page.locator(".drawing").bounding_box()["width"] > wide


def test_a_panel_leads_into_the_drawing(open_page: Open, attention: str) -> None:
    page = open_page(attention, "#node=%2Fblocks.1%2FSoftmax")
    page.click("#panel a:has-text('Show it in the drawing')")
    expect(page.locator("#panel")).to_be_hidden()
    expect(box(page, "▾ blocks.1")).to_have_count(1)
    shown = page.locator(".drawing .box:focus")
    expect(shown).to_have_attribute("href", "#node=%2Fblocks.1%2FSoftmax")
    expect(shown).to_be_in_viewport()


def test_a_drawing_is_saved_as_svg(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    with page.expect_download() as saved:
        page.click("text=Save as SVG")
    assert saved.value.suggested_filename.endswith(".svg")
    root = ET.fromstring(Path(saved.value.path()).read_text("utf-8"))
    texts = {"".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"lm_head", "logits", "input_ids"} <= texts
    fills = {rect.get("fill") for rect in root.iter("{http://www.w3.org/2000/svg}rect")}
    assert len(fills) > 3  # the colours go with it


def test_two_models_are_beside_each_other_with_their_changes(open_page: Open, folded: str) -> None:
    page = open_page(folded)
    views = page.locator("#drawing .view")
    expect(views).to_have_count(2)
    expect(page.locator("#drawing .kinds span")).to_have_text(["removed", "of other shapes", "added"])
    left, right = (view.bounding_box() for view in (views.first, views.last))
    assert left["x"] + left["width"] <= right["x"]
    page.click("text=Close all")
    views.first.locator(".box", has_text="▸ blocks").click()
    expect(views.last.locator(".head")).to_have_text(re.compile("^▾ blocks.0"))  # which opens with it
    views.first.locator(".box", has_text="Softmax").last.focus()
    page.keyboard.press("ArrowDown")
    expect(views.last.locator(".box.twin")).to_have_count(1)


def test_bodies_are_in_their_node_and_read_what_it_is_given(open_page: Open) -> None:
    puts = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    body = helper.make_graph(
        [helper.make_node("Not", ["c"], ["d"], "stop"), helper.make_node("Neg", ["s"], ["t"], "turn")],
        "b",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, ["n"]),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", TensorProto.FLOAT, ["n"]),
        ],
    )
    loop = helper.make_node("Loop", ["", "", "x"], ["y"], "again", body=body)
    graph = helper.make_graph([loop], "g", puts[:1], puts[1:])
    model = Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    page = open_page(graphkit.report(model).to_html())
    expect(page.locator(".drawing .head")).to_have_text(["▾ again  3 nodes", "▾ body  2 nodes"])
    for name in ("i", "c", "s", "Not", "Neg", "Loop"):
        expect(box(page, name)).to_have_count(1)
    titles = page.locator(".drawing .line > title").all_text_contents()
    assert [title for title in titles if title.startswith("x: ")]
    assert [title for title in titles if title.startswith("t: ")]


def test_hostile_names_are_text_in_a_drawing(open_page: Open) -> None:
    page = open_page(graphkit.report(chain_of([*HOSTILE])).to_html())
    expect(page.locator(".drawing a.box")).to_have_count(len(HOSTILE) + 2)
    texts = page.locator(".drawing .box > title").all_text_contents()
    assert all(any(name in text for text in texts) for name in HOSTILE)
    assert page.evaluate("window.attacked") is None
    assert page.locator("img, iframe, object, main script").count() == 0


def test_hostile_operators_are_text_in_a_drawing(open_page: Open) -> None:
    model = chain_of(["a", "b", "c"])
    for node, op in zip(model.proto.graph.node, ("x(", "[a-", "<img src=x onerror=window.attacked=1>"), strict=True):
        node.op_type, node.domain = op, "own"
    model.proto.opset_import.append(helper.make_opsetid("own", 1))
    page = open_page(graphkit.report(Model.from_proto(model.proto)).to_html())
    for op in ("own.x(", "own.[a-", "own.<img src=x"):
        expect(box(page, op)).to_have_count(1)
    assert page.evaluate("window.attacked") is None


def test_many_nodes_without_modules_are_drawn_in_pieces(open_page: Open) -> None:
    page = open_page(graphkit.report(chain_of([f"node_{number}" for number in range(10_000)])).to_html())
    assert page.locator(".drawing .box").count() < 200
    page.evaluate("location.hash = '#show=node_7777'")
    expect(page.locator(".drawing .box:focus")).to_have_attribute("href", "#node=node_7777")


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["gemma-270m", "detr-resnet-50-quantized", "nllb-600m-merged"])
def test_of_a_large_model_few_boxes_are_drawn_at_first(open_page: Open, name: str) -> None:
    page = open_page((REPORTS / f"{name}.html").read_text("utf-8"))
    assert 8 <= page.locator(".drawing .box").count() <= 60


def test_a_drawing_prints_as_wide_as_the_paper(open_page: Open, merged: str) -> None:
    page = open_page(merged, viewport={"width": 800, "height": 900})
    page.emulate_media(media="print")
    expect(page.locator("#drawing .tools")).to_be_hidden()
    assert page.locator(".drawing").bounding_box()["width"] <= 800


def test_the_errors_of_a_comparison_are_colours(open_page: Open, tmp_path: Path) -> None:
    model = onnx.load(str(graphkit.load("example:causal-attention").files[0]))
    next(node for node in model.graph.node if node.op_type == "Softmax").attribute[0].i = 1
    onnx.save(model, tmp_path / "other.onnx")
    page = open_page(graphkit.compare_models("example:causal-attention", tmp_path / "other.onnx").to_html())
    paint(page, "Errors")
    expect(page.locator("#drawing .kinds span")).to_have_text(["first to differ", "different", "equal"])
    expect(box(page, "Add").first.locator("rect")).to_have_class(re.compile("fine"))
    expect(box(page, "MatMul").first.locator("rect")).to_have_class(re.compile("doubt"))
    expect(box(page, "▸ blocks.0-1").first.locator("text").last).to_contain_text("1 first to differ")
    expect(page.locator("tr.warning td").last).to_contain_text("the difference begins here")


def test_a_function_is_a_box_of_its_own(open_page: Open) -> None:
    body = [helper.make_node("Neg", ["a"], ["t"], "turn"), helper.make_node("Abs", ["t"], ["b"], "size")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Turn", ["a"], ["b"], body, opsets[:1])
    puts = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Turn", ["x"], ["y"], "call", domain="own")], "g", puts[:1], puts[1:])
    made = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    page = open_page(graphkit.report(Model.from_proto(made)).to_html())
    expect(page.locator(".drawing .head")).to_have_text("▾ function Turn  2 nodes")
    expect(box(page, "own.Turn")).to_have_count(1)
    expect(box(page, "Abs")).to_have_count(1)
