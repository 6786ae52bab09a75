"""The page in examples/web generates PyTorch's tokens from a bundle, on wasm and on WebGPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from npm_packages import JAVASCRIPT, ONNXRUNTIME, install_packages
from real_models import export_cases, unpacked_export

import graphkit

pytestmark = pytest.mark.slow  # it installs onnxruntime for JavaScript, and needs its registry
Browser = Page = Any  # Playwright's, which is installed for these tests alone
Open = Callable[..., Page]
SWITCHES = [
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
]
ROOT = JAVASCRIPT.parents[2]
TOKENIZERS = "@huggingface/tokenizers@0.2.0"
END, SITE, A_MINUTE = 2, "http://localhost:8000", 60_000
NAMES = ("marian-multi", "qwen3-padded", "llama-static")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with exports and their bundles."""
    folder = tmp_path_factory.mktemp("made")
    for name in NAMES:
        export = unpacked_export(name, folder / f"{name}.export")
        graphkit.bundle_folder(export, folder / name, graphkit.BundleOptions(verify=False))
    return folder


@pytest.fixture
def open_example(browser: Browser, made: Path) -> Iterator[Open]:
    """Open the page, served with bundles and packages, and fail on any error in it, and on requests to other places."""
    modules = install_packages(*ONNXRUNTIME, TOKENIZERS) / "node_modules"
    places = {"modules": modules, "made": made, "": ROOT}
    faults: list[str] = []
    pages: list[Page] = []

    def serve(route: Any) -> None:
        address = route.request.url.partition("?")[0].removeprefix(f"{SITE}/")
        place, _, rest = address.partition("/")
        file = places[place] / rest if place in places else ROOT / address
        if not route.request.url.startswith(f"{SITE}/"):
            faults.append(route.request.url)
        if file.is_file():
            kinds = {".mjs": "text/javascript", ".wasm": "application/wasm"}
            route.fulfill(path=file, **({"content_type": kinds[file.suffix]} if file.suffix in kinds else {}))
        else:
            route.fulfill(status=404)

    def opened(name: str, provider: str = "wasm", **options: object) -> Page:
        page = browser.new_page(**options)
        page.set_default_timeout(A_MINUTE)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.route("**", serve)
        page.goto(f"{SITE}/examples/web/index.html?bundle=/made/{name}&modules=/modules")
        page.wait_for_selector("html.live", state="attached")
        page.select_option("#provider", provider)
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert faults == []


def load(page: Page) -> None:
    page.click("#open")
    page.wait_for_selector("#fields:enabled")
    assert page.inner_text("#status") == "Ready."


def generate(page: Page, source: str, most: int) -> str:
    page.fill("#source", source)
    page.fill("#most", str(most))
    page.click("#generate")
    page.wait_for_selector("#stop:disabled")
    answer: str = page.inner_text("#answer")
    return answer


def cut(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


@pytest.mark.parametrize("provider", ["wasm", "webgpu"])
@pytest.mark.parametrize("name", NAMES)
def test_the_page_gives_the_tokens_of_pytorch(open_example: Open, made: Path, name: str, provider: str) -> None:
    page = open_example(name, provider)
    if provider == "webgpu" and not page.evaluate("navigator.gpu?.requestAdapter().then(Boolean)"):
        pytest.skip("the browser has no adapter for WebGPU")
    load(page)
    assert page.inner_text("#generate") == ("Translate" if name == "marian-multi" else "Complete")
    for case in export_cases(made / f"{name}.export"):
        if case["batch"] == 1 and not case["padded"]:
            tokens = cut(case["tokens"][0].tolist())
            ids = " ".join(map(str, case["inputs"]["input_ids"][0].tolist()))
            assert list(map(int, generate(page, ids, case["tokens"].shape[1]).split())) == tokens


def test_a_bar_shows_how_much_has_come_and_stop_ends_a_generation(open_example: Open) -> None:
    page = open_example("qwen3-padded")
    page.evaluate("""() => { window.values = []; new MutationObserver(() => values.push(progress.value))
        .observe(progress, { attributes: true }); }""")
    load(page)
    values = page.evaluate("values")
    assert values == sorted(values)
    assert values[-1] == 1
    page.fill("#source", "5, 6 7")
    page.fill("#most", "2000")
    page.fill("#temperature", "50")  # so that it does not end by itself
    page.click("#generate")
    page.wait_for_function("/^[2-9] tokens|\\\\d\\\\d+ tokens/.test(document.querySelector('#status').textContent)")
    page.click("#stop")
    page.wait_for_selector("#stop:disabled")
    assert page.inner_text("#status") == "Stopped."
    assert 2 <= len(page.inner_text("#answer").split()) < 2000


def test_what_is_wrong_is_said(open_example: Open) -> None:
    page = open_example("nowhere")
    for _ in range(2):
        page.fill("#bundle", "/made/nowhere")
        page.click("#open")
        page.wait_for_selector("#status.fault")
        assert page.inner_text("#status") == f'"{SITE}/made/nowhere/bundle.json": 404'
        page.fill("#bundle", "/made/qwen3-padded/")
        load(page)
        load(page)
    generate(page, "one two", 4)
    assert page.inner_text("#status.fault") == "give token ids: whole numbers"
    generate(page, "1 2", 9999)
    assert page.locator(".fault").count() == 0


def test_a_tokenizer_beside_the_bundle_turns_text_into_tokens_and_back(open_example: Open, made: Path) -> None:
    words = {f"w{number}": number for number in range(120)}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }  # fmt: skip
    file = made / "llama-static" / "tokenizer.json"
    file.write_text(json.dumps(tokenizer))
    try:
        page = open_example("llama-static")
        load(page)
        assert page.inner_text("#kind") == "Text"
        case = next(case for case in export_cases(made / "llama-static.export") if case["batch"] == 1)
        text = " ".join(f"w{token}" for token in case["inputs"]["input_ids"][0])
        assert generate(page, text, 4) == " ".join(f"w{token}" for token in case["tokens"][0][:4])
    finally:
        file.unlink()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_its_window_in_light_and_dark(open_example: Open, width: int, scheme: str) -> None:
    page = open_example("qwen3-padded", viewport={"width": width, "height": 844}, color_scheme=scheme)
    load(page)
    generate(page, "5 6 7", 8)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
