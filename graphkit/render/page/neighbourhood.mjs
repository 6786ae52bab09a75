// A drawing of the nodes around one: two steps each way, bodies inside a frame, like nodes of a row as one.
import { address, cut, drawn, element } from "./elements.mjs";
import { keyOf, kindOf, kindsOf } from "./kinds.mjs";

const STEPS = 2;
const MOST = 6; // nodes of a row that are drawn one by one
const CHARACTER = 6.6;
const LABEL = 26; // characters
const SHAPE = 34; // characters of the shape below a box
const HEIGHT = 46;
const LINE = 13;
const ROW = 92;
const GAP = 14;
const SMALLEST = 0.8; // of its size, before it scrolls

/** A constant has no box: it is a word in the box of the node that reads it.
 * @param {import("./graph.mjs").Graph} graph
 * @param {number} node */
function isConstant(graph, node) {
  return graph.nodes[node].op === "Constant";
}

/** Boxes by row: nodes, and groups of nodes of one operator where a row has many.
 * @param {import("./graph.mjs").Graph} graph
 * @param {number} centre */
export function boxesAround(graph, centre) {
  const rowOf = new Map([[centre, 0]]);
  /** @type {[number, (node: number) => number[]][]} */
  const directions = [[-1, (node) => graph.before(node)], [1, (node) => graph.after(node)]];
  for (const [direction, next] of directions) {
    let edge = [centre];
    for (let step = 1; step <= STEPS; step += 1) {
      edge = edge.flatMap(next).filter((node) => (rowOf.get(node) ?? direction) * direction > 0 && !isConstant(graph, node));
      for (const node of edge) rowOf.set(node, step * direction); // the longer way, so that edges go down
    }
  }
  const rows = new Map();
  for (const [node, row] of rowOf) rows.set(row, [...(rows.get(row) ?? []), node]);
  const boxes = [];
  for (const [row, nodes] of [...rows].sort((a, b) => a[0] - b[0])) {
    const kinds = new Map();
    for (const node of nodes) {
      const key = nodes.length > MOST ? `${graph.nodes[node].op} ${graph.nodes[node].scope}` : String(node);
      kinds.set(key, [...(kinds.get(key) ?? []), node]);
    }
    for (const members of kinds.values()) boxes.push({ row, nodes: members, scope: graph.nodes[members[0]].scope });
  }
  return boxes;
}

/** The drawing, and the key to its colours.
 * @param {import("./graph.mjs").Graph} graph
 * @param {number} model
 * @param {number} centre */
export function neighbourhood(graph, model, centre) {
  const boxes = boxesAround(graph, centre).map((box) => ({ ...box, ...words(graph, box.nodes), x: 0, y: 0, width: 0 }));
  const boxOf = new Map(boxes.flatMap((box) => box.nodes.map((node) => [node, box])));
  const home = graph.nodes[centre].scope;
  const first = Math.min(...boxes.map((box) => box.row));
  for (const box of boxes) {
    box.width = Math.max(...[box.op, box.label, box.constants, box.shape].map(({ length }) => length)) * CHARACTER + 18;
    box.y = (box.row - first) * ROW + GAP + 8;
  }
  const total = placed(boxes);
  const height = Math.max(...boxes.map((box) => box.y)) + HEIGHT + GAP + 18;
  const picture = drawn("svg", {
    viewBox: `0 0 ${total} ${height}`, width: total, height, role: "img", class: "neighbourhood",
    "aria-label": `The nodes around ${graph.path(centre)}`,
  });
  picture.style.minWidth = `${SMALLEST * total}px`;
  for (const scope of new Set(boxes.map((box) => box.scope))) {
    if (scope !== home || graph.scopes[scope].path) picture.append(...frame(boxes, scope, graph.scopes[scope].path));
  }
  for (const box of boxes) {
    const ends = new Set(box.nodes.flatMap((node) => graph.after(node)).map((next) => boxOf.get(next)));
    for (const end of ends) if (end !== undefined && end !== box) picture.append(edge(box, end));
  }
  for (const box of boxes) picture.append(drawnBox(graph, model, box, box.nodes.includes(centre)));
  const operators = boxes.map((box) => graph.nodes[box.nodes[0]].op);
  return element("div", {}, element("div", { class: "scroll" }, picture), keyOf(kindsOf(operators)));
}

/** Give each box its x, and return the width of all: graphs that share a row stand beside each other.
 * @param {{row: number, scope: number, width: number, x: number}[]} boxes */
