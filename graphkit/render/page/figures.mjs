// Charts, which are drawn anew at other sizes, and whose boxes lead to nodes, by a pointer and by keys.
import { columns, line } from "./charts.mjs";
import { address, breakable, drawn, element } from "./elements.mjs";
import { treemap } from "./treemap.mjs";

/** @typedef {import("./graph.mjs").Graph} Graph */

const AT_PEAK = "In memory at the peak"; // what the table of tensors at the peak begins with
const SHOWN = 5; // of these tensors, before the others together

/** Draw the charts of a page as its numbers are at first.
 * @param {ParentNode} page */
export function drawFigures(page) {
  for (const figure of /** @type {NodeListOf<HTMLElement>} */ (page.querySelectorAll("figure[data-chart]"))) {
    const data = JSON.parse(figure.dataset.chart ?? "{}");
    const height = data.kind === "treemap" ? 360 : 220;
    const title = figure.textContent ?? "";
    figure.append(drawn("svg", { class: data.kind === "treemap" ? "treemap" : "chart", viewBox: `0 0 880 ${height}`,
      width: 880, height, role: "img", "aria-label": title }, ...firstDrawing(data)));
  }
}

/** @param {any} data */
function firstDrawing({ kind, parts, points, unit, axis, isLogarithmic }) {
  if (kind === "treemap") return treemap(parts.flatMap(([, value, paths]) => paths.map((path) => [path, value])), unit);
  if (kind === "line") return line(points.map(([name, at, value]) => ({ name, at, value })), unit, axis);
  return columns(points.map(([name, value, node, isMarked]) => ({ name, value, node, isMarked })), unit, axis, isLogarithmic);
}

/** Let the charts of a part of the page move with the sizes of its model.
 * @param {ParentNode} part
 * @param {Graph} graph
 * @param {number} model
 * @returns {() => void} that draws them at the sizes */
export function movingFigures(part, graph, model) {
  const figures = /** @type {HTMLElement[]} */ ([...part.querySelectorAll("figure[data-chart]")]);
  const shows = figures.map((figure) => moving(figure, JSON.parse(figure.dataset.chart ?? "{}"), graph));
  const showPeak = peakTable(part, graph, model);
  const show = () => {
    for (const each of shows) each();
    showPeak();
  };
  show();
  return show;
}

/** @param {HTMLElement} figure
 * @param {any} data
 * @param {Graph} graph */
function moving(figure, data, graph) {
  const picture = /** @type {SVGElement} */ (figure.querySelector("svg"));
  const first = [...picture.childNodes];
  const at = data.kind === "treemap" ? treemapAt(data, graph) : data.here ? lineAt(data, graph) : data.isMemory ? memoryAt(data, graph) : null;
  if (at === null) {
    reachable(picture);
    return () => {};
  }
  return () => {
    const { isMoved, isLeast } = graph.sizes;
    const made = isMoved || data.kind === "line" ? at() : first;
    picture.replaceChildren(...(made ?? first));
    figure.classList.toggle("stays", made === null);
    figure.classList.toggle("least", isMoved && isLeast && data.kind === "treemap");
    reachable(picture);
  };
}

/** The multiply-accumulates of parts, null if an expression is not that of the number which Python has found.
 * @param {{unit: string, parts: [string, number, string[]][]}} data
 * @param {Graph} graph */
function treemapAt({ unit, parts }, { sizes }) {
  const isRight = parts.every(([text, value]) => text && sizes.at(text, sizes.first) === BigInt(value));
  return () => {
    const now = sizes.now();
    const rows = isRight ? parts.map(([text, , paths]) => ({ value: sizes.at(text, now), paths })) : [{ value: null, paths: [] }];
    if (rows.some(({ value }) => value === null)) return null;
    return treemap(rows.flatMap(({ value, paths }) => paths.map((path) => /** @type {[string, number]} */ ([path, Number(value)]))), unit);
  };
}

/** The memory of activations as nodes run.
 * @param {{axis: string}} data
 * @param {Graph} graph */
function memoryAt({ axis }, graph) {
  const { memory, sizes } = graph;
  return () => {
    const found = memory.isRight ? memory.at(sizes.now()) : null;
    const points = found?.moments.map(([node, value]) => ({ name: named(graph, node), value, node })) ?? [];
    return points.some(({ value }) => value) ? columns(points, "B", axis) : null;
  };
}

