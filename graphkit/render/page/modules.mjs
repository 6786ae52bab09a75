// The modules of a graph as parts in parts: bodies in their nodes, the layers of a list in one part, long lists in pieces.

/** A node, or a part of the graph with others in it.
 * @typedef {"module" | "layers" | "body" | "shapes" | "piece" | "node" | "input" | "output"} Kind */

const NAME = /[^/.]+(?:[/.]\d+(?=[/.]|$))?/g; // of a module, with its number in a list
const NUMBERED = /^(.*[/._])(\d+)$/;
const MOST = 160; // parts of a part, before they are drawn in pieces
const PIECE = 40; // parts of a piece
const FEW = 3; // nodes that compute shapes, from which on they are a part
const SHAPE = /^(?:int64|int32|bool) \[\d{0,2}\]$/; // the type of a shape, or of a number of it
const INDEX = /^(?:int64|bool) /;

export class Part {
  /** @param {Kind} kind
   * @param {string} name
   * @param {number[]} nodes it is, if it has no parts: one node, or values after the number of nodes */
  constructor(kind, name, nodes = []) {
    this.kind = kind;
    this.name = name;
    this.nodes = nodes;
    /** @type {Part[]} */
    this.parts = [];
    /** @type {Part | null} */
    this.around = null;
    this.count = kind === "node" ? 1 : 0; // nodes in it
    this.place = Infinity; // of its first node in the file
    this.from = 0; // of its first leaf among all
    this.to = 0;
    this.chosen = 0; // of the layers, the one that is drawn
    this.alike = 0; // layers that are built as the chosen one is at first
  }

  /** The part whose parts are drawn inside of it. */
  get inner() {
    return this.kind === "layers" ? this.parts[this.chosen] : this;
  }

  /** Whether there is something in it to open. */
  get isGroup() {
    return this.parts.length > 0;
  }

  /** @param {Part} other */
  has(other) {
    return this.from <= other.from && other.to <= this.to;
  }

  /** @param {Part} part */
  add(part) {
    part.around = this;
    this.parts.push(part);
    return part;
  }
}

/** The parts of a module's path: `model`, `layers.0`, `mlp`.
 * @param {string} path */
export function moduleNames(path) {
  return [...path.matchAll(NAME)].map(([name]) => name);
}

/** The whole graph as a part, and the leaf of each node, input and output.
 * @param {import("./graph.mjs").Graph} graph
 * @returns {{whole: Part, leaves: Part[], leafOf: Map<number, Part>}} */
export function modulesOf(graph) {
  const whole = new Part("module", "");
  const homes = graph.scopes.map(({ path, owner }) => (path && owner < 0 ? whole.add(new Part("body", path)) : whole)); // of functions
  /** @type {string[][]} */
  const around = graph.scopes.map(() => []); // the modules around a body, which its nodes need not name again
  /** @type {Map<number, Part>} */
  const leafOf = new Map();
  const bodies = new Map(graph.scopes.map(({ owner }, scope) => [owner, scope]).filter(([owner]) => owner >= 0));
  const moved = nodesByReaders(graph);
  /** @type {Map<Part, Map<string, Part>>} */
  const known = new Map();
  const moduleIn = (/** @type {Part} */ part, /** @type {string} */ name) => {
    const modules = known.get(part) ?? new Map();
    known.set(part, modules);
    if (!modules.has(name)) modules.set(name, part.add(new Part("module", name)));
    return modules.get(name);
  };
  graph.nodes.forEach((node, number) => {
    if (node.op === "Constant") return;
    const names = moduleNames(graph.nodes[moved.get(number) ?? number].module);
    const outer = around[node.scope];
    const inner = outer.every((name, at) => names[at] === name) ? names.slice(outer.length) : names;
    let home = inner.reduce(moduleIn, homes[node.scope]);
    if (bodies.has(number)) {
      home = home.add(new Part("module", node.label.split("/").pop() || node.op));
      graph.scopes.forEach(({ path, owner }, scope) => {
        if (owner !== number) return;
        homes[scope] = home.add(new Part("body", path.split("/").pop() ?? ""));
        around[scope] = names;
      });
    }
    const leaf = home.add(new Part("node", node.label.split("/").pop() || node.label, [number]));
    leaf.place = moved.get(number) ?? number;
    leafOf.set(number, leaf);
  });
  addEnds(graph, homes, leafOf);
  const signatures = new Map();
  signed(whole, graph, signatures, new Map());
  tidied(whole, graph, signatures);
  /** @type {Part[]} */
  const leaves = [];
  numbered(whole, leaves);
  return { whole, leaves, leafOf };
}

