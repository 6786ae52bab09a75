from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphkit.save
from graphkit.errors import ModelError, OutputError
from graphkit.model import Model, load
from graphkit.save import Placement, save_models, unused_text

WIDTH = 64


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Write a model with three weights, two of them equal, and one that is small."""
    rng = np.random.default_rng(0)
    one, two = (rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for _ in range(2))
    weights = {"a": one, "b": two, "c": one, "small": np.ones(3, np.float32)}
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], [f"out_{name}"]) for name in weights],
        "weights",
        [],
        [helper.make_tensor_value_info(f"out_{name}", TensorProto.FLOAT, w.shape) for name, w in weights.items()],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    path = tmp_path / "source" / "model.onnx"
    path.parent.mkdir()
    onnx.save(helper.make_model(graph), path)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def values(path: Path) -> dict[str, bytes]:
    return {t.name: numpy_helper.to_array(t).tobytes() for t in onnx.load(path).graph.initializer}


def test_shared_writes_each_distinct_tensor_once_aligned(source: Path, target: Path) -> None:
    model = load(source)
    written = save_models({target / "one.onnx": model, target / "two.onnx": model}, data_name="shared.data")
    assert [path.name for path in written] == ["shared.data", "one.onnx", "two.onnx"]
    assert (target / "shared.data").stat().st_size == 2 * 4 * WIDTH * WIDTH
    proto = onnx.load(target / "one.onnx", load_external_data=False)
    offsets = [int(entry.value) for t in proto.graph.initializer for entry in t.external_data if entry.key == "offset"]
    assert offsets == [0, 4 * WIDTH * WIDTH, 0]
    assert all(offset % 4096 == 0 for offset in offsets)
    assert values(target / "one.onnx") == values(target / "two.onnx") == values(source)


def test_tensors_that_differ_in_the_middle_only_are_told_apart(tmp_path: Path, target: Path) -> None:
    one = np.zeros(20_000, np.float32)
    two = one.copy()
    two[10_000] = 1
    graph = helper.make_graph([], "g", [], [], [numpy_helper.from_array(one, "a"), numpy_helper.from_array(two, "b")])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    save_models({target / "m.onnx": load(tmp_path / "m.onnx")})
    assert values(target / "m.onnx") == values(tmp_path / "m.onnx")


def test_inline_gives_one_self_contained_file(source: Path, target: Path) -> None:
    (written,) = save_models({target / "out.onnx": load(source)}, weights="inline")
    shutil.rmtree(source.parent)
    assert written == target / "out.onnx"
    assert len(values(written)) == 4


def test_in_place_copies_no_weight_and_refers_to_the_source(source: Path) -> None:
    (written,) = save_models({source.parent / "out.onnx": load(source)}, weights="in-place")
    assert written.stat().st_size < 4 * WIDTH * WIDTH
    assert values(written) == values(source)


def test_in_place_of_external_data_refers_to_the_data_file(source: Path, target: Path) -> None:
    save_models({target / "out.onnx": load(source)}, data_name="w.data")
    (written,) = save_models({target / "again.onnx": load(target / "out.onnx")}, weights="in-place")
    assert values(written) == values(source)


def test_inline_and_external_data_in_one_source_are_both_written(source: Path, target: Path) -> None:
    proto = onnx.load(source)
    raw = proto.graph.initializer[0].raw_data
    (source.parent / "x.data").write_bytes(b"\0" * 8 + raw)
    onnx.external_data_helper.set_external_data(proto.graph.initializer[0], "x.data", offset=8, length=len(raw))
    proto.graph.initializer[0].ClearField("raw_data")
    source.write_bytes(proto.SerializeToString())
    save_models({target / "out.onnx": load(source)})
    assert values(target / "out.onnx") == values(source)


def test_the_smallest_external_data_may_leave_out_its_length(source: Path, target: Path) -> None:
    proto = onnx.load(source)
    (source.parent / "x.data").write_bytes(proto.graph.initializer[0].raw_data)
    onnx.external_data_helper.set_external_data(proto.graph.initializer[0], "x.data")
    proto.graph.initializer[0].ClearField("raw_data")
    source.write_bytes(proto.SerializeToString())
    save_models({target / "out.onnx": load(source)})
    assert values(target / "out.onnx") == values(source)


def test_in_place_into_another_folder_is_refused(source: Path, target: Path) -> None:
    with pytest.raises(OutputError, match=r"is not the folder of .* - write there, or use --weights shared"):
        save_models({target / "out.onnx": load(source)}, weights="in-place")
    assert not list(target.iterdir())


def test_inline_past_two_gigabytes_is_refused_before_anything_is_read(source: Path, target: Path) -> None:
    proto = load(source).restore()
    tensor = proto.graph.initializer[0]
    tensor.dims[:] = [1 << 30]
    tensor.data_type = TensorProto.INT8
    size = 1 << 30
    with (source.parent / "big.data").open("wb") as file:
        file.truncate(2 * size)
    onnx.external_data_helper.set_external_data(tensor, "big.data", 0, size)
    tensor.ClearField("raw_data")
    twin = proto.graph.initializer.add()
    twin.CopyFrom(tensor)
    twin.name = "twin"
    source.write_bytes(proto.SerializeToString())
    with pytest.raises(OutputError, match="do not fit into one protobuf file of at most 2,147,483,647"):
        save_models({target / "out.onnx": load(source)}, weights="inline")
    assert not list(target.iterdir())


def test_an_input_is_never_replaced_even_through_a_link(source: Path) -> None:
    before = source.read_bytes()
    link = source.parent / "link.onnx"
    link.hardlink_to(source)
    for path in (source, link):
        with pytest.raises(OutputError, match="is an input, which is never overwritten"):
            save_models({path: load(source)}, overwrite=True)
    assert source.read_bytes() == before


def test_a_file_that_exists_is_kept_unless_told(source: Path, target: Path) -> None:
    (target / "out.onnx").write_bytes(b"precious")
    with pytest.raises(OutputError, match="exists - name another output with -o, or replace it with --overwrite"):
        save_models({target / "out.onnx": load(source)})
    assert (target / "out.onnx").read_bytes() == b"precious"
    save_models({target / "out.onnx": load(source)}, overwrite=True)
    assert values(target / "out.onnx") == values(source)


def test_a_folder_that_does_not_exist_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nowhere: is not a folder"):
        save_models({tmp_path / "nowhere" / "out.onnx": load(source)})


def test_a_folder_that_cannot_be_written_is_named(source: Path, target: Path) -> None:
    target.chmod(0o500)
    folder = target if os.geteuid() else Path("/proc")  # root may write anywhere but there
    with pytest.raises(OutputError, match=r"cannot be written: .* - nothing was left behind"):
        save_models({folder / "out.onnx": load(source)})


def test_missing_weights_are_named_and_nothing_is_left(source: Path, target: Path) -> None:
    save_models({target / "out.onnx": load(source)}, data_name="w.data")
    (target / "w.data").unlink()
    model = load(target / "out.onnx")
    with pytest.raises(ModelError, match=r"w\.data, tensor 'a': its data file is missing"):
        save_models({target / "copy.onnx": model})
    assert [path.name for path in target.iterdir()] == ["out.onnx"]


# What a full disk or a quota does to a process; in one of its own, because it would hit the output of the tests too.
LIMITED = """
import resource, sys
from pathlib import Path
from graphkit.model import load
from graphkit.save import Placement, save_models, unused_text
model = load(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
save_models({Path(sys.argv[2]): model}, overwrite=True)
"""


def test_out_of_space_leaves_nothing_behind_and_nothing_lost(source: Path, target: Path) -> None:
    (target / "out.onnx").write_bytes(b"precious")
    (target / "out.onnx_data").write_bytes(b"dear")
    command = [sys.executable, "-c", LIMITED, str(source), str(target / "out.onnx")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "OutputError" in ran.stderr
    assert f"{target / 'out.onnx_data'}: cannot be written: File too large - nothing was left behind" in ran.stderr
    assert sorted(path.name for path in target.iterdir()) == ["out.onnx", "out.onnx_data"]
    assert (target / "out.onnx").read_bytes() == b"precious"
    assert (target / "out.onnx_data").read_bytes() == b"dear"


def test_typed_payloads_are_written_as_raw_bytes(tmp_path: Path, target: Path) -> None:
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [1000], np.arange(1000, dtype=np.float32).tolist())
    onnx.save(helper.make_model(helper.make_graph([], "g", [], [], [tensor])), tmp_path / "m.onnx")
    save_models({target / "m.onnx": load(tmp_path / "m.onnx")})
    assert values(target / "m.onnx") == values(tmp_path / "m.onnx")


def test_a_model_from_memory_is_written_too(target: Path) -> None:
    graph = helper.make_graph([], "g", [], [], [numpy_helper.from_array(np.ones(2000, np.float32), "w")])
    save_models({target / "m.onnx": Model.from_proto(helper.make_model(graph))})
    assert len(values(target / "m.onnx")["w"]) == 8000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("place", ["out.onnx", "out.onnx_data"])
def test_what_is_no_regular_file_is_never_replaced(source: Path, target: Path, place: str, overwrite: bool) -> None:
    def refused(why: str) -> None:
        with pytest.raises(OutputError, match=f"{place}: is {why}"):
            save_models({target / "out.onnx": load(source)}, overwrite=overwrite)
        assert [path.name for path in target.iterdir()] == [place]

    os.mkfifo(target / place)
    refused("not a regular file")
    (target / place).unlink()
    (target / place).symlink_to("nowhere")
    refused("a link, which is never replaced")
    (target / place).unlink()
    (target / place).mkdir()
    refused("a folder")


def test_a_device_is_never_replaced(source: Path) -> None:
    with pytest.raises(OutputError, match="null: is not a regular file - name another output"):
        save_models({Path(os.devnull): load(source)}, weights="inline", overwrite=True)


@pytest.mark.parametrize("weights", ["shared", "inline", "in-place"])
def test_a_file_that_has_shrunk_since_it_was_read_is_named(source: Path, target: Path, weights: Placement) -> None:
    model = load(source)
    os.truncate(source, source.stat().st_size // 2)
    folder = source.parent if weights == "in-place" else target
    with pytest.raises(
        ModelError, match=r"model\.onnx, tensor '.*': it ends before its tensors do: it has shrunk since"
    ):
        save_models({folder / "out.onnx": model}, weights=weights)
    assert not list(target.iterdir())


@pytest.mark.parametrize("weights", ["shared", "inline"])
@pytest.mark.parametrize("in_kernel", [False, True])
def test_a_file_that_shrinks_while_it_is_read_is_named(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, weights: Placement, in_kernel: bool
) -> None:
    copy = graphkit.save._copy_piece

    def shrunk(*arguments: Any) -> int:
        os.truncate(source, source.stat().st_size // 2)
        return copy(*arguments)

    if not in_kernel:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    monkeypatch.setattr(graphkit.save, "_copy_piece", shrunk)
    with pytest.raises(ModelError, match=r"model\.onnx: it ends before its tensors do: it has shrunk since the model"):
        save_models({target / "out.onnx": load(source)}, weights=weights)
    assert not list(target.iterdir())


def test_data_files_that_new_models_do_not_use_are_named(source: Path, target: Path) -> None:
    model = load(source)
    first = save_models({target / "out.onnx": model}, data_name="old.data")
    assert first.unused == ()
    second = save_models({target / "out.onnx": model}, weights="inline", overwrite=True)
    assert second == (target / "out.onnx",)
    assert second.unused == (target / "old.data",)
    assert save_models({target / "out.onnx": model}, overwrite=True).unused == ()
    assert save_models({target / "out.onnx": model}, overwrite=True).unused == ()
    save_models({source.parent / "out.onnx": model}, weights="in-place")
    assert save_models({source.parent / "out.onnx": model}, weights="inline", overwrite=True).unused == ()


def test_a_sentence_names_what_is_left() -> None:
    assert unused_text(["a"]) == "a is left from the replaced models; the new ones do not use it."
    assert unused_text(["a", "b"]) == "a and b are left from the replaced models; the new ones do not use them."


def test_a_new_pair_stands_or_the_old_one(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rename fails once; what stands then is one of the two pairs, and runs on its own data."""
    old, proto = load(source), onnx.load(source)
    proto.graph.initializer[0].raw_data = np.zeros((WIDTH, WIDTH), np.float32).tobytes()
    onnx.save(proto, source.parent / "other.onnx")
    new = load(source.parent / "other.onnx")
    truth = [values(source), values(source.parent / "other.onnx")]
    paths = target / "one.onnx", target / "two.onnx"
    for number in range(20):
        save_models(dict.fromkeys(paths, old), data_name="w.data", overwrite=True)
        steps, real = [0], os.rename

        def fail(*arguments: Any, steps: list[int] = steps, real: Any = real, number: int = number) -> None:
            steps[0] += 1
            if steps[0] == number:
                raise OSError(5, "Input/output error")
            real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fail)
            try:
                save_models(dict.fromkeys(paths, new), data_name="w.data", overwrite=True)
                wanted = 1
            except OutputError:
                wanted = 0
        assert [values(path) for path in paths] == [truth[wanted]] * 2
        assert sorted(path.name for path in target.iterdir()) == ["one.onnx", "two.onnx", "w.data"]
        if steps[0] < number:
            return
    pytest.fail("it never succeeded")


@pytest.mark.parametrize("weights", ["shared", "inline"])
def test_a_model_saves_itself(source: Path, target: Path, weights: Placement) -> None:
    saved = load(source).save(str(target / "out.onnx"), weights)
    assert saved[-1] == target / "out.onnx"
    assert values(target / "out.onnx") == values(source)
    with pytest.raises(OutputError, match="exists"):
        load(source).save(target / "out.onnx", weights)
    assert load(source).save(target / "out.onnx", weights, overwrite=True) == saved


def test_a_model_never_saves_itself_over_its_source(source: Path) -> None:
    with pytest.raises(OutputError, match="is an input, which is never overwritten"):
        load(source).save(source, overwrite=True)


def test_kept_weights_stay_inside_where_they_were(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(source)
    assert [path.name for path in model.save(target / "one.onnx")] == ["one.onnx"]
    assert values(target / "one.onnx") == values(source)
    apart = load(save_models({target / "two.onnx": model})[-1])
    assert [path.name for path in apart.save(target / "three.onnx")] == ["three.onnx_data", "three.onnx"]
    monkeypatch.setattr("graphkit.save.MAX_PROTO", 1000)
    assert [path.name for path in model.save(target / "four.onnx")] == ["four.onnx_data", "four.onnx"]
