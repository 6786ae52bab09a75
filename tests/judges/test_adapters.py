"""Adapters read what compilers print and write; none of them is here."""

from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from graphkit.judges.adapters import answer_lines, ask_rknn, ask_vela

RKNN_LOG = """\
D fuse_ops results:
D     fuse_sigmoid_mul_to_exswish: remove node = ['sig', 'mul'], add node = ['mul_2exswish']
D     fuse_two_to_sdpa: remove node = ['qk', 'soft', 'qkv'], add node = ['q_tp', 'qkv_2sdpa', 'out_rs']
D     fuse_transpose_reshape: remove node = ['q_tp']
D     convert_reducemean_to_einsum: remove node = ['mean'], add node = ['mean#1', 'mean#1_rs']
D     convert_2in_einsum_to_exmatmul: remove node = ['mean#1'], add node = ['x_rs', 'x_rs_mm', 'x_rs_mm_tp']
D     replace_torch_gelu: remove node = ['div', 'erf'], add node = ['half_2gelu']
D     replace_torch_gelu: remove node = ['lost'], add node = ['more_2gelu']
D     fold_constant: remove node = ['more_2gelu'], add node = []
E RKNN: [03:10:30.403] Unkown op target: 0
W RKNN: [03:10:30.403] LayerNormalization: Shape not support Target:NPU
D RKNN: [03:10:30.7] ID   OpType     DataType Target InputShape   OutputShape Cycles RW(KB) FullName
D RKNN: [03:10:30.7] 0    InputOperator      FLOAT16  CPU    \\                  (1,8) 0/0/0 0 InputOperator:x
D RKNN: [03:10:30.7] 1    ConvAdd            FLOAT16  NPU    (1,8),(8,8),(1,8)  (1,8) 9/6/9 2 Conv:a b#2_ConvAdd
D RKNN: [03:10:30.7] 2    exSwish            FLOAT16  NPU    (1,8)              (1,8) 0/0/0 0 exSwish:mul_2exswish
D RKNN: [03:10:30.7] 3    ConvExGelu         FLOAT16  NPU    (1,8),(8,8)        (1,8)   9/6/9   2
D RKNN: [03:10:30.7] 4    LayerNormalization FLOAT16  CPU    (1,8),(8)          (1,8) 0/0/0 0 LayerNormalization:ln
D RKNN: [03:10:30.7] 5    Reshape            FLOAT16  CPU    (1,8),(4)          (1,8) 0/0/0 0 Reshape:out_rs
D RKNN: [03:10:30.7] 6    exSDPAttention     FLOAT16  NPU    (8,4,1,1),...      (1,8) 0/0/0 0 exSDPAttention:qkv_2sdpa
D RKNN: [03:10:30.7] 7    OutputOperator     FLOAT16  CPU    (1,8)              \\    0/0/0 0 OutputOperator:y
D RKNN: [03:10:30.7] 8    Conv               FLOAT16  NPU    (1,8),(8,8)        (1,8) 0/0/0 0 Conv:x_rs_mm#1
D RKNN: [03:10:30.7] 9    Reshape            FLOAT16  CPU    (1,8),(4)          (1,8) 0/0/0 0 Reshape:x_rs
"""
OPERATORS = {"a b": "MatMul", "sig": "Sigmoid", "mul": "Mul", "ln": "LayerNormalization"} | {
    "qk": "MatMul",
    "soft": "Softmax",
    "qkv": "MatMul",
    "mean": "ReduceMean",
    "div": "Div",
    "erf": "Erf",
    "lost": "Erf",
}


def test_layers_of_rknn_go_by_the_nodes_that_they_are_fused_from() -> None:
    found = ask_rknn.placement(RKNN_LOG, OPERATORS)
    on = {
        place: {node["name"]: node["op"] for node in found["nodes"] if node["on"] == place}
        for place in ("device", "cpu")
    }
    assert on["device"] == {
        "a b": "MatMul",
        "sig": "Sigmoid",
        "mul": "Mul",
        "layer 3": "ConvExGelu",
        "qk": "MatMul",
        "soft": "Softmax",
        "qkv": "MatMul",
        "mean": "ReduceMean",
        "div": "Div",
        "erf": "Erf",
    }
    assert on["cpu"] == {"ln": "LayerNormalization", "out_rs": "Reshape", "x_rs": "Reshape"}
    assert found["partitions"] == 2
    reasons = {node["name"]: node["why"] for node in found["nodes"] if node["on"] == "cpu"}
    assert reasons == {"ln": "LayerNormalization: Shape not support Target:NPU", "out_rs": "", "x_rs": ""}


