/** What test_bundle_javascript.py runs, in Node and in a page: it tells as plain JSON what bundles do. */

const numbers = (tensor) => Array.from(tensor.data, Number);
const same = (one, other) => one.length === other.length && one.every((value, at) => Object.is(value, other[at]));

async function decoded(bundle, start, tokens) {
  const logits = [numbers(await bundle.start(start))];
  for (const token of tokens) logits.push(numbers(await bundle.step(token)));
  return logits;
}

async function failure(work) {
  try { await work(); } catch (error) { return `${error.name}: ${error.message}`; }
  return '';
}

/** Decode with a bundle in each way that it has. */
export async function decodes(bundle, { start, other, ids, tokens, prompt, mask }) {
  const found = { contract: bundle.contract.version, first: await decoded(bundle, start, tokens) };
  const state = bundle.state;
  found.states = Object.fromEntries(Object.entries(state).map(([name, tensor]) => [name, [tensor.dims, numbers(tensor)]]));
  found.length = bundle.length;
  await bundle.step(tokens[0]);
  const after = Object.values(bundle.state);
  found.arenas = new Set([...Object.values(state), ...after].map(({ data }) => data.buffer)).size;
  const fork = bundle.fork();
  await bundle.reset();
  found.cleared = Object.values(bundle.state).every(({ data }) => data.every((value) => Number(value) === 0));
  const [alone, again] = [await decoded(fork, other, tokens), await decoded(bundle, other, tokens)];
  found.hasNoLeak = alone.every((logits, at) => same(logits, again[at]));
  await Promise.all([bundle.start(start), fork.start(other)]);
  const turns = [];
  for (const token of tokens) turns.push(numbers(await bundle.step(token)), numbers(await fork.step(token)));
  found.forksAreApart = tokens.every((_, at) => same(turns[2 * at], found.first[at + 1]) && same(turns[2 * at + 1], alone[at + 1]));
  const options = { maxNewTokens: 9, eos: -1, prompt, mask };
  found.greedy = await bundle.generate(ids, options);
  found.beams = await bundle.generate(ids, { ...options, beams: 2 });
  found.ended = await bundle.generate(ids, { ...options, beams: 2, eos: [found.beams[0][3], 1 << 20] });
  await bundle.start(start);
  await bundle.reorder([1, 1, 0]);
  found.reordered = numbers(await bundle.step([...tokens[0], tokens[0][0]]));
  return found;
}

/** Decode up to the last slots, two users in turns, one ahead of the other. */
export async function grows(bundle, { long, longer, tokens }) {
  const places = ({ state }) => Object.values(state).map(({ data }) => data.byteOffset);
  const fork = bundle.fork();
  const logits = [await bundle.start(long), await fork.start(longer)];
  const [before, slots] = [places(bundle), [bundle, fork].map(slotsOf)];
  for (const token of tokens) logits.push(await bundle.step(token), await fork.step(token));
  slots.push(slotsOf(bundle), slotsOf(fork));
  const isInPlace = same(before, places(bundle));
  await bundle.reorder([1, 1, 0]);
  logits.push(await bundle.step([...tokens[0], tokens[0][0]]), await bundle.start(long));
  slots.push(slotsOf(bundle));
  return { logits: logits.map(numbers), slots, isInPlace };
}

function slotsOf({ state, contract }) {
  const { name, axis } = contract.states.find(({ update }) => update === 'slots'); // of those that a method is given
  return state[name].dims[axis];
}

/** Whether logits are the same to the last bit. */
export function sameLogits(one, other) { return one.every((logits, at) => same(logits, other[at])); }

