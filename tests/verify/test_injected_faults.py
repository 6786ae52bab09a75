"""Faults put into lowered folders and bundles (tables, weights, masks, slots, contracts): caught, and named right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from real_models import unpacked
from small_models import model

from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.equivalence.originals import Originals
from graphkit.runtime.isolation import shared_isolation
from graphkit.verify.bundle_verifier import verify_bundle
from graphkit.verify.lowering_verifier import verify_lowering
from graphkit.verify.weight_comparison import find_wrong_parts

BEGINS = "No simple cause; it "
TABLES = {
    "qwen2-tiny": ("step.inputs_embeds", "step.position_values", "step.position_values_2"),
    "t5-tiny": ("encoder.inputs_embeds", "step.attention_bias"),
}
FILES = {"qwen2-tiny": ("step.onnx",), "t5-tiny": ("encoder.onnx", "cross_kv.onnx", "step.onnx")}


@dataclass(frozen=True)
class Fault:
    """What is done to a folder, and how each cause that is named may begin; `whole` are those that have to be named."""

    family: str
    inject: Callable[[Path], None]
    whole: tuple[str, ...] = ()
    may: tuple[str, ...] = (BEGINS,)


def rows_of(name: str, change: Callable[[np.ndarray], None]) -> Callable[[Path], None]:
    def inject(folder: Path) -> None:
        contract = json.loads((folder / "contract.json").read_text())
        table = next(each for each in contract["tables"] if each["name"] == name)
        rows = np.fromfile(folder / table["file"], table["dtype"]).reshape(table["rows"], *table["shape"])
        change(rows)
        rows.tofile(folder / table["file"])

    return inject


def one_row(rows: np.ndarray) -> None:
    row = rows[4].reshape(-1)  # a view: of a bias the first key, which each query sees
    row[0] += 1e-3


def two_rows(rows: np.ndarray) -> None:
    rows[[3, 4]] = rows[[4, 3]]


def no_row(rows: np.ndarray) -> None:
    rows[4] = 0 if rows[4].any() else 1


def weight_of(file: str, place: int, change: Callable[[np.ndarray], None]) -> Callable[[Path], None]:
    """Return what changes one of the weights of a file."""

    def inject(folder: Path) -> None:
        model = onnx.load(folder / file)
        tensor = weights(model)[place]
        array = numpy_helper.to_array(tensor).copy()
        change(array)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        onnx.save(model, folder / file)

    return inject


def weights(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the weights of an export that are in a file: those that are larger than an axis of its states."""
    return [each for each in model.graph.initializer if np.prod(each.dims) >= 512 and each.data_type == 1]


def one_element(array: np.ndarray) -> None:
    array.reshape(-1)[7] += 1e-4


def two_columns(array: np.ndarray) -> None:
    array[..., [0, 1]] = array[..., [1, 0]]


