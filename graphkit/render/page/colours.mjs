// The colours of a drawing: what each tells of a node, or of all nodes in a part, and the key to them.
import { kindOf, kindsOf } from "./kinds.mjs";
import { differences } from "./pair.mjs";
import { sized } from "./sizes.mjs";

/** @typedef {import("./modules.mjs").Part} Part
 * @typedef {import("./graph.mjs").Graph} Graph
 * @typedef {import("./drawing.mjs").Paint} Paint
 * @typedef {{meaning: string, style: string, nodes: Map<number, string>}} Kind nodes of one colour, with what is said of each
 * @typedef {{name: string, begin: (() => void) | null, key: {style: string, meaning: string}[], paint: (part: Part) => Paint}} Colour
 * `begin` is called before parts are painted where that depends on sizes */

const NONE = { style: "", text: "" };
const SHARES = /** @type {[number, string][]} */ ([[0.2, "heat5"], [0.05, "heat4"], [0.01, "heat3"], [0.002, "heat2"], [0, "heat1"]]);
const WORST = ["fault", "doubt", "fine", "slight"];
const GROUPS = 10; // colours of kinds of which none is worse than another

/** The colours that there are for the graph of a model; what is found in it comes before its costs.
 * @param {Graph[]} graphs
 * @param {number} model
 * @param {Part[]} leaves
 * @returns {Colour[]} */
export function coloursOf(graphs, model, leaves) {
  const graph = graphs[model];
  const operators = [...new Set(graph.nodes.map(({ op }) => op))];
  const kinds = { name: "Operators", begin: null, key: kindsOf(operators),
    paint: (/** @type {Part} */ { kind, nodes }) => (kind === "node" ? { style: kindOf(graph.nodes[nodes[0]].op), text: "" } : NONE) };
  const costs = /** @type {[string, string, number][]} */ ([["Multiply-accumulates", "", 0], ["Operations", "", 1], ["Bytes moved", "B", 2]]);
  const marks = graph.marks.flatMap(({ name, kinds: marked }) => noted(name, leaves, marked));
  const measured = graph.twins ? marks : []; // what a comparison found comes before all else
  return [
    ...measured,
    ...noted("Changes", leaves, changes(graphs, model, leaves)),
    kinds,
    ...(measured.length ? [] : marks),
    ...costs.flatMap(([name, unit, at]) => heat(name, unit, leaves, (node) => costOf(graph, node, at))),
    ...heat("Bytes of weights", "B", leaves, (node) => weightOf(graph, node)),
    ...noted("Shapes", leaves, shapes(graph, leaves)),
  ];
}

/** @param {Graph} graph
 * @param {number} node
 * @param {number} at which measure */
function costOf(graph, node, at) {
  const cell = graph.costs.get(node)?.[at];
  if (!cell) return 0;
  const [formula, first] = cell;
  return Number((graph.sizes.isMoved ? graph.sizes.at(formula) : null) ?? first);
}

/** @param {Graph} graph
 * @param {number} node */
function weightOf(graph, node) {
  return graph.nodes[node].inputs.reduce((sum, value) => sum + (value < 0 ? 0 : graph.values[value].bytes), 0);
}

/** Colours by the share of a part in a whole, at the sizes that are set.
 * @param {string} name
 * @param {string} unit
 * @param {Part[]} leaves
 * @param {(node: number) => number} amount
 * @returns {Colour[]} none where there is nothing of it */
function heat(name, unit, leaves, amount) {
  const amountOf = (/** @type {Part} */ { kind, nodes: [node] }) => (kind === "node" ? amount(node) : 0);
  if (!leaves.some(amountOf)) return [];
  const sums = [0]; // of all leaves before one
  const begin = () => leaves.forEach((leaf, at) => {
    sums[at + 1] = sums[at] + amountOf(leaf);
  });
  const key = [...SHARES].reverse().map(([least, style]) => ({ style, meaning: least ? `${100 * least} % and more` : "less" }));
  return [{ name, begin, key, paint: (part) => {
    const value = sums[part.to] - sums[part.from];
    if (!value) return NONE;
    const share = value / sums[sums.length - 1];
    const [, style] = /** @type {[number, string]} */ (SHARES.find(([least]) => share >= least));
    return { style, text: `${share < 1e-4 ? "< 0.01" : Number((100 * share).toPrecision(2))} % · ${sized(BigInt(Math.round(value)), unit)}` };
  } }];
}

