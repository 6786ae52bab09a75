// The graph of a model: nodes and values by number, and questions about them.
// `graphkit/analysis/page_graph.py` writes what this reads.

import { Memory } from "./memory.mjs";
import { Sizes } from "./sizes.mjs";

/** @typedef {{label: string, scope: number, op: string, module: string, attributes: [string, string][],
 *             inputs: number[], outputs: number[]}} GraphNode */
/** @typedef {{name: string, scope: number, kind: string, type: string, bytes: number, sources: number[],
 *             dims: (number | null)[] | null, unknown: string, elements: string, producer: number, consumers: number[]}} GraphValue */

export class Graph {
  /** @param {any} data */
  constructor(data) {
    const text = (/** @type {number} */ number) => data.texts[number];
    this.model = data.model;
    /** The nodes of other models that are the same ones, by the number of the model.
     * @type {Map<number, Map<number, number>> | null} */
    this.twins = data.twins ? new Map(Object.entries(data.twins).map(([model, pairs]) =>
      [Number(model), new Map(Object.entries(pairs).map(([node, twin]) => [Number(node), Number(twin)]))])) : null;
    this.sizes = new Sizes(data.sizes);
    const [first] = data.memory;
    const runs = data.memory.map((run) => new Memory({ ...first, ...run }, this.sizes));
    this.memory = runs[0];
    this.sizes.memories.push(runs);
    /** @type {Map<number, (readonly [string, string] | null)[]>} */
    this.costs = new Map(data.costs.map(([node, ...cells]) => [node, cells.map((cell) => (cell < 0 ? null : data.formulas[cell]))]));
    this.scopes = data.scopes.map(([path, owner]) => ({ path, owner }));
    this.inputs = data.inputs;
    this.outputs = data.outputs;
    /** @type {GraphNode[]} */
    this.nodes = data.nodes.map(([label, scope, op, module, attributes, inputs, outputs]) => ({
      label, scope, op: text(op), module: text(module), attributes: inPairs(attributes.map(text)), inputs, outputs,
    }));
    /** @type {GraphValue[]} */
    this.values = data.values.map(([name, scope, kind, type, bytes, sources, unknown]) => ({
      name, scope, kind: text(kind), type: text(type), bytes, sources, dims: data.numbers[type] ?? null,
      unknown: unknown === undefined ? "" : text(unknown), producer: -1, consumers: [], elements: "",
    }));
    /** What a drawing says of nodes: each name is a colour, with nodes by kind.
     * @type {{name: string, kinds: {meaning: string, style: string, nodes: Map<number, string>}[]}[]} */
    this.marks = data.marks.map(([name, kinds]) => ({ name, kinds: kinds.map(([meaning, style, nodes]) =>
      ({ meaning, style, nodes: new Map(nodes.map(([node, said]) => [node, text(said)])) })) }));
    for (const [value, number] of Object.entries(data.elements)) this.values[Number(value)].elements = text(number);
    this.nodes.forEach((node, number) => {
      for (const value of node.outputs) if (value >= 0) this.values[value].producer = number;
      for (const value of new Set(node.inputs)) if (value >= 0) this.values[value].consumers.push(number);
    });
    /** @type {Map<string, {node?: number, value?: number}>} */
    this.names = new Map();
    this.values.forEach((value, number) => {
      const path = this.scopes[value.scope].path;
      this.#name(path ? `${path}::${value.name}` : value.name, { value: number });
      if (path && !this.names.has(value.name)) this.names.set(value.name, { value: number });
    });
    this.nodes.forEach((_, number) => this.#name(this.path(number), { node: number }));
    this.searched = [
      ...this.nodes.map((node, number) => ({ text: `${this.path(number)} ${node.op}`.toLowerCase(), node: number })),
      ...this.values.flatMap((value, number) => this.#saysNode(value) ? [] : { text: value.name.toLowerCase(), value: number }),
    ];
  }

  /** Whether the name of a value is that of its node with an ending, as exporters give. */
  #saysNode(value) {
    return value.producer >= 0 && value.name.startsWith(this.nodes[value.producer].label);
  }

  #name(name, found) {
    this.names.set(name, { ...this.names.get(name), ...found });
  }

  /** The label of a node after the path of its graph, which is its address.
   * @param {number} number */
  path(number) {
    const node = this.nodes[number];
    const scope = this.scopes[node.scope].path;
    return scope ? `${scope}/${node.label}` : node.label;
  }

  /** The value's name, after the path of its graph unless that is the main one.
   * @param {number} number */
  valuePath(number) {
    const value = this.values[number];
    const scope = this.scopes[value.scope].path;
    return scope ? `${scope}::${value.name}` : value.name;
  }

  /** The node that a name stands for: its own, or the producer of the value of that name; -1 for none.
   * @param {string} name */
  nodeOf(name) {
    const found = this.names.get(name);
    if (found === undefined) return -1;
    return found.node ?? this.values[found.value ?? 0].producer;
  }

  /** The nodes that feed a node: of an If, a Loop or a Scan, those that end its bodies too.
   * @param {number} number */
  before(number) {
    const made = this.nodes[number].inputs.filter((value) => value >= 0).map((value) => this.values[value].producer);
    this.scopes.forEach((scope, at) => {
      if (scope.owner === number) made.push(...this.outputs[at].map((value) => this.values[value].producer));
    });
    return unique(made);
  }

  /** The nodes that read what a node gives: at the end of a body, the node that the body belongs to.
   * @param {number} number */
  after(number) {
    const node = this.nodes[number];
    const readers = node.outputs.filter((value) => value >= 0).flatMap((value) => this.values[value].consumers);
    const { owner } = this.scopes[node.scope];
    if (owner >= 0 && node.outputs.some((value) => this.outputs[node.scope].includes(value))) readers.push(owner);
    return unique(readers);
  }

  /** The values that the shape of a value comes from, the nearest first, back to inputs and constants.
   * @param {number} value */
  chain(value) {
    const found = new Set([value]);
    for (const each of found) for (const source of this.values[each].sources) found.add(source);
    found.delete(value);
    return [...found];
  }

  /** Nodes and values whose names, or operators, have all words of a text in them, in any order; `*` stands for
   * anything in a word. The name of an operator alone stands for its nodes.
   * @param {string} text
   * @returns {{node?: number, value?: number}[]} */
  search(text) {
    const wanted = text.toLowerCase().trim();
    const ofOperator = this.nodes.flatMap(({ op }, node) => (op.toLowerCase() === wanted ? [{ node }] : []));
    if (ofOperator.length) return ofOperator;
    const words = wanted.split(/\s+/).map((word) => word.split("*").filter(Boolean)).filter(({ length }) => length);
    return words.length ? this.searched.filter((entry) => words.every((parts) => {
      let from = 0;
      return parts.every((part) => {
        const at = entry.text.indexOf(part, from);
        from = at + part.length;
        return at >= 0;
      });
    })) : [];
  }
}

function inPairs(texts) {
  const pairs = [];
  for (let at = 0; at < texts.length; at += 2) pairs.push([texts[at], texts[at + 1]]);
  return pairs;
}

/** The numbers of nodes, each once, without those of inputs and constants (-1).
 * @param {number[]} numbers */
function unique(numbers) {
  return [...new Set(numbers)].filter((number) => number >= 0);
}
