"""Methods of bundles are proven against their decoders, and no fault put into one leaves what it was proven of."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bundle_faults import export
from test_bundle_fault_table import FAULTS

from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.errors import ModelError
from graphkit.options import Update
from graphkit.verify.equivalence import Equivalence, check_bundle
from graphkit.verify.originals import Originals

Bundled = Callable[[str, Update], tuple[Originals, Path]]
OUTPUTS = {
    "causal": {"prefill": 4, "step": 4}, "gpt2": {"prefill": 6, "step": 6}, "t5-tiny": {"encode": 10, "step": 5},
    "marian-tiny": {"encode": 26, "step": 13}, "whisper": {"encode": 9, "step": 5},
}  # fmt: skip
APART = ("not reordered", "does not begin with 0")  # faults of `reorder` and `init`, of which nothing is proven
INJECTED = [name for name, fault in FAULTS.items() if fault.family in OUTPUTS and not name.endswith(APART)]
QUICK = [name for name in INJECTED if name.startswith("causal")][::4]


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Bundled:
    folder, made = tmp_path_factory.mktemp("bundles"), dict[tuple[str, Update], tuple[Originals, Path]]()

    def of(name: str, update: Update) -> tuple[Originals, Path]:
        if (name, update) not in made:
            source = export(name, folder / f"{name}-{update}")
            options = BundleOptions(batch=4, max_cache=8, max_source=8, update=update, verify=False)
            bundle_folder(source, folder / f"{name}-{update}-out", options)
            found = find_pipeline(source)
            originals = Originals(found.encoder, found.first, found.step)
            made[name, update] = originals, folder / f"{name}-{update}-out"
        return made[name, update]

    return of


@pytest.mark.parametrize("update", ["scatter-nd", "tensor-scatter"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_all_outputs_of_a_bundle_are_proven(name: str, update: Update, bundled: Bundled) -> None:
    found = check_bundle(*bundled(name, update))
    assert not [*unproven(found)]
    assert {method: len(each.outputs) for method, each in found.items()} == OUTPUTS[name]


def unproven(found: dict[str, Equivalence]) -> Iterator[str]:
    for method, each in found.items():
        yield from (f"{method}: {output}" for output in each.outputs if output.verdict != "proven")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in INJECTED]
)
def test_a_fault_of_a_bundle_is_not_proven(name: str, bundled: Bundled, tmp_path: Path) -> None:
    originals, folder = bundled(FAULTS[name].family, "scatter-nd")
    shutil.copytree(folder, tmp_path / "out")
    FAULTS[name].inject(tmp_path / "out")
    try:
        found = check_bundle(originals, tmp_path / "out")
    except ModelError:  # the contract does not fit any more
        return
    assert [*unproven(found)]


def test_a_ring_is_unknown(bundled: Bundled) -> None:
    found = check_bundle(*bundled("window", "scatter-nd"))
    assert {reason for output in found["step"].outputs for reason in [output.reason]} == {
        "past_key_values.0.key is a ring"
    }
