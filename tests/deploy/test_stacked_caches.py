"""Caches of all layers in one tensor, proven; and what is no such cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from real_models import params, unpacked
from small_contract import SMALL

from graphkit.contract import State, read_contract
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.deploy.lowered_contract import stack_caches
from graphkit.errors import UsageError
from graphkit.model import load
from graphkit.targets import load_target


@pytest.mark.slow
@pytest.mark.parametrize("name", params(["marian-tiny", "qwen2-tiny"], ["marian-tiny"]))
def test_the_caches_of_all_layers_are_stacked(name: str, tmp_path: Path) -> None:
    source = unpacked(name, tmp_path / name)
    report = lower_folder(source, tmp_path / "out", LowerOptions(src_len=3, max_cache_len=3, kv_layout="stacked"))
    refused = {(one.op, one.reason) for file in report.files for one in file.blockers.blockers}
    assert refused == ({("Reshape", "rk3588")} if name == "marian-tiny" else set())  # its heads are of 4
    assert report.proof is not None
    assert report.proof.passed
    assert max(file.rank for file in report.files) <= 4
    contract = read_contract(tmp_path / "out" / "contract.json")
    layers, heads, size = (contract.sizes[each] for each in ("layers", "heads", "head_dim"))
    found = {state.name: (state.shape, state.axis) for state in contract.states}
    expected = {f"past_self_{kind}": ((layers, 1, 3, heads * size), 2) for kind in ("key", "value")}
    if name == "marian-tiny":
        expected |= {f"past_cross_{kind}": ((layers, 1, 3, heads * size), None) for kind in ("key", "value")}
    assert found == expected
    step = contract.methods[-1]
    assert [port.name for port in step.outputs] == ["logits", "past_self_key_new", "past_self_value_new"]
    assert set(expected) < {port.name for port in step.inputs}
    assert {new for original, new in step.became.items() if original.startswith("past_")} == set(expected)


FIRST = State("past_key_values.0.key", "float32", (1, 2, 3, 8), 2, 192)
DECLINED = {
    "slots before heads": ((replace(FIRST, shape=(1, 3, 2, 8), axis=1),), r"is \[1, 3, 2, 8\], not one layer's"),
    "rank 3": ((replace(FIRST, shape=(2, 3, 8), axis=1),), r"is \[2, 3, 8\], not one layer's \[batch, heads, slots"),
    "not of a layer": ((replace(FIRST, name="other"),), "'other' is"),
    "other dims": (
        (FIRST, replace(FIRST, name="past_key_values.1.key", shape=(1, 1, 3, 8))),
        "the layers have caches of different dims - lower with --kv-layout per-layer",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_what_is_no_stack_is_refused(case: str, tmp_path: Path) -> None:
    states, message = DECLINED[case]
    step = load(unpacked("qwen2-tiny", tmp_path / "qwen2-tiny") / "model.onnx")
    with pytest.raises(UsageError, match=message):
        stack_caches([], replace(SMALL, states=states), step, load_target("generic-npu"))
