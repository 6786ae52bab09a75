"""Exports of every family, quantised in every way, through every stage: it works, or ends with a reason."""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from quantised import KINDS, MERGED, quantised
from quantised_stages import STAGES, attempts
from real_models import MODELS
from sessions import session_of

import graphkit
from graphkit.hosts.bundle_host import Bundle

FAMILIES: Mapping[str, Mapping[str, int]] = {
    "bert-fill-mask": {},
    "gpt2-tiny": {},
    "patchtst": {"sequence_length": 32, "num_input_channels": 3},
    "qwen2-tiny": {},
    "t5-tiny": {},
    "table-transformer": {},
}
RANGES = "takes its range from all positions of a run"
SCALES = "the scale of a QuantizeLinear, is"
ROUNDED = "take the export back to floats: graphkit rewrite -p 'dequantize{qdq=true}'"
APART = "after a prompt that it reads token by token its logits differ"  # the models of a pair, quantised apart
NO_STATE = "there is no state to share"
PAIRS = ("qdq", "float16")  # which the tools make of no merged decoder
# The reasons that an export may be declined for, by stage.
REASONS: Mapping[str, tuple[str, ...]] = {
    "lower": (RANGES, SCALES, APART),
    "bundle": (NO_STATE, ROUNDED),
}


@cache
def export(name: str, folder: Path, *, pair: bool) -> Path:
    """Unpack an export; a merged decoder may be split first."""
    output = folder / f"{name}{' pair' if pair else ''}"
    output.mkdir()
    for path in (MODELS / name).glob("*.onnx.xz"):
        (output / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    if pair and (output / MERGED).is_file():
        graphkit.split_file(output / MERGED, output, graphkit.SplitOptions(verify=False, weights="inline"))
        (output / MERGED).unlink()
    return output


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


def cases() -> Iterator[object]:
    """Yield each way once, of a family in turn."""
    for place, kind in enumerate(KINDS):
        name = [*FAMILIES][place % len(FAMILIES)]
        yield pytest.param(name, kind, id=f"{name}-{kind}")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [*cases()])
def test_a_quantised_export_works_or_is_declined_with_a_reason(
    name: str, kind: str, shared: Path, tmp_path: Path
) -> None:
    source = export(name, shared, pair=kind in PAIRS)
    folder = quantised(kind, source, tmp_path / kind, **FAMILIES[name])
    stages = [stage for stage in STAGES if stage != "report" and (stage != "split" or (folder / MERGED).is_file())]
    faults = [
        str(attempt)
        for attempt in attempts(folder, stages)
        if attempt.outcome not in ("ok", "declined")
        or (attempt.outcome == "declined" and not any(r in attempt.detail for r in REASONS.get(attempt.stage, ())))
    ]
    assert faults == []


@pytest.mark.slow
def test_a_bundle_gives_the_tokens_of_the_quantised_export(shared: Path, tmp_path: Path) -> None:
    """The export runs in onnxruntime by a loop of its own; both choose the largest logit."""
    folder = quantised("dynamic uint8", export("qwen2-tiny", shared, pair=False), tmp_path / "export")
    graphkit.bundle_folder(folder, tmp_path / "bundle", graphkit.BundleOptions(max_cache=32, verify=False))
    session = session_of(folder / "model.onnx")
    inputs = {each.name: each for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    prompt = np.array([[5, 9, 2, 40, 7]])
    ids, expected = prompt, list[int]()
    past = {n: np.zeros((1, e.shape[1], 0, e.shape[3]), np.float32) for n, e in inputs.items() if "past" in n}
    for _ in range(12):
        total = prompt.shape[1] + len(expected)
        feed = {"input_ids": ids, "attention_mask": np.ones((1, total), np.int64), **past}
        if "position_ids" in inputs:
            feed["position_ids"] = np.arange(total - ids.shape[1], total)[None]
        found = dict(zip(names, session.run(None, feed), strict=True))
        past = {name: found[name.replace("past_key_values", "present")] for name in past}
        expected.append(int(found["logits"][0, -1].argmax()))
        ids = np.array([expected[-1:]])
    bundle, tokens = Bundle(tmp_path / "bundle"), list[int]()
    logits = bundle.run("prefill", input_ids=prompt, attention_mask=np.ones_like(prompt))["logits"]
    for _ in range(12):
        tokens.append(int(logits[0, -1].argmax()))
        logits = bundle.run("step", input_ids=np.array([tokens[-1:]]), attention_mask=np.ones((1, 1), np.int64))[
            "logits"
        ]
    assert tokens == expected
