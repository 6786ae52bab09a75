"""Text encoders that take one row for a whole text: the host says which row, as PyTorch has it, or why not."""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import model_of
from onnx import parser
from sessions import run

from graphkit.contract import Method, read_contract
from graphkit.contract.contract_writers import WRITERS
from graphkit.deploy import lower_model as lowering
from graphkit.deploy.export_pipeline import padding_token
from graphkit.deploy.lower import LowerOptions, LowerReport, lower_folder
from graphkit.errors import UsageError
from graphkit.hosts import Host
from graphkit.rewrite.base import Outcome

POOLED = Path(__file__).parent / "pooled"
RULES = {
    "largest": "largest_id",
    "largest-fixed": "largest_id",
    "first-eos": "first_token",
    "siglip": "valid_length",
    "siglip-fixed": None,
}


def options(name: str) -> LowerOptions:
    return LowerOptions() if name.endswith("fixed") else LowerOptions(src_len=16)


def export(name: str, folder: Path) -> Path:
    folder.mkdir()
    path = folder / "model.onnx"
    (folder / "config.json").write_text('{"bos_token_id": 97, "eos_token_id": 98, "pad_token_id": 1}')
    path.write_bytes(lzma.decompress((POOLED / f"{name}.onnx.xz").read_bytes()))
    return path


@pytest.mark.cases("first-eos-False")
@pytest.mark.parametrize(
    ("name", "verify"),
    [("siglip-fixed", True), ("first-eos", False)]
    + [pytest.param(name, True, marks=pytest.mark.slow) for name in RULES if name != "siglip-fixed"],
)
def test_a_lowered_text_encoder_gives_what_pytorch_gives(name: str, verify: bool, tmp_path: Path) -> None:
    report = lower_folder(export(name, tmp_path / "export"), tmp_path / "out", replace(options(name), verify=verify))
    if verify:
        assert report.findings() == ()
        assert report.proof is not None
        assert report.proof.passed
    contract = read_contract(tmp_path / "out" / "contract.json")
    (method,) = contract.methods
    by = [port.source.by for port in method.inputs if port.source is not None and port.name == "pooling"]
    assert by == [rule for rule in [RULES[name]] if rule is not None]
    assert contract.tokens.get("pooled") == (98 if name == "first-eos" else None)
    assert contract.sizes["source"] == (20 if name.endswith("fixed") else 16)
    host, output = Host(tmp_path / "out", unchecked=not verify), method.outputs[0].name
    cases = json.loads((POOLED / f"{name}.json").read_text())
    assert len(cases) in (6, 24)
    for case in cases:
        found = host.start(case["ids"])[output].ravel()
        np.testing.assert_allclose(found, case["embedding"], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_several_texts_at_a_time_have_a_row_each(tmp_path: Path) -> None:
    lower_folder(export("first-eos", tmp_path / "export"), tmp_path / "out", LowerOptions(src_len=16, batch=2))
    host = Host(tmp_path / "out")
    cases = json.loads((POOLED / "first-eos.json").read_text())
    one, two = cases[9], cases[-1]
    found = host.start([one["ids"], two["ids"]])["text_embeds"]
    np.testing.assert_allclose(found, [one["embedding"], two["embedding"]], rtol=0, atol=1e-5)


def frozen(monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path) -> LowerReport:
    """Lower as if nothing were known of pooling."""
    monkeypatch.setattr(lowering, "pool_by_product", lambda model, *_: (Outcome(model), []))
    monkeypatch.setattr("graphkit.deploy.host_tables.compared_tokens", lambda _: [])
    return lower_folder(export(name, tmp_path / "export"), tmp_path / "out", options(name))


@pytest.mark.slow
def test_the_proof_fails_where_the_row_of_the_end_token_is_frozen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proof = frozen(monkeypatch, "first-eos", tmp_path).proof
    assert proof is not None
    assert not proof.passed
    assert [run.token for run in proof.runs] == [None] * 5 + [98, 97, 1]
    assert not any(run.failure for run in proof.runs[:5])  # random tokens are 98 too rarely to tell
    assert proof.runs[5].failure.startswith("at place 8 of 16: 'text_embeds' differs by ")


@pytest.mark.slow
def test_the_proof_fails_where_the_last_row_is_that_of_padding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\(Slice\) mixes positions: what padding holds reaches tokens that count"):
        frozen(monkeypatch, "siglip", tmp_path)
    monkeypatch.setattr("graphkit.deploy.lower.check_padding", lambda *_: None)
    (tmp_path / "unchecked").mkdir()
    proof = frozen(monkeypatch, "siglip", tmp_path / "unchecked").proof
    assert proof is not None
    assert [run.length for run in proof.runs if run.failure] == [1, 2, 5, 15]


def test_a_row_by_tokens_is_never_frozen_in_silence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lowering, "pool_by_product", lambda model, *_: (Outcome(model), []))
    with pytest.raises(UsageError, match="depends on which tokens there are"):
        lower_folder(export("first-eos", tmp_path / "export"), tmp_path / "out", options("first-eos"))


