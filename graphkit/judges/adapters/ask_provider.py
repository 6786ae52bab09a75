"""Ask execution providers of onnxruntime which nodes of models they take: ask_provider.py qnn|webgpu|openvino.

It runs in the environment of the judge, with onnxruntime and the provider alone. See `graphkit.judges.Answer` for what
it answers.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime

MODULES = {"qnn": "onnxruntime_qnn", "webgpu": "onnxruntime_ep_webgpu", "openvino": "onnxruntime_ep_openvino"}
HTP = {"htp_arch": "73", "soc_model": "43", "enable_htp_fp16_precision": "1"}  # of a Snapdragon 8 Gen 2
REFUSAL = re.compile(r"Node name: (\S*) Node index: \d+\s*\n\s*REASON : ([^\n]*)")  # in the log of QNN
FLOAT32 = {"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'}  # not bfloat16, where there is that
WEIGHTS_APART = {"file_name": "weights", "min_size_in_bytes": "64"}  # of a file that is read for its nodes
LONGEST = 300  # characters of a reason


def main(judge: str, *words: str) -> None:
    """Answer each line of the input."""
    sys.path.insert(0, str(Path(__file__).parent))
    lines = importlib.import_module("answer_lines")
    lines.answer_lines(lambda: start(judge, lines, as_it_is="--as-it-is" in words))


def start(judge: str, lines: Any, *, as_it_is: bool) -> Any:
    """Load a provider, and return what asks it about a model."""
    module = importlib.import_module(MODULES[judge])
    onnxruntime.register_execution_provider_library(judge, module.get_library_path())
    names = (judge, module.get_ep_name())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name in names]
    devices = [device for device in devices if device.ep_metadata.get("ov_device", "CPU") == "CPU"]  # of OpenVINO
    if not devices:
        sys.exit("the provider finds no device on this machine")
    htp = {"backend_path": module.get_qnn_htp_path(), **HTP} if judge == "qnn" else {}
    options = htp or {"openvino": FLOAT32}.get(judge, {})

    def ask(model: str, read_log: Any, question: Mapping[str, str]) -> dict[str, Any]:
        answer, session = ask_model(model, judge, devices[:1], options, as_it_is=as_it_is)
        reasons = {name: reason.strip()[:LONGEST] for name, reason in REFUSAL.findall(read_log())}
        for node in answer["nodes"]:  # those on the CPU have the words of the compiler
            node |= {"why": reasons[node["name"]]} if node["on"] == "cpu" and node["name"] in reasons else {}
        if session is not None:
            answer |= lines.try_model(model, question, lambda: lambda feed: session.run(None, feed))
        return answer

    return ask


def ask_model(
    model: str, judge: str, devices: list[Any], options: dict[str, str], *, as_it_is: bool
) -> tuple[dict[str, Any], Any]:
    """Return where the nodes of a model are placed, and the session; as it is without own optimizations."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level, settings.log_verbosity_level = (0, 1) if judge == "qnn" else (2, 0)
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    levels = onnxruntime.GraphOptimizationLevel
    settings.graph_optimization_level = levels.ORT_DISABLE_ALL if as_it_is else levels.ORT_ENABLE_ALL
    answer: dict[str, Any] = {"error": "", "nodes": [], "partitions": 0, "files": {}}
    session = None
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder, "compiled.onnx")
        if judge == "qnn" and not as_it_is:
            settings.add_session_config_entry("ep.context_enable", "1")
            settings.add_session_config_entry("ep.context_file_path", str(compiled))
            settings.add_session_config_entry("ep.context_embed_mode", "0")
        elif judge == "webgpu" and not as_it_is:
            settings.optimized_model_filepath = str(compiled)
            for name, value in WEIGHTS_APART.items():
                settings.add_session_config_entry(f"session.optimized_model_external_initializers_{name}", value)
        try:
            model.encode()  # onnxruntime takes no other names
            settings.add_provider_for_devices(devices, options)
            session = onnxruntime.InferenceSession(model, settings)
        except Exception as error:  # whatever a provider raises
            answer["error"] = str(error)[:2000] or type(error).__name__
        else:
            for part in session.get_provider_graph_assignment_info():
                is_cpu = part.ep_name == "CPUExecutionProvider"
                answer["partitions"] += not is_cpu
                for node in part.get_nodes():
                    op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
                    answer["nodes"].append({"name": node.name, "op": op, "on": "cpu" if is_cpu else "device"})
            if judge == "webgpu":
                answer["partitions"] = None
            answer["files"] = {path.name: path.stat().st_size for path in Path(folder).iterdir()}
            if judge == "webgpu" and compiled.exists():  # what onnxruntime made of it, of which no device has a file
                content = compiled.read_bytes()
                answer["copies"] = content.count(b"MemcpyToHost") + content.count(b"MemcpyFromHost")
                answer["files"] = {}
    return answer, session


if __name__ == "__main__":
    main(*sys.argv[1:])