/** Colours by what is said of nodes; a part has the worst that is in it.
 * @param {string} name
 * @param {Part[]} leaves
 * @param {Kind[]} every
 * @returns {Colour[]} none where nothing is said */
function noted(name, leaves, every) {
  const rank = (/** @type {Kind} */ { style }) => (WORST.includes(style) ? WORST.indexOf(style) : WORST.length);
  const kinds = every.filter(({ nodes }) => nodes.size).sort((a, b) => rank(a) - rank(b))
    .map((kind, at) => ({ ...kind, style: kind.style || `group${at % GROUPS}` }));
  if (!kinds.length) return [];
  /** @type {Map<number, Kind>} */
  const kindOfNode = new Map();
  for (const kind of [...kinds].reverse()) for (const node of kind.nodes.keys()) kindOfNode.set(node, kind);
  const paint = (/** @type {Part} */ part) => {
    const inside = leaves.slice(part.from, part.to).flatMap(({ kind, nodes: [node] }) => (kind === "node" && kindOfNode.get(node)) || []);
    if (!inside.length) return NONE;
    const [first, ...others] = kinds.filter((kind) => inside.includes(kind));
    if (part.kind === "node") return { style: first.style, text: first.nodes.get(part.nodes[0]) || first.meaning };
    const isOne = WORST.includes(first.style) || !others.length;
    const counts = [first, ...others].map((kind) =>
      `${inside.filter((each) => each === kind).length.toLocaleString("en")} ${WORST.includes(kind.style) ? "" : "× "}${kind.meaning}`);
    return { style: isOne ? first.style : "several", text: isOne ? counts.join(", ") : `${inside.length.toLocaleString("en")} of ${others.length + 1} kinds` };
  };
  return [{ name, begin: null, key: kinds, paint }];
}

/** Nodes that the other models of a rewrite do not have, or have in another way.
 * @param {Graph[]} graphs
 * @param {number} model
 * @param {Part[]} leaves
 * @returns {Kind[]} */
function changes(graphs, model, leaves) {
  const twins = [...(graphs[model].twins ?? [])];
  if (!twins.length) return [];
  const isFirst = Math.min(...twins.map(([other]) => other)) > model;
  const alone = { meaning: isFirst ? "removed" : "added", style: isFirst ? "fault" : "fine", nodes: new Map() };
  const changed = { meaning: "changed", style: "doubt", nodes: new Map() };
  const shaped = { meaning: "of other shapes", style: "slight", nodes: new Map() };
  for (const { kind, nodes: [node] } of leaves) {
    if (kind !== "node") continue;
    const others = twins.filter(([, nodes]) => nodes.has(node));
    const differing = others.flatMap(([other, nodes]) => differences(graphs[model], node, graphs[other], Number(nodes.get(node))));
    const isShape = (/** @type {[string, string, string]} */ [what]) => /^(Input|Output) \d+$/.test(what);
    const [what, mine, theirs] = differing.find((each) => !isShape(each)) ?? differing[0] ?? [];
    if (!others.length) alone.nodes.set(node, alone.meaning);
    else if (what) (differing.every(isShape) ? shaped : changed).nodes.set(node, `${what}: ${isFirst ? mine : theirs} → ${isFirst ? theirs : mine}`);
  }
  return [alone, changed, shaped];
}

/** Nodes by what is known of the shapes that they give.
 * @param {Graph} graph
 * @param {Part[]} leaves
 * @returns {Kind[]} */
function shapes(graph, leaves) {
  const kinds = [["not known", "fault"], ["expressions", "doubt"], ["numbers", "fine"]].map(([meaning, style]) => ({ meaning, style, nodes: new Map() }));
  for (const { kind, nodes: [node] } of leaves) {
    if (kind !== "node") continue;
    const values = graph.nodes[node].outputs.filter((value) => value >= 0).map((value) => graph.values[value]);
    const at = values.some(({ unknown }) => unknown) ? 0 : values.some(({ dims }) => dims !== null) ? 1 : 2;
    kinds[at].nodes.set(node, values.map(({ type }) => type.replace(/^\S+ /, "")).join());
  }
  return kinds;
}
