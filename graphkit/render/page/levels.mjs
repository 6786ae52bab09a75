// What a part of a graph shows when it is open: its parts, the lines between them, and where lines come from and go to.
import { modulesOf, Part } from "./modules.mjs";

/** A line between two parts; at an end that is not in the open part, the part is one around it, or beside one around it.
 * @typedef {{from: Part, to: Part, isIn: boolean, isOut: boolean, values: Set<number>}} Line
 * @typedef {{parts: Part[], ins: Part[], outs: Part[], lines: Line[]}} Level */

export class Levels {
  /** @param {import("./graph.mjs").Graph} graph
   * @param {ReturnType<typeof modulesOf>} tree of the parts that are drawn */
  constructor(graph, { whole, leaves, leafOf } = modulesOf(graph)) {
    this.graph = graph;
    this.whole = whole;
    this.leaves = leaves;
    this.leafOf = leafOf;
    /** @type {Map<Part, {leaf: Part, value: number}[]>} */
    this.after = new Map(leaves.map((leaf) => [leaf, []]));
    /** @type {Map<Part, {leaf: Part, value: number}[]>} */
    this.before = new Map(leaves.map((leaf) => [leaf, []]));
    /** @type {Map<Part, Level>} */
    this.known = new Map();
    this.#join();
  }

  #join() {
    const { nodes, values, scopes, inputs, outputs } = this.graph;
    const join = (/** @type {number} */ value, /** @type {number} */ end) => {
      const source = value < 0 ? -1 : values[value].producer < 0 ? nodes.length + value : values[value].producer;
      const [from, to] = [this.leafOf.get(source), this.leafOf.get(end)];
      if (from === undefined || to === undefined) return; // a constant
      this.after.get(from)?.push({ leaf: to, value });
      this.before.get(to)?.push({ leaf: from, value });
    };
    values.forEach(({ consumers }, value) => consumers.forEach((node) => join(value, node)));
    scopes.forEach(({ owner }, scope) => {
      for (const value of outputs[scope]) join(value, owner < 0 ? nodes.length + values.length + value : owner);
      const isLoop = owner >= 0 && nodes[owner].op === "Loop"; // whose body is given the number of the run first
      if (owner >= 0) inputs[scope].forEach((value, at) => join(isLoop && !at ? -1 : nodes[owner].inputs[at] ?? -1, nodes.length + value));
    });
  }

  /** What a part shows when it is open.
   * @param {Part} part
   * @returns {Level} */
  of(part) {
    const open = part.inner;
    const known = this.known.get(open);
    if (known !== undefined) return known;
    /** @type {Map<Part, Map<Part, Line>>[]} */
    const found = [new Map(), new Map(), new Map()]; // within, into, and out of it
    const add = (/** @type {number} */ kind, /** @type {Part} */ from, /** @type {Part} */ to, /** @type {number} */ value) => {
      if (from === to) return;
      const ends = found[kind].get(from) ?? new Map();
      const line = ends.get(to) ?? { from, to, isIn: kind === 1, isOut: kind === 2, values: new Set() };
      line.values.add(value);
      found[kind].set(from, ends.set(to, line));
    };
    for (const leaf of this.leaves.slice(open.from, open.to)) {
      const here = partIn(open, leaf);
      for (const { leaf: other, value } of this.after.get(leaf) ?? []) {
        if (open.has(other)) add(0, here, partIn(open, other), value);
        else add(2, here, beside(open, other), value);
      }
      for (const { leaf: other, value } of this.before.get(leaf) ?? []) {
        if (!open.has(other)) add(1, beside(open, other), here, value);
      }
    }
    const [, into, out] = found;
    const ends = [...out.values()].flatMap((lines) => [...lines.keys()]);
    const level = { parts: open.parts, ins: [...into.keys()], outs: [...new Set(ends)],
      lines: found.flatMap((lines) => [...lines.values()].flatMap((each) => [...each.values()])) };
    this.known.set(open, level);
    return level;
  }
}

/** The part of a part that a leaf is in.
 * @param {Part} part
 * @param {Part} leaf
 * @returns {Part} */
function partIn(part, leaf) {
  let found = leaf;
  while (found.around !== null && found.around !== part) found = found.around;
  return found;
}

/** Of a leaf outside of a part, the part that it is in beside the part or beside one around that.
 * @param {Part} part
 * @param {Part} leaf */
function beside(part, leaf) {
  let around = /** @type {Part} */ (part.around);
  while (!around.has(leaf)) around = /** @type {Part} */ (around.around);
  return partIn(around, leaf);
}
