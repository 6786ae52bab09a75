// Names on the page that are nodes or values of its graphs become links, and each node knows where it is named.
import { address, element } from "./elements.mjs";
import { liveBoxes } from "./figures.mjs";

const NAMED = /'([^'\n]{1,400})'|[^\s,;()']*[/._:][^\s,;()']*[^\s,;()'.:]/g; // in quotes, or like a path

const FAMILY = /\{([0-9ij]|\w+\|)/; // in the name of several: `layers.{0-17}`, `{key|value}`

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
  const operators = new Set(graphs.flatMap(({ nodes }) => nodes.map(({ op }) => op)));
  const hrefOf = (/** @type {string} */ name, /** @type {Element} */ place) =>
    found(name, place) || (sections.has(name) ? `#${sections.get(name)}` : operators.has(name) || (graphs.length && FAMILY.test(name)) ? searchFor(name) : "");
  for (const code of page.querySelectorAll("td code")) {
    const name = code.textContent ?? "";
    const href = hrefOf(name, code);
    if (href) code.replaceChildren(element("a", { href }, name));
  }
  for (const line of page.querySelectorAll("p, .lines li, td:not(:has(code))")) linkNamed(line, hrefOf);
  for (const picture of /** @type {NodeListOf<SVGElement>} */ (page.querySelectorAll("svg:has([data-module], [data-node-number])"))) {
    linkPicture(picture, graphs);
  }
  linkVerdict(page);
  linkOrigins(page, graphs);
  for (const cell of page.querySelectorAll("td:first-child")) {
    const op = cell.textContent ?? "";
    if (operators.has(op) && !cell.querySelector("a")) cell.replaceChildren(element("a", { href: searchFor(op) }, op));
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

/** Link what a line of the verdict is about: its kind of finding to what to do about it, its section to that.
 * @param {ParentNode} page */
function linkVerdict(page) {
  const pages = [...page.querySelectorAll("#explanations details")].map((each) => [each.querySelector("summary")?.textContent ?? "", each.id]);
  for (const line of page.querySelectorAll("#top .lines li")) {
    const [first, last] = [line.firstChild, line.lastChild];
    const section = last instanceof Text ? /\(([a-z0-9-]+)\)$/.exec(last.data) : null;
    if (last instanceof Text && section !== null && document.getElementById(section[1])) {
      last.splitText(section.index).replaceWith("(", element("a", { href: `#${section[1]}` }, section[1]), ")");
    }
    const [says, id] = pages.find(([text]) => first instanceof Text && first.data.startsWith(text)) ?? ["", ""];
    if (!(first instanceof Text) || !id) continue;
    first.data = first.data.slice(says.length);
    first.before(element("a", { href: `#${id}` }, says));
  }
}

/** Link the counts of shape origins to a list of their nodes.
 * @param {ParentNode} page
 * @param {import("./graph.mjs").Graph[]} graphs */
function linkOrigins(page, graphs) {
  const at = graphs.length === 1 ? graphs[0].marks.findIndex(({ name }) => name === "Shape origins") : -1;
  for (const row of at < 0 ? [] : /** @type {NodeListOf<HTMLTableRowElement>} */ (page.querySelectorAll("#origins tbody tr"))) {
    const [number, count] = row.cells;
    const kind = graphs[0].marks[at].kinds.findIndex(({ meaning }) => meaning.startsWith(`${number.textContent}: `));
    if (kind >= 0) count.replaceChildren(element("a", { href: `#marks=${at}.${kind}` }, count.textContent ?? ""));
  }
}

function linkNamed(line, found) {
  for (const child of [...line.childNodes]) {
    if (child.nodeType !== Node.TEXT_NODE) continue;
    const text = child.textContent ?? "";
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(NAMED)) {
      const [name, begin] = match[1] ? [match[1], match.index + 1] : [match[0], match.index];
      const href = found(name, line);
      if (!href) continue;
      parts.push(text.slice(end, begin), element("a", { href }, name));
      end = begin + name.length;
    }
    if (parts.length) child.replaceWith(...parts, text.slice(end));
  }
}
