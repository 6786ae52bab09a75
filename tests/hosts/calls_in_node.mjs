/**
 * Make calls of the package graphkit-host in Node, and print what they return: node calls_in_node.mjs, with JSON on standard
 * input: `modules`, the folder with onnxruntime; `index`, the package; `jobs`, each of a `kind` (Bundle or Host), a `folder`
 * and `calls`, each a name and what it is given. An array by name is a tensor: { dtype, dims, data }.
 */
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';

const { modules, index, runtime, jobs } = JSON.parse(readFileSync(0, 'utf8'));
const ort = createRequire(`${modules}/package.json`)(runtime);
if (ort.env.wasm) ort.env.wasm.numThreads = 1;
const kinds = await import(index);
const { ARRAYS, elementOf } = await import(new URL('./values.mjs', index));

function given(value) {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map(given);
  const { dtype, dims, data } = value;
  if (dtype) return new ort.Tensor(dtype, ARRAYS.get(dtype).from(data, (one) => elementOf(dtype, one)), dims);
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, given(one)]));
}
function plain(value) {
  if (typeof value === 'bigint') return Number(value);
  if (typeof value !== 'object' || value === null) return value;
  if (value.dims) return { dims: value.dims, data: Array.from(value.data, Number) };
  if (ArrayBuffer.isView(value)) return Array.from(value, Number);
  if (Array.isArray(value)) return value.map(plain);
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, plain(one)]));
}
const failure = (work) => work().then(() => '', (error) => `${error.name}: ${error.message}`);

/** What generation may do besides: each returns what it saw of a host, which is asked for `ids` with `options`. */
const scenarios = {
  async tokens(host, ids, options) {
    const told = [];
    const found = await host.generate(ids, { ...options, onToken: (rows) => { told.push(rows.map((row) => [...row])); } });
    return { found, told };
  },
  async aborts(host, ids, options) {
    const [control, told] = [new AbortController(), []];
    const onToken = (rows) => { told.push(rows); if (told.length === 2) control.abort(); };
    const said = await failure(() => host.generate(ids, { ...options, onToken, signal: control.signal }));
    const early = await failure(() => host.generate(ids, { ...options, signal: AbortSignal.abort() }));
    return { said, early, told: told.length, after: await host.generate(ids, options) };
  },
  /** Go on from a snapshot, in another host, after other things have been done with the first one. */
  async resumes(host, ids, options, tokens) {
    const rows = host instanceof kinds.Host ? (logits) => plain(logits) : ({ data }) => Array.from(data, Number);
    await host.generate(ids, { ...options, maxNewTokens: 3 });
    const saved = structuredClone(host.snapshot());
    const expected = [];
    for (const token of tokens) expected.push(rows(await host.step(token)));
    const [fork, found] = [host.fork(), []];
    fork.restore(saved);
    for (const token of tokens) found.push(rows(await fork.step(token)));
    host.restore(saved);
    const again = rows(await host.step(tokens[0]));
    const { bundle, folder, ...others } = saved;
    return { expected, found, again, foreign: await failure(async () => host.restore(others)) };
  },
  async progress(host, folder) {
    const told = [];
    await host.constructor.open(ort, folder, { progress: (one) => { told.push({ ...one }); } });
    const said = await failure(() => host.constructor.open(ort, folder, { signal: AbortSignal.abort() }));
    const proxied = { ...ort, env: { ...ort.env, wasm: { proxy: true } } };
    return { told, said, proxy: await failure(() => host.constructor.open(proxied, folder)) };
  },
};

const found = [];
for (const { kind, folder, calls } of jobs) {
  const host = await kinds[kind].open(ort, folder);
  const said = [];
  for (const [name, ...args] of calls) {
    const call = async () => (scenarios[name] ? scenarios[name](host, ...given(args)) : host[name](...given(args)));
    said.push(await call().then(plain, (error) => `${error.name}: ${error.message}`));
  }
  found.push(said);
}
process.stdout.write(JSON.stringify(found), () => process.exit(0));
