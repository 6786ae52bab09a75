// The memory of activations as nodes run, at any sizes: the plan that `graphkit/analysis/page_graph.py` writes, run anew.

/** @typedef {{bytes: number, node: number, alive: Map<number, number>, moments: [number, number][]}} Found */

const VIEW = 1;
const IN_PLACE = 2;
const WIDTH = 5; // numbers that tell an output

export class Memory {
  /** @param {any} data
   * @param {import("./sizes.mjs").Sizes} sizes */
  constructor(data, sizes) {
    this.sizes = sizes;
    /** @type {[string, number][]} */
    this.fixed = Object.entries(data.fixed); // sizes of this run that do not move
    this.plans = data.plans;
    /** @type {string[]} */
    this.formulas = data.formulas;
    this.most = data.most;
    /** @type {[string | null, Found | null]} */
    this.last = [null, null]; // the sizes that were asked for last, and what is there then
    /** @type {number[]} */
    this.found = data.found;
    this.right = /** @type {boolean | null} */ (null);
  }

  /** Whether the page finds what Python has found at the first sizes. */
  get isRight() {
    if (this.right === null) {
      const found = this.at(this.own(this.sizes.first));
      const sum = found?.moments.reduce((total, [, bytes]) => total + bytes, 0);
      this.right = found !== null && [found.moments.length, sum, found.bytes].join() === this.found.join();
    }
    return this.right;
  }

  /** What is there at some sizes, null if a tensor has no bytes that are known there.
   * @param {Map<string, bigint>} sizes
   * @returns {Found | null} */
  at(sizes) {
    const key = [...sizes].join();
    if (this.last[0] !== key) {
      const bytes = this.formulas.map((formula) => this.sizes.at(formula, sizes));
      const isKnown = bytes.every((each) => each !== null);
      const found = isKnown ? new Run(this, bytes.map((each) => Math.max(Number(each), 0))).scope(0) ?? NOTHING : null;
      this.last = [key, found];
    }
    return this.last[1];
  }

  /** The peak, null if the page does not find what Python has found at the first sizes.
   * @param {Map<string, bigint>} sizes */
  peak(sizes) {
    const found = this.isRight ? this.at(this.own(sizes)) : null;
    return found && BigInt(found.bytes);
  }

  /** The sizes of this run: some that it keeps, those of the sliders, and what follows from both.
   * @param {Map<string, bigint>} sizes */
  own(sizes) {
    if (!this.fixed.length) return this.sizes.complete(sizes);
    const chosen = this.sizes.symbols.map(({ name }) => /** @type {[string, bigint]} */ ([name, sizes.get(name) ?? 0n]));
    return this.sizes.complete(new Map(chosen), this.fixed);
  }
}

/** @type {Found} */
const NOTHING = { bytes: 0, node: -1, alive: new Map(), moments: [] };

/** A run at some sizes, as `analysis/peak_memory.py` does it. */
class Run {
  /** @param {Memory} memory
   * @param {number[]} bytes of each formula */
  constructor(memory, bytes) {
    this.memory = memory;
    this.bytes = bytes;
    this.peaks = new Map();
  }

  /** The peak of a scope, null if nothing runs in it; a scope has the same at each call.
   * @param {number | null} number
   * @returns {Found | null} */
  scope(number) {
    if (number === null) return null;
    if (!this.peaks.has(number)) this.peaks.set(number, this.buffers(this.memory.plans[number]));
    return this.peaks.get(number);
  }

  /** @param {(number | null)[]} plans of bodies, of which the one with the highest peak counts */
  inside(plans) {
    /** @type {Found | null} */
    let highest = null;
    for (const [place, each] of plans.map((plan) => this.scope(plan)).entries()) {
      if (!place || (each?.bytes ?? 0) > (highest?.bytes ?? 0)) highest = each;
    }
    return highest;
  }

  buffers({ states, steps }) {
    const there = new Buffers(this.memory.most);
    const ends = new Map(); // the values that are needed last at each position
    const endsAt = (position, value) => ends.set(position, [...(ends.get(position) ?? []), value]);
    for (const [value, formula, last] of states) {
      there.put(value, value, this.bytes[formula], last);
      endsAt(last, value);
    }
    steps.forEach(([node, outputs, plans = [], isLoop = 0], position) => {
      const inside = this.inside(plans);
      if (inside !== null && !isLoop) there.step(node, inside);
      const made = [];
      for (let at = 0; at < outputs.length; at += WIDTH) {
        const [value, formula, last, kind, source] = outputs.slice(at, at + WIDTH);
        const root = there.rootOf(value, kind, source, position, this.bytes[formula]);
        if (root === undefined) continue;
        there.put(value, root, this.bytes[formula], last);
        made.push(value);
        endsAt(last, value);
      }
      there.step(node, isLoop ? inside : null);
      for (const value of [...(ends.get(position) ?? []), ...made]) there.freeIfUnneeded(value, position);
    });
    return there.peak();
  }
}

/** The buffers of a scope as they come and go. */
class Buffers {
  /** @param {number} most moments that are told one by one */
  constructor(most) {
    this.most = most;
    this.now = 0;
    /** @type {Map<number, number>} */
    this.roots = new Map(); // the buffer that each value lies in
    /** @type {Map<number, {bytes: number, first: number, last: number, needed: number}>} */
    this.buffers = new Map();
    /** @type {{bytes: number, node: number, inside: Found | null}[]} */
    this.steps = [];
  }

  rootOf(value, kind, source, position, bytes) {
    const root = this.roots.get(source);
    if (kind === VIEW) return root;
    const buffer = kind === IN_PLACE && root !== undefined ? this.buffers.get(root) : undefined;
    const isFree = buffer !== undefined && buffer.last === Infinity && buffer.needed <= position && buffer.bytes === bytes;
    return isFree ? root : value;
  }

  put(value, root, bytes, last) {
    this.roots.set(value, root);
    if (root === value) {
      this.buffers.set(value, { bytes, first: this.steps.length, last: Infinity, needed: last });
      this.now += bytes;
    } else {
      const buffer = this.buffers.get(root);
      if (buffer !== undefined) buffer.needed = Math.max(buffer.needed, last);
    }
  }

  step(node, inside) {
    this.steps.push({ bytes: this.now + (inside?.bytes ?? 0), node, inside });
  }

  freeIfUnneeded(value, position) {
    const buffer = this.buffers.get(this.roots.get(value) ?? -1);
    if (buffer === undefined || buffer.last !== Infinity || buffer.needed > position) return;
    buffer.last = this.steps.length - 1;
    this.now -= buffer.bytes;
  }

  /** @returns {Found | null} */
  peak() {
    if (!this.steps.length) return null;
    const place = this.steps.reduce((highest, { bytes }, at) => (bytes > this.steps[highest].bytes ? at : highest), 0);
    const { bytes, node, inside } = this.steps[place];
    const there = [...this.buffers].filter(([, { first, last }]) => first <= place && place <= last);
    const alive = new Map([...there.map(([value, buffer]) => /** @type {[number, number]} */ ([value, buffer.bytes])),
      ...(inside?.alive ?? [])]);
    return { bytes, node: inside !== null && inside.node >= 0 ? inside.node : node, alive, moments: this.moments() };
  }

  moments() {
    /** @type {[number, number][]} */
    const found = [];
    for (const { bytes, node, inside } of this.steps) {
      if (inside !== null && inside.moments.length && inside.moments.length <= this.most - found.length) {
        const around = bytes - inside.bytes;
        for (const [each, size] of inside.moments) found.push([each, around + size]);
      } else found.push([node, bytes]);
    }
    return found;
  }
}
