"""The host of bundles in JavaScript says what that in Python does: in Node, and in a page."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from npm_packages import JAVASCRIPT, ONNXRUNTIME, install_packages
from real_models import unpacked
from speech import FEATURES, normalized_over_windows_of, speech

import graphkit
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder

HOST = JAVASCRIPT / "bundle.mjs"
pytestmark = pytest.mark.slow  # it installs onnxruntime for JavaScript, and needs its registry
ROWS = [[5, 6, 7, 8, 9], [3, 4, 5, 6, 7]]
STEPS = [[7, 8], [9, 1], [2, 2]]
SLOTS = 40
LONG, LONGER = ([[(row + 3 * at) % 16 + 4 for at in range(count)] for row in range(2)] for count in (31, 35))
FAULTS = {
    "a slot too many": ("this.#slots = after;", "this.#slots = new Map([...after].map(([name, n]) => [name, n + 1]));"),
    "the slots of before": ("this.#slots = after;", "this.#slots = new Map(this.#lengths);"),
    "all slots": ("const used = (size) => (prefix ?", "const used = (size) => (!prefix ?"),
}
BUNDLES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "marian-tiny": (
        ["in place", "copied", "web"],
        {
            "start": {"input_ids": ROWS, "attention_mask": [[1] * 5, [1, 1, 1, 0, 0]], "tokens": [4, 5]},
            "other": {"input_ids": [[9, 8, 7], [1, 2, 3]], "tokens": [[4, 6], [6, 4]]},
            "prompt": 4,
            "long": {"input_ids": ROWS, "tokens": LONG},
            "longer": {"input_ids": ROWS, "tokens": LONGER},
        },
    ),
    "qwen2-tiny": (
        ["in place", "web"],
        {
            "start": {"tokens": ROWS, "mask": [[1] * 5, [0, 0, 1, 1, 1]]},
            "other": {"tokens": [[9, 8], [7, 1]]},
            "mask": [[1] * 5, [0, 0, 1, 1, 1]],
            "long": {"tokens": LONG, "mask": [[1] * 31, [0] * 6 + [1] * 25]},
            "longer": {"tokens": LONGER},
        },
    ),
}


def given(name: str) -> dict[str, Any]:
    return {**BUNDLES[name][1], "tokens": STEPS, "ids": ROWS}


@pytest.fixture(scope="session")
def modules() -> Path:
    """A folder with onnxruntime for Node and for pages."""
    return install_packages(*ONNXRUNTIME)


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    for name in BUNDLES:
        export = unpacked(name, folder / f"{name}.export")
        options = BundleOptions(max_cache=SLOTS, max_source=20, batch=4, verify=False)
        bundle_folder(export, folder / name, options)
        bundle_folder(export, folder / f"{name}.all", replace(options, update="tensor-scatter"))
    return {name: folder / name for name in BUNDLES}


@pytest.fixture(scope="session")
def found(modules: Path, bundles: dict[str, Path]) -> dict[str, Any]:
    """What the scenarios say in Node."""
    plan = {
        "modules": str(modules),
        "host": str(HOST),
        "failing": "marian-tiny",
        "faults": FAULTS,
        "bundles": {
            name: {"folder": str(bundles[name]), "all": f"{bundles[name]}.all", "ways": ways, "given": given(name)}
            for name, (ways, _) in BUNDLES.items()
        },
    }
    script = Path(__file__).with_name("bundle_in_node.mjs")
    ran = subprocess.run(["node", script, json.dumps(plan)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    plain = re.sub(r"\x1b\[[\d;]*m|.*\[E:onnxruntime:.*", "", ran.stderr)  # errors are those of wrong hosts
    warned = list(filter(None, plain.splitlines()))  # once for each by a module, and none that a state was copied
    by_path = [line for line in warned if not line.startswith("a bundle: ")]
    assert len(set(by_path)) == len(by_path) == 6
    assert all(': it is not proven: "the proof was not run" - `graphkit verify ' in line for line in warned), warned
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


@pytest.fixture(scope="session")
def expected(bundles: dict[str, Path]) -> Callable[[str], dict[str, Any]]:
    """Tell what Python does with a bundle, once for each."""
    return functools.cache(lambda name: in_python(graphkit.Bundle(bundles[name]), given(name)))


def in_python(bundle: graphkit.Bundle, inputs: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"max_new_tokens": 9, "mask": inputs.get("mask")}
    if "prompt" in inputs:
        options["prompt"] = [inputs["prompt"]] * len(ROWS)
    said: dict[str, Any] = {"first": decoded(bundle, inputs["start"]), "length": bundle.length}
    said["states"] = {name: array.copy() for name, array in bundle.state.items()}
    said["greedy"] = bundle.generate(ROWS, eos=-1, **options)
    said["beams"] = bundle.generate(ROWS, eos=-1, beams=2, **options)
    said["ended"] = bundle.generate(ROWS, eos=(said["beams"][0][3], 1 << 20), beams=2, **options)
    bundle.start(**inputs["start"])
    bundle.reorder([1, 1, 0])
    said["reordered"] = bundle.step([*STEPS[0], STEPS[0][0]])
    said["grown"] = list(grown(bundle, inputs))
    return said


def grown(bundle: graphkit.Bundle, inputs: dict[str, Any]) -> Iterator[np.ndarray]:
    fork = bundle.fork()
    yield from (bundle.start(**inputs["long"]), fork.start(**inputs["longer"]))
    for tokens in STEPS:
        yield from (bundle.step(tokens), fork.step(tokens))
    bundle.reorder([1, 1, 0])
    yield from (bundle.step([*STEPS[0], STEPS[0][0]]), bundle.start(**inputs["long"]))


def decoded(bundle: graphkit.Bundle, inputs: dict[str, Any]) -> list[np.ndarray]:
    return [bundle.start(**inputs), *(bundle.step(tokens) for tokens in STEPS)]


def close(numbers: list[float], array: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(numbers).reshape(array.shape), array, rtol=0, atol=2e-5)


def check(said: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Check what JavaScript says of a bundle against what Python does with it."""
    for numbers, array in zip(said["first"], wanted["first"], strict=True):
        close(numbers, array)
    close(said["reordered"], wanted["reordered"])
    assert set(said["states"]) == set(wanted["states"])
    for name, (dims, numbers) in said["states"].items():
        assert dims == [wanted["length"] if size == SLOTS else size for size in wanted["states"][name].shape]
        close(numbers, wanted["states"][name][tuple(map(slice, dims))])
    for same in ("length", "greedy", "beams", "ended"):
        assert said[same] == wanted[same]
    assert said["arenas"] == 1
    assert said["cleared"]
    assert said["hasNoLeak"]
    assert said["forksAreApart"]


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, (ways, _) in BUNDLES.items() for way in ways])
def test_node_decodes_as_python_does(
    found: dict[str, Any], expected: Callable[[str], dict[str, Any]], name: str, way: str
) -> None:
    check(found[name][way], expected(name))


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, (ways, _) in BUNDLES.items() for way in ways])
def test_the_slots_in_use_stay_where_they_are(
    found: dict[str, Any], expected: Callable[[str], dict[str, Any]], name: str, way: str
) -> None:
    grown = found[name][way]["grown"]
    assert grown["slots"] == [31, 35, 34, 38, 31]  # of two users at the start and three steps later, and of a new start
    assert grown["isInPlace"]
    for numbers, array in zip(grown["logits"], expected(name)["grown"], strict=True):
        close(numbers, array)


