// A node of a model beside what it is in those that it was made of, or that were made of it.
import { address, element } from "./elements.mjs";
import { neighbourhood } from "./neighbourhood.mjs";

/** The other models in the panel of a node: the node there, how it differs, and what is around it.
 * @param {import("./graph.mjs").Graph[]} graphs
 * @param {number} model
 * @param {number} number
 * @returns {Node[]} */
export function besideOthers(graphs, model, number) {
  const twins = [...(graphs[model].twins ?? [])];
  const found = twins.filter(([, nodes]) => nodes.has(number));
  if (found.length) return found.flatMap(([other, nodes]) => beside(graphs, model, number, other, Number(nodes.get(number))));
  if (!twins.length) return [];
  const names = twins.map(([other]) => graphs[other].model).join(" or ");
  return [element("p", { class: "alone" }, `This node is in ${graphs[model].model} alone: no node of ${names} matches it.`)];
}

/** @param {import("./graph.mjs").Graph[]} graphs
 * @param {number} model
 * @param {number} number
 * @param {number} other
 * @param {number} twin */
function beside(graphs, model, number, other, twin) {
  const [here, there] = [graphs[model], graphs[other]];
  const path = there.path(twin);
  const link = element("a", { href: address(other, path), class: "twin" }, `${there.nodes[twin].op} ${there.nodes[twin].label}`);
  const rows = differences(here, number, there, twin).map(([what, one, two]) =>
    element("tr", {}, element("td", {}, what), element("td", {}, element("code", {}, one)), element("td", {}, element("code", {}, two))));
  const shown = rows.length
    ? element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...["", here.model, there.model]
      .map((name) => element("th", {}, name)))), element("tbody", {}, ...rows)))
    : element("p", {}, "Operator, attributes and shapes are the same.");
  return [element("h3", {}, `In ${there.model}: `, link), shown,
    element("details", {}, element("summary", {}, `Around it in ${there.model}`), neighbourhood(there, other, twin))];
}

/** What differs between two nodes: operator, attributes, numbers of inputs and outputs, and types.
 * @param {import("./graph.mjs").Graph} here
 * @param {number} one
 * @param {import("./graph.mjs").Graph} there
 * @param {number} two
 * @returns {[string, string, string][]} */
export function differences(here, one, there, two) {
  const [left, right] = [facts(here, one), facts(there, two)];
  return [...new Set([...left.keys(), ...right.keys()])]
    .map((what) => /** @type {[string, string, string]} */ ([what, left.get(what) ?? "", right.get(what) ?? ""]))
    .filter(([, before, after]) => before !== after);
}

/** @param {import("./graph.mjs").Graph} graph
 * @param {number} number */
function facts(graph, number) {
  const node = graph.nodes[number];
  const types = (/** @type {number[]} */ values, /** @type {string} */ what) => values.map((value, at) =>
    /** @type {[string, string]} */ ([`${what} ${at}`, value < 0 ? "" : graph.values[value].type]));
  return new Map([["Operator", node.op], ...node.attributes, ...types(node.inputs, "Input"), ...types(node.outputs, "Output")]);
}
