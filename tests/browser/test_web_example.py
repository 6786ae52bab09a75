"""The page in examples/web generates PyTorch's tokens from a bundle, on wasm and on WebGPU."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from large_models import WORDS, export_of
from npm_packages import JAVASCRIPT, ONNXRUNTIME, install_packages
from real_models import export_cases, unpacked_export

import graphkit
from graphkit.examples import resolve

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
END, A_MINUTE = 2, 60_000
LARGE, SLOTS = 32_000, 2048  # words of a vocabulary of real size, and the slots of its cache
NAMES = ("marian-multi", "qwen3-padded", "llama-static")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with exports and their bundles."""
    folder = tmp_path_factory.mktemp("made")
    for name in NAMES:
        export = unpacked_export(name, folder / f"{name}.export")
        graphkit.bundle_folder(export, folder / name, graphkit.BundleOptions(verify=False))
    for name in ("encoder", "merged-decoder"):  # without a config.json, which would say what decoding begins with
        shutil.copy(resolve(f"example:{name}"), folder)
    sizes = graphkit.BundleOptions(verify=False, max_cache=16, max_source=16)
    graphkit.bundle_folder(folder, folder / "translation", sizes)
    return folder


@pytest.fixture(scope="module")
def site(made: Path) -> Iterator[str]:
    """The address of a server of the project's files, of packages and of bundles."""
    places = {"modules": install_packages(*ONNXRUNTIME, TOKENIZERS) / "node_modules", "made": made}

    class Site(http.server.SimpleHTTPRequestHandler):
        extensions_map = {
            ".mjs": "text/javascript",
            ".wasm": "application/wasm",
            ".html": "text/html",
            ".css": "text/css",
            "": "text/plain",
        }

        def translate_path(self, path: str) -> str:
            place, _, rest = path.partition("?")[0].lstrip("/").partition("/")
            return str(places.get(place, ROOT / place) / rest)

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def open_example(browser: Browser, site: str) -> Iterator[Open]:
    """Open the page with a bundle, and fail on any error in it, and on requests to other places."""
    faults: list[str] = []
    pages: list[Page] = []

    def note(request: Any) -> None:
        if not request.url.startswith((site, "data:", "blob:")):
            faults.append(request.url)

    def opened(name: str, provider: str = "wasm", **options: object) -> Page:
        page = browser.new_page(**options)
        page.set_default_timeout(A_MINUTE)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", note)
        page.goto(f"{site}/examples/web/index.html?bundle=/made/{name}&modules=/modules")
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


@pytest.mark.cases("llama-static-wasm")
@pytest.mark.parametrize(("name", "provider"), [*((name, "wasm") for name in NAMES), ("marian-multi", "webgpu")])
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


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["wasm", "webgpu"])
def test_the_page_chooses_from_a_vocabulary_of_real_size(open_example: Open, made: Path, provider: str) -> None:
    if not (made / "large").exists():
        export = export_of("qwen2-tiny", made / "large.export", LARGE, SLOTS)
        graphkit.bundle_folder(export, made / "large", graphkit.BundleOptions(verify=False, max_cache=SLOTS))
    page = open_example("large", provider)
    if provider == "webgpu" and not page.evaluate("navigator.gpu?.requestAdapter().then(Boolean)"):
        pytest.skip("the browser has no adapter for WebGPU")
    load(page)
    tokens = list(map(int, generate(page, "7 19 3", 24).split()))
    assert [tokens] == graphkit.Bundle(made / "large", unchecked=True).generate([[7, 19, 3]], max_new_tokens=24)
    assert max(tokens) > WORDS["qwen2-tiny"]


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
    page.evaluate(r"""() => new MutationObserver(() => {
        if (/^([2-9]|\d\d+) tokens/.test(document.querySelector("#status").textContent)) {
            document.querySelector("#stop").click();
        }
    }).observe(document.querySelector("#status"), { childList: true, characterData: true, subtree: true })""")
    page.click("#generate")
    page.wait_for_function("document.querySelector('#status').textContent === 'Stopped.'")
    assert page.is_disabled("#stop")
    assert 2 <= len(page.inner_text("#answer").split()) < 2000


def test_what_is_wrong_is_said(open_example: Open, site: str) -> None:
    page = open_example("nowhere")
    for _ in range(2):
        page.fill("#bundle", "/made/nowhere")
        page.click("#open")
        page.wait_for_selector("#status.fault")
        assert page.inner_text("#status") == f'"{site}/made/nowhere/bundle.json": 404'
        page.fill("#bundle", "/made/qwen3-padded/")
        load(page)
        load(page)
    generate(page, "one two", 4)
    assert page.inner_text("#status.fault") == "give token ids: whole numbers"
    generate(page, "1 2", 9)
    assert page.locator(".fault").count() == 0


def test_the_page_asks_for_the_first_token_where_the_export_does_not_say_it(open_example: Open, made: Path) -> None:
    page = open_example("translation")
    load(page)
    generate(page, "12 7 2", 8)
    assert "does not say what the decoder starts with" in page.inner_text("#status.fault")
    page.fill("#begin", "59")
    bundle = graphkit.Bundle(made / "translation", unchecked=True)
    expected = bundle.generate([[12, 7, 2]], prompt=[[59]], max_new_tokens=8)
    assert list(map(int, generate(page, "12 7 2", 8).split())) == expected[0]
    page.fill("#bundle", "/made/marian-multi")
    load(page)
    assert not page.is_visible("#begin")


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


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_the_page_fits_its_window_in_light_and_dark(open_example: Open, width: int, scheme: str) -> None:
    page = open_example("qwen3-padded", viewport={"width": width, "height": 844}, color_scheme=scheme)
    load(page)
    generate(page, "5 6 7", 8)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