@pytest.mark.parametrize("name", BUNDLES)
def test_logits_are_those_of_all_slots_to_the_last_bit(found: dict[str, Any], name: str) -> None:
    given_all = found[name]["all"]
    assert given_all["slots"] == [SLOTS] * 5
    assert given_all["isSame"]


@pytest.mark.parametrize("name", BUNDLES)
@pytest.mark.parametrize("fault", FAULTS)
def test_other_slots_than_those_in_use_are_noticed(found: dict[str, Any], name: str, fault: str) -> None:
    assert found[name]["all"]["faults"][fault] is False


def test_what_cannot_be_done_is_an_error_before_anything_runs(found: dict[str, Any], bundles: dict[str, Path]) -> None:
    sizes = json.loads((bundles["marian-tiny"] / "bundle.json").read_text())["sizes"]
    assert sizes == {"batch": 4, "slots": SLOTS, "source": 20, "tokens": 40}
    largest = f"up to {json.dumps(sizes, separators=(',', ':'))}"
    said = dict(found["failures"])
    assert said.pop("isUnharmed")
    assert said.pop("isTyped")
    assert said == {
        "early": "GraphkitError: no sequence is started - call encode or prefill first",
        "missing": 'GraphkitError: encode needs "input_ids", int64["batch","source"]',
        "odd": 'GraphkitError: there is no input "\\u001b[31m"',
        "method": """GraphkitError: no 'prefill': the bundle has ["encode","step","init","reorder"]""",
        "rank": f'GraphkitError: "input_ids" is [2], and must be ["batch","source"], {largest}',
        "ragged": "GraphkitError: rows of an array differ in length",
        "kind": 'GraphkitError: "input_ids" is no int64',
        "long": f'GraphkitError: "input_ids" is [1,99], and must be ["batch","source"], {largest}',
        "tokens": "GraphkitError: give at least 1 maxNewTokens and beams",
        "wide": "GraphkitError: 6 rows, and the bundle takes 4 - make one of a larger --batch",
        "rows": "GraphkitError: 2 rows, and the sequence has 1 - give a token for each",
        "reorder": "GraphkitError: rows [0,3]: give 1 to 4, of the 1 that the state has, counted from 0",
        "busy": "GraphkitError: another method of this bundle is running - await it first, or use a fork",
        "full": "GraphkitError: 41 tokens do not fit into 40 slots - reset it, or make one of more",
    }


