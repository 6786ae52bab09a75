// A drawing of the nodes around one: two steps each way, those in bodies in theirs, like nodes of a row as one.
import { Drawing } from "./drawing.mjs";
import { element } from "./elements.mjs";
import { keyOf, kindOf, kindsOf } from "./kinds.mjs";
import { Levels } from "./levels.mjs";
import { numbered, Part } from "./modules.mjs";

const STEPS = 2;
const MOST = 6; // nodes of a row that are drawn one by one
const SMALLEST = 0.8; // of its size, before it scrolls

/** The nodes around one, those of one operator in a row together where a row has many.
 * @param {import("./graph.mjs").Graph} graph
 * @param {number} centre
 * @returns {number[][]} */
function nodesAround(graph, centre) {
  const rowOf = new Map([[centre, 0]]);
  /** @type {[number, (node: number) => number[]][]} */
  const directions = [[-1, (node) => graph.before(node)], [1, (node) => graph.after(node)]];
  for (const [direction, next] of directions) {
    let edge = [centre];
    for (let step = 1; step <= STEPS; step += 1) {
      edge = edge.flatMap(next).filter((node) => (rowOf.get(node) ?? direction) * direction > 0 && graph.nodes[node].op !== "Constant");
      for (const node of edge) rowOf.set(node, step * direction); // the longer way
    }
  }
  const rows = new Map();
  for (const [node, row] of rowOf) rows.set(row, [...(rows.get(row) ?? []), node]);
  const groups = new Map();
  for (const [node, row] of rowOf) {
    const { op, scope } = graph.nodes[node];
    const key = rows.get(row).length > MOST && node !== centre ? `${row} ${op} ${scope}` : node;
    groups.set(key, [...(groups.get(key) ?? []), node]);
  }
  return [...groups.values()];
}

/** The drawing, and the key to its colours.
 * @param {import("./graph.mjs").Graph} graph
 * @param {number} model
 * @param {number} centre */
export function neighbourhood(graph, model, centre) {
  const [whole, leafOf] = [new Part("module", ""), new Map()];
  const homes = new Map([[graph.nodes[centre].scope, whole]]);
  for (const nodes of nodesAround(graph, centre)) {
    const { scope, op, label } = graph.nodes[nodes[0]];
    const home = homes.get(scope) ?? whole.add(new Part("body", graph.scopes[scope].path.split("/").pop() || "main graph"));
    homes.set(scope, home);
    const leaf = home.add(new Part("node", nodes.length > 1 ? `${nodes.length} × ${op}` : label, nodes));
    [leaf.place] = nodes;
    for (const node of nodes) leafOf.set(node, leaf);
  }
  /** @type {Part[]} */
  const leaves = [];
  numbered(whole, leaves);
  const drawing = new Drawing(graph, model, new Levels(graph, { whole, leaves, leafOf }));
  for (const home of homes.values()) {
    home.count = 0; // there are more in it than those around
    drawing.open.add(home);
  }
  const operatorOf = (/** @type {Part} */ { nodes: [node] }) => graph.nodes[node].op;
  drawing.paint = (part) => ({ style: part.kind === "node" ? kindOf(operatorOf(part)) + (part.nodes[0] === centre ? " centre" : "") : "", text: "" });
  const picture = drawing.picture();
  picture.classList.add("neighbourhood");
  for (const box of picture.querySelectorAll(".box")) for (const name of ["tabindex", "role", "aria-expanded"]) box.removeAttribute(name);
  picture.setAttribute("aria-label", `The nodes around ${graph.path(centre)}`);
  picture.style.minWidth = `${SMALLEST * Number(picture.getAttribute("width"))}px`;
  return element("div", {}, element("div", { class: "scroll" }, picture), keyOf(kindsOf(leaves.map(operatorOf))));
}
