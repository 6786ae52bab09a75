/**
 * Run lowered models in JavaScript, driven by nothing but their `contract.json`, as numpy_host.py does:
 *     const host = await Host.open(ort, 'lowered'); // ort: the module onnxruntime-node or onnxruntime-web
 *     const [tokens] = await host.generate([12, 7, 2], { maxNewTokens: 50 });
 */
import { checkPorts, openFolder } from './folder.mjs';
import { choose, warnOf } from './tokens.mjs';
import { ARRAYS, elementOf, flattened, need, quoted, volume, widened } from './values.mjs';

const LEAST = { float16: -65504, float32: -3.4028234663852886e38, float64: -Number.MAX_VALUE }; // an infinity gives NaN
const isSound = ({ source: { kind, by } }) => kind === 'user' && by === 'source';
const soundAxis = ({ shape }, most) => 1 + shape.slice(1).indexOf(most);
/** Return what a caller gives as a list: of tokens, or of those of each sequence. */
function listOf(value) {
  if (value == null || typeof value !== 'object') return value == null ? [] : [value];
  const { dims: [rows, width] = [], data = value } = value, all = Array.from(data);
  return width === undefined ? all : Array.from({ length: rows }, (_, row) => all.slice(row * width, (row + 1) * width));
}

/** Lowered models with their tables, and the state of one user: index.d.ts says what each method takes and returns. */
export class Host {
  #ort; #sessions; #tables; #states = new Map(); #given = new Map(); #busy = false;
  static async open(ort, source, options = {}) {
    const folder = await openFolder(ort, source, LOWERED, options), { contract } = folder;
    const [sessions, files, tables] = [new Map(), new Map(), new Map()];
    for (const method of contract.methods) {
      options.signal?.throwIfAborted();
      sessions.set(method.name, await folder.session(method.file, options.session));
      checkPorts(method, sessions.get(method.name), LOWERED);
    }
    for (const { name, file, dtype, offset, rows, shape } of contract.tables) {
      if (!files.has(file)) files.set(file, await folder.bytes(file));
      const rowBytes = volume(shape) * ARRAYS.get(dtype).BYTES_PER_ELEMENT;
      need(offset + rows * rowBytes <= files.get(file).byteLength, `${quoted(file)} is shorter than its table`);
      tables.set(name, { bytes: files.get(file).subarray(offset, offset + rows * rowBytes), rows, rowBytes });
    }
    return new Host(ort, contract, sessions, tables);
  }
  constructor(ort, contract, sessions, tables) {
    [this.#ort, this.contract, this.#sessions, this.#tables] = [ort, contract, sessions, tables];
    const hasTokens = contract.methods.some((method) => method.when === 'step' || takesText(method));
    this.batch = hasTokens ? Math.max(1, contract.sizes.batch) : 1;
    for (const { name, dtype, shape } of contract.states) {
      this.#states.set(name, new ort.Tensor(dtype, new (ARRAYS.get(dtype))(volume(shape)), shape));
    }
    [this.position, this.valid] = [0, Array(this.batch).fill(0)];
  }
  get state() { return Object.fromEntries(this.#states); }
  /** Release the sessions, and with them those of every fork. */
  async release() { for (const session of this.#sessions.values()) await session.release(); }
  fork() { return new Host(this.#ort, this.contract, this.#sessions, this.#tables); }
  start(source = [], inputs = {}) {
    const isNamed = source !== null && Object.getPrototypeOf(source) === Object.prototype; // inputs alone, as in Python
    return this.#alone(() => (isNamed ? this.#start([], source) : this.#start(source, inputs)));
  }
  step(tokens) { return this.#alone(() => this.#step(listOf(tokens))); }
  generate(source = [], options = {}) { return this.#alone(() => this.#generate(source, options)); }
  snapshot() {
    need(!this.#busy, 'a method of this host is running - await it first');
    const copy = ([name, { dims, data }]) => [name, { dims: [...dims], data: data.slice() }];
    const [states, given] = [this.#states, this.#given].map((tensors) => Object.fromEntries([...tensors].map(copy)));
    return { folder: this.contract.checksum, position: this.position, valid: [...this.valid], states, given };
  }
  restore({ folder, position, valid, states, given }) {
    need(!this.#busy, 'a method of this host is running - await it first');
    need(folder === this.contract.checksum, 'the snapshot is of another folder');
    for (const [name, { data }] of this.#states) data.set(states[name].data);
    const tensorOf = ({ data, dims }) => this.#like(data.slice(), dims);
    this.#given = new Map(Object.entries(given).map(([name, copy]) => [name, tensorOf(copy)]));
    [this.position, this.valid] = [position, [...valid]];
  }
  async #alone(work) {
    need(!this.#busy, 'another method of this host is running - await it first, or use a fork');
    try { this.#busy = true; return await work(); } finally { this.#busy = false; }
  }
  #like(data, dims) {
    const [dtype] = [...ARRAYS].find(([, Type]) => data instanceof Type);
    return new this.#ort.Tensor(dtype, data, dims);
  }
  async #start(source, inputs) {
    const { sizes, methods } = this.contract;
    this.#checkInputs(inputs);
    const given = listOf(source), isText = !sizes.sound && given.length > 0;
    const ids = isText ? this.#split(given, 'source') : Array(this.batch).fill([]);
    for (const { data } of this.#states.values()) data.fill(data instanceof BigInt64Array ? 0n : 0);
    [this.position, this.#given] = [0, new Map()];
    for (const tokens of methods.some(takesText) ? ids : []) {
      const fits = tokens.length > 0 && tokens.length <= sizes.source;
      need(fits, `the source has ${tokens.length} tokens - it takes 1 to ${sizes.source}`);
    }
    this.valid = ids.map(({ length }) => length || sizes.source);
    for (const port of this.#ports) {
      if (port.name in inputs) this.#given.set(port.name, this.#fitting(port, inputs[port.name]));
    }
    if (sizes.sound) this.#takeSound(given.map(Number));
    const outputs = {};
    for (const method of methods) if (method.when === 'once') Object.assign(outputs, await this.#call(method, ids));
    return outputs;
  }
  /** What the caller gives. */
  get #ports() {
    return this.contract.methods.flatMap(({ inputs }) => inputs).filter(({ source }) => source.kind === 'user');
  }
  /** Refuse inputs that the models do not take: what they hold would be ignored. */
  #checkInputs(inputs) {
    for (const name of Object.keys(inputs)) {
      const became = this.contract.methods.find((method) => name in (method.became ?? {}))?.became[name];
      const why = became ? `it became ${became}` : `they take ${quoted(this.#ports.map((port) => port.name))}`;
      const isKnown = this.#ports.some((port) => port.name === name);
      need(isKnown, `the models have no input ${quoted(name)}: ${why} - leave it out`);
    }
  }
  /** Return an input of the caller as a tensor; a sound may be shorter than its port. */
  #fitting(port, value) {
    const [{ name, dtype, shape }, { dims, data }, Type] = [port, flattened(value), ARRAYS.get(port.dtype)];
    const isOne = (size, axis) => size === shape[axis] || (isSound(port) && size < shape[axis]);
    need(dims.length === shape.length && dims.every(isOne) && volume(dims) === data.length,
      `input ${quoted(name)} is ${quoted(dims)}, and the model takes ${quoted(shape)}`);
    const typed = data instanceof Type ? data : Type.from(data, (number) => elementOf(dtype, number));
    return new this.#ort.Tensor(dtype, typed, dims);
  }
  /** Fill sounds with zeros behind their valid samples or frames, and take note of how many positions are valid. */
  #takeSound(lengths) {
    const { sound: most, stride, offset, source } = this.contract.sizes;
    const given = this.#ports.filter((port) => isSound(port) && this.#given.has(port.name));
    const whole = given.length ? this.#given.get(given.at(-1).name).dims[soundAxis(given.at(-1), most)] : most;
    const valid = lengths.length ? lengths : Array(this.batch).fill(whole), least = Math.max(1, stride - offset);
    need(valid.length === this.batch, `there are ${valid.length} lengths of sounds - give ${this.batch}`);
    const odd = valid.find((length) => length < least || length > most);
    need(odd === undefined, `the sound has ${odd} valid places - it takes ${least} to ${most}`);
    for (const port of given) this.#given.set(port.name, this.#padded(port, this.#given.get(port.name), valid));
    this.valid = valid.map((length) => Math.min(Math.floor((length + offset) / stride), source));
  }
  #padded({ dtype, shape }, { dims, data }, valid) {
    const axis = soundAxis({ shape }, this.contract.sizes.sound), part = volume(shape.slice(axis + 1));
    const [padded, blocks] = [new (ARRAYS.get(dtype))(volume(shape)), volume(shape.slice(0, axis))];
    for (let block = 0; block < blocks; block += 1) { // of all that lies before the sound's axis
      const length = Math.min(dims[axis], valid[Math.floor((block * valid.length) / blocks)]);
      const from = block * dims[axis] * part;
      padded.set(data.subarray(from, from + length * part), block * shape[axis] * part);
    }
    return new this.#ort.Tensor(dtype, padded, shape);
  }
  async #step(tokens) {
    const { sizes, methods } = this.contract;
    need(tokens.length === this.batch, `there are tokens of ${tokens.length} sequences - give those of ${this.batch}`);
    need(this.position < sizes.positions, `the cache is full: it has ${sizes.capacity} slots`);
    const method = methods.find(({ when }) => when === 'step');
    const outputs = await this.#call(method, tokens.map((token) => [Number(token)]));
    this.position += 1;
    const logits = widened(outputs[method.outputs.find(({ writes }) => !writes).name].data);
    const size = logits.length / this.batch;
    return Array.from({ length: this.batch }, (_, row) => logits.subarray(row * size, (row + 1) * size));
  }
  async #generate(source, options) {
    const rules = { ...this.contract.generation, ...options.generation };
    const { prompt, eos, sampling, inputs = {}, onToken, signal } = options;
    const [{ tokens: { start }, sizes }, most] = [this.contract, options.maxNewTokens ?? rules.max_new_tokens];
    warnOf(rules, { beams: options.beams, prompt });
    need(most != null || rules.max_length != null, 'it is not said how many tokens to give - give maxNewTokens');
    const begin = start == null ? [] : [start, ...rules.prompt];
    const starts = prompt != null ? this.#split(listOf(prompt), 'prompt') : Array(this.batch).fill(begin);
    const rows = starts.map((given) => {
      const steps = most ?? rules.max_length - given.length;
      need(given.length > 0, 'the prompt is empty - give at least the token that decoding starts with');
      need(Number.isInteger(steps) && steps > 0, `${steps} tokens - give at least 1 maxNewTokens`);
      const room = sizes.positions - given.length + 1, ends = [eos ?? this.contract.ends].flat();
      return { given, tokens: [], how: { rules, ends, sampling, steps: Math.min(steps, room), width: given.length } };
    });
    const goesOn = ({ tokens, how: { ends, steps } }) =>
      !tokens.length || (tokens.length < steps && !ends.includes(tokens.at(-1)));
    signal?.throwIfAborted();
    await this.#start(source, inputs);
    while (rows.some(goesOn)) {
      signal?.throwIfAborted();
      const [at, texts] = [this.position, rows.map(({ given, tokens }) => [...given, ...tokens])];
      const logits = await this.#step(texts.map((text) => text[Math.min(at, text.length - 1)]));
      const open = rows.filter((row) => at + 1 >= row.given.length && goesOn(row));
      for (const row of open) {
        const place = rows.indexOf(row);
        row.tokens.push(choose(logits[place], place, row.tokens.length, row.how));
      }
      if (open.length) await onToken?.(rows.map(({ tokens }) => [...tokens]));
    }
    return rows.map(({ tokens }) => tokens);
  }
  /** Return the tokens of each sequence. */
  #split(ids, what) {
    const isOne = this.batch === 1 && typeof ids[0] !== 'object';
    const sequences = (isOne ? [ids] : ids).map((tokens) => Array.from(tokens, Number));
    const problem = `there are ${sequences.length} sequences of tokens as ${what} - give ${this.batch}`;
    need(sequences.length === this.batch, problem);
    return sequences;
  }
  /** Run a method on tokens of each sequence, let its states go where they lie, and return its outputs by name. */
  async #call(method, ids) {
    const feeds = Object.fromEntries(method.inputs.map((port) => [port.name, this.#input(port, ids)]));
    const outputs = await this.#sessions.get(method.name).run(feeds);
    for (const { name, writes, shape } of method.outputs) {
      const { dims, data } = outputs[name];
      need(quoted(dims) === quoted(shape), () => `${quoted(name)} is ${quoted(dims)}, and not ${quoted(shape)}`);
      if (method.when === 'once') this.#given.set(`${method.name}/${name}`, outputs[name]);
      if (writes) this.#write(writes, data);
    }
    return outputs;
  }
  #input(port, ids) {
    const { name, dtype, shape, source: { kind, of, by, window } } = port, { sizes, tokens } = this.contract;
    if (kind === 'state') return this.#states.get(of);
    if (kind === 'output' || kind === 'user') {
      const tensor = this.#given.get(kind === 'user' ? name : of);
      need(tensor, `input ${quoted(name)} is missing - give it to start`);
      return tensor;
    }
    if (kind === 'slots_mask') { // 0 at the slots in use and, last, the new token
      const begin = window ? Math.max(0, this.position + 1 - window) : 0;
      return this.#mask(port, [(slot) => slot === sizes.capacity || (slot >= begin && slot < this.position)]);
    }
    if (kind === 'source_mask') return this.#mask(port, this.valid.map((valid) => (place) => place < valid));
    const table = this.#tables.get(of), Type = ARRAYS.get(dtype);
    const count = (volume(shape) * Type.BYTES_PER_ELEMENT) / table.rowBytes, each = count / this.batch;
    const pad = by === 'type' ? 0 : tokens.pad ?? 0;
    const padded = (own) => Array.from({ length: each }, (_, at) => (by === 'type' ? 0 : own[at] ?? pad));
    const rowOf = (row) => (by === 'position' ? this.position : this.#place(by, row, ids[row]));
    const rows = kind === 'embedding' ? ids.flatMap(padded)
      : Array.from({ length: count }, (_, at) => rowOf(count > 1 ? at : 0));
    const bytes = new Uint8Array(count * table.rowBytes);
    for (const [at, row] of rows.entries()) {
      need(row >= 0 && row < table.rows, `table ${quoted(of)} has rows 0 to ${table.rows - 1}, and no row ${row}`);
      bytes.set(table.bytes.subarray(row * table.rowBytes, (row + 1) * table.rowBytes), at * table.rowBytes);
    }
    return new this.#ort.Tensor(dtype, new Type(bytes.buffer), shape);
  }
  /** Return the place of a source that chooses a row: of its largest id, of the first of a token, or its last. */
  #place(by, row, ids) {
    const { pooled } = this.contract.tokens;
    if (by === 'largest_id') return ids.indexOf(Math.max(...ids));
    return by === 'first_token' ? Math.max(0, ids.indexOf(pooled)) : this.valid[row] - 1;
  }
  /** Return a mask over the last axis, the same for all others, in the part of each sequence. */
  #mask({ dtype, shape }, counts) {
    const floor = elementOf(dtype, Math.max(this.contract.floor, LEAST[dtype])), size = shape.at(-1);
    const data = new (ARRAYS.get(dtype))(volume(shape)), part = data.length / counts.length;
    for (let at = 0; at < data.length; at += 1) data[at] = counts[Math.floor(at / part)](at % size) ? 0 : floor;
    return new this.#ort.Tensor(dtype, data, shape);
  }
  /** Write a new token into the next slot, or all of a state that does not grow. */
  #write(name, data) {
    const { axis, shape } = this.contract.states.find((one) => one.name === name), state = this.#states.get(name).data;
    if (axis === null) state.set(data);
    else if (this.position < shape[axis]) {
      const slot = volume(shape.slice(axis + 1)), blocks = volume(shape.slice(0, axis));
      for (let block = 0; block < blocks; block += 1) {
        state.set(data.subarray(block * slot, (block + 1) * slot), (block * shape[axis] + this.position) * slot);
      }
    }
  }
}
const takesText = ({ when, inputs }) =>
  when === 'once' && inputs.some(({ source: { kind, by } }) => kind === 'embedding' && by === 'source');
/** What a folder must have to be one of lowered models. */
const LOWERED = {
  record: 'contract.json', version: 3, what: 'a lowered folder', name: 'FOLDER',
  filesOf: ({ methods, tables }) => [...methods, ...tables].map(({ file }) => file),
  check({ methods, states, tables }) {
    for (const { name, dtype, shape, bytes } of states) {
      need(bytes === volume(shape) * ARRAYS.get(dtype)?.BYTES_PER_ELEMENT, `a size in ${quoted(name)}`);
    }
    for (const { name, dtype } of tables) need(ARRAYS.has(dtype), `no dtype for ${quoted(name)}`);
    for (const { name, dtype, shape, source: { kind, of } } of methods.flatMap(({ inputs }) => inputs)) {
      const table = tables.find((one) => one.name === of), isTable = kind === 'embedding' || kind === 'rows';
      const isWhole = !isTable || (table?.dtype === dtype && volume(shape) % volume(table.shape) === 0);
      need(isWhole && (!/mask/.test(kind) || dtype in LEAST), `no table, or no dtype, for ${quoted(name)}`);
    }
  },
};
