// Names on the page that are nodes or values of its graphs become links, and each node knows where it is named.
import { address, element } from "./elements.mjs";

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
    else if (/\{[0-9ij]/.test(name)) code.replaceChildren(element("a", { href: searchFor(name) }, name));
  }
  for (const line of page.querySelectorAll("p, .lines li, td:not(:has(code))")) linkQuoted(line, found);
  for (const part of page.querySelectorAll("[data-module]")) linkPart(part);
  for (const column of page.querySelectorAll("[data-node-number]")) linkColumn(column, graphs);
  return places;
}

/** Let a part of a treemap search for the nodes of its module.
 * @param {Element} part */
function linkPart(part) {
  part.classList.add("part");
  part.addEventListener("click", () => {
    location.hash = searchFor(part.getAttribute("data-module") ?? "");
  });
}

/** Let a column of a chart name its node, and lead to it.
 * @param {Element} column
 * @param {import("./graph.mjs").Graph[]} graphs */
function linkColumn(column, graphs) {
  const title = column.closest("section")?.querySelector("h2")?.textContent;
  const model = graphs.length === 1 ? 0 : graphs.findIndex((graph) => graph.model === title);
  const number = Number(column.getAttribute("data-node-number"));
  const [words, graph] = [column.querySelector("title"), graphs[model]];
  if (graph?.nodes[number] === undefined || words === null) return;
  const { op } = graph.nodes[number];
  words.textContent = `${op} ${graph.path(number)}${(words.textContent ?? "").replace(/^[^:]*/, "")}`;
  column.classList.add("part");
  column.addEventListener("click", () => {
    location.hash = address(model, graph.path(number));
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
