/** Generate with bundle.mjs, over a decoder whose logits are rows of a table; print the tokens of each case. */
import { readFileSync } from 'node:fs';

const { host, cases } = JSON.parse(readFileSync(0, 'utf8'));
const { Bundle } = await import(host);

class Tensor {
  constructor(dtype, data, dims) { Object.assign(this, { dtype, data, dims }); }
}

const port = (name, kind, shape) => ({ name, dtype: 'int64', shape, source: { kind, of: kind === 'length' ? 'used' : '' }, writes: '' });
const logits = { name: 'logits', dtype: 'float32', shape: ['batch', 'tokens', 'vocabulary'], source: null, writes: '' };
const decode = (when) => ({ name: when, when, file: 'decode', outputs: [logits], access: {},
  inputs: [port('ids', 'tokens', ['batch', 'tokens']), port('used', 'length', [1])],
  changes: [{ length: 'used', input: 'ids', axis: 1 }] });
const reorder = { name: 'reorder', when: 'reorder', file: 'reorder', inputs: [port('rows', 'indices', ['batch'])],
  outputs: [], access: {}, changes: [] };

const found = [];
for (const { table, vocabulary, prompts, beams, ends, generation, options } of cases) {
  const run = async ({ ids: { data: ids, dims: [rows, width] }, used }) => {
    const position = (Number(used.data[0]) + width - 1) % 6;
    const data = new Float32Array(rows * vocabulary);
    for (let row = 0; row < rows; row += 1) {
      const begin = (position * vocabulary + Number(ids[(row + 1) * width - 1])) * vocabulary;
      data.set(table.slice(begin, begin + vocabulary), row * vocabulary);
    }
    return { logits: new Tensor('float32', data, [rows, 1, vocabulary]) };
  };
  const contract = { arena: 0, sizes: { batch: prompts.length * beams }, lengths: [{ name: 'used', most: 99 }], states: [],
    tokens: {}, ends, generation, methods: [decode('once'), decode('step'), reorder] };
  const sessions = new Map([['decode', { run }], ['reorder', { run: async () => ({}) }]]);
  const bundle = new Bundle({ Tensor }, contract, sessions, false);
  found.push(await bundle.generate(prompts, { beams, ...options }));
}
console.log(JSON.stringify(found));
