from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from protos import (
    FLOAT,
    INT32,
    STRING,
    attribute_tensor,
    external,
    field,
    floats,
    initializer,
    model,
    node,
    raw_data,
    tensor,
)

from graphkit.dtypes import BITS, typed_payload
from graphkit.errors import ModelError
from graphkit.io.tensors import element_count, payload_size, walk_tensors
from graphkit.model import Model, load

WEIGHTS = floats(4)
ONNX = tuple(int(number) for number in onnx.__version__.split(".")[:2])
DTYPES = sorted(dtype for dtype in onnx.TensorProto.DataType.values() if dtype in BITS)
if ONNX < (1, 19):  # which has no arrays of bfloat16 and what came after it
    DTYPES = [dtype for dtype in DTYPES if dtype < onnx.TensorProto.BFLOAT16]

Save = Callable[..., Path]
Refused = Callable[..., ModelError]


def only_tensor(loaded: Model) -> onnx.TensorProto:
    ((found, _),) = walk_tensors(loaded.proto)
    return found


# Payloads and values.


@pytest.mark.parametrize("threshold", [1, 17], ids=["referenced", "inline"])
@pytest.mark.parametrize("number", [4, 9], ids=["float_data", "raw_data"])
def test_payload_and_array(save: Save, threshold: int, number: int) -> None:
    loaded = load(save(model(initializer(field(number, WEIGHTS), dims=(2, 2)))), threshold=threshold)
    weight = only_tensor(loaded)
    assert (weight.data_location == onnx.TensorProto.EXTERNAL) == (threshold == 1)
    assert loaded.payload(weight) == WEIGHTS
    assert loaded.array(weight).tolist() == [[0, 1], [2, 3]]


def test_payload_of_external_data(save: Save) -> None:
    save(b"12345" + WEIGHTS + b"more", "weights.bin")
    loaded = load(save(model(initializer(external(location="weights.bin", offset="5", length="16")))))
    weight = only_tensor(loaded)
    assert loaded.payload(weight) == WEIGHTS
    assert loaded.array(weight).tolist() == [0, 1, 2, 3]
    (data_file,) = loaded.source.data_files
    assert (data_file.location, data_file.size) == ("weights.bin", 25)
    assert loaded.files == (loaded.path, data_file.path)


def test_external_data_without_length_takes_what_the_dims_need(save: Save) -> None:
    save(b"12345" + WEIGHTS + b"more", "weights.bin")
    loaded = load(save(model(initializer(external(location="weights.bin", offset="5")))))
    assert loaded.payload(only_tensor(loaded)) == WEIGHTS


