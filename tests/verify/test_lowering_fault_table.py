"""Faults put into lowered folders of two families (graphs, tables, masks, contracts): caught, and named right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bundle_faults as bad
import numpy as np
import onnx
import pytest
from bundle_faults import Edit, Inject, each_of, export, graph, weight

from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.equivalence.originals import Originals
from graphkit.runtime.isolation import shared_isolation
from graphkit.verify.lowering_verifier import verify_lowering

WINDOW = "The contract gives"
BEGINS, TABLE, WEIGHT = "No simple cause; it ", "Table '", "Weight '"
CACHE = "The logits of step "  # and what it keeps is not


@dataclass(frozen=True)
class Fault:
    """What is done to a folder, how each cause that is named may begin, and what one of them has to say."""

    family: str
    inject: Inject
    may: tuple[str, ...] = (BEGINS,)
    says: str = ""


def contract(change: Callable[[Any], None]) -> Inject:
    """Return what changes `contract.json`."""

    def inject(folder: Path) -> None:
        plain = json.loads((folder / "contract.json").read_text())
        before = json.dumps(plain)
        change(plain)
        assert json.dumps(plain) != before
        (folder / "contract.json").write_text(json.dumps(plain))

    return inject


def rows(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Inject:
    """Return what changes the rows of a table."""

    def inject(folder: Path) -> None:
        plain = json.loads((folder / "contract.json").read_text())
        table = next(each for each in plain["tables"] if each["name"] == name)
        array = np.fromfile(folder / table["file"], table["dtype"]).reshape(table["rows"], *table["shape"])
        changed = np.asarray(change(array.copy()), array.dtype)
        assert changed.shape == array.shape
        assert (changed != array).any()
        changed.tofile(folder / table["file"])

    return inject


def inputs(plain: Any, kind: str = "") -> list[Any]:
    """Return the inputs of the step."""
    return [port for port in plain["methods"][-1]["inputs"] if kind in ("", port["source"]["kind"])]


def swapped(plain: Any, one: str, other: str, *, read: bool, written: bool) -> None:
    """Swap two states."""
    names = {one: other, other: one}
    for port in inputs(plain, "state") if read else ():
        port["source"]["of"] = names.get(port["source"]["of"], port["source"]["of"])
    for method in plain["methods"] if written else ():
        for port in method["outputs"]:
            port["writes"] = names.get(port["writes"], port["writes"])


def window(plain: Any, by: int, place: int = 0) -> None:
    """Let a window be longer by some slots."""
    inputs(plain, "slots_mask")[place]["source"]["window"] += by


def other_rows(plain: Any) -> None:
    """Let two inputs that read rows read each other's."""
    one, other = inputs(plain, "rows")[:2]
    one["source"]["of"], other["source"]["of"] = other["source"]["of"], one["source"]["of"]


def blind(edit: Edit, name: str) -> None:
    """Let the new token not see itself: the last place of a mask hides it, less than unused slots are hidden."""

    def make(old: str) -> Iterator[onnx.NodeProto]:
        head = edit.node("Slice", old, edit.constant([0]), edit.constant([-1]), edit.constant([-1]))
        last = edit.node("Slice", old, edit.constant([-1]), edit.constant([1 << 40]), edit.constant([-1]))
        yield head
        yield last
        low = edit.node("Sub", last.output[0], edit.constant(60, np.float32))
        yield low
        yield edit.node("Concat", head.output[0], low.output[0], axis=-1)

    bad.read_by(edit, name, make)


def faults() -> Iterator[tuple[str, Fault]]:
    key, value, other = (f"past_key_values.{name}" for name in ("0.key", "0.value", "1.key"))

    def step(inject: Inject, *may: str, says: str = "") -> Fault:
        return Fault("gpt2", inject, may or (BEGINS,), says)

    scaled = graph("step.onnx", lambda edit: bad.scaled(edit, "logits", 1.001))
    yield "logits scaled by 1.001", step(scaled, says="Mul#")
    places, tokens = "step.position_embeds", "step.inputs_embeds"
    yield "rows of positions one too late", step(rows(places, lambda array: np.roll(array, 1, 0)), TABLE, BEGINS)
    yield "all rows of positions the same", step(rows(places, lambda array: array[:1] + 0 * array), TABLE, BEGINS)
    yield "the last row of positions", step(rows(places, partial(off, at=-1)), TABLE, says=TABLE)
    yield "the last row of tokens", step(last_token := rows(tokens, partial(off, at=-1)), TABLE, says=TABLE)
    read = contract(partial(swapped, one=key, other=value, read=True, written=False))
    yield "states swapped where they are read", step(read, BEGINS, CACHE)
    for name, one in (("states swapped where they are written", value), ("keys of another layer are written", other)):
        yield name, step(contract(partial(swapped, one=key, other=one, read=False, written=True)), BEGINS, CACHE)
    yield "a row and states", step(each_of(last_token, read), TABLE, BEGINS, CACHE, says=TABLE)
    yield "a window where there is none", step(contract(partial(window, by=3)), WINDOW)
    yield "a token that does not see itself", step(graph("step.onnx", partial(blind, name="attention_bias")))
    epsilon = graph("step.onnx", partial(bad.attribute, name="epsilon", number=3e-3))
    yield "another epsilon", step(epsilon, "'", says="epsilon")
    yield "one element", step(weight("step.onnx", "ln_f.bias", one_element), WEIGHT, says=WEIGHT)
    yield "a window one too long", Fault("gemma3", contract(partial(window, by=1)), (BEGINS, CACHE))
    yield "a window one too short", Fault("gemma3", contract(partial(window, by=-1)), (BEGINS, CACHE))
    full = contract(partial(window, by=4, place=1))
    yield "a window in a layer that has none", Fault("gemma3", full, (WINDOW,))
    yield "cosines for sines", Fault("gemma3", contract(other_rows), (BEGINS, TABLE))


def off(array: np.ndarray, at: int) -> np.ndarray:
    array[at].reshape(-1)[0] += 1e-2
    return array


def one_element(array: np.ndarray) -> None:
    array.reshape(-1)[7] += 1e-3


FAULTS = {f"{fault.family}: {name}": fault for name, fault in faults()}


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Originals, Path]]]:
    folder, made = tmp_path_factory.mktemp("lowered"), dict[str, tuple[Originals, Path]]()

    def of(name: str) -> tuple[Originals, Path]:
        if name not in made:
            source = export(name, folder / name)
            options = LowerOptions(src_len=6, max_cache_len=12 if name == "gemma3" else 5, verify=False)
            lower_folder(source, folder / f"{name}-out", options)
            found = find_pipeline(source)
            made[name] = Originals(found.encoder, found.first, found.step), folder / f"{name}-out"
        return made[name]

    with shared_isolation():
        yield of


@pytest.mark.slow
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
    assert fault.says in "\n".join(proof.causes)
    assert [cause for cause in proof.causes if not cause.startswith(fault.may)] == []
