// Tables that sort by a click on a heading, and that filter where they are long.
import { element } from "./elements.mjs";

const LONG = 12; // rows from which a table has a filter

/** @param {ParentNode} page */
export function liveTables(page) {
  for (const table of page.querySelectorAll(".scroll table")) {
    const body = /** @type {HTMLTableElement} */ (table).tBodies[0];
    if (body === undefined || body.rows.length < 2) continue;
    const order = [...body.rows];
    table.querySelectorAll("thead th").forEach((heading, column) => sortable(heading, column, body, order));
    if (order.length >= LONG) table.parentElement?.before(filter(order));
  }
}

function sortable(heading, column, body, order) {
  const button = element("button", { type: "button" }, ...heading.childNodes);
  heading.replaceChildren(button);
  button.addEventListener("click", () => {
    const now = heading.getAttribute("aria-sort");
    const isNumber = heading.classList.contains("number");
    const next = now === null ? (isNumber ? "descending" : "ascending") : other(now, isNumber);
    for (const one of heading.parentElement.children) one.removeAttribute("aria-sort");
    if (next === null) body.append(...order);
    else {
      heading.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      body.append(...[...order].sort((a, b) => sign * compared(text(a, column), text(b, column), isNumber)));
    }
  });
}

function other(now, isNumber) {
  const [first, second] = isNumber ? ["descending", "ascending"] : ["ascending", "descending"];
  return now === first ? second : null;
}

function text(row, column) {
  return row.cells[column]?.textContent ?? "";
}

/** The number that a cell shows: `5.5 G`, `>= 12 B`, `1.2 MB`; a B after a fraction is a billion.
 * @param {string} cell */
function number(cell) {
  const found = /^(?:>= )?(-?[\d,]+(\.\d+)?)\s*([kMGT]|B(?![a-z]))?/.exec(cell);
  if (found === null) return -Infinity;
  const power = found[3] === "B" && !found[2] ? 0 : ["", "k", "M", "GB", "T"].findIndex((unit) => unit.includes(found[3] ?? ""));
  return Number(found[1].replaceAll(",", "")) * 1000 ** power;
}

function compared(a, b, isNumber) {
  if (!isNumber) return a.localeCompare(b, undefined, { numeric: true });
  const [x, y] = [number(a), number(b)];
  return x === y ? 0 : x - y;
}

function filter(rows) {
  const count = element("span", { class: "count" });
  const field = element("input", { type: "search", placeholder: `Filter ${rows.length.toLocaleString("en")} rows`,
    "aria-label": "Filter the rows of this table" });
  field.addEventListener("input", () => {
    const wanted = /** @type {HTMLInputElement} */ (field).value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      if (!row.hidden) shown += 1;
    }
    count.textContent = wanted ? `${shown.toLocaleString("en")} shown` : "";
  });
  return element("div", { class: "filter" }, field, count);
}
