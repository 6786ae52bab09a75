"""Ask Arm's Vela which operators of models an Ethos-U takes: ask_vela.py vela [--only ethos-u65-256].

It runs in the environment of the judge, without graphkit, and makes int8 TFLite of a model first: by onnx2tf, which
writes a SavedModel, and by TensorFlow's converter. See `graphkit.judges.Answer` for what it answers. Operators of
TFLite go by the node of which onnx2tf made the layer that they come from, and by the tensor that they make where none
is known.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ACCELERATORS = ("ethos-u65-256", "ethos-u85-256")
ON_NPU = "ethos-u"  # the operator that Vela makes of all that it takes
RUNS = 4  # of random numbers, which calibrate: where operators go does not depend on them
SECONDS = 3600
REFUSAL = re.compile(r"^Warning .*operator: \S+, ofm: '(.*)'\n((?: *- ?.*\n|Reason: .*\n)*)", re.MULTILINE)
ERROR = re.compile(r"^.*\b[Ee]rror: (.+)$", re.MULTILINE)
LONGEST = 300  # characters of a reason


class Operator(NamedTuple):
    """An operator of a TFLite file: its name, and the name, rank and dtype of each tensor that it makes.

    `output` is what the signature calls the first one, "" where that is no output.
    """

    name: str
    tensors: tuple[str, ...]
    ranks: tuple[int, ...]
    dtypes: tuple[str, ...]
    output: str = ""

    def node(self, layers: Mapping[str, str]) -> str:
        """Return the node that it comes from, by layers and outputs; its tensor where none is known."""
        names = (self.output, *re.split("[/;:]", self.tensors[0]))
        return next((layers[name] for name in names if name in layers), self.tensors[0])


class Written(BaseException):
    """The SavedModel is complete, and of which tensor what was made; not an Exception, which onnx2tf would catch."""


def main(_: str, *words: str) -> None:
    """Answer each line of the input."""
    sys.path.insert(0, str(Path(__file__).parent))
    accelerators = words[words.index("--only") + 1 :][:1] if "--only" in words else ACCELERATORS
    importlib.import_module("answer_lines").answer_lines(lambda: start(accelerators))


def start(accelerators: Sequence[str]) -> Any:
    """Load the converters, and return what asks about a model."""
    programs = Path(sys.executable).parent
    os.environ["PATH"] = os.pathsep.join([str(programs), os.environ.get("PATH", "")])  # onnx2tf calls programs
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # else it complains of GPUs that are not there
    importlib.import_module("onnx2tf")

    def ask(path: str, *_: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                content, layers = quantise_model(path, folder)
                (folder / "int8.tflite").write_bytes(content)
                return placement(operators(content), layers, programs, folder, accelerators)
            except Exception as error:  # whatever a converter raises
                said = ERROR.findall(str(error)) or [str(error).strip() or repr(error)]
                return {"error": f"{type(error).__name__}: {said[0]}"[:2000]}

    return ask


def quantise_model(path: str, folder: Path) -> tuple[bytes, dict[str, str]]:
    """Return the int8 TFLite of a model, and the node of which each layer and each output was made."""
    numpy, onnx = importlib.import_module("numpy"), importlib.import_module("onnx")
    model = onnx.load(path)
    constants, rng = {tensor.name for tensor in model.graph.initializer}, numpy.random.default_rng(0)
    feeds: list[dict[str, Any]] = [{} for _ in range(RUNS)]
    given = [value for value in model.graph.input if value.name not in constants]
    names = {value.name: f"input_{index}" for index, value in enumerate(given)}  # TensorFlow changes others
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for value in (*given, *model.graph.output):
        value.name = names.get(value.name, value.name)
    for value in given:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for feed in feeds:
            array = rng.standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim])
            feed[value.name] = array.astype(dtype) if dtype.kind == "f" else (array > 0).astype(dtype)
    onnx.save(model, folder / "model.onnx")  # onnx2tf writes over what it reads
    made = save_model(str(folder / "model.onnx"), str(folder / "saved"), list(feeds[0]))
    makers = {name: node.name for node in model.graph.node for name in node.output}
    layers = {layer: makers[name] for layer, name in layer_tensors(made).items() if makers.get(name)}
    outputs = {f"output_{index}": makers.get(value.name) for index, value in enumerate(model.graph.output)}
    return convert_model(folder / "saved", "int8", feeds), layers | {key: name for key, name in outputs.items() if name}


def save_model(model: str, folder: str, inputs: Sequence[str]) -> dict[str, Any]:
    """Write a SavedModel with onnx2tf, and stop there: the axes of the inputs stay in order.

    Returns what onnx2tf made of each tensor. onnxsim does not rewrite the model before: that takes a quarter of the
    time, and of a lowered model it makes operators that TensorFlow leaves in float32. No name is left of models before:
    what TensorFlow quantises depends on names.

    It goes on to write float32 and float16 TFLite, and describes the model as JSON, weights included. For a model of
    75 MB that takes 14 minutes and several GB more, and none of it is needed.
    """
    lite, onnx2tf = importlib.import_module("tensorflow").lite, importlib.import_module("onnx2tf")

    def stop(*_: Any, **__: Any) -> None:
        raise Written(sys._getframe(1).f_locals.get("tf_layers_dict", {}))

    lite.TFLiteConverter.from_keras_model = stop
    importlib.import_module("tf_keras").backend.clear_session()
    try:
        onnx2tf.convert(
            input_onnx_file_path=model,
            output_folder_path=folder,
            keep_shape_absolutely_input_names=list(inputs),
            output_signaturedefs=True,  # without the description as JSON
            non_verbose=True,
            not_use_onnxsim=True,
        )
    except Written as written:
        return dict(written.args[0])
    return {}


def layer_tensors(made: Mapping[str, Any]) -> dict[str, str]:
    """Return the tensor of ONNX for which onnx2tf made each layer of Keras."""
    results = {name: result for name, each in made.items() if hasattr(result := each.get("tf_node"), "node")}
    ends = set(map(id, results.values()))
    layers: dict[str, str] = {}
    for name, result in results.items():
        left = [result]
        while left:
            tensor = left.pop()
            names = {tensor.node.layer.name, tensor.name.partition("/")[0]}
            if not names <= set(layers):
                layers = dict.fromkeys(names, name) | layers
                left += [source for source in tensor.node.keras_inputs if id(source) not in ends]
    return layers


def convert_model(saved: Path, dtype: str, feeds: Sequence[dict[str, Any]]) -> bytes:
    """Return TFLite in float32, int8 or int16 with weights of int8; where it is quantised, calibrated on all feeds."""
    tf = importlib.import_module("tensorflow")
    kinds = {
        "int8": (tf.int8, tf.lite.OpsSet.TFLITE_BUILTINS_INT8),
        "int16": (tf.int16, tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8),
    }
    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved))
    if dtype in kinds:
        kind, accepted = kinds[dtype]
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: iter(feeds)
        converter.target_spec.supported_ops = [accepted]
        converter.inference_input_type = converter.inference_output_type = kind
    return bytes(converter.convert())


def operators(content: bytes) -> list[Operator]:
    """Return the operators of a TFLite file."""
    schema = importlib.import_module("tensorflow.lite.python.schema_py_generated")
    builtins = {number: name for name, number in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
    dtypes = {number: name.lower() for name, number in vars(schema.TensorType).items() if not name.startswith("_")}
    model, found = schema.ModelT.InitFromPackedBuf(content, 0), []
    outputs = {each.tensorIndex: _text(each.name) for sig in model.signatureDefs or () for each in sig.outputs}
    for graph in model.subgraphs:
        for node in graph.operators:
            code = model.operatorCodes[node.opcodeIndex]
            name = builtins[max(code.deprecatedBuiltinCode, code.builtinCode)]
            made = [graph.tensors[index] for index in node.outputs]
            found.append(
                Operator(
                    _text(code.customCode) if name == "CUSTOM" else name,
                    tuple(_text(each.name) for each in made),
                    tuple(0 if each.shape is None else len(each.shape) for each in made),
                    tuple(dtypes[each.type] for each in made),
                    outputs.get(node.outputs[0], ""),
                )
            )
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def placement(
    made: Sequence[Operator],
    layers: Mapping[str, str],
    programs: Path,
    folder: Path,
    accelerators: Sequence[str] = ACCELERATORS,
) -> dict[str, Any]:
    """Return where the operators of `int8.tflite` go; those that one of the accelerators leaves go to the CPU."""
    left: dict[str, str] = {}
    partitions, files = [], {}
    for accelerator in accelerators:
        model, target = folder / "int8.tflite", folder / accelerator
        words = ["--accelerator-config", accelerator, "--show-cpu-operations", str(model), "--output-dir", str(target)]
        failure, printed = run_program([str(programs / "vela"), *words])
        compiled = target / f"{model.stem}_vela.tflite"
        if failure or not compiled.exists():
            return {"error": f"{accelerator}: {failure or 'Vela writes nothing'}"}
        said = {match[1]: re.sub(r"(?m)^(Reason: | *- *)", "", match[2]) for match in REFUSAL.finditer(printed)}
        reasons = {name: " ".join(why.split()) for name, why in said.items()}
        found = operators(compiled.read_bytes())
        for operator in found:
            if operator.name != ON_NPU:
                why = f"{accelerator}: {reasons.get(operator.tensors[0], 'no reason given')}"[:LONGEST]
                left.setdefault(operator.tensors[0], why)
        partitions.append(sum(operator.name == ON_NPU for operator in found))
        files[f"{accelerator}.tflite"] = compiled.stat().st_size
    names = [operator.tensors[0] for operator in made]
    nodes = [
        {
            "name": each.node(layers),
            "op": each.name,
            "on": "cpu" if name in left else "device",
            "why": left.get(name, ""),
        }
        for name, each in zip(names, made, strict=True)
    ]
    return {"nodes": nodes, "partitions": max(partitions), "files": files}


def run_program(words: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Run a program; why it fails, "" where it does not, and what it printed."""
    name = Path(words[0]).name
    try:
        ran = subprocess.run(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return f"{name} does not end in {SECONDS} s", ""
    if not ran.returncode:
        return "", ran.stdout
    how = signal.Signals(-ran.returncode).name if ran.returncode < 0 else f"exit status {ran.returncode}"
    lines = [line.strip() for line in ran.stdout.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")[:LONGEST]
    return f"{name}: {how}: {last}", ran.stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
