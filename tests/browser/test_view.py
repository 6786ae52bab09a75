"""A model in Model Explorer, in a real browser: `make view-test` sets up what these tests need."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from builders import proto_of

pytest.importorskip("model_explorer", reason="needs Model Explorer, which is large: run `make view-test`")
Browser = Page = Any  # Playwright's, which is installed for these tests alone
SWITCHES = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]  # for WebGL
PATIENCE = 60_000  # milliseconds, for a drawing without a graphics card
HOSTILE = ("<img src=x onerror=window.attacked=1>", "</script><script>window.attacked=1</script>", "__proto__")
TEXT = "(float[N, 4] x) => (float[N, 4] y) { [one] t = Tanh (x) [two] u = Exp (t) [three] y = Softmax <axis = 1> (u) }"
Show = Callable[..., Page]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Show models with `graphkit view`, and fail on any error of the page; it reaches nothing but that server."""
    faults: list[str] = []
    servers: list[subprocess.Popen[str]] = []
    pages: list[Page] = []

    def shown(*words: object) -> Page:
        command = [
            sys.executable,
            "-m",
            "graphkit",
            "view",
            *map(str, words),
            "--no-browser",
            "--port",
            str(free_port()),
        ]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
        servers.append(server)
        assert server.stdout is not None
        address = next(line.strip() for line in server.stdout if line.startswith("http://localhost"))
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(PATIENCE)
        page.route(re.compile("^https://"), lambda route: route.fulfill(body=""))  # fonts that it has no need of
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
        page.goto(address)
        page.wait_for_selector("canvas")
        pages.append(page)
        return page

    yield shown
    for page in pages:
        page.close()
    for server in servers:
        server.terminate()
        server.wait()
    assert faults == []


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return int(taken.getsockname()[1])


def find(page: Page, node: str) -> Any:
    """Search for a node by its id, and return what to click at: with Alt, that selects the node."""
    page.get_by_placeholder("Search nodes/layers").first.fill(re.sub(r"([^\w ])", r"\\\1", node))
    return page.locator(f'mat-tree-node[data-id="{node}"] .node-label').first


def select(page: Page, node: str) -> None:
    find(page, node).click(modifiers=["Alt"])


def click_until(page: Page, node: str, text: str, pane: int) -> None:
    """Click at a node in the drawing, until a panel has a text."""
    box = page.locator("canvas").first.bounding_box()
    panel = page.locator("info-panel").nth(pane).get_by_text(text)
    for _ in range(PATIENCE // 3000):
        find(page, node).click()  # which moves the node to the middle
        page.wait_for_timeout(2000)
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_timeout(1000)
        if panel.count():
            return
    pytest.fail(f"panel {pane} has no '{text}': {page.locator('info-panel').nth(pane).inner_text()}")


def wait_for_text(page: Page, text: str, pane: int = 0) -> None:
    """Wait until a panel has a text; a long one is cut off there until it is opened."""
    page.locator("info-panel").nth(pane).get_by_text(text).first.wait_for(state="attached")


def test_a_real_model(show: Show, model_file: Callable[[str], Path]) -> None:
    page = show(model_file("marian-tiny/decoder_model_merged"), "--target", "ethos-u85")
    for overlay in ("shape origins", "shapes", "hazards", "weight bytes", "MACs", "blockers of ethos-u85"):
        wait_for_text(page, overlay)
    select(page, "optimum::if/then_branch//model/decoder/layers.0/self_attn/q_proj/MatMul")
    wait_for_text(page, "[batch_size, decoder_sequence_length, 32]")  # the shape that it gives
    wait_for_text(page, "1024*batch_size*decoder_sequence_length")  # its MACs
    wait_for_text(page, "optimum::if/then_branch/model/decoder/layers.{0-5}/layers.0/self_attn/q_proj")


def test_two_models_are_synchronised(show: Show, tmp_path: Path) -> None:
    onnx.save(proto_of(TEXT), tmp_path / "a.onnx")
    onnx.save(proto_of(TEXT.replace("[one]", "[uno]").replace("axis = 1", "axis = 0")), tmp_path / "b.onnx")
    page = show("a.onnx", "b.onnx")
    click_until(page, "one", "uno", pane=1)  # which is what B calls it
    click_until(page, "three", "changed: axis: 1 -> 0", pane=1)
    wait_for_text(page, "changed: axis: 1 -> 0", pane=0)


def test_hostile_names_are_text(show: Show, tmp_path: Path) -> None:
    proto = proto_of(TEXT)
    for name, node in zip(HOSTILE, proto.graph.node, strict=True):
        node.name = name
        node.attribute.add(name=name, s=name.encode(), type=onnx.AttributeProto.STRING)
    proto.producer_name = HOSTILE[0]
    onnx.save(proto, tmp_path / "hostile.onnx")
    page = show("hostile.onnx")
    wait_for_text(page, HOSTILE[0])
    for name in HOSTILE[:2]:
        select(page, name)
        wait_for_text(page, name)
    assert page.evaluate("window.attacked") is None