function placed(boxes) {
  const rows = new Map();
  for (const box of boxes) rows.set(box.row, [...(rows.get(box.row) ?? []), box]);
  const widthOf = (inRow) => inRow.reduce((sum, box) => sum + box.width + GAP, GAP);
  const columns = new Map(); // width and x of each graph that shares a row
  for (const inRow of rows.values()) {
    const scopes = [...new Set(inRow.map((box) => box.scope))];
    if (scopes.length > 1) for (const scope of scopes) columns.set(scope, { width: 0, x: 0 });
  }
  for (const [scope, column] of columns) {
    for (const inRow of rows.values()) {
      column.width = Math.max(column.width, widthOf(inRow.filter((box) => box.scope === scope)));
    }
  }
  let beside = 0;
  for (const scope of [...columns.keys()].sort((a, b) => a - b)) {
    const column = /** @type {{width: number, x: number}} */ (columns.get(scope));
    column.x = beside;
    beside += column.width;
  }
  const total = Math.max(beside, ...[...rows.values()].map(widthOf));
  for (const inRow of rows.values()) {
    const parts = new Map();
    for (const box of inRow) parts.set(box.scope, [...(parts.get(box.scope) ?? []), box]);
    for (const [scope, part] of parts) {
      const { x, width } = columns.get(scope) ?? { x: 0, width: total };
      let at = x + (width - widthOf(part)) / 2 + GAP;
      for (const box of part) {
        box.x = at;
        at += box.width + GAP;
      }
    }
  }
  return total;
}

/** What a box says: operator, label, the small constants that it reads, and below it the shape that it gives.
 * @param {import("./graph.mjs").Graph} graph
 * @param {number[]} nodes */
function words(graph, nodes) {
  const { op, label, inputs, outputs } = graph.nodes[nodes[0]];
  if (nodes.length > 1) return { op: `${nodes.length} × ${op}`, label: "", constants: "", shape: "" };
  const constants = inputs.flatMap((value) => (value >= 0 && graph.values[value].elements) || []).join("  ");
  const given = outputs.filter((value) => value >= 0);
  const { type = "" } = graph.values[given[0]] ?? {};
  const more = given.length > 1 ? ` and ${given.length - 1} more` : "";
  return { op, label: cut(label, LABEL, true),
    constants: cut(constants, LABEL), shape: cut(type.replace(/^[^[]*/, ""), SHAPE) + more };
}

function frame(boxes, scope, path) {
  const inside = boxes.filter((box) => box.scope === scope);
  const [left, top] = [Math.min(...inside.map((box) => box.x)) - 6, Math.min(...inside.map((box) => box.y)) - 14];
  const right = Math.max(...inside.map((box) => box.x + box.width)) + 6;
  const bottom = Math.max(...inside.map((box) => box.y)) + HEIGHT + 19;
  const name = drawn("text", { x: left + 4, y: top + 10, class: "framed" }, path.split("/").pop() || "main graph");
  return [drawn("rect", { x: left, y: top, width: right - left, height: bottom - top, rx: 6, class: "frame" }), name];
}

function edge(from, to) {
  const [x0, x1] = [from.x + from.width / 2, to.x + to.width / 2];
  const [y0, y1] = from.y < to.y ? [from.y + HEIGHT + (from.shape ? LINE + 4 : 0), to.y] : [from.y, to.y + HEIGHT];
  const middle = (y0 + y1) / 2;
  return drawn("path", { d: `M${x0} ${y0} C${x0} ${middle} ${x1} ${middle} ${x1} ${y1}` });
}

function drawnBox(graph, model, box, isCentre) {
  const middle = box.x + box.width / 2;
  const kind = kindOf(graph.nodes[box.nodes[0]].op);
  const lines = [["operator", box.op], ["", box.label], ["constants", box.constants]].filter(([, text]) => text);
  const parts = [
    drawn("title", {}, box.nodes.slice(0, 12).map((node) => graph.path(node)).join("\n")),
    drawn("rect", { x: box.x, y: box.y, width: box.width, height: HEIGHT, rx: 4,
      class: isCentre ? `${kind} centre` : kind }),
    ...lines.map(([style, text], at) => drawn("text", { x: middle, class: style,
      y: box.y + HEIGHT / 2 + 4 + LINE * (at - (lines.length - 1) / 2) }, text)),
    drawn("text", { x: middle, y: box.y + HEIGHT + LINE, class: "gives" }, box.shape),
  ];
  return drawn("a", { href: address(model, graph.path(box.nodes[0])) }, ...parts);
}