def test_another_length_than_the_fixed_one_is_refused(tmp_path: Path) -> None:
    path = export("siglip-fixed", tmp_path / "export")
    with pytest.raises(UsageError) as caught:
        lower_folder(path, tmp_path / "out", LowerOptions(src_len=16))
    assert str(caught.value) == (
        "model.onnx takes 20 tokens, not 16 - leave out --src-len, or export it with a dynamic length"
    )


def pooled(choice: str) -> Callable[[Path], Path]:
    """Return what writes a text encoder that takes the row of each sequence that some nodes choose as `place`."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (int64[batch, sequence] input_ids) => (float[batch, 4] text_embeds)
        <float[32, 4] table, int64[1] one = {{1}}, int64[1] last = {{-1}}, int64 seven = {{7}}, int64 nine = {{9}}> {{
            states = Gather (table, input_ids)
            hidden = Tanh (states)
            {choice}
            tuples = Unsqueeze (place, last)
            text_embeds = GatherND <batch_dims = 1> (hidden, tuples)
        }}"""

    def write(folder: Path) -> Path:
        model = parser.parse_model(text)
        rows = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(rows, "table"))
        onnx.save(model, folder / "model.onnx")
        return folder / "model.onnx"

    return write


FIRST = """
    hits = Equal (input_ids, {token}) numbers = Cast <to = 7> (hits)
    {place} = ArgMax <axis = 1, keepdims = 0> (numbers)"""
CHOICES = {
    "largest_id": "place = ArgMax <axis = 1, keepdims = 0> (input_ids)",
    "first_token": FIRST.format(token="seven", place="place"),
}


@pytest.mark.parametrize("by", CHOICES)
def test_a_gather_nd_takes_a_row_of_each_sequence_too(by: str, tmp_path: Path) -> None:
    report = lower_folder(pooled(CHOICES[by])(tmp_path), tmp_path / "out", LowerOptions(src_len=6, batch=2))
    assert report.findings() == ()
    (port,) = (port for port in read_contract(tmp_path / "out" / "contract.json").methods[0].inputs[1:])
    assert port.source is not None
    assert (port.source.kind, port.source.by, port.shape) == ("rows", by, (2, 1, 6))


OTHER_RULES = {
    "the last of the largest ids": (
        "GatherND#3",
        "place = ArgMax <axis = 1, keepdims = 0, select_last_index = 1> (input_ids)",
    ),
    "the smallest id": ("GatherND#3", "place = ArgMin <axis = 1, keepdims = 0> (input_ids)"),
    "one before the first of a token": (
        "GatherND#7",
        FIRST.format(token="nine", place="at") + " back = Sub (at, one) zero = Sub (one, one) place = Max (back, zero)",
    ),
}


