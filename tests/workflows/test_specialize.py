from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import graphkit.workflows.specialize
from graphkit.errors import ModelError, UsageError
from graphkit.model import Model, load
from graphkit.runtime.session import Session
from graphkit.shapes import DimSpec
from graphkit.shapes.constraints.legal_sizes import Sizes
from graphkit.shapes.graph_inputs import Inputs
from graphkit.verify.input_generator import InputGenerator
from graphkit.workflows.specialize import Specializer

ModelFile = Callable[[str], Path]
TEXT = """<ir_version: 10, opset_import: ["" : 18]>
g (float[batch, length, 4] x, float[batch] scale) => (float[batch, n] y) {
    shape = Shape (x)
    batch = Gather (shape, zero)
    list = Unsqueeze (batch, axis)
    flat = Concat <axis = 0> (list, rest)
    wide = Reshape (x, flat)
    column = Unsqueeze (scale, one)
    y = Mul (wide, column)
}
"""
CONSTANTS = {"zero": np.array(0), "axis": np.array([0]), "one": np.array([1]), "rest": np.array([-1])}


@pytest.fixture
def small() -> Model:
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in CONSTANTS.items())
    return Model.from_proto(proto)


def feed(batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((batch, length, 4)).astype(np.float32),
        "scale": rng.standard_normal(batch).astype(np.float32),
    }


def expected(given: Mapping[str, np.ndarray]) -> np.ndarray:
    return given["x"].reshape(len(given["x"]), -1) * given["scale"][:, None]


def test_a_session_is_static_in_what_is_given_and_dynamic_in_the_rest(small: Model) -> None:
    session = Specializer(small).session(x=(2, 3, 4))
    assert [(found.name, found.shape) for found in session.get_inputs()] == [("x", [2, 3, 4]), ("scale", [2])]
    open_session = Specializer(small).session(dims={"batch": 2})
    assert [found.shape for found in open_session.get_inputs()] == [[2, "length", 4], [2]]


def test_a_run_takes_the_session_for_the_shapes_of_its_arrays(small: Model) -> None:
    specializer = Specializer(small)
    for batch, length in ((2, 3), (1, 5), (2, 3)):
        given = feed(batch, length)
        np.testing.assert_array_equal(specializer.run(given)["y"], expected(given))
    assert len(specializer) == 2


def test_the_same_sizes_give_the_same_session_however_they_are_said(small: Model) -> None:
    specializer = Specializer(small)
    session = specializer.session(x=(2, 3, 4))
    assert specializer.session({"x": [2, 3, 4]}) is session
    assert specializer.session(x=(2, 3, 4), scale=(2,)) is session
    assert specializer.session(dims={"length": 3, "batch": 2}) is session
    assert specializer.session(x=(2, 4, 4)) is not session


def test_the_sessions_that_were_asked_for_last_are_kept(small: Model) -> None:
    specializer = Specializer(small, max_sessions=2)
    one, two = specializer.session(scale=(1,)), specializer.session(scale=(2,))
    assert specializer.session(scale=(1,)) is one
    specializer.session(scale=(3,))
    assert len(specializer) == 2
    assert specializer.session(scale=(1,)) is one
    assert specializer.session(scale=(2,)) is not two


def test_all_can_be_forgotten_and_what_is_in_use_stays(small: Model) -> None:
    specializer = Specializer(small)
    session = specializer.session(x=(2, 3, 4))
    specializer.clear()
    assert len(specializer) == 0
    np.testing.assert_array_equal(session.run(None, feed(2, 3))[0], expected(feed(2, 3)))
    assert specializer.session(x=(2, 3, 4)) is not session


def test_a_symbol_that_stays_dynamic_needs_one_session(small: Model) -> None:
    specializer = Specializer(small, dynamic=["length"])
    for length in (1, 2, 7):
        np.testing.assert_array_equal(specializer.run(feed(2, length))["y"], expected(feed(2, length)))
    assert len(specializer) == 1