def contract_of(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def inject(folder: Path) -> None:
        plain = json.loads((folder / "contract.json").read_text())
        change(plain)
        (folder / "contract.json").write_text(json.dumps(plain))

    return inject


def no_floor(plain: Any) -> None:
    plain["floor"] = 0.0


def other_source(plain: Any) -> None:
    """Let the keys of the source that two layers read be those of each other."""
    names = {f"past_key_values.{layer}.encoder.key": f"past_key_values.{1 - layer}.encoder.key" for layer in (0, 1)}
    for port in plain["methods"][-1]["inputs"]:
        port["source"]["of"] = names.get(port["source"]["of"], port["source"]["of"])


def both(*injections: Callable[[Path], None]) -> Callable[[Path], None]:
    def inject(folder: Path) -> None:
        for each in injections:
            each(folder)

    return inject


def table_fault(family: str, name: str, change: Callable[[np.ndarray], None], rows: str) -> Fault:
    said = f"Table '{name}' is not what the export looks up: {rows}"
    return Fault(family, rows_of(name, change), (said,), ("Table '",))


def faults() -> Iterator[tuple[str, Fault]]:
    """Yield faults of tables and of weights, which take turns, and those that each family can have."""
    tables = [(family, name) for family, names in TABLES.items() for name in names]
    for place, (family, name) in enumerate(tables):
        what, change, rows = (
            ("one element", one_row, "row 4 differs"),
            ("two rows swapped", two_rows, "2 rows differ, 3, 4,"),
            ("a row lost", no_row, "row 4 differs"),
        )[place % 3]
        yield f"{family}, {name}: {what}", table_fault(family, name, change, rows)
    for place, (family, file) in enumerate((family, file) for family, files in FILES.items() for file in files):
        at, what, alters = ((0, "one element", one_element), (-1, "two columns swapped", two_columns))[place % 2]
        yield (
            f"{family}, {file}, weight {at}: {what}",
            Fault(family, weight_of(file, at, alters), ("Weight '",), ("Weight '",)),
        )
    for family in TABLES:
        masked = (BEGINS, "What unused slots", "What padding holds", "The logits of step ", "Table '")
        yield f"{family}: no floor", Fault(family, contract_of(no_floor), (), masked)
    crossed = Fault("t5-tiny", contract_of(other_source), (), (BEGINS, "The logits of step "))
    yield "t5-tiny: keys of the source of another layer", crossed
    table = TABLES["qwen2-tiny"][0]
    mixed = both(rows_of(table, one_row), weight_of("step.onnx", 0, one_element))
    yield (
        "qwen2-tiny: a row and a weight",
        Fault("qwen2-tiny", mixed, (f"Table '{table}' is not", "Weight '"), ("Table '", "Weight '")),
    )


FAULTS = dict(faults())
QUICK = ("qwen2-tiny, step.position_values_2: a row lost", "qwen2-tiny, step.onnx, weight 0: one element")


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Originals, Path]]]:
    folder, made = tmp_path_factory.mktemp("faults"), dict[str, tuple[Originals, Path]]()

    def of(family: str) -> tuple[Originals, Path]:
        if family not in made:
            source = unpacked(family, folder / family)
            lower_folder(source, folder / f"{family}-out", LowerOptions(src_len=6, max_cache_len=5, verify=False))
            found = find_pipeline(source)
            made[family] = Originals(found.encoder, found.first, found.step), folder / f"{family}-out"
        return made[family]

    with shared_isolation():
        yield of


@pytest.mark.cases(*QUICK)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_lowering_is_caught_and_named_right(
    name: str, lowered: Callable[[str], tuple[Originals, Path]], tmp_path: Path
) -> None:
    fault = FAULTS[name]
    originals, folder = lowered(fault.family)
    shutil.copytree(folder, tmp_path / "out")
    fault.inject(tmp_path / "out")
    proof = verify_lowering(originals, tmp_path / "out")
    assert not proof.passed
    assert [text for text in fault.whole if not any(text in cause for cause in proof.causes)] == []
    assert [cause for cause in proof.causes if not cause.startswith(fault.may)] == []


@pytest.mark.slow
def test_a_wrong_weight_of_a_bundle_is_caught_and_named(tmp_path: Path) -> None:
    source, out = unpacked("qwen2-tiny", tmp_path / "export"), tmp_path / "out"
    bundle_folder(source, out, BundleOptions(max_cache=8, max_source=8, verify=False))
    name = weight_name(out / "decode.onnx", -1)
    alter(out / "decode.onnx", -1, two_columns)
    proof = verify_bundle(find_pipeline(source).originals, out, exact=False)
    assert not proof.passed
    found = proof.checks["weights are those of the export"]
    assert found.startswith(f"Weight '{name}' of decode.onnx is not that of the export: ")


def weight_name(path: Path, place: int) -> str:
    return weights(onnx.load(path, load_external_data=False))[place].name


def alter(path: Path, place: int, change: Callable[[np.ndarray], None]) -> None:
    """Change a weight of a file whose weights may lie in another one."""
    model = onnx.load(path)
    tensor = weights(model)[place]
    array = numpy_helper.to_array(tensor).copy()
    change(array)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for each in model.graph.initializer:
        each.ClearField("external_data")
        each.data_location = onnx.TensorProto.DEFAULT
    onnx.save(model, path)


@pytest.mark.parametrize(("weight", "faults"), [(1.0, 0), (2.0, 0), (3.0, 1)])
def test_weights_of_two_branches_may_have_had_one_name(weight: float, faults: int) -> None:
    text = "g (float[300] x) => (float[300] y) {{ {} }}"
    values = {"w_merged_0": np.full(300, 1.0), "w_merged_1": np.full(300, 2.0)}
    merged = model(text.format("a = Mul (x, w_merged_0) y = Mul (a, w_merged_1)"), **values)
    step = model(text.format("y = Mul (x, w)"), w=np.full(300, weight))
    assert len(find_wrong_parts([merged], [step])) == faults
