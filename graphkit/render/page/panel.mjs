// The panel of a node: its operator, what it reads and gives, where its shape comes from, where the report names it.
import { address, element } from "./elements.mjs";
import { neighbourhood } from "./neighbourhood.mjs";
import { besideOthers } from "./pair.mjs";
import { moving, sized } from "./sizes.mjs";

const STEPS = 40; // of a chain that are shown
const READERS = 12;
const VALUES = 6; // read or given, that are shown at once
const MEASURES = /** @type {const} */ ([["MACs", ""], ["Operations", ""], ["Bytes moved", "B"]]);

/** @param {import("./graph.mjs").Graph[]} graphs
 * @param {number} model
 * @param {number} number
 * @param {Element[]} places that name the node
 * @returns {Node[]} */
export function nodePanel(graphs, model, number, places) {
  const graph = graphs[model];
  const node = graph.nodes[number];
  const path = graph.path(number);
  const facts = [["Operator", node.op], ["Module", node.module], ...node.attributes];
  const parts = [
    element("h2", {}, path),
    element("p", {}, element("a", { href: address(model, path, "show") }, "Show it in the drawing")),
    element("dl", {}, ...facts.filter(([, value]) => value).flatMap(([name, value]) =>
      [element("dt", {}, name), element("dd", {}, element("code", {}, value))]), ...costs(graph, number)),
    ...besideOthers(graphs, model, number),
    element("h3", {}, "Reads"), list(graph, model, node.inputs, "from"),
    element("h3", {}, "Gives"), list(graph, model, node.outputs, "to"),
  ];
  if (places.length) parts.push(element("h3", {}, "In this report"), element("ul", {}, ...places.map(mention)));
  parts.push(element("h3", {}, "Around it"), neighbourhood(graph, model, number));
  const reasons = node.outputs.filter((output) => output >= 0).flatMap((value) => why(graph, model, value));
  parts.push(...reasons.slice(0, VALUES));
  if (reasons.length > VALUES) {
    const title = element("summary", {}, `Why the shapes of ${reasons.length - VALUES} more`);
    parts.push(element("details", {}, title, ...reasons.slice(VALUES)));
  }
  return parts;
}

/** The costs of a node that has any, those of all of its runs together.
 * @param {import("./graph.mjs").Graph} graph
 * @param {number} number */
function costs(graph, number) {
  return (graph.costs.get(number) ?? []).flatMap((cell, at) => {
    if (cell === null || cell[1] === "0") return [];
    const [[formula, value], [name, unit]] = [cell, MEASURES[at]];
    const shown = [moving(sized(BigInt(value), unit), formula, value, unit)];
    if (formula && formula !== value) shown.push(element("br"), element("code", {}, formula));
    return [element("dt", {}, name), element("dd", {}, ...shown)];
  });
}

/** A type, with its dims at the sizes where it has symbolic ones.
 * @param {import("./graph.mjs").GraphValue} value */
function typed({ type, dims }) {
  if (dims === null) return [type];
  const first = `= [${dims.map((dim) => dim ?? "?").join(", ")}]`;
  return [type, " ", moving(first, type.slice(type.indexOf("[")), dims.map((dim) => dim ?? "").join(), "dims")];
}

/** The panel of an input or a weight, which no node gives.
 * @param {import("./graph.mjs").Graph} graph
 * @param {number} model
 * @param {number} number
 * @param {Element[]} places */
export function valuePanel(graph, model, number, places) {
  const value = graph.values[number];
  const facts = [["Kind", value.kind], ["Type", ...typed(value)], ["Bytes", value.bytes ? value.bytes.toLocaleString("en") : ""],
    ["Value", value.elements]];
  const readers = value.consumers.slice(0, 200).map((node) => element("li", {}, link(graph, model, node)));
  return [
    element("h2", {}, graph.valuePath(number)),
    element("dl", {}, ...facts.filter(([, text]) => text).flatMap(([name, ...parts]) =>
      [element("dt", {}, String(name)), element("dd", {}, element("code", {}, ...parts))])),
    element("h3", {}, `Read by ${value.consumers.length.toLocaleString("en")}`), element("ul", {}, ...readers),
    ...(places.length ? [element("h3", {}, "In this report"), element("ul", {}, ...places.map(mention))] : []),
  ];
}

function list(graph, model, values, direction) {
  const rows = values.filter((value) => value >= 0).map((number) => {
    const value = graph.values[number];
    const others = direction === "from" ? [value.producer].filter((node) => node >= 0) : value.consumers;
    const shown = others.slice(0, READERS).flatMap((node, at) => [at ? ", " : " ", link(graph, model, node)]);
    const more = others.length > READERS ? [` and ${others.length - READERS} more`] : [];
    const bytes = value.elements ? ` = ${value.elements}` : value.bytes ? `, ${value.bytes.toLocaleString("en")} bytes` : "";
    const name = element("a", { href: address(model, graph.valuePath(number), "value") }, value.name);
    const what = `${bytes}${value.kind === "node" ? "" : `, ${value.kind}`}`;
    return element("li", {}, element("code", {}, name), element("br"), ...typed(value), what,
      ...(value.unknown ? [element("br"), element("em", {}, value.unknown)] : []),
      ...(others.length ? [element("br"), `${direction}`, ...shown, ...more] : []));
  });
  const first = element("ul", { class: "values" }, ...(rows.length ? rows.slice(0, VALUES) : [element("li", {}, "nothing")]));
  if (rows.length <= VALUES) return first;
  const others = element("details", {}, element("summary", {}, `${rows.length - VALUES} more`),
    element("ul", { class: "values" }, ...rows.slice(VALUES)));
  return element("div", {}, first, others);
}

function link(graph, model, node) {
  const path = graph.path(node);
  return element("a", { href: address(model, path), title: path }, `${graph.nodes[node].op} ${graph.nodes[node].label}`);
}

function why(graph, model, value) {
  const chain = graph.chain(value);
  if (!chain.length) return [];
  const rows = chain.slice(0, STEPS).map((number) => {
    const { type, elements, producer } = graph.values[number];
    const how = producer >= 0 ? graph.nodes[producer].op : graph.values[number].kind;
    const name = element("a", { href: address(model, graph.valuePath(number), "value") }, graph.values[number].name);
    return element("tr", {}, element("td", {}, how), element("td", {}, element("code", {}, name)),
      element("td", {}, element("code", {}, elements ? `${type} = ${elements}` : type)));
  });
  const cut = chain.length > STEPS ? `the nearest ${STEPS} of ${chain.length} steps` : chain.length > 1 ? `${chain.length} steps` : "1 step";
  return [element("details", {}, element("summary", {}, `Why ${graph.values[value].type}: ${cut}`),
    element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, ...rows))))];
}

function mention(place) {
  const section = place.closest("section");
  const title = section?.querySelector("h2")?.textContent ?? "Verdict";
  const cells = place instanceof HTMLTableRowElement ? [...place.cells] : [place];
  const texts = cells.map((cell) => (cell.textContent ?? "").trim().replace(/\s+/g, " "));
  const words = texts.filter(Boolean).join(" · ");
  const link = element("a", { href: "#", class: "mention" }, title);
  link.addEventListener("click", (event) => {
    event.preventDefault();
    for (let around = place.closest("details"); around; around = around.parentElement?.closest("details") ?? null) {
      around.open = true;
    }
    place.scrollIntoView({ block: "center" });
    place.classList.add("found");
    setTimeout(() => place.classList.remove("found"), 2000);
  });
  return element("li", {}, link, ": ", words.length > 160 ? `${words.slice(0, 160)}…` : words);
}