@pytest.mark.skipif(sys.platform != "linux", reason="the compiler runs on Linux alone")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import os; os.kill(os.getpid(), 9)", "the compiler crashes: SIGKILL: E free(): invalid next size"),
        ("import os; os._exit(7)", "the compiler crashes: exit status 7: E free(): invalid next size"),
        ("pass", ""),
    ],
)
def test_where_rknn_crashes_that_is_the_answer(program: str, error: str) -> None:
    def ask() -> dict[str, object]:
        exec(program)
        return {"error": ""}

    answer = ask_rknn.ask_apart(ask, lambda: "E free(): invalid next size\nD RKNN: start\n")
    assert answer["error"] == error


def test_rknn_builds_in_float16_for_one_chip_and_says_what_fails(tmp_path: Path) -> None:
    done: list[object] = []

    class Compiler:
        def config(self, **options: object) -> None:
            done.append(options)

        def load_onnx(self, **_: object) -> int:
            return 0

        def build(self, do_quantization: bool, dataset: str = "") -> int:
            return 0 if do_quantization == dataset.endswith("data.txt") else -1

        def export_rknn(self, path: str) -> int:
            Path(path).write_bytes(b"12345")
            return 0

    assert ask_rknn.build(Compiler(), "m.onnx", tmp_path / "compiled.rknn") == 5
    assert done == [{"target_platform": "rk3588"}]
    data = ask_rknn.calibration([{"x": np.zeros(2), "y": np.ones(1)}] * 2, tmp_path)
    lines = [[np.load(path).tolist() for path in line.split()] for line in data.read_text().splitlines()]
    assert lines == [[[0, 0], [1]]] * 2
    assert ask_rknn.build(Compiler(), "m.onnx", tmp_path / "compiled.rknn", data) == 5
    Compiler.load_onnx = lambda *_, **__: -1  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="does not build"):
        ask_rknn.build(Compiler(), "m.onnx", tmp_path / "compiled.rknn")


VELA = f"""#!{sys.executable}
import pathlib, sys
folder = pathlib.Path(sys.argv[-1])
folder.mkdir()
(folder / "int8_vela.tflite").write_bytes(b"u65" if "ethos-u65-256" in sys.argv else b"u85!")
print("Warning: No memory mode specified.")
if "ethos-u65-256" in sys.argv:
    print("Warning (supported operators) operator: GATHER, ofm: 'rows'\\nReason: Unsupported opType")
    print("Warning (supported operators) operator: ADD, ofm: 'sum'")
    print("Reason: Unsupported dataType Int64\\n - 64-bit feature-maps are not supported.")
print("CPU operators = 2 (50.0%)")
"""


def operator(name: str, tensor: str) -> ask_vela.Operator:
    return ask_vela.Operator(name, (tensor,), (2,), ("int8",))


@pytest.mark.skipif(sys.platform == "win32", reason="the program here is a script")
def test_what_vela_leaves_on_one_accelerator_is_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vela").write_text(VELA)
    (tmp_path / "vela").chmod(0o755)
    made = {
        b"u65": [operator("GATHER", "rows"), operator("ADD", "sum"), operator("ethos-u", "y")],
        b"u85!": [operator("ethos-u", "y"), operator("GATHER", "rows")],
    }
    monkeypatch.setattr(ask_vela, "operators", made.__getitem__)
    whole = [operator("GATHER", "rows"), operator("ADD", "sum"), operator("MUL", "y")]
    found = ask_vela.placement(whole, {"rows": "look up"}, tmp_path, tmp_path)
    assert [(node["name"], node["op"], node["on"], node["why"]) for node in found["nodes"]] == [
        ("look up", "GATHER", "cpu", "ethos-u65-256: Unsupported opType"),
        ("sum", "ADD", "cpu", "ethos-u65-256: Unsupported dataType Int64 64-bit feature-maps are not supported."),
        ("y", "MUL", "device", ""),
    ]
    assert found["partitions"] == 1
    assert found["files"] == {"ethos-u65-256.tflite": 3, "ethos-u85-256.tflite": 4}
    shutil.rmtree(tmp_path / "ethos-u85-256")
    alone = ask_vela.placement(whole, {}, tmp_path, tmp_path, ["ethos-u85-256"])
    assert [node["name"] for node in alone["nodes"] if node["on"] == "cpu"] == ["rows"]


@pytest.mark.skipif(sys.platform == "win32", reason="the program here is a script")
def test_where_vela_crashes_that_is_the_answer(tmp_path: Path) -> None:
    (tmp_path / "vela").write_text(f"#!{sys.executable}\nimport os\nprint('at node 7', flush=True)\nos.abort()\n")
    (tmp_path / "vela").chmod(0o755)
    found = ask_vela.placement([operator("ADD", "y")], {}, tmp_path, tmp_path)
    assert found == {"error": "ethos-u65-256: vela: SIGABRT: at node 7"}


