"""A leaf of a contract is edited, and its checksum made anew: `graphkit verify` accepts only other texts for people."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
import small_pipelines
from bundles import OPTIONS, decoder, made, saved
from real_models import unpacked

from graphkit.contract import BundledWith, LoweredWith
from graphkit.deploy import verify_folder
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder

Plain = Any
Place = tuple[str | int, ...]
Run = Callable[..., tuple[object, str, str]]
TEXTS = ("meaning", "loop", "positions", "words", "reason", "graphkit")  # for people
HUGE = (1 << 53, (1 << 53) - 1, 10**30)
GENERATION = {"eos_token_id": 0, "num_beams": 4, "max_length": 30, "bad_words_ids": [[3]], "forced_eos_token_id": 0}
RECURRENT = """<ir_version: 8, opset_import: ["" : 17]>
step (float[batch, 2] x, float[batch, 2] h) => (float[batch, 2] y, float[batch, 2] h_out) {
    h_out = Add (x, h)
    y = Relu (h_out)
}"""


def causal(export: Path, out: Path) -> None:
    """A bundle of a decoder."""
    (saved(decoder("causal"), export) / "generation_config.json").write_text(json.dumps(GENERATION))
    made(export, out, replace(OPTIONS, batch=1, verify=True, copy_host=True))


def described(export: Path, out: Path) -> None:
    """A bundle of a description, which is not proven."""
    text = '[[method]]\nname = "draft"\nmodels = ["draft.onnx"]\ncache = "draft"\n'
    (saved(decoder("window"), export, "draft") / "bundle.toml").write_text(text)
    made(export, out)


def recurrent(export: Path, out: Path) -> None:
    """A bundle of recurrent state."""
    bundle_folder(saved(onnx.parser.parse_model(RECURRENT), export), out, BundleOptions(batch=2))


def lowered(export: Path, out: Path) -> None:
    """A decoder for an NPU."""
    lower_folder(saved(small_pipelines.decoder(small_pipelines.FILLED), export), out, LowerOptions(max_cache_len=5))


def stacked(export: Path, out: Path) -> None:
    """The same with stacked caches, another floor and two sequences, which is not proven."""
    options = LowerOptions(max_cache_len=5, kv_layout="stacked", batch=2, mask_floor=-300.0, pad=7, verify=False)
    export = saved(small_pipelines.decoder(small_pipelines.FILLED), export)
    (export / "generation_config.json").write_text(json.dumps(GENERATION))
    lower_folder(export, out, options)


def lowered_translation(export: Path, out: Path) -> None:
    """An encoder and a decoder for an NPU that takes quantised models."""
    options = LowerOptions(src_len=6, max_cache_len=5, target="ethos-u85")
    lower_folder(unpacked("t5-tiny", export), out, options)


QUICK, SLOW = (causal, described, recurrent, lowered), (causal, stacked, lowered_translation)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], tuple[Path, Path]]:
    """Return the export of a folder and the folder, made once."""
    root = tmp_path_factory.mktemp("folders")

    def make(maker: Callable[[Path, Path], None]) -> tuple[Path, Path]:
        export, out = root / f"{maker.__name__}.export", root / maker.__name__
        if not out.exists():
            maker(export, out)
        return export, out

    return make


def resealed(plain: Plain) -> str:
    body = json.dumps({key: value for key, value in plain.items() if key != "checksum"}, separators=(",", ":"))[:-1]
    return f'{body},"checksum":"{hashlib.sha256(body.encode()).hexdigest()}"}}'


def places(plain: Plain, at: Place = ()) -> Iterator[Place]:
    """Yield the places of all that is no text for people."""
    inside = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in inside:
        is_text = key in TEXTS and "sizes" not in at  # which has a number of that name
        if not is_text and (*at, key) != ("checksum",):
            yield (*at, key)
            yield from places(value, (*at, key))


def others(value: Plain) -> list[Plain]:
    """Return values in place of one: near it, far from it, of other kinds."""
    if isinstance(value, bool):
        return [not value, int(value), None, "true"]
    if isinstance(value, int):
        return [value + 1, value - 1, -value - 7, *HUGE, value + 0.5, str(value), None, [value], {}, True]
    if isinstance(value, float):
        return [value + 1, value * 2 or 1e-5, float("nan"), float("inf"), None, str(value)]
    if isinstance(value, str):
        return [f"{value}x", value[:-1], "", "x", "\0", "../x", "a\nb\x1b[31m\u202e{}%s", 7, None, []]
    if value is None:
        return [0, 1, 5, -1, "", "x", [], {}, False]
    return [None, 0, "x", [[[[[]]]]], {"a": {"b": {}}}]


def edits(plain: Plain, place: Place) -> Iterator[Plain]:
    """Yield a document with one place changed, in every way."""
    text = json.dumps(plain)

    def edited(change: Callable[[Plain, str | int], None]) -> Plain:
        copy = outer = json.loads(text)
        for key in place[:-1]:
            outer = outer[key]
        change(outer, place[-1])
        return copy

    outer = plain
    for key in place[:-1]:
        outer = outer[key]
    value = outer[place[-1]]
    for other in others(value):
        yield edited(lambda at, key, other=other: at.__setitem__(key, other))
    yield edited(lambda at, key: at.pop(key))
    beside = range(len(outer)) if isinstance(outer, list) else [key for key in outer if key not in TEXTS]
    for key in [key for key in beside if outer[key] != value][:2]:  # the two change places
        yield edited(
            lambda at, own, key=key: (
                at.update({own: at[key], key: at[own]}) if isinstance(at, dict) else (at.insert(own, at.pop(key)))
            )
        )
    if isinstance(value, dict):
        for more in (1, "x", None, {}):
            yield edited(lambda at, key, more=more: at[key].__setitem__("extra", more))
    if isinstance(value, list):
        yield edited(lambda at, key: at[key].append(at[key][0] if at[key] else 1))


def sampled(plain: Plain, seed: int, count: int) -> Iterator[Plain]:
    """Yield documents with one leaf changed: of each part of it some, so that the many ports are not all there is."""
    rng = random.Random(seed)
    parts: dict[Any, list[Place]] = {}
    for place in places(plain):
        parts.setdefault(place[:1], []).append(place)
    for _ in range(count):
        place = rng.choice(parts[rng.choice(list(parts))])
        yield rng.choice(list(edits(plain, place)))


def difference(one: Plain, other: Plain, at: str = "") -> str:
    """Return where two documents differ first, for the message of a test that fails."""
    if type(one) is type(other) and isinstance(one, (dict, list)) and len(one) == len(other):
        keys = one if isinstance(one, dict) else range(len(one))
        return next((text for key in keys if (text := difference(one[key], other[key], f"{at}/{key}"))), "")
    return "" if one == other else f"{at}: {one!r:.200} -> {other!r:.200}"


def check(run: Run, export: Path, folder: Path, documents: Iterator[Plain]) -> int:
    """Check that each document is refused in one line, and return how many there were."""
    (file,) = (folder / name for name in ("contract.json", "bundle.json") if (folder / name).is_file())
    original, count = json.loads(file.read_text()), 0
    for plain in documents:
        if json.dumps(plain) == json.dumps(original):
            continue
        file.write_text(resealed(plain))
        code, _, said = run("verify", export, folder)
        assert code in (1, 2), (said, difference(original, plain))
        assert said.startswith(("Error: ", "The proof failed: ")), said
        assert said.count("\n") == 1, said
        assert said.rstrip("\n").isprintable(), said
        count += 1
    return count


@pytest.mark.cases("described", "recurrent")
@pytest.mark.usefixtures("made_once")
@pytest.mark.parametrize("maker", QUICK)
def test_an_edited_leaf_is_refused(maker: Any, folders: Any, run: Run, tmp_path: Path) -> None:
    export, out = folders(maker)
    folder = Path(shutil.copytree(out, tmp_path / "out"))
    (file,) = (folder / name for name in ("contract.json", "bundle.json") if (folder / name).is_file())
    text = file.read_text()
    assert check(run, export, folder, sampled(json.loads(text), 0, 10)) > 5
    file.write_text(resealed(json.loads(text)))
    assert run("verify", export, folder)[0] in (0, None)


@pytest.fixture
def made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what an export gives with the same options be made once: it is the same."""
    for name in ("bundle_again", "lower_again"):
        make, known = getattr(verify_folder, name), dict[str, Any]()

        def again(export: Any, used: Any, make: Any = make, known: Any = known, **options: Any) -> Any:
            if repr(used) not in known:
                known[repr(used)] = make(export, used, **options)
            return known[repr(used)]

        monkeypatch.setattr(verify_folder, name, again)