def test_external_data_in_a_sub_folder(save: Save, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    save(WEIGHTS, "data/weights.bin")
    loaded = load(save(model(initializer(external(location="./data/../data/weights.bin")))))
    assert loaded.array(only_tensor(loaded)).tolist() == [0, 1, 2, 3]


def test_external_data_of_no_bytes(save: Save) -> None:
    save(b"", "weights.bin")  # an empty file cannot be mapped
    loaded = load(save(model(initializer(external(location="weights.bin", length="0"), dims=(0, 3)))))
    assert loaded.payload(only_tensor(loaded)) == b""
    assert loaded.array(only_tensor(loaded)).shape == (0, 3)


def test_external_data_in_the_model_file_itself(save: Save) -> None:
    content = external(location="model.onnx", offset="3", length="16")
    loaded = load(save(field(6, b"," + WEIGHTS) + model(initializer(content))))
    assert loaded.array(only_tensor(loaded)).tolist() == [0, 1, 2, 3]
    assert loaded.restore().graph.initializer[0].data_location == onnx.TensorProto.EXTERNAL


def test_missing_data_file_is_named_and_refused_late(save: Save, tmp_path: Path) -> None:
    loaded = load(save(model(initializer(external(location="weights.bin", offset="0", length="16")))))
    (data_file,) = loaded.source.data_files
    assert (data_file.location, data_file.path, data_file.size) == ("weights.bin", tmp_path / "weights.bin", None)
    with pytest.raises(ModelError) as caught:
        loaded.array(only_tensor(loaded))
    assert str(caught.value) == f"{data_file.path}, tensor 'w': its data file is missing - put it there"


def test_data_file_that_shrank_after_load(save: Save) -> None:
    save(WEIGHTS, "weights.bin")
    loaded = load(save(model(initializer(external(location="weights.bin", offset="0", length="16")))))
    save(WEIGHTS[:9], "weights.bin")
    with pytest.raises(ModelError, match="tensor 'w': it ends before its tensor does: it has shrunk"):
        loaded.array(only_tensor(loaded))


def test_model_without_a_file_finds_data_beside_the_working_folder(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(WEIGHTS, "weights.bin")
    monkeypatch.chdir(tmp_path)
    proto = onnx.ModelProto.FromString(model(initializer(external(location="weights.bin"))))
    loaded = Model.from_proto(proto)
    assert loaded.array(only_tensor(loaded)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("content", "dtype"),
    [(b"", FLOAT), (raw_data(b""), FLOAT), (raw_data(WEIGHTS), 0), (raw_data(WEIGHTS), 99), (b"", STRING)],
    ids=["stripped", "stripped raw_data", "no dtype", "unknown dtype", "no strings"],
)
def test_tensor_without_readable_values_loads(save: Save, content: bytes, dtype: int) -> None:
    loaded = load(save(model(initializer(content, dtype=dtype))))
    with pytest.raises(ModelError, match=r"tensor 'w': no values can be read: .* - export the model again"):
        loaded.array(only_tensor(loaded))


@pytest.mark.parametrize("dtype", [STRING, 99])
def test_no_payload_without_a_fixed_size(save: Save, dtype: int) -> None:
    loaded = load(save(model(initializer(field(6, b"text"), dims=(1,), dtype=dtype))))
    with pytest.raises(ModelError, match="tensor 'w': strings and unknown dtypes have no bytes of fixed size"):
        loaded.payload(only_tensor(loaded))


@pytest.mark.cases(36)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_typed_values_have_the_bytes_of_raw_data(dtype: int, count: int) -> None:
    low, high = (0, 2) if dtype == onnx.TensorProto.BOOL else (2, 60)  # of these bytes no value is NaN or subnormal
    in_bytes = np.random.default_rng(0).integers(low, high, (count * BITS[dtype] + 7) // 8, np.uint8).tobytes()
    raw = onnx.TensorProto(data_type=dtype, dims=[count], raw_data=in_bytes)
    values = onnx.numpy_helper.to_array(raw)
    typed = onnx.helper.make_tensor("t", dtype, [count], values)
    assert not typed.HasField("raw_data")
    assert typed_payload(typed) == onnx.numpy_helper.from_array(values).raw_data
    assert len(typed_payload(typed)) == payload_size(typed)


@pytest.mark.parametrize(("dims", "count"), [((), 1), ((0,), 0), ((2, 3), 6), ((1 << 62, 1 << 62, 0), 0)])
def test_element_count(dims: tuple[int, ...], count: int) -> None:
    assert element_count(onnx.TensorProto(dims=dims)) == count


# What tensors claim.

BAD_CLAIMS = {
    "negative dims": (tensor(dims=(3, -1)), "dims [3, -1] are negative"),
    "dims overflow": (tensor(dims=(1 << 62, 4)), f"dims [{1 << 62}, 4] are more than 2^63 elements"),
    "short raw_data": (tensor(raw_data(bytes(15))), "15 bytes of data, but dtype and dims [4] need 16"),
    "long raw_data": (tensor(raw_data(bytes(17))), "17 bytes of data, but dtype and dims [4] need 16"),
    "data for no element": (tensor(raw_data(WEIGHTS), dims=(0,)), "16 bytes of data, but dtype and dims [0] need 0"),
    "odd 4-bit data": (tensor(raw_data(b"12"), dims=(5,), dtype=21), "2 bytes of data, but dtype and dims [5] need 3"),
    "few 4-bit values": (tensor(field(5, b"12"), dims=(5,), dtype=21), "2 values, but dtype and dims [5] need 3"),
    "many strings": (tensor(field(6, b"a") * 3, dims=(2,), dtype=STRING), "3 values, but dtype and dims [2] need 2"),
    "short external": (
        tensor(external(location="w", length="15")),
        "15 bytes of data, but dtype and dims [4] need 16",
    ),
    "no location": (tensor(external(offset="0")), "external data without a location"),
    "empty location": (tensor(external(location="")), "external data without a location"),
    "location not UTF-8": (tensor(external(location=b"\xff")), r"external data at b'\xff', which is not UTF-8"),
    "offset of letters": (
        tensor(external(location="w", offset="ten")),
        "external data has the offset 'ten', not a number of bytes",
    ),
    "negative offset": (
        tensor(external(location="w", offset="-1")),
        "external data has the offset '-1', not a number of bytes",
    ),
    "huge offset": (
        tensor(external(location="w", offset="9" * 5000)),
        f"external data has the offset '{'9' * 40}', not a number of bytes",
    ),
    "length of other digits": (
        tensor(external(location="w", length="١٦")),
        "external data has the length '١٦', not a number of bytes",
    ),
    "negative length": (
        tensor(external(location="w", length="-16")),
        "external data has the length '-16', not a number of bytes",
    ),
    "length not UTF-8": (
        tensor(external(location="w", length=b"\xff")),
        r"external data has the length 'b'\xff'', not a number of bytes",
    ),
    "parent folder": (
        tensor(external(location="../weights.bin")),
        "external data at '../weights.bin' lies outside the model's folder",
    ),
    "hidden parent folder": (
        tensor(external(location="a/../../weights.bin")),
        "external data at 'a/../../weights.bin' lies outside the model's folder",
    ),
    "absolute": (tensor(external(location="/etc/passwd")), "external data at '/etc/passwd' is not a relative path"),
    "Windows drive": (tensor(external(location="C:\\w")), r"external data at 'C:\\w' is not a relative path"),
    "Windows drive's folder": (tensor(external(location="C:w")), "external data at 'C:w' is not a relative path"),
    "Windows root": (tensor(external(location="\\w")), r"external data at '\\w' is not a relative path"),
    "Windows share": (
        tensor(external(location="\\\\h\\s\\w")),
        r"external data at '\\\\h\\s\\w' is not a relative path",
    ),
    "NUL": (tensor(external(location="w\0.bin")), r"external data at 'w\x00.bin' is not a relative path"),
    "the folder itself": (tensor(external(location=".")), "external data at '.' is not a regular file"),
    "a long name": (
        tensor(external(location="w" * 5000)),
        f"external data at '{'w' * 79} cannot be opened: File name too long",
    ),
    "a file as a folder": (
        tensor(external(location="model.onnx/w")),
        "external data at 'model.onnx/w' cannot be opened: Not a directory",
    ),
}


@pytest.mark.parametrize(("content", "problem"), BAD_CLAIMS.values(), ids=BAD_CLAIMS)
@pytest.mark.parametrize("threshold", [1, 1024])
def test_bad_claim(save: Save, refused: Refused, content: bytes, problem: str, threshold: int) -> None:
    error = refused(save(model(field(5, content))), threshold)
    assert (error.problem, error.tensor, error.node) == (problem, "w", None)


@pytest.mark.parametrize(("dims", "dtype"), [((4,), FLOAT), ((2,), onnx.TensorProto.COMPLEX64)])
def test_too_few_floats(save: Save, refused: Refused, dims: tuple[int, ...], dtype: int) -> None:
    path = save(model(initializer(field(4, floats(3)), dims=dims, dtype=dtype)))
    assert refused(path).problem == f"3 values, but dtype and dims {list(dims)} need 4"
    assert refused(path, 1).problem == f"12 bytes of data, but dtype and dims {list(dims)} need 16"


def test_bad_claim_in_a_node_names_the_node(save: Save, refused: Refused) -> None:
    error = refused(save(model(field(1, node(attribute_tensor(tensor(dims=(-1,))))))))
    assert (error.problem, error.tensor, error.node) == ("dims [-1] are negative", None, "n")


def test_bad_claim_in_an_attribute_of_another_type(save: Save, refused: Refused) -> None:
    content = tensor(external(location="../weights.bin"))
    error = refused(save(model(field(1, node(field(5, field(1, b"a") + field(20, 1) + field(5, content)))))))
    assert "lies outside the model's folder" in error.problem


@pytest.mark.cases("4611686018427387904")
@pytest.mark.parametrize("last", [1 << 62, 0])
def test_million_dims_are_counted_quickly(save: Save, last: int) -> None:
    dims = field(1, field(1, 1 << 62)[1:] * 1_000_000 + field(1, last)[1:])
    path = save(model(field(5, dims + field(2, FLOAT))))
    if last:
        with pytest.raises(ModelError, match=r"are more than 2\^63 elements"):
            load(path)
    else:
        assert payload_size(only_tensor(load(path))) == 0


def test_past_the_end_of_the_data_file(save: Save, refused: Refused) -> None:
    save(WEIGHTS, "weights.bin")
    error = refused(save(model(initializer(external(location="weights.bin", offset="1", length="16")))))
    assert error.problem == "external data ends at byte 17 of 'weights.bin', which has 16"
    assert error.hint == "it is truncated, a Git LFS pointer or that of another model; fetch both again"
    assert error.tensor == "w"


def test_past_the_end_of_the_data_file_without_a_length(save: Save, refused: Refused) -> None:
    save(WEIGHTS, "weights.bin")
    error = refused(save(model(initializer(external(location="weights.bin", offset="9" * 18)))))
    assert error.problem == f"external data ends at byte {10**18 - 1 + 16:,} of 'weights.bin', which has 16"


def test_folder_as_data_file(save: Save, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    error = refused(save(model(initializer(external(location="weights")))))
    assert error.problem == "external data at 'weights' is not a regular file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipe_as_data_file_is_not_opened(save: Save, refused: Refused, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "weights")
    error = refused(save(model(initializer(external(location="weights")))))
    assert error.problem == "external data at 'weights' is not a regular file"


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_link_out_of_the_folder(save: Save, refused: Refused, tmp_path: Path, linked: str) -> None:
    outside, home = tmp_path / "outside", tmp_path / "home"
    outside.mkdir()
    home.mkdir()
    (outside / "weights.bin").write_bytes(WEIGHTS)
    if linked == "file":
        location = "weights.bin"
        (home / location).symlink_to(outside / "weights.bin")
    else:
        location = "there/weights.bin"
        (home / "there").symlink_to(outside)
    error = refused(save(model(initializer(external(location=location, length="16"))), "home/model.onnx"))
    assert error.problem == f"external data at '{location}' is a link that leads out of the model's folder"


def test_link_to_itself(save: Save, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").symlink_to("weights.bin")
    error = refused(save(model(initializer(external(location="weights.bin")))))
    assert error.problem.startswith("external data at 'weights.bin' cannot be opened: ")


def test_link_within_the_folder(save: Save, tmp_path: Path) -> None:
    save(WEIGHTS, "blob")
    (tmp_path / "weights.bin").symlink_to("blob")
    loaded = load(save(model(initializer(external(location="weights.bin")))))
    assert loaded.payload(only_tensor(loaded)) == WEIGHTS


def test_links_of_the_hugging_face_cache(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "0123").write_bytes(model(initializer(external(location="model.onnx_data", length="16"))))
    (blobs / "4567").write_bytes(WEIGHTS)
    (snapshot / "model.onnx").symlink_to("../../../blobs/0123")
    (snapshot / "model.onnx_data").symlink_to("../../../blobs/4567")
    loaded = load(snapshot / "model.onnx")
    assert loaded.payload(only_tensor(loaded)) == WEIGHTS


def test_external_data_at_the_bytes_of_another_tensor(save: Save, refused: Refused) -> None:
    whole = field(5, tensor(raw_data(WEIGHTS)))
    offset = model(whole).index(WEIGHTS)
    path = save(model(whole, initializer(external(location="model.onnx", offset=str(offset), length="16"))))
    assert path.read_bytes()[offset + 2 : offset + 18] != WEIGHTS  # the lengths around it grew to two bytes
    offset = path.read_bytes().index(WEIGHTS)
    path = save(model(whole, initializer(external(location="model.onnx", offset=str(offset), length="16"))))
    assert refused(path, 1).problem == f"two tensors have their data at byte {offset} of the model file"


def test_walk_finds_the_node_of_each_tensor() -> None:
    inner = model(field(1, node(attribute_tensor(tensor()))), initializer(dims=(2,), dtype=INT32))
    found = walk_tensors(onnx.ModelProto.FromString(inner))
    assert [(list(proto.dims), holder) for proto, holder in found] == [([2], None), ([4], "n")]