def test_onnx2tf_is_stopped_once_the_saved_model_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converter = types.SimpleNamespace(from_keras_model=lambda _: None)
    done: list[str] = []

    def convert(*, output_folder_path: str, not_use_onnxsim: bool, **_: object) -> None:
        assert not_use_onnxsim  # it would make other operators of a lowered model
        assert cleared == ["all"]
        tf_layers_dict = {"y": "made of y"}
        Path(output_folder_path).write_text(f"a SavedModel{tf_layers_dict and ''}")
        try:
            converter.from_keras_model("the model")
        except Exception:  # as onnx2tf does, which has a second way to go on
            done.append("caught")
        done.append("wrote TFLite")

    lite, cleared = types.SimpleNamespace(TFLiteConverter=converter), list[str]()
    backend = types.SimpleNamespace(clear_session=lambda: cleared.append("all"))  # names of models before
    monkeypatch.setitem(sys.modules, "tf_keras", types.SimpleNamespace(backend=backend))
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(lite=lite))
    monkeypatch.setitem(sys.modules, "onnx2tf", types.SimpleNamespace(convert=convert))
    made = ask_vela.save_model("m.onnx", str(tmp_path / "saved"), ["x"])
    assert (tmp_path / "saved").read_text() == "a SavedModel"
    assert made == {"y": "made of y"}
    assert not done


def keras(layer: str, tensor: str, *sources: types.SimpleNamespace) -> types.SimpleNamespace:
    node = types.SimpleNamespace(layer=types.SimpleNamespace(name=layer), keras_inputs=sources)
    return types.SimpleNamespace(name=f"{tensor}/Op:0", node=node)


def test_operators_of_tflite_go_by_the_node_of_which_their_layer_was_made() -> None:
    x = keras("x", "x")
    y = keras("add", "add", keras("mul", "mul", x), x)
    made = {"x": {"tf_node": x}, "table": {"tf_node": 5}, "y": {"tf_node": y}, "z": {"tf_node": keras("z", "sub", y)}}
    layers = ask_vela.layer_tensors(made)
    assert layers == {"x": "x", "mul": "y", "add": "y", "z": "z", "sub": "z"}
    nodes = {"mul": "node y", "add": "node y", "output_0": "node z"}
    named = [
        operator("MUL", "model_1/mul/Mul;model_1/const"),
        ask_vela.Operator("SUB", ("PartitionedCall:0",), (2,), ("int8",), "output_0"),
        operator("PACK", "model_1/stack"),
    ]
    assert [each.node(nodes) for each in named] == ["node y", "node z", "model_1/stack"]


MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[3] x, int32[1] i) => (float[3] y, int32[1] j) {
    y = Relu (x) j = Neg (i) }"""


def test_numbers_are_compared_with_those_of_onnxruntime_on_the_cpu(tmp_path: Path) -> None:
    path, feeds = str(tmp_path / "m.onnx"), str(tmp_path / "feeds.npz")
    onnx.save(onnx.parser.parse_model(MODEL), path)
    np.savez(feeds, x=np.float32([[1, -2, 4], [0, -1, -3]]), i=np.int32([[1], [2]]))

    def run(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [np.maximum(feed["x"], 0) + np.float32([0, 1, 0]), -feed["i"]]

    found = answer_lines.try_model(path, {"feeds": feeds}, lambda: run)["numbers"]
    assert [(each["output"], each["error"]) for each in found] == [("y", 0.25), ("j", 0)]
    assert [each["cosine"] for each in found] == [pytest.approx(17 / (17 * 18) ** 0.5), 1.0]  # of the first run
    assert answer_lines.try_model(path, {}, lambda: run) == {}
    zeros = answer_lines.try_model(path, {"feeds": feeds}, lambda: lambda feed: [feed["x"] * 0, -feed["i"]])
    assert zeros["numbers"][0] == {"output": "y", "cosine": 0.0, "error": 1.0}
    lost = answer_lines.try_model(path, {"feeds": ""}, lambda: lambda feed: [feed["x"] * np.nan, -feed["i"]])
    assert lost["numbers"][0] == {"output": "y", "cosine": None, "error": None}
    assert answer_lines.try_model(path, {"feeds": ""}, lambda: run(3)) == {
        "no_numbers": "'int' object is not subscriptable"
    }


def test_a_model_whose_dims_are_symbols_has_no_random_numbers(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL.replace("float[3] x", "float[n] x")), tmp_path / "m.onnx")
    assert answer_lines.try_model(str(tmp_path / "m.onnx"), {"feeds": ""}, list) == {"no_numbers": "dims are symbols"}