SMALL = ("options", "generation", "tokens", "sizes")  # parts of which each place is changed, of others some
PROVEN = ("files", "proof")  # parts that are compared when the proof has passed, which takes a second or more
MOST, MOST_PROVEN = 25, 3  # places of other parts, and of these


@pytest.mark.slow
@pytest.mark.usefixtures("made_once")
@pytest.mark.parametrize("maker", SLOW)
def test_every_edited_leaf_is_refused(maker: Any, folders: Any, run: Run, tmp_path: Path) -> None:
    """As many as are drawn, each in one way that is."""
    export, out = folders(maker)
    folder, rng = Path(shutil.copytree(out, tmp_path / "out")), random.Random(7)
    plain = json.loads(next(folder.glob("*.json")).read_text())
    known = list(places(plain))

    def drawn(found: list[Place], most: int) -> Iterator[Plain]:
        for place in found if len(found) <= most else rng.sample(found, most):
            yield rng.choice(list(edits(plain, place)))

    def documents() -> Iterator[Plain]:
        for place in known:
            if place[0] in SMALL:
                yield rng.choice(list(edits(plain, place)))
        yield from drawn([place for place in known if place[0] not in (*SMALL, *PROVEN)], MOST)
        yield from drawn([place for place in known if place[0] in PROVEN], MOST_PROVEN)

    assert check(run, export, folder, documents()) > 40


