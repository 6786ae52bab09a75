// Names on the page that are nodes or values of its graphs become links, and each node knows where it is named.
import { address, element } from "./elements.mjs";
import { liveBoxes } from "./figures.mjs";

const QUOTED = /'([^'\n]{1,400})'/g;

/** Link the names in the cells and lines of the page.
 * @param {ParentNode} page
 * @param {import("./graph.mjs").Graph[]} graphs
 * @returns {Map<string, Element[]>} the places that name each node, by its address */
export function linkNames(page, graphs) {
  /** @type {Map<string, Element[]>} */
  const places = new Map();
  const found = (/** @type {string} */ name, /** @type {Element} */ place) => {
    for (const [model, graph] of graphs.entries()) {
      const node = graph.nodeOf(name);
      const href = node >= 0 ? address(model, graph.path(node)) : graph.names.has(name) ? address(model, name, "value") : "";
      if (!href) continue;
      const row = place.closest("tr, li, p") ?? place;
      const known = places.get(href) ?? [];
      if (!known.includes(row)) places.set(href, [...known, row]);
      return href;
    }
    return "";
  };
  const sections = new Map([...page.querySelectorAll("section")].map((each) => [each.querySelector("h2")?.textContent, each.id]));
  for (const code of page.querySelectorAll("td code")) {
    const name = code.textContent ?? "";
    const href = found(name, code) || (sections.has(name) ? `#${sections.get(name)}` : "");
    if (href) code.replaceChildren(element("a", { href }, name));
    else if (/\{([0-9ij]|\w+\|)/.test(name)) code.replaceChildren(element("a", { href: searchFor(name) }, name));
  }
  for (const line of page.querySelectorAll("p, .lines li, td:not(:has(code))")) linkQuoted(line, found);
  for (const picture of /** @type {NodeListOf<SVGElement>} */ (page.querySelectorAll("svg:has([data-module], [data-node-number])"))) {
    linkPicture(picture, graphs);
  }
  const operators = new Set(graphs.flatMap(({ nodes }) => nodes.map(({ op }) => op)));
  for (const label of page.querySelectorAll(".bars > span")) {
    const op = label.textContent ?? "";
    if (operators.has(op)) label.replaceChildren(element("a", { href: searchFor(op) }, op));
  }
  return places;
}

/** Let the boxes of a chart lead to nodes: those of a treemap to a search for their module, columns to their nodes.
 * @param {SVGElement} picture
 * @param {import("./graph.mjs").Graph[]} graphs */
function linkPicture(picture, graphs) {
  const title = picture.closest("section")?.querySelector("h2")?.textContent;
  const model = graphs.length === 1 ? 0 : graphs.findIndex((graph) => graph.model === title);
  const graph = graphs[model];
  for (const column of graph === undefined ? [] : picture.querySelectorAll("[data-node-number]")) {
    const number = Number(column.getAttribute("data-node-number"));
    const [node, words] = [graph.nodes[number], column.querySelector("title")];
    if (node === undefined || words === null) continue;
    words.textContent = `${node.op} ${graph.path(number)}${(words.textContent ?? "").replace(/^[^:]*/, "")}`;
  }
  liveBoxes(picture, (box) => {
    const [number, module] = [box.getAttribute("data-node-number"), box.getAttribute("data-module")];
    if (module !== null) location.hash = searchFor(module);
    else if (graph?.nodes[Number(number)] !== undefined) location.hash = address(model, graph.path(Number(number)));
  });
}

/** The address of a search for the names of a family, whose numbers may be any.
 * @param {string} family */
function searchFor(family) {
  return `#search=${encodeURIComponent(family.replace(/\{[^}]*\}/g, "*"))}`;
}

function linkQuoted(line, found) {
  for (const child of [...line.childNodes]) {
    if (child.nodeType !== Node.TEXT_NODE) continue;
    const text = child.textContent ?? "";
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(QUOTED)) {
      const href = found(match[1], line);
      if (!href) continue;
      parts.push(text.slice(end, match.index + 1), element("a", { href }, match[1]));
      end = match.index + match[0].length - 1;
    }
    if (parts.length) child.replaceWith(...parts, text.slice(end));
  }
}
