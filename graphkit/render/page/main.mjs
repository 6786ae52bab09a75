// What runs when the page opens: names become links, tables sort, the search finds, an address opens a panel.
import { address, breakable, copyable, element } from "./elements.mjs";
import { addDrawings } from "./drawings.mjs";
import { drawFigures, movingFigures } from "./figures.mjs";
import { Graph } from "./graph.mjs";
import { linkNames } from "./links.mjs";
import { nodePanel, valuePanel } from "./panel.mjs";
import { showAt, Sizes, sliders } from "./sizes.mjs";
import { liveTables } from "./tables.mjs";

const SHOWN = 500; // results of a search at once
const page = /** @type {HTMLElement} */ (document.querySelector("main"));
const panel = /** @type {HTMLElement} */ (document.getElementById("panel"));
const field = /** @type {HTMLInputElement | null} */ (document.getElementById("search"));
const graphs = [...document.querySelectorAll("script.graph")].map((data) => new Graph(JSON.parse(data.textContent ?? "")));
const isRewrite = graphs.some(({ twins }) => twins !== null);
drawFigures(page);
const places = linkNames(page, graphs);
let shownModel = 0; // whose node or value the panel shows
let cameFrom = /** @type {Element | null} */ (null); // what had the focus before the panel

liveTables(page);
copyable(page);
breakable(page);
document.documentElement.classList.add("live"); // the drawing has its width from here on
const section = document.querySelector("#drawing details");
const drawings = section === null ? null : addDrawings(section, graphs);
if (isRewrite) addSharedSliders();
else graphs.forEach((graph, model) => addSliders(graph, model));
window.addEventListener("hashchange", () => {
  open();
  if (!panel.hidden && document.activeElement !== field) enter();
});
window.addEventListener("keydown", (event) => {
  if (event.key === "Escape") close();
  else if (event.key === "/" && field !== null && !(event.target instanceof HTMLInputElement)) {
    event.preventDefault();
    field.focus();
  }
});
window.addEventListener("beforeprint", () => {
  for (const section of document.querySelectorAll("details")) section.open = true;
});
field?.addEventListener("input", () => search(field.value));
field?.addEventListener("keydown", (event) => {
  if (event.key === "Enter") /** @type {HTMLElement | null} */ (panel.querySelector("a"))?.click();
});
document.getElementById("close")?.addEventListener("click", close);
open();

/** Add the sliders of a model: beside the contents, or above the part of the page that is about it.
 * @param {Graph} graph
 * @param {number} model */
function addSliders(graph, model) {
  const part = partOf(graph);
  const showFigures = part === null ? () => {} : movingFigures(part, graph, model);
  const form = sliders(graph.sizes, () => {
    showFigures();
    if (part !== null) showAt(part, graph.sizes, model);
    if (shownModel === model) showAt(panel, graph.sizes, model);
    drawings?.resize();
  });
  if (form === null) return;
  if (graphs.length === 1) document.querySelector(".contents")?.prepend(form);
  else part?.querySelector("summary")?.after(form);
}

/** Add the sliders of a page of rewrites, which move all of its models. */
function addSharedSliders() {
  Sizes.share(graphs.map(({ sizes }) => sizes));
  const form = sliders(graphs[0].sizes, () => {
    showAt(page, graphs[0].sizes, 0);
    graphs.forEach(({ sizes }, model) => showAt(new DocumentFragment(), sizes, model));
    showAt(panel, graphs[shownModel].sizes, shownModel);
    drawings?.resize();
  });
  if (form !== null) document.querySelector(".contents")?.prepend(form);
}

/** The part of the page that is about a model, null if several are.
 * @param {Graph} graph */
function partOf(graph) {
  if (graphs.length === 1) return page;
  const sections = [...page.querySelectorAll("section")].filter((each) => each.querySelector("h2")?.textContent === graph.model);
  return sections.length === 1 ? sections[0] : null;
}