/** A line with the place on it that follows from the sizes, if that is known.
 * @param {{axis: string, unit: string, points: [string, number, number][], here: [string, string]}} data
 * @param {Graph} graph */
function lineAt({ axis, unit, points, here }, { sizes }) {
  const fixed = points.map(([name, at, value]) => ({ name, at, value }));
  return () => {
    const [at, value] = here.map((text) => sizes.at(text));
    const marked = { name: `${at} ${axis}`, at: Number(at), value: Number(value), isMarked: true };
    return line(at === null || value === null ? fixed : [...fixed, marked], unit, axis);
  };
}

/** Let the table before the chart of memory name the tensors that are there at the peak, others at other sizes.
 * @param {ParentNode} part
 * @param {Graph} graph
 * @param {number} model */
function peakTable(part, graph, model) {
  const { memory, sizes } = graph;
  const caption = [...part.querySelectorAll("caption")].find((each) => each.textContent?.startsWith(AT_PEAK));
  const table = /** @type {HTMLTableElement | null} */ (caption?.parentElement ?? null);
  const rows = [...(table?.tBodies[0]?.rows ?? [])].map((row) => ({ row, first: [...row.cells].map((cell) => [...cell.childNodes]) }));
  const title = caption?.textContent ?? "";
  if (!caption) return () => {};
  return () => {
    const found = sizes.isMoved && memory.isRight ? memory.at(sizes.now()) : null;
    caption.textContent = found ? `${AT_PEAK}, when ${graph.path(found.node)} runs` : title;
    const tensors = [...(found?.alive ?? [])].filter(([, bytes]) => bytes).sort(([, a], [, b]) => b - a);
    rows.forEach(({ row, first }, at) => {
      const rest = tensors.slice(at);
      row.hidden = found !== null && !rest.length;
      if (found === null) first.forEach((nodes, column) => row.cells[column].replaceChildren(...nodes));
      if (!rest.length) return;
      const isRest = at === SHOWN || (at === rows.length - 1 && rest.length > 1);
      const [name, href] = [graph.values[rest[0][0]].name, address(model, graph.valuePath(rest[0][0]), "value")];
      const size = isRest ? rest.reduce((sum, [, each]) => sum + each, 0) : rest[0][1];
      row.cells[0].replaceChildren(element("code", {}, isRest ? `${rest.length.toLocaleString("en")} more` : element("a", { href }, name)));
      breakable(row.cells[0]);
      row.cells[1].replaceChildren(size.toLocaleString("en"));
    });
  };
}

/** @param {Graph} graph
 * @param {number} node */
function named(graph, node) {
  return `${graph.nodes[node].op} ${graph.path(node)}`;
}

const BOXES = "[data-module], [data-node-number]";
const MOVES = new Map([["ArrowLeft", -1], ["ArrowUp", -1], ["ArrowRight", 1], ["ArrowDown", 1],
  ["Home", -Infinity], ["End", Infinity]]);

/** Let the boxes of a chart lead somewhere: a click does, and Enter on the one that arrow keys have chosen.
 * @param {SVGElement} picture
 * @param {(box: Element) => void} lead */
export function liveBoxes(picture, lead) {
  picture.addEventListener("click", (event) => {
    const box = event.target instanceof Element ? event.target.closest(BOXES) : null;
    if (box !== null) lead(box);
  });
  picture.addEventListener("keydown", (event) => {
    const boxes = /** @type {SVGElement[]} */ ([...picture.querySelectorAll(BOXES)]);
    const at = boxes.findIndex((box) => box === document.activeElement);
    const move = MOVES.get(event.key);
    if (at < 0 || (move === undefined && event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    if (move === undefined) lead(boxes[at]);
    else {
      const next = boxes[Math.min(Math.max(at + move, 0), boxes.length - 1)];
      boxes[at].setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    }
  });
  reachable(picture);
}

/** Give the boxes of a chart their names; one of them is a stop of the Tab key.
 * @param {SVGElement} picture */
function reachable(picture) {
  const boxes = picture.querySelectorAll(BOXES);
  if (!boxes.length) return;
  picture.setAttribute("role", "group");
  boxes.forEach((box, number) => {
    box.setAttribute("role", "link");
    box.setAttribute("tabindex", number ? "-1" : "0");
    box.setAttribute("aria-label", box.querySelector("title")?.textContent ?? "");
    box.classList.add("part");
  });
}
