"""transformers.js itself, in Node, generates the tokens of an export from the folder that graphkit wrote for it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from npm_packages import install_packages
from real_models import unpacked

import graphkit
from graphkit.deploy.transformers_js import transformers_js_folder
from graphkit.options import TransformersJsOptions
from graphkit.verify import Decoder, decode

pytestmark = pytest.mark.slow  # it installs transformers.js, and needs its registry
VERSION = "4.3.2"
STEPS = 8
SOURCE = [[5, 6, 7, 8], [9, 10, 11, 12]]
MASK = [[1, 1, 1, 1], [1, 1, 1, 0]]
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "marian-tiny": {
        "model_type": "marian", "architectures": ["MarianMTModel"], "is_encoder_decoder": True,
        "decoder_layers": 6, "encoder_layers": 6, "decoder_attention_heads": 8, "encoder_attention_heads": 8,
        "d_model": 32, "decoder_start_token_id": 4, "eos_token_id": 255, "max_position_embeddings": 64,
    },
    "t5-tiny": {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True,
        "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 8,
        "decoder_start_token_id": 4, "eos_token_id": 1,
    },
    "qwen2-tiny": {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "eos_token_id": 2,
    },
}  # fmt: skip
SCRIPT = """
import { pathToFileURL } from "node:url";
const { modules, root, folders, source, mask, steps } = JSON.parse(process.argv[1]);
const file = `${modules}/node_modules/@huggingface/transformers/dist/transformers.node.mjs`;
const { env, AutoModelForSeq2SeqLM, AutoModelForCausalLM, Tensor } = await import(pathToFileURL(file));
Object.assign(env, { allowRemoteModels: false, localModelPath: root });
const data = (rows) => BigInt64Array.from(rows.flat().map(BigInt));
const tensor = (rows) => new Tensor("int64", data(rows), [rows.length, rows[0].length]);
const found = {};
for (const [name, reads] of Object.entries(folders)) {
  const model = await (reads ? AutoModelForSeq2SeqLM : AutoModelForCausalLM).from_pretrained(name);
  const given = { inputs: tensor(source), attention_mask: tensor(reads ? mask : mask.map((row) => row.map(() => 1))) };
  const made = await model.generate({ ...given, max_new_tokens: steps, do_sample: false });
  found[name] = made.tolist().map((row) => row.map(Number).slice(-steps));
}
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def modules() -> Path:
    """A folder with transformers.js."""
    return install_packages(f"@huggingface/transformers@{VERSION}")


def expected_tokens(export: Path) -> list[list[int]]:
    """What the models of the export give in onnxruntime."""
    if (export / "model.onnx").is_file():
        tokens = decode(Decoder.open(export / "model.onnx"), given={"input_ids": SOURCE}, steps=STEPS).tokens
    else:
        feed = {"input_ids": np.array(SOURCE), "attention_mask": np.array(MASK)}
        encoder = onnxruntime.InferenceSession(str(export / "encoder_model.onnx"), providers=["CPUExecutionProvider"])
        (states,) = encoder.run(None, feed)
        given = {"input_ids": [[4], [4]], "encoder_hidden_states": states, "encoder_attention_mask": MASK}
        tokens = decode(Decoder.open(export / "decoder_model_merged.onnx"), given=given, steps=STEPS).tokens
    found: list[list[int]] = tokens.tolist()
    return found


def test_transformers_js_generates_the_tokens_of_the_export_merged_and_split(modules: Path, tmp_path: Path) -> None:
    expected, folders = {}, {}
    (tmp_path / "out").mkdir()
    for name, settings in CONFIGURATIONS.items():
        export = unpacked(name, tmp_path / name)
        (export / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        (export / "generation_config.json").write_text('{"eos_token_id": null}', encoding="utf-8")
        wanted = expected_tokens(export)
        for way in ("merged", "split") if settings.get("is_encoder_decoder") else ("alone",):
            if way == "split":
                merged = export / "decoder_model_merged.onnx"
                graphkit.split_file(merged, export, graphkit.SplitOptions(verify=False))
                merged.unlink()
            transformers_js_folder(export, tmp_path / "out" / f"{name}-{way}", TransformersJsOptions(verify=False))
            expected[f"{name}-{way}"], folders[f"{name}-{way}"] = wanted, way != "alone"
    plan = {"modules": str(modules), "root": str(tmp_path / "out"), "folders": folders}
    plan |= {"source": SOURCE, "mask": MASK, "steps": STEPS}
    words = ["node", "--input-type=module", "-e", SCRIPT, json.dumps(plan)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == expected
