/**
 * Run a bundle in JavaScript: methods over one state, driven by nothing but its `bundle.json`:
 *     const bundle = await Bundle.open(ort, 'opus.bundle'); // ort: the module onnxruntime-node or onnxruntime-web
 *     const [tokens] = await bundle.generate(ids, { maxNewTokens: 50, beams: 4 });
 * It needs no other file: `graphkit bundle --copy-host` puts it into a bundle. host.mjs and index.d.ts build on it.
 */
export const ARRAYS = new Map(Object.entries({ float32: Float32Array, float64: Float64Array, bool: Uint8Array,
  float16: globalThis.Float16Array ?? Uint16Array, int8: Int8Array, int16: Int16Array, int32: Int32Array,
  int64: BigInt64Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array }));
export const need = (holds, problem) => { if (!holds) throw new GraphkitError(problem.call?.() ?? problem); };
export const quoted = (value) =>
  JSON.stringify(value)?.replace(/[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, '?');
export const volume = (dims) => dims.reduce((product, size) => product * size, 1);
const aligned = (bytes) => Math.ceil(bytes / 64) * 64;
const otherPlace = ({ offset, bytes, update }) => offset + (update === 'swap' ? aligned(bytes) : 0);
const isMask = ({ name }) => name.includes('mask');
const rank = (port) => 2 * isMask(port) + (port.source.kind === 'tokens'); // what takes sizes of others comes last
const portOf = (method, kind) => method.inputs.find(({ source }) => source.kind === kind);
export const asRows = (ids) => (ids.dims || typeof ids[0] === 'object' ? ids : [ids]);
const isLegal = ({ step, least, most, less, more }, size, below = Math.floor((size + less) / step) * step) => // or near one
  [below, below - step].some((one) => one >= least && one <= (most ?? one) && size >= one - less && size <= one + more);
const half = (b, e = (b >> 10) & 31) => (b >> 15 ? -1 : 1) * ((e && 1024) + (b & 1023)) * 2 ** ((e || 1) - 25);
export const widened = (data) => (data instanceof Uint16Array ? Float32Array.from(data, (bits) => half(bits)) : data);
const even = (number, near = Math.round(number)) => near - (near - number === 0.5 && near % 2);
const halfBits = (number) => { // of float16
  const [size, sign] = [Math.abs(number), number < 0 ? 0x8000 : 0];
  const exponent = Math.max(Math.floor(Math.log2(size)), -14);
  return sign + (exponent + 14) * 1024 + even(size / 2 ** (exponent - 10));
};
/** Return a number as an element of a typed array. */
export const elementOf = (dtype, number) =>
  (/int64/.test(dtype) ? BigInt(number) : ARRAYS.get(dtype) === Uint16Array && dtype === 'float16' ? halfBits(number) : number);
const lastOf = ({ dims: [rows, tokens, size], data }) => Array.from({ length: rows }, // logits of each row's last token
  (_, row) => widened(data.subarray((row * tokens + tokens - 1) * size, (row + 1) * tokens * size)));
/** What the caller, or a contract, has wrong: an error before anything runs. */
export class GraphkitError extends Error { name = 'GraphkitError'; }
/**
 * The methods of a bundle, and the state of one user. Inputs go by name: numbers, nested or typed arrays, or tensors, which
 * are `{ data, dims }`; `tokens` and `mask` also name the decoder's, by default its start token, and ones. `encode`, for
 * an encoder-decoder, `prefill`, for a decoder alone, or `start`, for either, starts a sequence; `step` goes on with a
 * token, one for each row, or [batch, tokens]. They return the logits, [batch, tokens, vocabulary]; what starts a
 * sequence, those of the last token alone, unless it is told `{ allLogits: true }`. `run` runs any method by its name, and
 * returns its outputs that are no state. `reorder([0, 0])` makes rows of the state copies of others; `rewind` forgets the
 * last tokens; `reset` gives it its initial value; `snapshot` copies what is in use, for `restore`; `fork` returns one for
 * another user, with the same sessions. `state` has views of the arena until the next call: rows in use, and slots where
 * they come first. `generate` returns tokens for each row; index.d.ts lists its options, which by default are the rules of
 * the export.
 */
export class Bundle {
  #ort; #sessions; #inPlace; #arena; #initial; #lengths; #slots; #states = new Map(); #rows = 0; #busy = false;
  /**
   * Open the bundle in a folder, a path or URL, or of files by name, as bytes; `session` has options for sessions.
   * Files must have the sizes that bundle.json records and, with `checksums`, their SHA-256, which reads them. A warning on
   * the console says, once, that a bundle is not proven. `progress` is told of bytes as they come: { file, loaded, total }.
   */
  // onnxruntime-web leaves outputs that it is given at zero, silently: there, nothing is written in place
  static async open(ort, source, options = {}) {
    const { inPlace = Boolean(ort.env?.versions?.node), session = {} } = options;
    const folder = await openFolder(ort, source, BUNDLE, options);
    const { contract } = folder, sessions = new Map();
    for (const file of new Set(contract.methods.map((method) => method.file))) {
      options.signal?.throwIfAborted();
      const methods = contract.methods.filter((method) => method.file === file);
      const isUsers = ({ source }) => source.kind === 'user';
      const isPrompt = methods.every(({ when, inputs }) => when === 'once' && !inputs.some(isUsers));
      const extra = isPrompt ? { session: { disable_prepacking: '1' } } : {}; // the step has its weights, packed
      sessions.set(file, await folder.session(file, { extra, ...session }, contract.data));
      for (const method of methods) checkPorts(method, sessions.get(file), BUNDLE);
    }
    const bundle = new Bundle(ort, contract, sessions, inPlace);
    await bundle.#keepInitial();
    return bundle;
  }
  constructor(ort, contract, sessions, inPlace, initial = new Map()) {
    [this.#ort, this.contract, this.#sessions, this.#inPlace, this.#initial] = [ort, contract, sessions, inPlace, initial];
    try { this.#arena = new ArrayBuffer(contract.arena); } catch (cause) {
      throw new GraphkitError(`there is no memory for ${contract.arena} bytes of state`, { cause });
    }
    for (const one of contract.states) this.#states.set(one.name, { ...one, other: otherPlace(one) });
    this.#clear();
  }
  get state() { return Object.fromEntries([...this.#states].map(([name, state]) => [name, this.#view(state)])); }
  get length() { return this.#lengths.values().next().value ?? 0; }
  fork() { return new Bundle(this.#ort, this.contract, this.#sessions, this.#inPlace, this.#initial); }
  encode(inputs, options) { return this.start(inputs, { ...options, name: 'encode' }); }
  prefill(inputs, options) { return this.start(inputs, { ...options, name: 'prefill' }); }
  start(inputs = {}, { name = '', allLogits = false } = {}) {
    return this.#alone(async () => {
      const options = { kept: allLogits ? 0 : 1 };
      return (await this.#readFirst(this.#method('once', name), inputs, options)).logits;
    });
  }
  step(tokens, { mask } = {}) {
    return this.#alone(() => {
      const isStarted = this.#rows || this.contract.methods.every(({ when }) => when !== 'once');
      need(isStarted, 'no sequence is started - call encode or prefill first');
      return this.#logits(this.#method('step'), { tokens, mask });
    });
  }
  run(name, inputs = {}) {
    return this.#alone(async () => {
      const methods = this.contract.methods.filter(({ when }) => when === 'once' || when === 'step');
      const method = methods.find((one) => one.name === name);
      need(method, () => `no ${quoted(name)}: the bundle has ${quoted(methods.map((one) => one.name))}`);
      const outputs = await this.#decode(method, inputs);
      return Object.fromEntries(method.outputs.filter(({ writes }) => !writes).map(({ name }) => [name, outputs[name]]));
    });
  }
  reorder(rows) { return this.#alone(() => this.#reorder([...rows])); }
  reset() { return this.#alone(() => this.#reset()); }
  rewind(length) {
    const [[name, now] = []] = this.#lengths;
    need(name !== undefined, 'the bundle counts no tokens');
    need(!this.#busy, 'a method of this bundle is running - await it first');
    need(Number.isInteger(length) && length >= 0 && length <= now, `${length} tokens cannot stay of ${now}`);
    const lost = this.contract.states.find((state) => length < now
      && (state.update === 'swap' || (state.update === 'ring' && state.length === name && now > state.shape[state.axis])));
    need(!lost, () => `state ${quoted(lost.name)} cannot go back to what it was after ${length} tokens - start again`);
    this.#slots = new Map(this.#lengths.set(name, length));
  }
  /** Return a copy of the state in use, which structuredClone and databases take. */
  snapshot() {
    need(!this.#busy, 'a method of this bundle is running - await it first');
    const copy = ([name, { dims, data }]) => [name, { dims: [...dims], data: data.slice() }];
    const [lengths, states] = [Object.fromEntries(this.#lengths), Object.fromEntries(Object.entries(this.state).map(copy))];
    return { bundle: this.contract.checksum, rows: this.#rows, lengths, states };
  }
  /** Let the state be that of a snapshot, which this bundle has made. */
  restore({ bundle, rows, lengths, states }) {
    need(!this.#busy, 'a method of this bundle is running - await it first');
    need(bundle === this.contract.checksum, 'the snapshot is of another bundle');
    for (const { name, dtype, bytes } of this.#states.values()) {
      const { dims, data } = states[name], fits = data instanceof ARRAYS.get(dtype) && data.byteLength <= bytes;
      need(fits && volume(dims) === data.length, () => `the snapshot has no ${quoted(name)} of ${dtype}`);
    }
    this.#clear(rows);
    if (!rows) return; // nothing was in use
    for (const name of this.#lengths.keys()) this.#lengths.set(name, lengths[name]);
    this.#slots = new Map(this.#lengths);
    for (const state of this.#states.values()) {
      const { dims, data } = states[state.name];
      if (state.axis === null) state.dims = dims;
      this.#view(state, dims).data.set(data);
    }
  }
  generate(ids, options = {}) {
    const rules = { ...this.contract.generation, ...options.generation };
    const { eos, beams = 1, sampling, prompt, mask, inputs = {}, onToken, signal } = options;
    const maxNewTokens = options.maxNewTokens ?? rules.max_new_tokens ?? rules.max_length;
    return this.#alone(async () => {
      need(maxNewTokens != null, 'the export does not say how many tokens to give - give maxNewTokens');
      need([maxNewTokens, beams].every((n) => Number.isInteger(n) && n > 0), 'give at least 1 maxNewTokens and beams');
      need(!sampling || beams === 1, 'tokens are drawn for 1 beam - give beams or sampling');
      warnOf(rules, options);
      const given = { tokens: prompt, ...inputs };
      const [once, next] = [this.contract.methods.find(({ when }) => when === 'once'), this.#method('step')];
      const users = (once ?? next).inputs.filter(({ source }) => source.kind === 'user');
      if (ids != null) given[users.find((port) => !isMask(port))?.name ?? 'tokens'] = asRows(ids);
      if (mask != null) given[users.find(isMask)?.name ?? 'mask'] = asRows(mask);
      signal?.throwIfAborted();
      if (!once) await this.#reset();
      const { logits: read, width } = await this.#readFirst(once ?? next, given, { beams, kept: 1, signal });
      const [first, isOfAll] = [lastOf(read), (options.maxNewTokens ?? rules.max_new_tokens) == null]; // of max_length
      need(!isOfAll || maxNewTokens > width, `max_length of the export is ${maxNewTokens}, and the prompt has ${width}`);
      const [{ most, name } = { most: Infinity }] = this.contract.lengths;
      const room = most - (this.#lengths.get(name) ?? 0) + 1;
      const steps = Math.min(maxNewTokens - (isOfAll ? width : 0), room);
      const rows = first.map((logits) => ({ open: [{ text: [], score: 0, logits }], ended: [] }));
      const { length_penalty: lengthPenalty, early_stopping: earlyStopping } = rules;
      const ends = [eos ?? this.contract.ends].flat();
      const how = { lengthPenalty, earlyStopping, ...options, ends, beams, steps, rules, width };
      for (;;) {
        rows.forEach((row, at) => advance(row, at * row.open.length, how));
        await onToken?.(rows.map(({ isDone, ended, open }) => (isDone ? ended : open)[0].text));
        if (rows.every(({ isDone }) => isDone)) break;
        signal?.throwIfAborted();
        const open = rows.flatMap((row) => row.open);
        if (beams > 1) await this.#reorder(open.map(({ source }) => source));
        const logits = lastOf(await this.#logits(next, { tokens: open.map(({ text }) => text.at(-1)) }));
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
  #clear(rows = 0) {
    this.#rows = rows;
    this.#lengths = new Map(this.contract.lengths.map(({ name }) => [name, 0]));
    this.#slots = new Map(this.contract.lengths.map(({ name }) => [name, Infinity])); // all, until a method runs
    for (const state of this.#states.values()) state.dims = null;
  }
  #reset() {
    const init = this.contract.methods.find(({ when }) => when === 'init');
    this.#clear(init ? this.contract.sizes.batch : 0);
    return init && this.#run(init, {}).finally(() => this.#clear());
  }
  /** Keep the initial values of states of which they are not one number: those of all rows. */
  async #keepInitial() {
    const states = [...this.#states.values()].filter(({ initial }) => initial === null);
    if (!states.length) return;
    this.#clear(this.contract.sizes.batch);
    await this.#run(this.#method('init'), {});
    for (const state of states) this.#initial.set(state.name, this.#view(state).data.slice());
    this.#clear();
  }
  /** Give states their initial value, in the rows in use. */
  #restart(states) {
    for (const state of states) {
      state.dims = null;
      const { data, dims } = this.#view(state), { name, dtype, initial, shape, batch } = state;
      const all = this.#initial.get(name), part = volume(dims.slice(batch ?? dims.length)); // of rows that lie together
      const stride = volume(shape.slice(batch ?? dims.length));
      if (!all) data.fill(elementOf(dtype, initial));
      else for (let at = 0; at * part < data.length; at += 1) data.set(all.subarray(at * stride, at * stride + part), at * part);
    }
  }
  async #reorder(rows) {
    const [method, { batch }, known] = [this.#method('reorder'), this.contract.sizes, [...Array(this.#rows).keys()]];
    need(rows.length > 0 && rows.length <= batch && rows.every((row) => known.includes(row)),
      `rows ${quoted(rows)}: give 1 to ${batch}, of the ${this.#rows} that the state has, counted from 0`);
    await this.#run(method, { [portOf(method, 'indices').name]: this.#tensor('int64', rows, [rows.length]) }, false);
    this.#rows = rows.length;
  }
  /** Run a method on the first tokens; where it takes fewer than there are, steps read the others, one by one. */
  async #readFirst(method, given, { signal, ...options }) {
    const [port, mask] = [portOf(method, 'tokens'), given[portOf(method, 'mask')?.name] ?? given.mask];
    const tokens = given[port?.name] ?? given.tokens;
    const { dims: [rows = 1, width = 1, ...rest], data } = flattened(tokens ?? this.#begin());
    const isFull = mask == null || flattened(mask).data.every((counts) => Number(counts) === 1);
    if (!Number.isInteger(port?.shape[1]) || width <= port.shape[1] || !isFull) {
      return { logits: await this.#logits(method, given, options), width };
    }
    const [size, others, all] = [volume(rest), { ...given, [port.name]: null, tokens: null, mask: null }, []];
    const from = (place, at) => data[(Math.floor(place / size) * width + at) * size + (place % size)];
    const column = (at) => data.constructor.from({ length: rows * size }, (_, place) => from(place, at));
    for (let at = 0; at < width; at += 1) {
      signal?.throwIfAborted();
      const one = tokens == null ? data[at] : { dims: [rows, 1, ...rest], data: column(at) }; // of the export: for all rows
      const [by, inputs] = at ? [this.#method('step'), {}] : [method, others];
      all.push(await this.#logits(by, { ...inputs, tokens: one }, options));
    }
    return { logits: options.kept ? all.at(-1) : this.#joined(all), width };
  }
  #joined(all) {
    const [{ type, dims: [rows, , size] }] = all, data = new all[0].data.constructor(rows * all.length * size);
    all.forEach((one, at) => {
      for (let row = 0; row < rows; row += 1) {
        data.set(one.data.subarray(row * size, (row + 1) * size), (row * all.length + at) * size);
      }
    });
    return new this.#ort.Tensor(type, data, [rows, all.length, size]);
  }
  #begin() {
    const { tokens: { start }, generation: { prompt } } = this.contract;
    return start == null ? [] : [[start, ...prompt]];
  }
  /** Run a method, and return its first output that is no state. */
  async #logits(method, given, options) {
    const { name } = method.outputs.find((port) => !port.writes) ?? {};
    need(name, () => `${quoted(method.name)} gives nothing but state - call it with run`);
    return (await this.#decode(method, given, options))[name];
  }
  async #decode(method, given, { beams = 1, kept = 0 } = {}) {
    const [{ sizes: { batch }, lengths }, isOnce, isFirst] = [this.contract, method.when === 'once', !this.#rows];
    const [{ feeds, sizes }, choice] = [this.#feeds(method, given, isOnce || isFirst), portOf(method, 'kept')];
    if (choice) feeds[choice.name] = this.#tensor('int64', [kept], [1]);
    if (!method.changes.length && Object.values(method.access).every((access) => access === 'none')) {
      return this.#run(method, feeds);
    }
    const rows = sizes.get('batch') ?? Object.values(feeds)[0]?.dims[0] ?? Math.max(this.#rows, 1);
    const has = `${rows} rows, and the sequence has ${this.#rows}`;
    need(isOnce || isFirst || rows === this.#rows, `${has} - give a token for each`);
    need(rows * beams <= batch, `${rows * beams} rows, and the bundle takes ${batch} - make one of a larger --batch`);
    const after = new Map(this.#lengths);
    for (const { length, input, axis } of method.changes) {
      const [{ most }, past] = [lengths.find(({ name }) => name === length), isOnce ? 0 : after.get(length)];
      const count = past + feeds[input].dims[axis];
      need(count <= most, `${count} tokens do not fit into ${most} slots - reset it, or make one of more`);
      after.set(length, count);
    }
    const isChanged = (name) => method.changes.some(({ length }) => length === name);
    const isAlone = [...this.#lengths].every(([name, count]) => !count || isChanged(name));
    need(!isOnce || isAlone || rows === this.#rows, `${has}, which another length counts - give as many, or reset it`);
    if (isOnce) for (const { length } of method.changes) this.#lengths.set(length, 0);
    this.#rows = rows;
    const isNew = (name, update) => isFirst || (isOnce && update === 'swap' && method.access[name] === 'read and write');
    this.#restart([...this.#states.values()].filter(({ name, axis, update }) => axis === null && isNew(name, update)));
    this.#slots = after;
    try {
      const outputs = await this.#run(method, feeds);
      this.#lengths = new Map(after);
      return outputs;
    } catch (error) {
      this.#slots = new Map(this.#lengths);
      if (isFirst || (isOnce && isAlone)) this.#clear();
      throw error;
    }
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
      const begin = isTokens && starts ? this.#begin()[0] : ones;
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
    return { feeds, sizes };
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
      else if (kind === 'length') fed[name] = this.#tensor(dtype, [this.#lengths.get(of)], [1]);
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
  #view({ name, dtype, shape, batch, axis, bytes, prefix, length, offset, dims }, given = dims, at = offset) {
    const used = (size) => (prefix ? Math.min(this.#slots.get(length), size) : size);
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
  const found = beams > 1 ? likeliest(row, begin, Math.max(2, 1 + ends.length) * beams, how)
    : row.open.map(({ text, logits }) => ({ text: [...text, choose(logits, begin, text.length, how)], score: 0 }));
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
function likeliest(row, begin, count, how) {
  const found = [];
  for (const [at, { text, score, logits }] of row.open.entries()) {
    const most = logits.reduce((a, b) => Math.max(a, b));
    const log = Math.log(logits.reduce((sum, one) => sum + Math.exp(one - most), 0));
    const scores = Float64Array.from(logits, (logit) => logit - most - log);
    restrict(scores, text.length, how).forEach((one, token) => {
      const total = score + one;
      if (found.length === count && !(total > found[count - 1].score)) return;
      found.push({ text: [...text, token], score: total, source: begin + at });
      found.sort((one, other) => other.score - one.score).splice(count);
    });
  }
  return found;
}
/** Return the token that a row goes on with, of so many before it: the most likely one, or one that is drawn. */
export function choose(logits, row, given, how) {
  const scores = restrict(Float64Array.from(logits), given, how);
  const most = scores.reduce((a, b) => Math.max(a, b), -Number.MAX_VALUE);
  if (!how.sampling) return Math.max(0, scores.indexOf(most)); // one is always chosen
  const { seed, temperature = 1, topK = 0, topP = 1 } = how.sampling;
  need(temperature > 0 && topK >= 0 && topP > 0 && topP <= 1, 'give a temperature above 0, topK >= 0, and 0 < topP <= 1');
  const weights = scores.map((score) => Math.exp((score - most) / temperature));
  const atLeast = (least) => weights.forEach((weight, token) => { if (weight < least) weights[token] = 0; });
  if (topK > 0 && topK < weights.length) atLeast(weights.toSorted().at(-topK));
  if (topP < 1) {
    const ranked = weights.toSorted().reverse(), sums = summed(ranked);
    atLeast(ranked[sums.findIndex((sum) => sum >= topP * sums.at(-1))]);
  }
  const sums = summed(weights), place = uniform(BigInt(seed) + BigInt(row), given) * sums.at(-1);
  return sums.findIndex((sum) => sum > place || sum === sums.at(-1));
}
const summed = (numbers, sum = 0) => numbers.map((number) => { sum += number; return sum; });
/** Return a number of a sequence, from 0 to below 1: the upper 53 bits of what SplitMix64 gives, as token_search.py does. */
function uniform(seed, place) {
  const short = (bits) => BigInt.asUintN(64, bits);
  let bits = short(seed + BigInt(place + 1) * 0x9E3779B97F4A7C15n);
  bits = short((bits ^ (bits >> 30n)) * 0xBF58476D1CE4E5B9n);
  bits = short((bits ^ (bits >> 27n)) * 0x94D049BB133111EBn);
  return Number((bits ^ (bits >> 31n)) >> 11n) / 2 ** 53;
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
function warn({ outcome, reason }, source, { what, name }) {
  const where = typeof source === 'object' && !(source instanceof URL) ? what : source;
  const fault = outcome === 'failed' ? 'its proof failed' : 'it is not proven';
  const text = `${where}: ${fault}: ${quoted(reason)} - \`graphkit verify EXPORT ${name} --record\` proves it`;
  if (outcome !== 'passed') say(text);
}
/**
 * Read a folder: its contract, and the files that this records, with the sizes, or the checksums, that it records. A kind
 * of folder is its `record`, the file of the contract; `version`; `what` it is, and its `name` in a command; `filesOf`,
 * what a host reads; and `check`, which throws for what does not fit together. Return the contract; `bytes`, which gives
 * those of a file; and `session`, which opens a model.
 */
export async function openFolder(ort, source, kind, { checksums = false, progress = () => {}, signal } = {}) {
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
  return { hashOf, read: async (name, tell) => bytesOf(await fetch(`${source}/${encodeURIComponent(name)}`, { signal }), tell) };
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
    for (const { name, dtype, source, writes } of contract.methods.flatMap(({ inputs, outputs }) => [...inputs, ...outputs])) {
      const state = source?.kind === 'state' ? source.of : writes;
      const isKnown = !state || contract.states.some((one) => one.name === state && one.dtype === dtype);
      need(ARRAYS.has(dtype) && isKnown, `no dtype, or no state, for ${quoted(name)}`);
    }
    need(await isSealed(text), `it was changed after it was written - ${again}`);
    return contract;
  } catch (cause) { throw new GraphkitError(`${record} is not that of ${what}: ${cause.message}`, { cause }); }
}
const BUNDLE = {
  record: 'bundle.json', version: 4, what: 'a bundle', name: 'BUNDLE',
  filesOf: ({ methods, data }) => [...methods.map(({ file }) => file), ...(data ? [data] : [])],
  check({ arena, sizes, lengths, states }) {
    const mostOf = (name) => lengths.find((length) => length.name === name)?.most;
    const [{ name: length, most } = { name: '', most: Infinity }] = lengths;
    const isOther = lengths.length < 2 && (sizes.slots ?? most) !== most;
    need(!isOther, `sizes.slots is ${sizes.slots}, and length ${quoted(length)} may be ${most}`);
    let end = 0;
    for (const state of [...states].sort((a, b) => a.offset - b.offset)) {
      const size = volume(state.shape) * ARRAYS.get(state.dtype)?.BYTES_PER_ELEMENT;
      need(state.bytes === size && state.offset % 64 === 0 && state.offset >= end, `a size in ${quoted(state.name)}`);
      const { name, shape, axis, batch, update, prefix, length } = state;
      need(!prefix || axis === 0, `slots that come first, and lie along axis ${axis}, in ${quoted(name)}`);
      need(batch === null || shape[batch] === sizes.batch, `other rows than sizes.batch in ${quoted(name)}`);
      const slots = mostOf(length) ?? 0;
      need(update !== 'slots' || shape[axis] >= slots, `fewer slots than ${slots} in ${quoted(name)}`);
      end = otherPlace(state) + size;
    }
    need(end <= arena, 'the state is larger than the arena');
  },
};
