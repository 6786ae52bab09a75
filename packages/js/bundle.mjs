/**
 * Run a bundle in JavaScript: methods over one state, driven by nothing but its `bundle.json`:
 *     const bundle = await Bundle.open(ort, 'opus.bundle'); // ort: the module onnxruntime-node or onnxruntime-web
 *     const [tokens] = await bundle.generate(ids, { maxNewTokens: 50, beams: 4 });
 */
const ARRAYS = new Map(Object.entries({ float32: Float32Array, float64: Float64Array, bool: Uint8Array, int8: Int8Array,
  float16: globalThis.Float16Array ?? Uint16Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array }));
const need = (holds, problem) => { if (!holds) throw new BundleError(problem.call?.() ?? problem); };
const quoted = (value) => JSON.stringify(value)?.replace(/[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, '?');
const volume = (dims) => dims.reduce((product, size) => product * size, 1);
const otherPlace = ({ offset, bytes, update }) => offset + (update === 'swap' ? Math.ceil(bytes / 64) * 64 : 0);
const isMask = ({ name }) => name.includes('mask');
const rank = (port) => 2 * isMask(port) + (port.source.kind === 'tokens'); // what takes sizes of others comes last
const portOf = (method, kind) => method.inputs.find(({ source }) => source.kind === kind);
const asRows = (ids) => (ids.dims || typeof ids[0] === 'object' ? ids : [ids]);
const isLegal = ({ step, least, most, less, more }, size, below = Math.floor((size + less) / step) * step) => // or near one
  [below, below - step].some((one) => one >= least && one <= (most ?? one) && size >= one - less && size <= one + more);
const half = (b, e = (b >> 10) & 31) => (b >> 15 ? -1 : 1) * ((e && 1024) + (b & 1023)) * 2 ** ((e || 1) - 25);
const widened = (data) => (data instanceof Uint16Array ? Float32Array.from(data, (bits) => half(bits)) : data);
const lastOf = ({ dims: [rows, tokens, size], data }) => Array.from({ length: rows }, // logits of each row's last token
  (_, row) => widened(data.subarray((row * tokens + tokens - 1) * size, (row + 1) * tokens * size)));
/** What the caller, or `bundle.json`, has wrong: an error before anything runs. */
export class BundleError extends Error { name = 'BundleError'; }
/**
 * The methods of a bundle, and the state of one user. Inputs go by name: numbers, nested or typed arrays, or tensors;
 * `tokens` and `mask` also name the decoder's, by default its start token, and ones. `encode`, for an encoder-decoder,
 * `prefill`, for a decoder alone, or `start`, for either, starts a sequence; `step` goes on with a token, one for each
 * row, or [batch, tokens]. They return the logits, [batch, tokens, vocabulary]; what starts a sequence, those of the
 * last token alone, unless it is told `{ allLogits: true }`. `reorder([0, 0])` makes rows of the
 * state copies of others; `reset` gives it its initial value; `fork` returns one for another user, with the same
 * sessions. `state` has views of the arena until the next call: rows in use, and slots where they come first. `generate` returns, for each
 * row, greedy tokens, or those that transformers gives with so many `beams`; `ids` and `mask` are the source for an
 * encoder, else the prompt. `maxNewTokens`, `eos`, `lengthPenalty`, `earlyStopping`, `prompt`, what a decoder beside an
 * encoder starts with, and `generation`, other rules by their names in bundle.json, are those of the export by default.
 */
export class Bundle {
  #ort; #sessions; #inPlace; #arena; #length; #states = new Map(); #rows; #slots; #busy = false;
  /**
   * Open the bundle in a folder, a path or URL, or of files by name, as bytes; `session` has options for sessions.
   * Files must have the sizes that bundle.json records and, with `checksums`, their SHA-256, which reads them. A warning on
   * the console says, once, that a bundle is not proven.
   */
  // onnxruntime-web leaves outputs that it is given at zero, silently: there, nothing is written in place
  static async open(ort, source, options = {}) {
    const { inPlace = Boolean(ort.env?.versions?.node), session = {}, checksums = false } = options;
    const { read, locate, hashOf, sizeOf } = await reader(source);
    const contract = await readContract(new TextDecoder().decode(await read('bundle.json')));
    const [byPath, path, sessions] = [locate && ort.env?.versions?.node, contract.data, new Map()];
    const files = new Map(); // those that hosts read, as bytes where they are not opened by their paths
    const recorded = Object.entries(contract.files).filter(([name]) => !/\.(md|mjs)$/.test(name));
    for (const [name, { bytes, sha256 }] of recorded) {
      const content = byPath ? null : await read(name);
      const size = content?.byteLength ?? await sizeOf(name);
      need(size === bytes, `${quoted(name)} has ${size} bytes, and bundle.json records ${bytes}: copy it again`);
      need(!checksums || await hashOf(name, content) === sha256, `${quoted(name)} has not the SHA-256 of bundle.json`);
      files.set(name, content);
    }
    warn(contract.proof, source);
    const given = byPath || !path ? session : { ...session, externalData: [{ path, data: files.get(path) }] };
    for (const file of new Set(contract.methods.map((method) => method.file))) {
      const methods = contract.methods.filter((method) => method.file === file);
      const isUsers = ({ source }) => source.kind === 'user';
      const isPrompt = methods.every(({ when, inputs }) => when === 'once' && !inputs.some(isUsers));
      const extra = isPrompt ? { session: { disable_prepacking: '1' } } : {}; // the step has its weights, packed
      const model = byPath ? locate(file) : files.get(file);
      sessions.set(file, await ort.InferenceSession.create(model, { extra, ...given }));
      for (const method of methods) checkPorts(method, sessions.get(file));
    }
    return new Bundle(ort, contract, sessions, inPlace);
  }
  constructor(ort, contract, sessions, inPlace) {
    [this.#ort, this.contract, this.#sessions, this.#inPlace] = [ort, contract, sessions, inPlace];
    try { this.#arena = new ArrayBuffer(contract.arena); } catch (cause) {
      throw new BundleError(`there is no memory for ${contract.arena} bytes of state`, { cause });
    }
    for (const one of contract.states) this.#states.set(one.name, { ...one, other: otherPlace(one) });
    this.#clear();
  }
  get state() { return Object.fromEntries([...this.#states].map(([name, state]) => [name, this.#view(state)])); }
  get length() { return this.#length; }
  fork() { return new Bundle(this.#ort, this.contract, this.#sessions, this.#inPlace); }
  encode(inputs, options) { return this.start(inputs, { ...options, name: 'encode' }); }
  prefill(inputs, options) { return this.start(inputs, { ...options, name: 'prefill' }); }
  start(inputs = {}, { name = '', allLogits = false } = {}) {
    return this.#alone(() => this.#decode(this.#method('once', name), inputs, { kept: allLogits ? 0 : 1 }));
  }
  step(tokens, { mask } = {}) { return this.#alone(() => this.#decode(this.#method('step'), { tokens, mask })); }
  reorder(rows) { return this.#alone(() => this.#reorder([...rows])); }
  reset() { return this.#alone(() => this.#reset()); }
  generate(ids, options = {}) {
    const rules = { ...this.contract.generation, ...options.generation };
    const { eos, beams = 1, prompt, mask, inputs = {}, maxNewTokens = rules.max_new_tokens ?? rules.max_length } = options;
    return this.#alone(async () => {
      need(maxNewTokens != null, 'the export does not say how many tokens to give - give maxNewTokens');
      need([maxNewTokens, beams].every((n) => Number.isInteger(n) && n > 0), 'give at least 1 maxNewTokens and beams');
      warnOf(rules, options);
      const [once, next, given] = [this.#method('once'), this.#method('step'), { tokens: prompt, ...inputs }];
      const users = once.inputs.filter(({ source }) => source.kind === 'user');
      if (ids != null) given[users.find((port) => !isMask(port))?.name ?? 'tokens'] = asRows(ids);
      if (mask != null) given[users.find(isMask)?.name ?? 'mask'] = asRows(mask);
      const first = lastOf(await this.#decode(once, given, { beams, kept: 1 }));
      const [width, isOfAll] = [this.length, (options.maxNewTokens ?? rules.max_new_tokens) == null]; // of max_length
      need(!isOfAll || maxNewTokens > width, `max_length of the export is ${maxNewTokens}, and the prompt has ${width}`);
      const steps = Math.min(maxNewTokens - (isOfAll ? width : 0), (this.contract.lengths[0]?.most ?? Infinity) - width + 1);
      const rows = first.map((logits) => ({ open: [{ text: [], score: 0, logits }], ended: [] }));
      const { length_penalty: lengthPenalty, early_stopping: earlyStopping } = rules;
      const how = { ends: [eos ?? this.contract.ends].flat(), lengthPenalty, earlyStopping, ...options, beams, steps, rules, width };
      for (;;) {
        rows.forEach((row, at) => advance(row, at * row.open.length, how));
        if (rows.every(({ isDone }) => isDone)) break;
        const open = rows.flatMap((row) => row.open);
        if (beams > 1) await this.#reorder(open.map(({ source }) => source));
        const logits = lastOf(await this.#decode(next, { tokens: open.map(({ text }) => text.at(-1)) }));
        open.forEach((one, at) => { one.logits = logits[at]; });
      }
      return rows.map(({ ended }) => ended[0].text);
    });
  }
  async #alone(work) {
    need(!this.#busy, 'another method of this bundle is running - await it first, or use a fork');
    try { this.#busy = true; return await work(); } finally { this.#busy = false; }
  }
  #method(when, name = '') {
    const method = this.contract.methods.find((one) => one.when === when && ['', one.name].includes(name));
    need(method, () => `no '${name || when}': the bundle has ${quoted(this.contract.methods.map((one) => one.name))}`);
    return method;
  }
  #clear(rows = 0, slots = Infinity) {
    [this.#rows, this.#slots, this.#length] = [rows, slots, 0];
    for (const state of this.#states.values()) state.dims = null;
  }
  #reset() {
    this.#clear(this.contract.sizes.batch);
    return this.#run(this.#method('init'), {}).finally(() => this.#clear());
  }
  async #reorder(rows) {
    const [method, { batch }, known] = [this.#method('reorder'), this.contract.sizes, [...Array(this.#rows).keys()]];
    need(rows.length > 0 && rows.length <= batch && rows.every((row) => known.includes(row)),
      `rows ${quoted(rows)}: give 1 to ${batch}, of the ${this.#rows} that the state has, counted from 0`);
    await this.#run(method, { [portOf(method, 'indices').name]: this.#tensor('int64', rows, [rows.length]) }, false);
    this.#rows = rows.length;
  }
  async #decode(method, given, { beams = 1, kept = 0 } = {}) {
    const [contract, { sizes: { batch }, lengths: [{ most } = { most: Infinity }], methods }] = [this.contract, this.contract];
    const isAlone = methods.every(({ when }) => when !== 'once'); // then the first step starts from the initial state
    const starts = method.when === 'once' || (isAlone && !this.#rows);
    need(starts || this.#rows, 'no sequence is started - call encode or prefill first');
    const [feeds, choice] = [this.#feeds(method, given, starts), portOf(method, 'kept')];
    if (choice) feeds[choice.name] = this.#tensor('int64', [kept], [1]);
    const [rows] = feeds[portOf(method, 'tokens').name].dims;
    need(starts || rows === this.#rows, `${rows} rows, and the sequence has ${this.#rows} - give a token for each`);
    need(rows * beams <= batch, `${rows * beams} rows, and the bundle takes ${batch} - make one of a larger --batch`);
    const after = method.changes.reduce((n, { input, axis }) => n + feeds[input].dims[axis], starts ? 0 : this.#length);
    need(after <= most, `${after} tokens do not fit into ${most} slots - reset it, or make one of more`);
    const isFlat = ({ initial, shape, batch: axis }) => initial !== null || volume(shape.slice(0, axis ?? 0)) === 1;
    need(!starts || rows === batch || contract.states.every(isFlat), `initial values need all ${batch} rows`);
    if (starts && method.inputs.some(({ source }) => this.#states.get(source.of)?.axis === null)) await this.#reset();
    if (starts) this.#clear(rows);
    this.#slots = after;
    const outputs = await this.#run(method, feeds).catch((error) => {
      this.#slots = this.#length;
      if (starts) this.#clear();
      throw error;
    });
    this.#length = after;
    return outputs[method.outputs.find((port) => !port.writes).name];
  }
  #feeds(method, inputs, starts) {
    const ports = method.inputs.filter(({ source }) => ['user', 'tokens', 'mask'].includes(source.kind));
    const [feeds, sizes, named, most] = [{}, new Map(), new Map(), this.contract.sizes];
    const nameOf = (key) => (ports.some(({ name }) => name === key) ? key : portOf(method, key)?.name ?? key);
    for (const [key, one] of Object.entries(inputs)) if (one != null) named.set(nameOf(key), one);
    for (const key of named.keys()) need(ports.some(({ name }) => name === key), `there is no input ${quoted(key)}`);
    for (const port of ports.sort((a, b) => rank(a) - rank(b))) {
      const [{ name, shape, dtype }, isTokens] = [port, port.source.kind === 'tokens'];
      const dims = shape.map((dim) => sizes.get(dim) ?? dim);
      const ones = isMask(port) && dims.every(Number.isInteger) ? { dims, data: Array(volume(dims)).fill(1) } : null;
      const { tokens: { start }, generation } = this.contract;
      const begin = isTokens && starts && start != null ? [start, ...generation.prompt] : ones;
      const given = named.get(name) ?? begin;
      need(given != null, () => `${method.name} needs ${quoted(name)}, ${dtype}${quoted(shape)}`);
      const rows = sizes.get(shape[0]) ?? (starts ? 1 : this.#rows); // one token is for all
      const { dims: found, data } = flattened(
        isTokens && (given === begin || typeof given !== 'object') ? Array(rows).fill(given) : given);
      if (isTokens && found.length === 1) found.push(1);
      const fits = (size, dim) => dim === size || (typeof dim === 'string' && size > 0 && !(size > most[dim]));
      need(found.length === dims.length && found.every((size, axis) => fits(size, dims[axis])),
        () => `${quoted(name)} is ${quoted(found)}, and must be ${quoted(dims)}, up to ${quoted(most)}`);
      for (const [axis, size] of found.entries()) {
        const [dim, legal] = [shape[axis], this.contract.legal?.[shape[axis]]];
        need(!legal || isLegal(legal, size), () => `${quoted(name)} has ${size} for ${dim}: ${dim} is ${legal.words}`);
      }
      shape.forEach((dim, axis) => sizes.set(dim, found[axis]));
      feeds[name] = this.#tensor(dtype, data, found, name);
    }
    return feeds;
  }
  #tensor(dtype, data, dims, name = '') {
    const [Type, kinds] = [ARRAYS.get(dtype), dtype.startsWith('float') ? /bool|bigint|number/ : /bool|bigint/];
    const [ready, isOne] = [data instanceof Type, (one) => kinds.test(typeof one) || Number.isInteger(one)];
    need(ready || (data.every(isOne) && /^(?!float16Uint)/.test(dtype + Type.name)), `${quoted(name)} is no ${dtype}`);
    return new this.#ort.Tensor(dtype, ready ? data : Type.from(data, /int64/.test(dtype) ? BigInt : Number), dims);
  }
  /** Run a method, and let the state that it has not written in place go to where that lies. */
  async #run({ file, inputs, outputs }, feeds, inPlace = this.#inPlace) {
    const [fed, fetches, sizes] = [{ ...feeds }, {}, new Map()];
    for (const { name, shape, dtype, source: { kind, of } } of inputs) {
      if (kind === 'state') fed[name] = this.#view(this.#states.get(of));
      else if (kind === 'length') fed[name] = this.#tensor(dtype, [this.#length], [1]);
      shape.forEach((dim, axis) => sizes.set(dim, fed[name].dims[axis]));
    }
    for (const { name, shape, writes } of outputs) {
      const [state, dims] = [this.#states.get(writes), shape.map((dim) => sizes.get(dim) ?? dim)];
      fetches[name] = inPlace && state && dims.every(Number.isInteger) ? this.#view(state, dims, state.other) : null;
    }
    const results = await this.#sessions.get(file).run(fed, fetches, { logSeverityLevel: 3 }); // a copy logs a warning
    for (const { name, writes } of outputs.filter((port) => port.writes)) {
      const [state, { data, dims }] = [this.#states.get(writes), results[name]];
      if (!fetches[name]) this.#view(state, dims, state.other).data.set(data);
      if (state.axis === null) [state.dims, state.offset, state.other] = [dims, state.other, state.offset];
    }
    return results;
  }
  #view({ name, dtype, shape, batch, axis, bytes, prefix, offset, dims }, given = dims, at = offset) {
    const used = (size) => (prefix ? Math.min(this.#slots, size) : size);
    const own = (size, place) => (place === batch ? this.#rows : place === axis ? used(size) : size);
    const [Type, sizes] = [ARRAYS.get(dtype), given ?? shape.map(own)], count = volume(sizes);
    need(count * Type.BYTES_PER_ELEMENT <= bytes, () => `there is no room for ${quoted(name)} of ${quoted(sizes)}`);
    return new this.#ort.Tensor(dtype, new Type(this.#arena, at, count), sizes);
  }
}
/**
 * Let the beams of a row, which begin at a row of the state, go on with what is most likely; of equals, the first. The
 * rule is that of transformers, whatever else is in the batch.
 */
function advance(row, begin, how) {
  const { ends, beams, steps, lengthPenalty, earlyStopping } = how;
  const [found, count] = [[], beams > 1 ? Math.max(2, 1 + ends.length) * beams : 1];
  for (const [at, { text, score, logits }] of row.open.entries()) {
    const most = logits.reduce((a, b) => Math.max(a, b));
    const log = count > 1 ? Math.log(logits.reduce((sum, one) => sum + Math.exp(one - most), 0)) : 0;
    const scores = Float64Array.from(logits, (logit) => logit - most - log);
    restrict(scores, text.length, how).forEach((one, token) => {
      const total = beams > 1 ? score + one : Math.max(one, -Number.MAX_VALUE); // greedy: one is always chosen
      if (found.length === count && !(total > found[count - 1].score)) return;
      found.push({ text: [...text, token], score: total, source: begin + at });
      found.sort((one, other) => other.score - one.score).splice(count);
    });
  }
  const [{ length }, isEnd] = [found[0].text, ({ text }) => text.length === steps || ends.includes(text.at(-1))];
  if (!row.isDone) {
    const isIn = (one) => isEnd(one) && (one.score > -Infinity || !row.ended.length);
    const ended = found.slice(0, beams).filter(isIn); // the others are there to go on with
    row.ended.push(...ended.map((one) => ({ ...one, score: one.score / length ** lengthPenalty })));
    row.ended.sort((one, other) => other.score - one.score).splice(beams);
  }
  const next = found.filter((one) => !isEnd(one));
  const none = () => ({ text: [...row.open[0].text, 0], score: -Infinity, source: begin }); // where too few go on
  row.open = Array.from({ length: beams }, (_, at) => next[at] ?? none());
  const reach = earlyStopping === 'never' && lengthPenalty > 0 ? steps : length;
  const isBetter = () => row.open[0].score / reach ** lengthPenalty > row.ended[beams - 1].score;
  const isFull = row.ended.length === beams && row.ended[beams - 1].score > -Infinity;
  row.isDone ||= length === steps || (isFull && (earlyStopping === true || !isBetter()));
}
/** Let scores be minus infinity at tokens that may not follow so many others, as token_rules.py does. */
function restrict(scores, given, { rules, ends, steps, width }) {
  const [length, first] = [width + given, rules.forced_bos_token_id];
  const last = given === steps - 1 ? rules.forced_eos_token_id : [];
  const forced = last.length || length !== 1 || first === null ? last : [first];
  const isShort = length < rules.min_length || given < rules.min_new_tokens;
  const isBegin = given === Number(width === 1 && first !== null);
  if (forced.length) scores.fill(-Infinity);
  for (const token of forced) scores[token] = 0;
  const barred = [...rules.suppress_tokens, ...(isBegin ? rules.begin_suppress_tokens : [])];
  if (!forced.length) barred.push(...rules.bad_words_ids, ...(isShort ? ends : []));
  for (const token of barred) scores[token] = -Infinity;
  return scores;
}
function flattened(value) {
  const { dims = [value.length], data = value } = value;
  if (!Array.isArray(value)) return typeof value === 'object' ? { dims: [...dims], data } : { dims: [], data: [value] };
  const parts = value.map(flattened);
  need(parts.every(({ dims }) => `${dims}` === `${parts[0].dims}`), 'rows of an array differ in length');
  return { dims: [parts.length, ...(parts[0]?.dims ?? [])], data: parts.flatMap(({ data }) => [...data]) };
}
const warned = new Set();
function say(text) {
  if (!warned.has(text)) console.warn(text);
  warned.add(text);
}
function warnOf({ not_followed: settings, num_beams: count }, { beams, prompt }) {
  const ofPrompt = ['decoder_input_ids', 'decoder_start_token_id', 'forced_decoder_ids', 'language', 'lang_to_id', 'task'];
  const names = settings.filter((name) => prompt == null || !ofPrompt.includes(name));
  if (names.length) say(`The export chooses tokens by ${names.join(', ')} too, which no host follows.`);
  if (count > 1 && !beams) say(`The export searches with ${count} beams, and hosts with 1 where none are given.`);
}
function warn({ outcome, reason }, source) {
  const where = typeof source === 'object' && !(source instanceof URL) ? 'a bundle' : source;
  const what = outcome === 'failed' ? 'its proof failed' : 'it is not proven';
  const text = `${where}: ${what}: ${quoted(reason)} - \`graphkit verify EXPORT BUNDLE --record\` proves it`;
  if (outcome !== 'passed') say(text);
}
async function sha256(bytes) {
  need(globalThis.crypto?.subtle, 'checksums need a page that was loaded over https');
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}
/** Return what reads a file of a bundle, what tells its size and SHA-256 and, where it is a folder, its path. */
async function reader(source) {
  const hashOf = (_, bytes) => sha256(bytes);
  const missing = (name, cause) => new BundleError(`${quoted(name)} is missing`, { cause });
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
  const bytesOf = (answer) => (need(answer.ok, `${quoted(answer.url)}: ${answer.status}`), answer.arrayBuffer());
  const read = async (name) => new Uint8Array(await bytesOf(await fetch(`${source}/${encodeURIComponent(name)}`)));
  return { hashOf, read };
}
/** Check that a model has the inputs and outputs of a method: their names and, where its session tells, their dims. */
function checkPorts({ name: method, inputs, outputs }, session) {
  const names = [inputs, outputs].map((ports) => quoted(ports.map(({ name }) => name).sort()));
  need(names[0] === quoted([...session.inputNames].sort()) && names[1] === quoted([...session.outputNames].sort()),
    `the model of ${quoted(method)} has other inputs or outputs than bundle.json says`);
  for (const { name, shape: found, isTensor } of [...session.inputMetadata ?? [], ...session.outputMetadata ?? []]) {
    const { shape } = [...inputs, ...outputs].find((port) => port.name === name);
    const fits = (dim, axis) => !(dim >= 0 && Number.isInteger(shape[axis])) || dim === shape[axis];
    need(!isTensor || (found.length === shape.length && found.every(fits)),
      `${quoted(name)} of ${quoted(method)} is ${quoted(found)}, and bundle.json says ${quoted(shape)}`);
  }
}
/** Return whether a text is what its checksum at the end says; true where the page cannot compute one. */
async function isSealed(text) {
  if (!globalThis.crypto?.subtle) return true;
  const plain = text.replace(/("(?:[^"\\]|\\.)*")|\s+/gs, (_, quotation) => quotation ?? '');
  const [, body, checksum] = /^(.*),"checksum":"([0-9a-f]{64})"\}$/s.exec(plain) ?? [];
  return body !== undefined && await sha256(new TextEncoder().encode(body)) === checksum;
}
/** Return what `bundle.json` says. Anybody may have written it: no file elsewhere, no state outside its own place. */
async function readContract(text) {
  try {
    const contract = JSON.parse(text);
    const { version, data, arena, sizes, lengths, states, methods, files, proof } = contract;
    need(version === 4, `version ${quoted(version)}, and this host runs 4 - make the bundle again`);
    need(lengths.length < 2, `${lengths.length} lengths: it runs 1 or 0`);
    const names = [...methods.map(({ file }) => file), ...(data ? [data] : []), ...Object.keys(files)];
    const odd = names.filter((file) => /[/\\\0]|^\.{0,2}$/.test(file));
    need(!odd.length, `its files are not beside it: ${quoted(odd)}`);
    const isRecorded = names.every((name) => files[name]) && ['passed', 'failed', 'not run'].includes(proof.outcome);
    need(isRecorded, 'it records no proof, or not all files');
    const [{ name: length, most } = { name: '', most: Infinity }] = lengths;
    need((sizes.slots ?? most) === most, `sizes.slots is ${sizes.slots}, and length ${quoted(length)} may be ${most}`);
    let end = 0;
    for (const state of [...states].sort((a, b) => a.offset - b.offset)) {
      const size = volume(state.shape) * ARRAYS.get(state.dtype)?.BYTES_PER_ELEMENT;
      need(state.bytes === size && state.offset % 64 === 0 && state.offset >= end, `a size in ${quoted(state.name)}`);
      const { name, shape, axis, batch, update, prefix } = state;
      need(!prefix || axis === 0, `slots that come first, and lie along axis ${axis}, in ${quoted(name)}`);
      need(batch === null || shape[batch] === sizes.batch, `other rows than sizes.batch in ${quoted(name)}`);
      need(update !== 'slots' || shape[axis] >= most, `fewer slots than ${most} in ${quoted(name)}`);
      end = otherPlace(state) + size;
    }
    need(end <= arena, 'the state is larger than the arena');
    for (const { name, dtype, source, writes } of methods.flatMap(({ inputs, outputs }) => [...inputs, ...outputs])) {
      const state = source?.kind === 'state' ? source.of : writes;
      const isKnown = !state || states.some((one) => one.name === state && one.dtype === dtype);
      need(ARRAYS.has(dtype) && isKnown, `no dtype, or no state, for ${quoted(name)}`);
    }
    need(await isSealed(text), 'it was changed after it was written - make the bundle again');
    return contract;
  } catch (cause) { throw new BundleError(`bundle.json is not that of a bundle: ${cause.message}`, { cause }); }
}