@pytest.mark.parametrize("rule", OTHER_RULES)
def test_a_row_by_another_rule_is_declined_by_name(rule: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        lower_folder(pooled(OTHER_RULES[rule][1])(tmp_path), tmp_path / "out", LowerOptions(src_len=6))
    assert str(caught.value) == (
        f"model.onnx: '{OTHER_RULES[rule][0]}' takes a row that follows from the tokens by no rule that a host knows: "
        "it is neither that of the last token, of the largest id, nor of the first token that ids are compared with"
    )


def test_two_tokens_that_choose_rows_are_declined(tmp_path: Path) -> None:
    path = pooled(CHOICES["first_token"])(tmp_path)
    model = onnx.load(path)
    second = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g () => () {{ {FIRST.format(token="nine", place="there").replace("hits", "more").replace("numbers", "ones")}
        both = Unsqueeze (there, last) second = GatherND <batch_dims = 1> (hidden, both) }}""")
    model.graph.node.extend(second.graph.node)
    model.graph.output.append(onnx.helper.make_tensor_value_info("second", 1, ["batch", 4]))
    onnx.save(model, path)
    with pytest.raises(UsageError, match="two rows are chosen by different tokens - keep one of these outputs"):
        lower_folder(path, tmp_path / "out", LowerOptions(src_len=6))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["largest", "first-eos"])
def test_the_host_in_cpp_chooses_the_same_row(name: str, tmp_path: Path) -> None:
    compiler, out = shutil.which("c++"), tmp_path / "out"
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    lower_folder(export(name, tmp_path / "export"), out, LowerOptions(src_len=16, verify=False))
    (out / "contract.h").write_text(WRITERS["c"](read_contract(out / "contract.json")))
    program = Path(__file__).parents[2] / "examples" / "host-cpp" / "replay.cpp"
    subprocess.run([compiler, "-std=c++17", "-I", out, program, "-o", out / "replay"], check=True, timeout=300)
    for ids in ([5, 98, 7, 98], [98], [5, 6]):
        fed = recorded_feed(out, ids)
        words = [out / "replay", out, out / "recorded", out / "fed", "1", "0", ",".join(map(str, ids))]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        warning = f"{out}: its proof failed or was not run\n"
        assert done.stderr == f"{warning}Error: the cache is full\n"  # there is no decoder: what runs once was fed
        assert (out / "fed").read_bytes() == fed


def recorded_feed(folder: Path, ids: list[int]) -> bytes:
    """Run the reference host; return what it feeds, and write what models give."""
    models, fed = Host(folder).run, list[bytes]()

    def run(method: Method, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        outputs = models(method, feed)
        fed.extend(feed[port.name].tobytes() for port in method.inputs)
        (folder / "recorded").write_bytes(b"".join(outputs[port.name].tobytes() for port in method.outputs))
        return outputs

    Host(folder, run).start(ids)
    return b"".join(fed)


def test_rows_are_counted_by_a_picture_whose_content_does_not_matter_for_them(tmp_path: Path) -> None:
    """As in CLIPSeg, whose picture says how many texts there are."""
    model = model_of(
        """g (int64[B, n] input_ids, float[B, 3, 4, 4] pixel_values) => (float[B, 3] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[2] flat = {0, -1}> {
            words = Gather (table, input_ids)
            largest = ArgMax <axis = -1, keepdims = 0> (input_ids)
            batch = Shape <start = 0, end = 1> (pixel_values)
            count = Squeeze (batch)
            row = Range (zero, count, one)
            i = Unsqueeze (row, last)
            j = Unsqueeze (largest, last)
            at = Concat <axis = -1> (i, j)
            text = GatherND (words, at)
            mean = GlobalAveragePool (pixel_values)
            picture = Reshape (mean, flat)
            y = Add (text, picture)
        }""",
        table=np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32),
    )
    model.save(tmp_path / "model.onnx")
    report = lower_folder(tmp_path / "model.onnx", tmp_path / "out", LowerOptions(src_len=8))
    assert report.proof is not None
    assert report.proof.passed
    ids, picture = [4, 17, 3, 9], np.random.default_rng(1).normal(size=(1, 3, 4, 4)).astype(np.float32)
    (expected,) = run(model.proto, {"input_ids": np.array([ids]), "pixel_values": picture})
    np.testing.assert_allclose(Host(tmp_path / "out").start(ids, pixel_values=picture)["y"], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("uses", "pad"), [("n = ReduceSum <keepdims = 0> (one, axis)", None), ("n = CumSum (one, axis)", 7)]
)
def test_a_token_that_is_counted_is_no_padding(uses: str, pad: int | None) -> None:
    """ESM scales its rows by how many tokens are masked."""
    model = model_of(
        f"""g (int64[B, n] input_ids) => (float[B, n, 3] y, int64[l, k] n) {{
            words = Gather (table, input_ids) is_seven = Equal (input_ids, seven) one = Cast <to = 7> (is_seven)
            y = Identity (words) {uses} }}""",
        table=np.ones((20, 3), np.float32),
        seven=7,
        axis=[1] if pad is None else 1,
    )
    assert padding_token(model) == pad