def test_what_is_no_bundle_is_refused(found: dict[str, Any]) -> None:
    said = found["refusals"]
    large = said.pop("large")
    assert large == f"GraphkitError: there is no memory for {2**52} bytes of state"
    assert all(text.startswith("GraphkitError: bundle.json is not that of a bundle: ") for text in said.values()), said
    assert "../encode.onnx" in said["file"]
    assert "/etc/passwd" in said["data"]
    about = "GraphkitError: bundle.json is not that of a bundle: "
    assert said["batch"].startswith(f"{about}other rows than sizes.batch in ")
    assert said["slots"] == f'{about}sizes.slots is 64, and length "past_length" may be {SLOTS}'
    assert said["fewer"].startswith(f"{about}fewer slots than 64 in ")
    assert said["record"] == f"{about}it records no proof, or not all files"
    changed = f"{about}it was changed after it was written - make the bundle again"
    assert [said[name] for name in ("initial", "another", "proof")] == [changed] * 3


def test_files_that_are_not_those_that_were_recorded_are_refused(found: dict[str, Any]) -> None:
    said = found["files"]
    assert said.pop("whole") == ""
    assert said.pop("absent") == 'GraphkitError: "bundle.json" is missing'
    assert {"encode.onnx", "step.onnx", "init.onnx", "reorder.onnx", "bundle.data"} >= set(said) > {"step.onnx"}
    for name, ways in said.items():
        assert ways["missing"] == f'GraphkitError: "{name}" is missing'
        assert re.fullmatch(
            rf'GraphkitError: "{name}" has \d+ bytes, and bundle.json records \d+: copy it again', ways["short"]
        )
        assert ways["flipped"] == f'GraphkitError: "{name}" has not the SHA-256 of bundle.json'


PAGE = """<!doctype html>
<script type="module">
let said;
try {
  const ort = await import('/onnxruntime/ort.wasm.min.mjs');
  const { Bundle } = await import('/host/bundle.mjs');
  const { decodes } = await import('/tests/bundle_scenarios.mjs');
  Object.assign(ort.env.wasm, { numThreads: 1, wasmPaths: '/onnxruntime/' });
  const bundle = await Bundle.open(ort, '/bundle');
  said = await decodes(bundle, await (await fetch('/given')).json());
} catch (error) {
  said = { error: String(error.stack ?? error) };
}
await fetch('/said', { method: 'POST', body: JSON.stringify(said) });
</script>
"""
TYPES = {".mjs": "text/javascript", ".wasm": "application/wasm"}


class Site(http.server.BaseHTTPRequestHandler):
    """Serves a page, what it needs, and takes what it says."""

    def __init__(self, *args: Any, folders: dict[str, Path], given: dict[str, Any], said: list[Any], **kw: Any) -> None:
        self.folders, self.given, self.said = folders, given, said
        super().__init__(*args, **kw)

    def do_GET(self) -> None:
        _, place, *rest = self.path.split("/")
        if place == "":
            self.answer(PAGE.encode(), "text/html")
        elif place == "given":
            self.answer(json.dumps(self.given).encode(), "application/json")
        elif place in self.folders and (file := self.folders[place] / rest[0]).is_file():
            self.answer(file.read_bytes(), TYPES.get(file.suffix, "application/octet-stream"))
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        self.said.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer(b"", "text/plain")

    def answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


@pytest.fixture(scope="session")
def chromium() -> str:
    """A Chromium; where GRAPHKIT_INSTALL_CHROMIUM is set, Debian's, installed first."""
    names = ("chromium", "chromium-browser", "google-chrome")
    if os.environ.get("GRAPHKIT_INSTALL_CHROMIUM") and not any(map(shutil.which, names)) and shutil.which("apt-get"):
        install = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]
        subprocess.run(install, check=False, capture_output=True, timeout=300)
    path = next((path for name in names if (path := shutil.which(name)) is not None), None)
    if path is None:
        pytest.skip("there is no Chromium: GRAPHKIT_INSTALL_CHROMIUM=1 lets root install Debian's")
    return path


@pytest.fixture
def site(modules: Path, bundles: dict[str, Path]) -> Iterator[tuple[str, list[Any]]]:
    """The address of a page, and what it says."""
    said: list[Any] = []
    web = modules / "node_modules" / "onnxruntime-web" / "dist"
    folders = {
        "onnxruntime": web,
        "host": HOST.parent,
        "tests": Path(__file__).parent,
        "bundle": bundles["marian-tiny"],
    }
    handler = functools.partial(Site, folders=folders, given=given("marian-tiny"), said=said)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", said
        server.shutdown()
        thread.join()