/** Nodes that read constants alone and that no module has, such as copies of weights, with a node that reads them.
 * @param {import("./graph.mjs").Graph} graph */
function nodesByReaders(graph) {
  const fixed = new Set();
  graph.nodes.forEach((node, number) => {
    const isFixed = node.inputs.length && node.inputs.every((value) => value < 0 || ["constant", "initializer"].includes(graph.values[value].kind)
      || fixed.has(graph.values[value].producer));
    if (isFixed) fixed.add(number);
  });
  /** @type {Map<number, number>} */
  const moved = new Map();
  for (const number of [...fixed].reverse()) {
    const node = graph.nodes[number];
    const [reader] = node.outputs.flatMap((value) => (value < 0 ? [] : graph.values[value].consumers));
    if (reader !== undefined && !node.module && graph.nodes[reader].scope === node.scope) moved.set(number, moved.get(reader) ?? reader);
  }
  return moved;
}

/** Add the inputs and outputs of graphs, those of one family as one.
 * @param {import("./graph.mjs").Graph} graph
 * @param {Part[]} homes
 * @param {Map<number, Part>} leafOf */
function addEnds(graph, homes, leafOf) {
  const [nodes, all] = [graph.nodes.length, graph.values.length];
  graph.scopes.forEach(({ owner }, scope) => {
    for (const [kind, values, first] of /** @type {[Kind, number[], number][]} */ ([["input", graph.inputs[scope], nodes], ["output", graph.outputs[scope], nodes + all]])) {
      if (kind === "output" && owner >= 0) continue;
      const families = new Map();
      for (const value of values) {
        const { name, kind: what } = graph.values[value];
        if (kind === "input" && what !== "input") continue; // an initializer
        const family = name.replace(/\d+/g, "*");
        families.set(family, [...(families.get(family) ?? []), value]);
      }
      for (const [family, members] of families) {
        const leaf = homes[scope].add(new Part(kind, members.length > 1 ? family : graph.values[members[0]].name, members.map((value) => first + value)));
        for (const value of members) leafOf.set(first + value, leaf);
      }
    }
  });
}

/** Give each part a number that those have which are built alike.
 * @param {Part} part
 * @param {import("./graph.mjs").Graph} graph
 * @param {Map<Part, number>} signatures
 * @param {Map<string, number>} known
 * @returns {number} */
function signed(part, graph, signatures, known) {
  const own = part.isGroup
    ? part.parts.map((each) => `${each.isGroup ? each.name : ""}:${signed(each, graph, signatures, known)}`).sort().join()
    : part.kind === "node" ? graph.nodes[part.nodes[0]].op : part.name;
  const number = known.get(own) ?? known.size;
  known.set(own, number);
  signatures.set(part, number);
  return number;
}

/** Make a part as it is drawn: lists of layers in one part, modules of one node as that, many nodes in pieces.
 * @param {Part} part
 * @param {import("./graph.mjs").Graph} graph
 * @param {Map<Part, number>} signatures */
function tidied(part, graph, signatures) {
  for (const each of part.parts) tidied(each, graph, signatures);
  const parts = layersTogether(part.parts.map(only), signatures);
  part.parts = [];
  const all = shapesTogether(parts, graph);
  for (const each of all) each.place = placeOf(each);
  for (const each of inPieces(all.sort((a, b) => a.place - b.place))) part.add(each);
}

/** A module that has one part alone is that part.
 * @param {Part} part
 * @returns {Part} */
function only(part) {
  if (part.kind !== "module" || part.parts.length !== 1) return part;
  const [inner] = part.parts;
  if (inner.kind === "module" || inner.kind === "layers" || inner.kind === "node") inner.name = `${part.name}/${inner.name}`;
  return inner;
}