/** Return what a bundle of an encoder and a decoder says to what it cannot do. */
export async function fails(bundle, GraphkitError) {
  const source = { input_ids: [[5, 6]], tokens: 4 };
  const said = {
    early: await failure(() => bundle.step(1)),
    missing: await failure(() => bundle.encode({ tokens: 4 })),
    odd: await failure(() => bundle.encode({ ...source, '\u001b[31m': 1 })),
    method: await failure(() => bundle.prefill(source)),
    rank: await failure(() => bundle.encode({ input_ids: [5, 6], tokens: 4 })),
    ragged: await failure(() => bundle.encode({ input_ids: [[5, 6], [7]], tokens: 4 })),
    kind: await failure(() => bundle.encode({ input_ids: [[5.5, 6]], tokens: 4 })),
    long: await failure(() => bundle.encode({ input_ids: [new Array(99).fill(5)], tokens: 4 })),
    tokens: await failure(() => bundle.generate([[5]], { maxNewTokens: 0 })),
    wide: await failure(() => bundle.generate([[5], [6], [7]], { maxNewTokens: 2, beams: 2, prompt: 4 })),
  };
  await bundle.encode(source);
  const before = numbers(await bundle.step(7));
  said.rows = await failure(() => bundle.step([1, 2]));
  said.reorder = await failure(() => bundle.reorder([0, 3]));
  const [, second] = await Promise.allSettled([bundle.step(7), bundle.step(7)]);
  said.busy = await failure(() => Promise.reject(second.reason));
  while (bundle.length < bundle.contract.lengths[0].most) await bundle.step(7);
  said.full = await failure(() => bundle.step(7));
  await bundle.encode(source);
  said.isUnharmed = same(before, numbers(await bundle.step(7)));
  said.isTyped = await bundle.step([[1], [2]]).catch((error) => error instanceof GraphkitError);
  return said;
}

/** Return what is said to files that are no bundle. */
/** Return a contract as JSON with the checksum that it has now. */
export async function sealed({ checksum: _, ...contract }) {
  const text = JSON.stringify(contract).slice(0, -1);
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(text));
  const digits = [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  return `${text},"checksum":"${digits}"}`;
}

export async function refuses(open, text) {
  const changes = {
    version: (contract) => { contract.version = 1; },
    file: (contract) => { contract.methods[0].file = '../encode.onnx'; },
    data: (contract) => { contract.data = '/etc/passwd'; },
    overlap: (contract) => { contract.states[1].offset = contract.states[0].offset; },
    outside: (contract) => { contract.states.at(-1).offset += 2 ** 40; },
    large: (contract) => { contract.arena = 2 ** 52; },
    negative: (contract) => { contract.states[0].shape[0] *= -1; },
    unknown: (contract) => { contract.methods[1].inputs.find(({ source }) => source.kind === 'state').source.of = 'x'; },
    none: (contract) => { delete contract.methods; },
    batch: (contract) => { contract.sizes.batch = 60; },
    slots: (contract) => { contract.sizes.slots = 64; },
    fewer: (contract) => { contract.sizes.slots = contract.lengths[0].most = 64; },
    record: (contract) => { delete contract.files[contract.methods[1].file]; },
  };
  const edits = { // that fit together, so that only the checksum tells of them
    initial: (contract) => { contract.states[0].initial = 5; },
    another: ({ methods, states }) => {
      const likeOf = (name) => {
        const state = states.find((one) => one.name === name);
        return states.find((one) => one !== state && one.dtype === state.dtype && `${one.shape}` === `${state.shape}`);
      };
      const { source } = methods[1].inputs.find((port) => port.source.kind === 'state' && likeOf(port.source.of));
      source.of = likeOf(source.of).name;
    },
    proof: (contract) => { contract.proof = { ...contract.proof, outcome: 'passed', reason: '' }; },
  };
  const said = { text: await failure(() => open('{')) };
  for (const [name, change] of Object.entries(changes)) {
    const contract = JSON.parse(text);
    change(contract);
    said[name] = await failure(async () => open(await sealed(contract)));
  }
  for (const [name, change] of Object.entries(edits)) {
    const contract = JSON.parse(text);
    change(contract);
    said[name] = await failure(() => open(JSON.stringify(contract, null, 1)));
  }
  return said;
}
