"""What folders record: their files, how their proof ended, and a checksum of the record itself."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_contract import SMALL

import graphkit
from graphkit.contract import read_contract
from graphkit.contract.contract_files import read_bundle
from graphkit.contract.host_contract import ProofRecord
from graphkit.errors import ModelError, UnprovenWarning
from graphkit.hosts import Host

Plain = Any
BundleOf = Callable[[str], Path]
HINT = " - make the folder again, or copy it again from where it was made"
PASSED = ProofRecord("passed", "", 0.0, 1.0, "0.1.0")


@pytest.fixture
def out(lowered_decoder: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(lowered_decoder[1], tmp_path / "out"))


@pytest.fixture
def bundle(bundle_of: BundleOf, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle_of("causal"), tmp_path / "bundle"))


def test_a_lowered_folder_records_its_files_and_its_proof(out: Path) -> None:
    contract = read_contract(out / "contract.json")
    assert contract.proof == ProofRecord("passed", "", 1e-4, 1.0, graphkit.__version__)
    assert set(contract.files) == {path.name for path in out.iterdir()} - {"contract.json"}
    assert {"step.onnx", "HOST.md"} < set(contract.files)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Host(out, checksums=True)


def test_white_space_is_no_change(out: Path) -> None:
    plain = json.loads((out / "contract.json").read_text())
    (out / "contract.json").write_text(json.dumps(plain, indent=7))
    Host(out)
    (out / "contract.json").write_text(json.dumps(plain, separators=(",", ":")))
    Host(out)


def test_a_file_that_is_not_what_was_recorded_is_one_error(out: Path) -> None:
    """Each file in turn: cut, gone, of other bytes."""
    record = json.loads((out / "contract.json").read_text())["files"]
    for name in record:
        path = out / name
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        if name != "HOST.md":
            with pytest.raises(
                ModelError, match=f"{name}: it has {len(content) - 1:,} bytes, and contract.json records"
            ):
                Host(out)
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises(ModelError, match=f"{name}: its SHA-256 is not the one that contract.json records"):
            Host(out, checksums=True)
        path.unlink()
        with pytest.raises(ModelError) as error:
            Host(out, checksums=True)
        assert str(error.value) == f"{path}: it cannot be read: No such file or directory{HINT}"
        path.write_bytes(content)
    Host(out, checksums=True)


def test_each_file_of_a_bundle_is_checked_when_it_is_opened(bundle: Path) -> None:
    for name in read_bundle(bundle / "bundle.json").files:
        path = bundle / name
        content = path.read_bytes()
        for change in (content[:-1], b"", content + b"\0"):
            path.write_bytes(change)
            with pytest.raises(
                ModelError, match=rf"{name}: it has [0-9,]+ bytes, and bundle.json records {len(content):,}"
            ):
                graphkit.Bundle(bundle)
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ModelError, match=f"{name}: its SHA-256 is not"):
            graphkit.Bundle(bundle, checksums=True)
        path.unlink()
        with pytest.raises(ModelError, match=f"{name}: it cannot be read: No such file"):
            graphkit.Bundle(bundle)
        path.write_bytes(content)


def test_an_unproven_folder_says_so_once(bundle: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            graphkit.Bundle(bundle)
    assert [str(each.message) for each in said] == [
        f"{bundle}: it is not proven: the proof was not run - `graphkit verify EXPORT {bundle} --record` proves it"
    ]
    assert said[0].filename == __file__


def test_a_failed_proof_is_said_with_its_first_reason(out: Path) -> None:
    contract = read_contract(out / "contract.json")
    failed = ProofRecord("failed", "the logits differ by 3", 1e-4, 1.0, "0.1.0")
    (out / "contract.json").write_text(replace(contract, proof=failed).to_json())
    with pytest.warns(UnprovenWarning, match="its proof failed: the logits differ by 3 - `graphkit verify"):
        Host(out)


# A change by hand of bundle.json: what does not fit together, then what is not what the models say, then any other


def another_state(plain: Plain) -> None:
    """Let an input of the step read another state of the same shape."""
    states = {state["name"]: state for state in plain["states"]}
    port = next(p for p in plain["methods"][1]["inputs"] if p["source"]["of"].endswith("0.key"))
    port["source"]["of"] = "past_key_values.0.value"
    assert states["past_key_values.0.value"]["shape"] == states["past_key_values.0.key"]["shape"]


def no_changes(plain: Plain) -> None:
    for method in plain["methods"]:
        method["changes"] = []


def setting(*path: str | int, to: object) -> Callable[[Plain], None]:
    def change(plain: Plain) -> None:
        *before, last = path
        for key in before:
            plain = plain[key]
        plain[last] = to

    return change


EDITS: dict[str, tuple[Callable[[Plain], None], str]] = {
    "another state": (another_state, "it was changed after it was written"),
    "no changes": (no_changes, "it was changed after it was written"),
    "slots": (setting("sizes", "slots", to=64), "sizes.slots is 64, and length 'past_length' may be 8"),
    "batch": (setting("sizes", "batch", to=60), r"sizes.batch is 60, and state '.*' has other rows: \[8, 3\]"),
    "initial": (
        setting("states", 1, "initial", to=5.0),
        "it was changed after it was written: its checksum is another",
    ),
    "tokens": (setting("tokens", "end", to=3), "it was changed after it was written"),
    "proof": (setting("proof", to={**PASSED.__dict__}), "it was changed after it was written"),
    "passed for a reason": (setting("proof", "outcome", to="passed"), "its proof passed for a reason"),
    "no file": (setting("files", to={}), "it was changed after it was written"),
    "a file elsewhere": (
        setting("files", "../x", to={"bytes": 1, "sha256": "a" * 64}),
        "'../x' is not the name of a file",
    ),
    "no digits": (
        setting("files", "init.onnx", "sha256", to="A" * 64),
        r"files\.init\.onnx\.sha256: Expected `str` matching regex",
    ),
    "no checksum": (lambda plain: plain.pop("checksum"), "it has no 'checksum'"),
}


@pytest.mark.parametrize("case", EDITS)
def test_a_bundle_that_was_changed_by_hand_is_one_error(case: str, bundle: Path) -> None:
    change, message = EDITS[case]
    plain = json.loads((bundle / "bundle.json").read_text())
    change(plain)
    (bundle / "bundle.json").write_text(json.dumps(plain))
    with pytest.raises(ModelError, match=message) as error:
        graphkit.Bundle(bundle)
    assert str(error.value).startswith(f"{bundle / 'bundle.json'}: ")
    assert "\n" not in str(error.value)


def swapped(plain: Plain) -> None:
    """Let the step read and write the keys as values, and the other way round."""
    names = {"past_key_values.0.key": "past_key_values.0.value", "past_key_values.0.value": "past_key_values.0.key"}
    for port in plain["methods"][1]["inputs"]:
        port["source"]["of"] = names.get(port["source"]["of"], port["source"]["of"])


RECORDED: dict[str, tuple[Callable[[Plain], None], str]] = {
    "swapped reads": (
        swapped,
        r"decode.onnx: method 'step' is not what bundle.json says: '.*' writes state 'past_key_values.0.\w+' into "
        r"'.*', which is said to be 'past_key_values.0.\w+' - make the bundle again",
    ),
    "initial": (
        setting("states", 1, "initial", to=5.0),
        r"init.onnx: method 'init' is not what bundle.json says: state '.*' begins with \[0.0\], and is said to begin "
        "with 5",
    ),
    "a name": (setting("methods", 0, "outputs", 0, "name", to="y"), "its outputs are others, such as 'logits'"),
    "a dim": (
        setting("methods", 0, "outputs", 0, "shape", to=["batch", 3]),
        r"output 'logits' is \['.*\], and said to be",
    ),
    "a name for a number": (
        setting("methods", 0, "outputs", 0, "shape", to=["batch", "tokens", "vocabulary"]),
        r"output 'logits' is \['.*\], and said to be",
    ),
    "a dtype": (
        setting("methods", 0, "outputs", 0, "dtype", to="int8"),
        "output 'logits' is float32, and said to be int8",
    ),
}


@pytest.mark.parametrize("case", RECORDED)
def test_what_the_models_do_not_say_is_an_error_whatever_the_checksum(case: str, bundle: Path) -> None:
    change, message = RECORDED[case]
    plain = json.loads((bundle / "bundle.json").read_text())
    change(plain)
    (bundle / "bundle.json").write_text(json.dumps(plain))
    (bundle / "bundle.json").write_text(read_bundle(bundle / "bundle.json", altered=True).to_json())
    with pytest.raises(ModelError, match=message):
        graphkit.Bundle(bundle)


def test_a_contract_of_no_files_is_not_proven(tmp_path: Path) -> None:
    (tmp_path / "contract.json").write_text(replace(SMALL, files={}, proof=PASSED).to_json())
    with pytest.raises(ModelError, match=r"it records no file 'step\.onnx'"):
        read_contract(tmp_path / "contract.json")
