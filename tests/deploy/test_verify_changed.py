"""Lowered with changes of results that the user asked for: `graphkit verify EXPORT OUT` knows them by the contract."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from quantised import quantised
from real_models import MODELS

from graphkit.contract.contract_files import read_contract
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.deploy.verify_folder import FolderOptions, verify_folder
from graphkit.errors import ModelError

SAYS = "The proof is against the export with {}, as contract.json records."
BOTH = "--dequantize and --gelu-to-tanh"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of an export, `float`, lowered to `--gelu-to-tanh`."""
    folder = tmp_path_factory.mktemp("folders")
    (folder / "float").mkdir()
    proto = onnx.load_from_string(lzma.decompress((MODELS / "bert-fill-mask/model.onnx.xz").read_bytes()))
    for tensor in proto.graph.initializer:
        if len(tensor.dims) == 2:  # of small numbers, tanh is as good as erf
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(20), tensor.name))
    onnx.save(proto, folder / "float/model.onnx")
    lower_folder(folder / "float", folder / "--gelu-to-tanh", LowerOptions(src_len=4, gelu_to_tanh=True))
    return folder


@pytest.fixture(scope="module")
def both_folders(folders: Path) -> Path:
    """Return the same with another export, `uint8`, lowered with `--dequantize` too."""
    quantised("dynamic uint8", folders / "float", folders / "uint8")
    both = LowerOptions(src_len=4, dequantize=True, gelu_to_tanh=True)
    lower_folder(folders / "uint8", folders / BOTH, both)
    return folders


@pytest.mark.slow
def test_it_is_proven_without_a_tolerance_and_differs_by_more_from_the_export_as_it_is(both_folders: Path) -> None:
    export, lowered = both_folders / "uint8", both_folders / BOTH
    recorded = read_contract(lowered / "contract.json").proof
    assert (recorded.passed, " and ".join(recorded.changes)) == (True, BOTH)
    proof = verify_folder(export, lowered)
    assert (proof.findings(), proof.tolerance) == ((), recorded.tolerance)
    assert SAYS.format(BOTH) in proof.notes
    assert not verify_folder(export, lowered, FolderOptions(tolerance=1e-4)).passed
    assert verify_folder(export, lowered, FolderOptions(tolerance=0.5)).passed


def test_a_changed_weight_is_caught(folders: Path, tmp_path: Path) -> None:
    out = shutil.copytree(folders / "--gelu-to-tanh", tmp_path / "out")
    (path,) = out.glob("*.onnx")
    proto = onnx.load(path)
    tensor = max(proto.graph.initializer, key=lambda each: len(each.raw_data))
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 1.01, tensor.name))
    onnx.save(proto, path)
    assert not verify_folder(folders / "float", out).passed


@pytest.mark.slow
def test_a_record_keeps_the_changes_unless_a_tolerance_stands_for_them(folders: Path, tmp_path: Path) -> None:
    out = shutil.copytree(folders / "--gelu-to-tanh", tmp_path / "out")
    verify_folder(folders / "float", out, FolderOptions(record=True))
    assert read_contract(out / "contract.json").proof.changes == ("--gelu-to-tanh",)
    verify_folder(folders / "float", out, FolderOptions(record=True, tolerance=0.5))
    recorded = read_contract(out / "contract.json").proof
    assert (recorded.passed, recorded.changes, recorded.tolerance) == (True, (), 0.5)
    assert verify_folder(folders / "float", out, FolderOptions(tolerance=0.5)).passed
    with pytest.raises(ModelError, match=r"proof\.tolerance is 0\.5, and this proof has 0\.0001 - .* --tolerance or"):
        verify_folder(folders / "float", out)  # against the export with that change, as the contract says it was made


def test_an_option_that_changed_nothing_is_not_recorded(folders: Path, tmp_path: Path) -> None:
    lower_folder(folders / "float", tmp_path / "out", LowerOptions(src_len=4, dequantize=True, verify=False))
    assert read_contract(tmp_path / "out" / "contract.json").proof.changes == ()


@pytest.mark.slow
def test_without_a_proof_the_changes_are_recorded_too(folders: Path, tmp_path: Path) -> None:
    lower_folder(folders / "float", tmp_path / "out", LowerOptions(src_len=4, gelu_to_tanh=True, verify=False))
    assert read_contract(tmp_path / "out" / "contract.json").proof.changes == ("--gelu-to-tanh",)
    assert verify_folder(folders / "float", tmp_path / "out").passed


@pytest.mark.parametrize("change", ["--anything", "--gelu-to-tanh\n"])
def test_a_change_that_is_no_option_is_refused(folders: Path, tmp_path: Path, change: str) -> None:
    out = shutil.copytree(folders / "--gelu-to-tanh", tmp_path / "out")
    contract = json.loads((out / "contract.json").read_text())
    contract["proof"]["changes"] = [change]
    (out / "contract.json").write_text(json.dumps(contract))
    with pytest.raises(ModelError, match=r"proof\.changes\[0\]: Expected `str` matching"):
        verify_folder(folders / "float", out)