/** @param {Part[]} parts
 * @param {Map<Part, number>} signatures */
function layersTogether(parts, signatures) {
  /** @type {Map<string, Part[]>} */
  const lists = new Map();
  for (const each of parts) {
    const found = each.kind === "module" ? NUMBERED.exec(each.name) : null;
    if (found) lists.set(found[1], [...(lists.get(found[1]) ?? []), each]);
  }
  for (const list of lists.values()) {
    const members = list.sort((a, b) => Number(NUMBERED.exec(a.name)?.[2]) - Number(NUMBERED.exec(b.name)?.[2]));
    const counts = new Map();
    for (const each of members) counts.set(signatures.get(each), (counts.get(signatures.get(each)) ?? 0) + 1);
    const [most, alike] = [...counts].reduce((best, each) => (each[1] > best[1] ? each : best));
    if (members.length < 2 || 2 * alike <= members.length) continue;
    const together = new Part("layers", "");
    for (const each of members) together.add(each);
    together.chosen = members.findIndex((each) => signatures.get(each) === most);
    together.alike = alike;
    together.name = `${members[0].name}-${NUMBERED.exec(members[members.length - 1].name)?.[2]}`;
    parts = [...parts.filter((each) => !members.includes(each)), together];
  }
  return parts;
}

/** The nodes of a part that compute shapes or indices as one part, those of each that share no node with those of another.
 * @param {Part[]} parts
 * @param {import("./graph.mjs").Graph} graph */
function shapesTogether(parts, graph) {
  const gives = (/** @type {number} */ node, /** @type {RegExp[]} */ ...types) => graph.nodes[node].outputs.every((value) =>
    value < 0 || types.some((type) => type.test(graph.values[value].type)));
  const isIndex = (/** @type {Part} */ { kind, nodes: [node] }) => kind === "node" && gives(node, SHAPE, INDEX);
  const found = new Map(parts.filter(isIndex).map((part) => [part.nodes[0], part]));
  /** @type {Map<number, number[]>} */
  const groups = new Map();
  for (const number of [...found.keys()].sort((a, b) => a - b)) {
    const near = graph.before(number).filter((node) => groups.has(node)).map((node) => /** @type {number[]} */ (groups.get(node)));
    const joined = [...new Set([...near].flat()), number];
    for (const node of joined) groups.set(node, joined);
  }
  for (const members of new Set(groups.values())) {
    if (members.length < FEW || members.length === parts.length) continue;
    const isShape = members.every((node) => gives(node, SHAPE));
    const together = new Part("shapes", isShape ? "shape arithmetic" : "indices and masks");
    const own = members.map((node) => /** @type {Part} */ (found.get(node)));
    for (const each of own) together.add(each);
    parts = [...parts.filter((each) => !own.includes(each)), together];
  }
  return parts;
}

/** Many parts as pieces of some, in the order of the file.
 * @param {Part[]} parts
 * @returns {Part[]} */
function inPieces(parts) {
  if (parts.length <= MOST) return parts;
  const pieces = [];
  for (let at = 0; at < parts.length; at += PIECE) {
    const piece = new Part("piece", `part ${pieces.length + 1}`);
    for (const each of parts.slice(at, at + PIECE)) piece.add(each);
    pieces.push(piece);
  }
  return inPieces(pieces);
}

/** Number the leaves of a part, and count its nodes.
 * @param {Part} part
 * @param {Part[]} leaves */
export function numbered(part, leaves) {
  part.from = leaves.length;
  if (!part.isGroup) leaves.push(part);
  for (const each of part.parts) numbered(each, leaves);
  part.to = leaves.length;
  part.count ||= part.parts.reduce((sum, { count }) => sum + count, 0);
  part.place = placeOf(part);
}

/** Where the first node of a part is in the file; inputs come before, outputs after all.
 * @param {Part} part
 * @returns {number} */
function placeOf(part) {
  if (part.isGroup) return part.parts.reduce((least, { place }) => Math.min(least, place), Infinity);
  return part.kind === "node" ? part.place : part.kind === "input" ? -1 : Infinity;
}
