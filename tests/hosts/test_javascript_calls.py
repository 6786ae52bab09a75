"""Calls of the host of bundles in JavaScript, over methods that are no models: what reaches which input."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict

import pytest
from npm_packages import JAVASCRIPT

from graphkit.contract import Generation

SCRIPT = """
const { Bundle } = await import(%(host)s);
class Tensor { constructor(dtype, data, dims) { Object.assign(this, { dtype, data, dims }); } }
const port = (name, kind, dtype, shape) => ({ name, dtype, shape, source: { kind, of: '' }, writes: '' });
const logits = { name: 'logits', dtype: 'float32', shape: ['batch', 1, 3], writes: '' };
const method = (when, inputs) => ({ name: when, when, file: when, inputs, outputs: [logits], access: {}, changes: [] });
const positions = port('position_ids', 'user', 'int64', [4, 'batch', 'tokens']);
const rows = port('embeds', 'tokens', 'float32', ['batch', 'tokens', 2]);
const methods = [method('once', [positions, rows]), method('step', [port('ids', 'tokens', 'int64', ['batch', 1])])];
const fed = {};
const run = async (feeds) => {
  for (const [name, { dims }] of Object.entries(feeds)) fed[name] = dims;
  return { logits: new Tensor('float32', Float32Array.of(0, 1, 0, 0, 0, 1), [2, 1, 3]) };
};
const contract = { arena: 0, sizes: { batch: 2 }, lengths: [], states: [], tokens: {}, ends: [], methods,
  generation: %(generation)s };
const bundle = new Bundle({ Tensor }, contract, new Map([['once', { run }], ['step', { run }]]), false);
const ones = (...dims) => (dims.length ? Array(dims[0]).fill(ones(...dims.slice(1))) : 1);
const unsaid = port('decoder_input_ids', 'tokens', 'int64', ['batch', 'tokens']);
const source = port('ids', 'user', 'int64', ['batch', 'source']);
const pair = { ...contract, methods: [method('once', [source, unsaid]), methods[1]] };
const seq2seq = new Bundle({ Tensor }, pair, new Map([['once', { run }], ['step', { run }]]), false);
const said = await seq2seq.generate([[5, 7]], { maxNewTokens: 2 }).catch((error) => error.message);
const begun = await seq2seq.generate([[5, 7], [5, 8]], { maxNewTokens: 2, prompt: [[9], [9]] });
const found = await bundle.generate(ones(2, 5, 2), { inputs: { position_ids: ones(4, 2, 5) }, maxNewTokens: 2 });
console.log(JSON.stringify({ found, fed, said, begun }));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_ids_are_the_tokens_where_these_are_rows_of_embeddings_beside_positions() -> None:
    names = {"host": json.dumps((JAVASCRIPT / "bundle.mjs").as_uri()), "generation": json.dumps(asdict(Generation()))}
    command = ["node", "--input-type=module", "--eval", SCRIPT % names]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    shapes = {"position_ids": [4, 2, 5], "embeds": [2, 5, 2], "ids": [2, 1]}
    result = json.loads(said)
    assert (result["found"], result["begun"]) == ([[1, 1], [2, 2]], [[1, 1], [2, 2]])
    assert shapes.items() <= result["fed"].items()
    assert result["said"] == ("the export does not say what the decoder starts with - give its first tokens as prompt")