/** Show the panel that the address names. */
function open() {
  const asked = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
  const model = Number(asked.get("model") ?? 0);
  const name = asked.get("node") ?? asked.get("value");
  const drawnNode = graphs[model]?.nodeOf(asked.get("show") ?? "") ?? -1;
  const graph = graphs[model];
  if (asked.has("search") && field !== null) {
    field.value = asked.get("search") ?? "";
    search(field.value);
  } else if (name !== null && graph !== undefined) {
    const value = graph.names.get(name)?.value ?? -1;
    const node = asked.has("value") && value >= 0 ? graph.values[value].producer : graph.nodeOf(name);
    const named = places.get(node >= 0 ? address(model, graph.path(node)) : address(model, name, "value")) ?? [];
    shownModel = model;
    if (node >= 0) show(nodePanel(graphs, model, node, named));
    else if (value >= 0) show(valuePanel(graph, model, value, named));
    else show([element("h2", {}, name), element("p", {}, "There is no node or value of this name in the model.")]);
  } else if (asked.has("marks") && graph !== undefined) listMarked(graph, model, asked.get("marks") ?? "");
  else if (location.hash) { // the address of a section
    hide();
    const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (place instanceof HTMLDetailsElement) place.open = true;
  }
  if (drawnNode >= 0) drawings?.show(model, drawnNode);
}

/** List the nodes that something is said of.
 * @param {Graph} graph
 * @param {number} model
 * @param {string} place of it among the marks */
function listMarked(graph, model, place) {
  const [at, kind] = place.split(".").map(Number);
  const found = graph.marks[at]?.kinds[kind];
  if (found === undefined) return;
  const rows = [...found.nodes.keys()].map((node) => result(graph, model, { node }));
  show([element("h2", {}, found.meaning), element("ul", { class: "results" }, ...rows)]);
}

/** @param {string} text */
function search(text) {
  const wanted = text.trim();
  if (!wanted) {
    hide();
    return;
  }
  const parts = graphs.flatMap((graph, model) => {
    const found = graph.search(wanted);
    const where = graphs.length > 1 ? ` in ${graph.model}` : "";
    const title = `${found.length.toLocaleString("en")} ${found.length === 1 ? "match" : "matches"}${where}`;
    const list = element("ul", { class: "results" }, ...found.slice(0, SHOWN).map((each) => result(graph, model, each)));
    if (found.length <= SHOWN) return [element("h2", {}, title), list];
    const more = element("button", { type: "button" }, `Show all ${found.length.toLocaleString("en")}`);
    more.addEventListener("click", () => {
      list.append(...found.slice(SHOWN).map((each) => result(graph, model, each)));
      more.remove();
    });
    return [element("h2", {}, title), list, more];
  });
  show(parts);
}

/** @param {Graph} graph
 * @param {number} model
 * @param {{node?: number, value?: number}} found */
function result(graph, model, { node, value = -1 }) {
  const [name, href, kind] = node !== undefined
    ? [graph.path(node), address(model, graph.path(node)), graph.nodes[node].op]
    : [graph.valuePath(value), address(model, graph.valuePath(value), "value"), `${graph.values[value].kind} ${graph.values[value].type}`];
  return element("li", {}, element("a", { href }, name), " ", element("span", {}, kind));
}

/** @param {Node[]} parts */
function show(parts) {
  panel.querySelector(".body")?.replaceChildren(...parts);
  breakable(panel);
  if (graphs[shownModel]?.sizes.isMoved) showAt(panel, graphs[shownModel].sizes, shownModel);
  panel.hidden = false;
  panel.scrollTop = 0;
  for (const picture of panel.querySelectorAll(".scroll:has(.neighbourhood)")) {
    picture.scrollLeft = (picture.scrollWidth - picture.clientWidth) / 2;
  }
}

/** Give the panel the focus, so that Tab goes on in it. */
function enter() {
  if (!panel.contains(document.activeElement)) cameFrom = document.activeElement;
  panel.focus({ preventScroll: true });
}

function hide() {
  panel.hidden = true;
}

function close() {
  const had = panel.contains(document.activeElement);
  hide();
  if (had && (cameFrom instanceof HTMLElement || cameFrom instanceof SVGElement)) cameFrom.focus({ preventScroll: true });
  history.replaceState(null, "", location.pathname + location.search);
}
