/**
 * Run a bundle in JavaScript: methods over one state, driven by nothing but its `bundle.json`:
 *     const bundle = await Bundle.open(ort, 'opus.bundle'); // ort: the module onnxruntime-node or onnxruntime-web
 *     const [tokens] = await bundle.generate(ids, { maxNewTokens: 50, beams: 4 });
 */
import { checkPorts, openFolder } from './folder.mjs';
import { search, warnOf } from './tokens.mjs';
import { ARRAYS, GraphkitError, asRows, elementOf, flattened, need, quoted, volume, widened } from './values.mjs';

export { GraphkitError };
const otherPlace = ({ offset, bytes, update }) => offset + (update === 'swap' ? Math.ceil(bytes / 64) * 64 : 0);
const isMask = ({ name }) => name.includes('mask');
const rank = (port) => 2 * isMask(port) + (port.source.kind === 'tokens'); // what takes sizes of others comes last
const portOf = (method, kind) => method.inputs.find(({ source }) => source.kind === kind);
const isLegal = ({ step, least, most, less, more, shortest, short }, size) => { // multiples of a number, or near one
  const below = Math.floor((size + less) / step) * step;
  const isNear = (one) => one >= least && one <= (most ?? one) && size >= one - less && size <= one + more;
  return (size >= shortest && size <= short) || isNear(below) || isNear(below - step);
};
const lastOf = ({ dims: [rows, tokens, size], data }) => Array.from({ length: rows }, // logits of each row's last token
  (_, row) => widened(data.subarray((row * tokens + tokens - 1) * size, (row + 1) * tokens * size)));
/** The methods of a bundle, and the state of one user: index.d.ts says what each of them takes and returns. */
export class Bundle {
  #ort; #sessions; #inPlace; #arena; #initial; #lengths; #slots; #states = new Map(); #rows = 0; #busy = false;
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
    [this.#ort, this.contract, this.#sessions] = [ort, contract, sessions];
    [this.#inPlace, this.#initial] = [inPlace, initial];
    try { this.#arena = new ArrayBuffer(contract.arena); } catch (cause) {
      throw new GraphkitError(`there is no memory for ${contract.arena} bytes of state`, { cause });
    }
    for (const one of contract.states) this.#states.set(one.name, { ...one, other: otherPlace(one) });
    this.#clear();
  }
  get state() { return Object.fromEntries([...this.#states].map(([name, state]) => [name, this.#view(state)])); }
  get length() { return this.#lengths.values().next().value ?? 0; }
  /** Release the sessions, and with them those of every fork. */
  async release() { for (const session of this.#sessions.values()) await session.release(); }
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
      const names = method.outputs.filter(({ writes }) => !writes).map(({ name }) => name);
      return Object.fromEntries(names.map((name) => [name, outputs[name]]));
    });
  }
  reorder(rows) { return this.#alone(() => this.#reorder([...rows])); }
  reset() { return this.#alone(() => this.#reset()); }
  rewind(length, name = this.contract.lengths[0]?.name) {
    const now = this.#lengths.get(name);
    need(now !== undefined, `no length ${quoted(name)}: the bundle has ${quoted([...this.#lengths.keys()])}`);
    need(!this.#busy, 'a method of this bundle is running - await it first');
    need(Number.isInteger(length) && length >= 0 && length <= now, `${length} tokens cannot stay of ${now}`);
    const isLost = ({ update, length: of, shape, axis }) =>
      update === 'swap' || (update === 'ring' && of === name && now > shape[axis]);
    const lost = length < now && this.contract.states.find(isLost);
    need(!lost, () => `state ${quoted(lost.name)} cannot go back to what it was after ${length} tokens - start again`);
    this.#slots = new Map(this.#lengths.set(name, length));
  }
  snapshot() {
    need(!this.#busy, 'a method of this bundle is running - await it first');
    const copy = ([name, { dims, data }]) => [name, { dims: [...dims], data: data.slice() }];
    const states = Object.fromEntries(Object.entries(this.state).map(copy));
    return { bundle: this.contract.checksum, rows: this.#rows, lengths: Object.fromEntries(this.#lengths), states };
  }
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
    const { eos, beams = 1, sampling, prompt, mask, inputs = {}, signal } = options;
    const maxNewTokens = options.maxNewTokens ?? rules.max_new_tokens ?? rules.max_length;
    return this.#alone(async () => {
      need(maxNewTokens != null, 'the export does not say how many tokens to give - give maxNewTokens');
      need([maxNewTokens, beams].every((n) => Number.isInteger(n) && n > 0), 'give at least 1 maxNewTokens and beams');
      need(!sampling || beams === 1, 'tokens are drawn for 1 beam - give beams or sampling');
      warnOf(rules, options);
      const given = { tokens: prompt, ...inputs };
      const [once, next] = [this.contract.methods.find(({ when }) => when === 'once'), this.#method('step')];
      const takesRows = portOf(once ?? next, 'tokens')?.shape.length === 3; // of embeddings: ids are these
      const users = (once ?? next).inputs.filter(({ source }) => source.kind === 'user' && !takesRows);
      if (ids != null) given[users.find((port) => !isMask(port))?.name ?? 'tokens'] = asRows(ids);
      if (mask != null) given[users.find(isMask)?.name ?? 'mask'] = asRows(mask);
      signal?.throwIfAborted();
      if (!once) await this.#reset();
      const { logits: read, width } = await this.#readFirst(once ?? next, given, { beams, kept: 1, signal });
      const [first, isOfAll] = [lastOf(read), (options.maxNewTokens ?? rules.max_new_tokens) == null]; // of max_length
      const short = `max_length of the export is ${maxNewTokens}, and the prompt has ${width}`;
      need(!isOfAll || maxNewTokens > width, short);
      const [{ most, name } = { most: Infinity }] = this.contract.lengths;
      const room = most - (this.#lengths.get(name) ?? 0) + 1;
      const steps = Math.min(maxNewTokens - (isOfAll ? width : 0), room);
      const { length_penalty: lengthPenalty, early_stopping: earlyStopping } = rules;
      const ends = [eos ?? this.contract.ends].flat();
      return search(first, { lengthPenalty, earlyStopping, ...options, ends, beams, steps, rules, width }, {
        step: async (tokens) => lastOf(await this.#logits(next, { tokens })),
        reorder: (rows) => this.#reorder(rows),
      });
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
      const [all, from] = [this.#initial.get(name), batch ?? 0]; // rows that lie together, and all that do
      const [part, stride] = [volume(dims.slice(from)), volume(shape.slice(from))];
      if (!all) data.fill(elementOf(dtype, initial));
      else for (let at = 0; at * part < data.length; at += 1) {
        data.set(all.subarray(at * stride, at * stride + part), at * part);
      }
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
      const one = tokens == null ? data[at] : { dims: [rows, 1, ...rest], data: column(at) }; // a token is for all rows
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
    const isRead = ({ name, update }) => update === 'swap' && method.access[name] === 'read and write';
    const isNew = (state) => state.axis === null && (isFirst || (isOnce && isRead(state)));
    this.#restart([...this.#states.values()].filter(isNew));
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
      need(given != null || !(isTokens && starts && dtype.startsWith('int')),
        'the export does not say what the decoder starts with - give its first tokens as prompt');
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
/** What a folder must have to be a bundle. */
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
