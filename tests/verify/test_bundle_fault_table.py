"""Faults put into bundles of six families (weights, masks, positions, slots, contracts): caught, and named right."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bundle_fault_table import FAULTS
from bundle_faults import export
from recordings import originals_run_once

from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.equivalence.originals import Originals
from graphkit.verify.bundle_verifier import verify_bundle


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Originals, Path]]]:
    folder, made = tmp_path_factory.mktemp("bundles"), dict[str, tuple[Originals, Path]]()

    def of(name: str) -> tuple[Originals, Path]:
        if name not in made:
            source = export(name, folder / name)
            options = BundleOptions(batch=4, max_cache=8, max_source=24 if name == "whisper" else 8, verify=False)
            bundle_folder(source, folder / f"{name}-out", options)
            found = find_pipeline(source)
            made[name] = Originals(found.encoder, found.first, found.step), folder / f"{name}-out"
        return made[name]

    with originals_run_once():
        yield of


@pytest.mark.cases("causal: a weight and slots")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_bundle_is_caught_and_named_right(
    name: str, bundled: Callable[[str], tuple[Originals, Path]], tmp_path: Path
) -> None:
    fault = FAULTS[name]
    originals, folder = bundled(fault.family)
    shutil.copytree(folder, tmp_path / "out")
    fault.inject(tmp_path / "out")
    proof = verify_bundle(originals, tmp_path / "out", exact=False)
    assert not proof.passed
    assert fault.says in "\n".join(proof.findings())
    assert [cause for cause in proof.causes if not cause.startswith(fault.may)] == []
    if not fault.says:
        assert proof.causes