OF_RUNS = {"verify", "provider", "overwrite", "limits", "time"}  # options that change nothing of what is written
AS_DIMS = {"inputs"}  # which is recorded as the dims that it gives
UNRECORDED = {
    LowerOptions: OF_RUNS | AS_DIMS | {"judges", "judge_seconds", "encode_apart"},  # an encoder is always apart
    BundleOptions: OF_RUNS | AS_DIMS | {"dry_run"},
}
FOUND = {LowerOptions: {"passes"}, BundleOptions: set[str]()}  # what no option says, but an answer of a judge


@pytest.mark.parametrize(("options", "used"), [(LowerOptions, LoweredWith), (BundleOptions, BundledWith)])
def test_every_option_that_changes_what_is_written_is_recorded(options: Any, used: Any) -> None:
    """So that `verify` makes the same again: another one belongs into the contract."""
    recorded = {field.name for field in fields(used)} - FOUND[options]
    assert {field.name for field in fields(options)} == recorded | UNRECORDED[options]


@pytest.mark.parametrize(
    "value", ["[" * 100_000 + "]" * 100_000, "1" * 5000, "1e999", '{"a":' * 5000 + "1" + "}" * 5000]
)
def test_what_no_reader_can_hold_is_refused(value: str, folders: Any, run: Run, tmp_path: Path) -> None:
    export, out = folders(causal)
    folder = Path(shutil.copytree(out, tmp_path / "out"))
    plain = json.loads((folder / "bundle.json").read_text())
    for part in ("arena", "loop", "states"):
        text = json.dumps({**plain, part: "HERE"}, separators=(",", ":")).replace('"HERE"', value)
        (folder / "bundle.json").write_text(text)
        code, _, said = run("verify", export, folder)
        assert (code, said.count("\n"), said[:7]) == (2, 1, "Error: ")
        assert len(said) < 1000
