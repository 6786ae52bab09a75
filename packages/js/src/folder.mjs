/** Read the folder of a contract: check what it says and the files that it records, and open their models. */
import { ARRAYS, GraphkitError, need, quoted, say } from './values.mjs';

function warn({ outcome, reason }, source, { what, name }) {
  const where = typeof source === 'object' && !(source instanceof URL) ? what : source;
  const fault = outcome === 'failed' ? 'its proof failed' : 'it is not proven';
  const text = `${where}: ${fault}: ${quoted(reason)} - \`graphkit verify EXPORT ${name} --record\` proves it`;
  if (outcome !== 'passed') say(text);
}
/**
 * Read a folder: its contract, and the files that this records, which must have the sizes, or the checksums, of the
 * record. A kind of folder is its `record`, the file of the contract; `version`; `what` it is, and its `name` in a
 * command; `filesOf`, what a host reads; and `check`, which throws for what does not fit together. Return the contract;
 * `bytes`, which gives those of a file; and `session`, which opens a model.
 */
export async function openFolder(ort, source, kind, { checksums = false, progress = () => {}, signal } = {}) {
  const proxy = 'onnxruntime-web moves the state into its worker with env.wasm.proxy - leave it out, or open in a worker';
  need(!ort.env?.wasm?.proxy, proxy);
  const { read, locate, hashOf, sizeOf } = await reader(source, signal);
  const contract = await readContract(new TextDecoder().decode(await read(kind.record)), kind);
  const [byPath, contents, told] = [locate && ort.env?.versions?.node, new Map(), { loaded: 0, total: 0 }];
  const files = Object.entries(contract.files).filter(([name]) => !/\.(md|mjs)$/.test(name)); // those that hosts read
  for (const [, { bytes }] of files) told.total += bytes;
  for (const [file, { bytes, sha256 }] of files) {
    signal?.throwIfAborted();
    const begin = told.loaded, tell = (loaded) => progress({ file, ...told, loaded: begin + Math.min(loaded, bytes) });
    const content = byPath ? null : await read(file, tell);
    const size = content?.byteLength ?? await sizeOf(file);
    need(size === bytes, `${quoted(file)} has ${size} bytes, and ${kind.record} records ${bytes}: copy it again`);
    need(!checksums || await hashOf(file, content) === sha256, `${quoted(file)} has not the SHA-256 of ${kind.record}`);
    tell(bytes);
    told.loaded += bytes;
    contents.set(file, content);
  }
  warn(contract.proof, source, kind);
  const session = (file, options, data) => {
    const externalData = byPath || !data ? {} : { externalData: [{ path: data, data: contents.get(data) }] };
    return ort.InferenceSession.create(byPath ? locate(file) : contents.get(file), { ...externalData, ...options });
  };
  return { contract, session, bytes: async (file) => contents.get(file) ?? await read(file) };
}
async function sha256(bytes) {
  need(globalThis.crypto?.subtle, 'checksums need a page that was loaded over https');
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}
/** Return what reads a file of a folder, what tells its size and SHA-256 and, where it is on a disk, its path. */
async function reader(source, signal) {
  const hashOf = (_, bytes) => sha256(bytes);
  const missing = (name, cause) => new GraphkitError(`${quoted(name)} is missing`, { cause });
  if (typeof source === 'object' && !(source instanceof URL)) {
    return { hashOf, read: (name) => { if (!source[name]) throw missing(name); return source[name]; } };
  }
  if (globalThis.process?.versions?.node && !/^https?:/.test(source)) {
    const [{ readFile, stat, open }, { fileURLToPath }] = [await import('node:fs/promises'), await import('node:url')];
    const locate = (name) => `${/^file:/.test(source) ? fileURLToPath(source) : source}/${name}`;
    const found = (name, work) => work(locate(name)).catch((cause) => { throw missing(name, cause); });
    return {
      locate,
      read: (name) => found(name, readFile),
      sizeOf: async (name) => (await found(name, stat)).size,
      hashOf: async (name) => {
        const hash = (await import('node:crypto')).createHash('sha256');
        for await (const block of (await open(locate(name))).createReadStream()) hash.update(block);
        return hash.digest('hex');
      },
    };
  }
  const answer = (name) => fetch(`${source}/${encodeURIComponent(name)}`, { signal });
  return { hashOf, read: async (name, tell) => bytesOf(await answer(name), tell) };
}
/** Return the bytes of a server's answer, and tell how many have come. */
async function bytesOf(answer, tell = () => {}) {
  need(answer.ok, `${quoted(answer.url)}: ${answer.status}`);
  const [stream, parts] = [answer.body.getReader(), []];
  let loaded = 0;
  for (let part = await stream.read(); !part.done; part = await stream.read()) {
    parts.push(part.value);
    tell(loaded += part.value.byteLength);
  }
  const bytes = new Uint8Array(loaded);
  for (const part of parts.reverse()) bytes.set(part, loaded -= part.byteLength);
  return bytes;
}
/** Check that a model has the inputs and outputs of a method: their names and, where its session tells, their dims. */
export function checkPorts({ name: method, inputs, outputs }, session, { record }) {
  const names = [inputs, outputs].map((ports) => quoted(ports.map(({ name }) => name).sort()));
  need(names[0] === quoted([...session.inputNames].sort()) && names[1] === quoted([...session.outputNames].sort()),
    `the model of ${quoted(method)} has other inputs or outputs than ${record} says`);
  for (const { name, shape: found, isTensor } of [...session.inputMetadata ?? [], ...session.outputMetadata ?? []]) {
    const { shape } = [...inputs, ...outputs].find((port) => port.name === name);
    const fits = (dim, axis) => !(dim >= 0 && Number.isInteger(shape[axis])) || dim === shape[axis];
    need(!isTensor || (found.length === shape.length && found.every(fits)),
      `${quoted(name)} of ${quoted(method)} is ${quoted(found)}, and ${record} says ${quoted(shape)}`);
  }
}
/** Return whether a text is what its checksum at the end says; true where the page cannot compute one. */
async function isSealed(text) {
  if (!globalThis.crypto?.subtle) return true;
  const plain = text.replace(/("(?:[^"\\]|\\.)*")|\s+/gs, (_, quotation) => quotation ?? '');
  const [, body, checksum] = /^(.*),"checksum":"([0-9a-f]{64})"\}$/s.exec(plain) ?? [];
  return body !== undefined && await sha256(new TextEncoder().encode(body)) === checksum;
}
/** Return what a contract says. Anybody may have written it: no file elsewhere, no state outside its own place. */
async function readContract(text, { record, version, what, name: folder, filesOf, check }) {
  try {
    const contract = JSON.parse(text), { files, proof } = contract;
    const again = `make the ${folder.toLowerCase()} again`;
    need(contract.version === version, `version ${quoted(contract.version)}, and this host runs ${version} - ${again}`);
    const names = [...filesOf(contract), ...Object.keys(files)];
    const odd = names.filter((file) => /[/\\\0]|^\.{0,2}$/.test(file));
    need(!odd.length, `its files are not beside it: ${quoted(odd)}`);
    const isRecorded = names.every((name) => files[name]) && ['passed', 'failed', 'not run'].includes(proof.outcome);
    need(isRecorded, 'it records no proof, or not all files');
    check(contract);
    const ports = contract.methods.flatMap(({ inputs, outputs }) => [...inputs, ...outputs]);
    for (const { name, dtype, source, writes } of ports) {
      const state = source?.kind === 'state' ? source.of : writes;
      const isKnown = !state || contract.states.some((one) => one.name === state && one.dtype === dtype);
      need(ARRAYS.has(dtype) && isKnown, `no dtype, or no state, for ${quoted(name)}`);
    }
    need(await isSealed(text), `it was changed after it was written - ${again}`);
    return contract;
  } catch (cause) { throw new GraphkitError(`${record} is not that of ${what}: ${cause.message}`, { cause }); }
}