@pytest.mark.cases("llama-int4", "anonymous")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("bert-fill-mask/model", [Sizes(1, 5), Sizes(2, 3)]),
        ("cache-styles/anonymous", [Sizes(2, 3, 0), Sizes(1, 1, 4)]),
        ("cache-styles/past_0-2bhsd", [Sizes(2, 3, 0), Sizes(1, 1, 4)]),
        pytest.param("gpt2-tiny/decoder_model_merged", [Sizes(2, 3, 4), Sizes(1, 1, 2)], marks=pytest.mark.slow),
        ("llama-int4/model", [Sizes(1, 4, 0), Sizes(2, 1, 3)]),
        ("whisper-tiny/decoder_model_merged", [Sizes(2, 3, 4, 5), Sizes(1, 1, 2, 3)]),
    ],
)
def test_real_exports_give_what_they_give(name: str, sizes: list[Sizes], model_file: ModelFile) -> None:
    path = model_file(name)
    specializer, original, maker = (
        Specializer(path, optimize=False, threads=1),
        Session(path, prepack=False, threads=1),
        InputGenerator(load(path)),
    )
    for size in sizes:
        for flag in (True, False) if "use_cache_branch" in original.inputs else (None,):
            given = maker.make(size)
            if flag is not None:
                given["use_cache_branch"] = np.array([flag])
            if flag is False and "attention_mask" in given:
                given["attention_mask"] = given["attention_mask"][:, -size.sequence :]
            found = specializer.run(given)
            for output, value in original.run(given).items():
                np.testing.assert_array_equal(found[output], value)


@pytest.mark.parametrize(
    ("inputs", "dims", "message"),
    [
        ({"z": (1,)}, {}, "there is no input 'z' - there are x, scale"),
        ({"x": (1, 2)}, {}, "input 'x' has 3 dims - 1x2 has 2"),
        ({"x": (1, 2, 5)}, {}, "a dim of input 'x' is 4 - it cannot be 5$"),
        (
            {"x": (1, 2, 4), "scale": (2,)},
            {},
            "a dim of input 'x' is batch, which is 2 as given elsewhere - it cannot be 1 too",
        ),
        ({}, {"width": 1}, "no input has a dim 'width' - there are batch, length"),
    ],
)
def test_shapes_that_cannot_be(
    inputs: Mapping[str, tuple[int, ...]], dims: Mapping[str, int], message: str, small: Model
) -> None:
    specializer = Specializer(small)
    with pytest.raises(UsageError, match=message):
        specializer.session(inputs, dims=dims)
    assert len(specializer) == 0


def test_options_that_cannot_be(small: Model) -> None:
    with pytest.raises(UsageError, match="0 sessions to keep - keep at least 1"):
        Specializer(small, max_sessions=0)
    with pytest.raises(UsageError, match="no input has a dim 'width' - there are batch, length"):
        Specializer(small, dynamic=["width"])
    with pytest.raises(UsageError, match="no input has a dim 'width'"):
        Specializer(small, ranges={"width": (1, 2)})


def test_a_missing_array(small: Model) -> None:
    with pytest.raises(UsageError, match="no array for input scale - feed all inputs"):
        Specializer(small).run({"x": np.zeros((1, 2, 4), np.float32)})


def test_an_array_takes_the_place_of_a_default() -> None:
    text = "g (float[n] x, float scale) => (float[n] y) <float scale = {2}> { y = Mul (x, scale) }"
    session = Specializer(
        Model.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}'))
    )
    x = np.ones(3, np.float32)
    assert session.run({"x": x})["y"].tolist() == [2.0] * 3
    assert session.run({"x": x, "scale": np.array(5, np.float32)})["y"].tolist() == [5.0] * 3


def test_a_size_out_of_its_range(small: Model) -> None:
    specializer = Specializer(small, ranges={"length": (2, 9)})
    with pytest.raises(UsageError, match="'length' is 1, out of its range"):
        specializer.session(x=(1, 1, 4))


def test_a_session_that_cannot_be_made_leaves_nothing_behind(model_file: ModelFile) -> None:
    specializer = Specializer(model_file("opus-mt-en-fr/encoder_model"))
    for _ in range(2):
        with pytest.raises(ModelError, match="its data file is missing"):
            specializer.session(dims={"batch_size": 1, "encoder_sequence_length": 3})
        assert len(specializer) == 0