def test_a_page_decodes_as_python_does(
    chromium: str, site: tuple[str, list[Any]], expected: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    address, said = site
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    browser = subprocess.Popen(
        [chromium, *flags, f"--user-data-dir={tmp_path}", address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(1200):
            if said or browser.poll() is not None:
                break
            threading.Event().wait(0.05)
    finally:
        browser.terminate()
        browser.wait(20)
    assert said, "the page has said nothing within a minute"
    assert "error" not in said[0], said[0]
    check(said[0], expected("marian-tiny"))


RECURRENT = """<ir_version: 8, opset_import: ["" : 17]>
step (int64[batch, 1] input_ids, float[batch, 4] state, float[batch, 4] top)
=> (float[batch, 1, 4] logits, float[batch, 4] state_out, float[batch, 4] new_top)
<int64[1] one = {1}, float[3, 4] table = {1, 2, -3, 4, -5, 6, 7, -8, 9, 1, 2, 3}> {
    rows = Gather (table, input_ids)
    row = Squeeze (rows, one)
    state_out = Add (state, row)
    new_top = Max (top, row)
    both = Add (state_out, new_top)
    logits = Unsqueeze (both, one)
}
"""
IN_NODE = """
import { createRequire } from 'node:module';
const { Bundle } = await import(process.argv.at(-1));
const bundle = await Bundle.open(createRequire(process.argv[2])('onnxruntime-node'), process.argv[3]);
const found = [];
for (const start of [0, 1]) {
  for (const token of [start, 2, 1]) found.push([...(await bundle.step([[token], [2]])).data]);
  await bundle.reset();
}
console.log(JSON.stringify(found));
"""


def test_a_step_starts_from_initial_values_in_node(tmp_path: Path, modules: Path) -> None:
    """Without a cache, or a method that starts a sequence."""
    export, folder = tmp_path / "export", tmp_path / "bundle"
    export.mkdir()
    onnx.save(onnx.parser.parse_model(RECURRENT), export / "model.onnx")
    np.save(export / "top.npy", np.array([[1, 20, -3, 5]], np.float32))
    states = (("state", "state_out", "0.25"), ("top", "new_top", '"top.npy"'))
    text = '[[method]]\nname = "step"\nmodels = ["model.onnx"]\ntokens = "input_ids"\n'
    for name, after, initial in states:
        text += f'[[state]]\nname = "{name}"\ninitial = {initial}\n'
        text += f'read = {{ step = "{name}" }}\nwrite = {{ step = "{after}" }}\n'
    (export / "bundle.toml").write_text(text)
    bundle_folder(export, folder, BundleOptions(batch=2, verify=False))
    plain = json.loads((folder / "bundle.json").read_text())
    assert plain["lengths"] == []
    python = graphkit.Bundle(folder)
    expected = []
    for start in (0, 1):
        python.reset()
        for token in (start, 2, 1):
            expected.append(python.step([[token], [2]]).ravel().tolist())
    script = tmp_path / "bundle" / "run.mjs"
    script.write_text(IN_NODE)
    command = ["node", script, f"{modules}/", folder, HOST.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == expected


SOUNDS_IN_NODE = """
import { createRequire } from 'node:module';
const { Bundle } = await import(process.argv.at(-1));
const ort = createRequire(process.argv[2])('onnxruntime-node');
const bundle = await Bundle.open(ort, process.argv[3]);
const found = [];
for (const frames of JSON.parse(process.argv[4])) {
  const input_features = new ort.Tensor('float32', new Float32Array(frames * 6).fill(0.5), [1, frames, 6]);
  const said = await bundle.encode({ tokens: [[3]], input_features }).then(({ data }) => [...data], String);
  found.push(said);
  await bundle.reset();
}
console.log(JSON.stringify(found));
"""


def test_a_source_at_which_the_export_does_not_run_is_refused_in_node(tmp_path: Path, modules: Path) -> None:
    source, folder = speech(tmp_path / "export", normalized_over_windows_of(4)), tmp_path / "bundle"
    bundle_folder(source, folder, BundleOptions(max_cache=6, max_source=9, verify=False))
    (folder / "run.mjs").write_text(SOUNDS_IN_NODE)
    command = ["node", folder / "run.mjs", f"{modules}/", folder, "[6, 7, 9]", HOST.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    short, *whole = json.loads(ran.stdout)
    assert short == 'GraphkitError: "input_features" has 6 for source: source is 7 or more'
    for frames, logits in zip((7, 9), whole, strict=True):
        python = graphkit.Bundle(folder)
        close(logits, python.encode(3, input_features=np.full((1, frames, FEATURES), 0.5, np.float32)))