def test_threads_share_sessions_and_each_is_made_once(small: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(model: Model, **options: bool) -> Session:
        made.append(1)
        return Session(model, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(graphkit.workflows.specialize, "Session", counted)
    specializer = Specializer(small)
    jobs = [feed(batch, 3) for batch in (1, 2, 3, 4)] * 8
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(specializer.run, jobs))
    for given, outputs in zip(jobs, found, strict=True):
        np.testing.assert_array_equal(outputs["y"], expected(given))
    assert len(made) == len(specializer) == 4


def test_the_tables_of_the_shape_engine_belong_to_one_thread_at_a_time(
    small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    specializer, seen = Specializer(small), list[bool]()

    def watched(*given: object) -> Inputs:
        seen.append(graphkit.workflows.specialize._FOLDING.locked())
        return Inputs(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(graphkit.workflows.specialize, "Inputs", watched)
    specializer.run(feed(2, 3))
    assert seen == [True]


def test_the_model_is_folded_once_for_all_shapes(small: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Model] = []

    def watched(model: Model, spec: DimSpec) -> object:
        seen.append(model)
        return graphkit.passes.fold_pipeline.fold(model, spec)

    monkeypatch.setattr(graphkit.workflows.specialize, "fold", watched)
    specializer = Specializer(small)
    specializer.session(x=(1, 2, 4))
    specializer.session(x=(1, 3, 4))
    assert [model is small for model in seen] == [True, False, False]
    assert seen[1] is seen[2]


def large(folder: Path) -> Path:
    """Write a model whose one weight has 64 MB, in the file itself."""
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[n, 4096] x) => (float[n, 4096] y) { y = MatMul (x, w) }'
    )
    weight = np.random.default_rng(0).standard_normal((4096, 4096), dtype=np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


def anonymous_megabytes() -> float:
    """Return the memory of this process that no file holds."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:")) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory map of the process")
def test_sessions_have_no_weights_of_their_own_unless_they_may_prepack(tmp_path: Path) -> None:
    path = large(tmp_path)
    grown = []
    for prepack in (False, True):
        specializer = Specializer(path, prepack=prepack, threads=1)
        before = anonymous_megabytes()
        for batch in (1, 2, 3):
            specializer.run({"x": np.ones((batch, 4096), np.float32)})
        grown.append(anonymous_megabytes() - before)
        specializer.clear()
    assert grown[0] < 48
    assert grown[1] > 128


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_weights_behind_links_that_leave_the_folder(small: Model, tmp_path: Path) -> None:
    proto = small.restore()
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(400, np.float32), "ones"))
    proto.graph.node[-1].input[0] = "weighted"
    proto.graph.node.insert(5, onnx.helper.make_node("Mul", ["wide", "first"], ["weighted"]))
    proto.graph.node.insert(5, onnx.helper.make_node("Slice", ["ones", "axis", "one", "axis"], ["first"]))
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    onnx.save(proto, tmp_path / "blobs" / "abc", save_as_external_data=True, location="data", size_threshold=1000)
    for link, target in (("model.onnx", "abc"), ("data", "data")):
        (tmp_path / "snapshot" / link).symlink_to(f"../blobs/{target}")
    given = feed(2, 3)
    found = Specializer(tmp_path / "snapshot" / "model.onnx").run(given)
    np.testing.assert_array_equal(found["y"], expected(given))


def test_a_feed_that_only_the_model_itself_takes_runs_there_and_is_told_once(small: Model) -> None:
    """`batch` is declared of both inputs, and one of scale broadcasts."""
    specializer = Specializer(small)
    given = {**feed(3, 2), "scale": np.array([2.0], np.float32)}
    reason = "a dim of input 'x' is batch, which is 1 as given elsewhere - it cannot be 3 too"
    with pytest.warns(RuntimeWarning, match=f"the model itself is run: {reason}"):
        found = specializer.run(given)
    np.testing.assert_array_equal(found["y"], expected({**given, "scale": np.full(3, 2.0, np.float32)}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        specializer.run(given)
    assert specializer.fallbacks == {reason: 2}
    np.testing.assert_array_equal(specializer.run(feed(2, 3))["y"], expected(feed(2, 3)))
    assert len(specializer) == 1


def test_a_feed_that_the_model_does_not_take_either_is_the_first_error(small: Model) -> None:
    specializer = Specializer(small)
    with pytest.raises(UsageError, match="which is 2 as given elsewhere - it cannot be 3 too"):
        specializer.run({**feed(3, 2), "scale": np.ones(2, np.float32)})
    with pytest.raises(UsageError, match="there is no input 'z'"):
        specializer.run({**feed(3, 2), "z": np.ones(2, np.float32)})
    assert not specializer.fallbacks


def test_sizes_out_of_a_range_that_the_model_takes_run_there(small: Model) -> None:
    specializer = Specializer(small, ranges={"length": (2, 9)})
    with pytest.warns(RuntimeWarning, match="'length' is 1, out of its range"):
        np.testing.assert_array_equal(specializer.run(feed(2, 1))["y"], expected(feed(2, 1)))
