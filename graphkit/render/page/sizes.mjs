// Sliders for the sizes of the input dims, and the numbers on the page that follow from them.
// A number moves once its expression gives here what Python has found at the first sizes; else it stays, and says so.
import { element, withBreaks } from "./elements.mjs";
import { parserOf } from "./formulas.mjs";

/** @typedef {import("./formulas.mjs").Formula} Formula */

const STEPS = 400; // of a slider
const PEAK = "@peak:"; // before the number of a model: its peak memory, which is no expression

/** The sizes of one model.
 * `graphkit/analysis/page_graph.py` writes what this reads. */
export class Sizes {
  /** @param {any} data */
  constructor(data) {
    /** @type {{name: string, first: number, least: number, most: number, isLimit: boolean}[]} */
    this.symbols = data.symbols.map(([name, first, least, most, isLimit]) => ({ name, first, least, most, isLimit }));
    this.chosen = new Map(this.symbols.map(({ name, first }) => [name, first]));
    /** @type {[string, number][]} */
    this.fixed = Object.entries(data.fixed);
    this.parse = parserOf([...this.chosen.keys(), ...Object.keys(data.fixed), ...Object.keys(data.follows)]);
    /** @type {[string, string][]} */
    this.links = Object.entries(data.links);
    /** @type {[string, Formula][]} */
    this.follows = Object.entries(data.follows).map(([name, text]) => [name, this.parse(text)]);
    /** @type {{text: string, relation: string, node: string}[]} */
    this.requires = data.requires.map(([text, relation, node]) => ({ text, relation, node }));
    this.isLeast = data.is_least;
    /** @type {{peak: (sizes: Map<string, bigint>) => bigint | null}[][]} */
    this.memories = []; // the runs of this model, and of others on the page
    /** @type {Map<string, Formula | null>} */
    this.parsed = new Map();
    this.first = this.start();
  }

  /** Let all models of rewrites move together; of a symbol that two have, what the first says counts.
   * @param {Sizes[]} every */
  static share(every) {
    /** @type {Map<string, {name: string, first: number, least: number, most: number, isLimit: boolean}>} */
    const symbols = new Map();
    /** @type {Map<string, [string, Formula]>} */
    const follows = new Map();
    const isKnown = (/** @type {string} */ name) => symbols.has(name) || follows.has(name);
    const others = every.flatMap(({ fixed, links }) => [...fixed, ...links].map(([name]) => name));
    for (const sizes of every) {
      for (const each of sizes.follows) if (!isKnown(each[0])) follows.set(each[0], each);
      for (const symbol of sizes.symbols) if (!isKnown(symbol.name)) symbols.set(symbol.name, symbol);
    }
    const [chosen, parse] = [new Map([...symbols.values()].map(({ name, first }) => [name, first])),
      parserOf([...symbols.keys(), ...follows.keys(), ...others])];
    const [requires, memories] = [every.flatMap((sizes) => sizes.requires), every.flatMap((sizes) => sizes.memories)];
    const isLeast = every.some((sizes) => sizes.isLeast);
    for (const sizes of every) {
      Object.assign(sizes, { symbols: [...symbols.values()], follows: [...follows.values()], chosen, parse, requires, memories, isLeast });
      sizes.parsed.clear();
      sizes.first = sizes.start();
    }
  }

  /** The first sizes, with others.
   * @param {[string, number][]} others */
  start(...others) {
    return this.complete(new Map([...this.symbols.map(({ name, first }) => [name, first]), ...others]
      .map(([name, size]) => [String(name), BigInt(size)])));
  }

  get isMoved() {
    return this.symbols.some(({ name, first }) => this.chosen.get(name) !== first);
  }

  /** All sizes, with those that follow from others.
   * @param {[string, number][]} others than those that are chosen */
  now(...others) {
    return this.complete(new Map([...this.chosen, ...others].map(([name, size]) => [name, BigInt(size)])));
  }

  /** Sizes, with those that are fixed, those that the dims of another model tell, and those that follow from others.
   * @param {Map<string, bigint>} sizes
   * @param {[string, number][]} fixed that are fixed too */
  complete(sizes, fixed = []) {
    const all = new Map(sizes);
    for (const [name, size] of [...this.fixed, ...fixed]) all.set(name, BigInt(size));
    for (const [name, text] of this.links) {
      const size = this.at(text, all);
      if (size !== null) all.set(name, size);
    }
    for (const [name, formula] of this.follows) if (!all.has(name)) all.set(name, formula(all));
    return all;
  }

  /** The value of an expression, or of `@peak:0,1.2`: the larger peak of model 0 and of run 2 of model 1; null if none.
   * @param {string} text
   * @param {Map<string, bigint>} [sizes] */
  at(text, sizes = this.now()) {
    if (text.startsWith(PEAK)) return this.peak(text.slice(PEAK.length).split(","), sizes);
    if (!this.parsed.has(text)) {
      try {
        this.parsed.set(text, this.parse(text));
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error;
        this.parsed.set(text, null);
      }
    }
    try {
      return this.parsed.get(text)?.(sizes) ?? null;
    } catch (error) {
      if (!(error instanceof RangeError)) throw error; // a symbol without a size, a division by 0
      return null;
    }
  }

  /** The largest peak of some runs, null if one is not known.
   * @param {string[]} runs
   * @param {Map<string, bigint>} sizes */
  peak(runs, sizes) {
    const peaks = runs.map((place) => {
      const [model, run = 0] = place.split(".").map(Number);
      return this.memories[model]?.[run]?.peak(sizes) ?? null;
    });
    return peaks.reduce((most, each) => (most === null || each === null ? null : each > most ? each : most));
  }

  /** The first relation that does not hold. */
  broken() {
    const sizes = this.now();
    return this.requires.find(({ text, relation }) => {
      const value = this.at(text, sizes);
      if (value === null) return false;
      return relation === "==" ? value !== 0n : relation === ">=" ? value < 0n : value > 0n;
    });
  }
}

/** A number that moves with the sizes.
 * @param {string} text that is shown at the first sizes
 * @param {string} formula
 * @param {string} value
 * @param {"" | "B" | "dims"} unit */
export function moving(text, formula, value, unit) {
  return element("data", { "data-formula": formula, value, "data-unit": unit }, text);
}

/** The sliders of a model.
 * @param {Sizes} sizes
 * @param {() => void} changed */
export function sliders(sizes, changed) {
  const note = element("p", { class: "broken", role: "status" });
  const told = () => {
    const broken = sizes.broken();
    const where = broken?.node ? `, in ${broken.node}` : "";
    note.textContent = broken ? `The model may not run at these sizes: ${broken.text} ${broken.relation} 0 does not hold${where}.` : "";
    changed();
  };
  const refused = (/** @type {string} */ why) => {
    note.textContent = why;
  };
  const rows = sizes.symbols.filter(({ least, most }) => least < most).map((symbol) => slider(sizes, symbol, told, refused));
  if (!rows.length) return null;
  const reset = element("button", { type: "button", title: "Go back to the first sizes" }, "Reset");
  reset.addEventListener("click", () => {
    for (const row of rows) row.reset();
    told();
  });
  return element("div", { class: "sizes", role: "group", "aria-label": "Sizes of the input dims" }, element("strong", {}, "Sizes"),
    ...rows.map((row) => row.shown), note, reset);
}

function slider(sizes, { name, first, least, most, isLimit }, changed, refused) {
  const bottom = Math.log(Math.max(least, 1));
  const reach = Math.log(most) - bottom;
  const placeOf = (size) => (size < 1 ? 0 : Math.round(((Math.log(size) - bottom) / reach) * (STEPS - 1)) + 1);
  const sizeAt = (place) => (place < 1 ? least : Math.round(Math.exp(bottom + (reach * (place - 1)) / (STEPS - 1))));
  const range = /** @type {HTMLInputElement} */ (element("input", { type: "range", min: 0, max: STEPS, value: placeOf(first),
    "aria-label": name }));
  const field = /** @type {HTMLInputElement} */ (element("input", { type: "number", min: least, step: 1,
    ...(isLimit ? { max: most } : {}), value: first, "aria-label": `${name}, as a number` }));
  const set = (/** @type {number} */ size) => {
    sizes.chosen.set(name, size);
    range.setAttribute("aria-valuetext", size.toLocaleString("en"));
  };
  range.addEventListener("input", () => {
    field.value = String(sizeAt(Number(range.value)));
    set(Number(field.value));
    changed();
  });
  field.addEventListener("input", () => {
    if (!field.checkValidity() || field.value === "") { // the browser shows that it is out of reach
      if (field.validity.rangeOverflow) refused(`${name} is at most ${most.toLocaleString("en")}: its nodes, or a range that was asked for, allow no more.`);
      else if (field.validity.rangeUnderflow) refused(`${name} is at least ${least.toLocaleString("en")}.`);
      else refused(`${name} is a whole number.`);
      return;
    }
    range.value = String(placeOf(Number(field.value)));
    set(Number(field.value));
    changed();
  });
  const reset = () => {
    field.value = String(first);
    range.value = String(placeOf(first));
    set(first);
  };
  return { shown: element("div", {}, element("code", {}, ...withBreaks(name.split(/(?<=[_/.])/))), range, field), reset };
}

/** Show the numbers of a part of the page at the sizes of its model, and those of the model elsewhere.
 * @param {ParentNode} part
 * @param {Sizes} sizes
 * @param {number} model */
export function showAt(part, sizes, model) {
  const now = sizes.now();
  const numbers = /** @type {NodeListOf<HTMLElement>} */ (part.querySelectorAll("data:is([value], [data-unit]):not([data-model])"));
  const elsewhere = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(`data[data-model="${model}"]`));
  for (const place of [...numbers, ...elsewhere]) showNumber(place, sizes, now);
  for (const each of /** @type {NodeListOf<HTMLElement>} */ (part.querySelectorAll("p.sized"))) {
    each.dataset.first ??= each.textContent ?? "";
    const all = sizes.symbols.map(({ name }) => `${name} ${Number(now.get(name)).toLocaleString("en")}`);
    each.textContent = sizes.isMoved ? `At ${all.join(", ")}, as set here.` : each.dataset.first;
  }
}

/** @param {HTMLElement} place
 * @param {Sizes} sizes
 * @param {Map<string, bigint>} now */
function showNumber(place, sizes, now) {
  const first = (place.dataset.first ??= place.textContent ?? "");
  const text = sizes.isMoved ? textAt(place, sizes, now) : first;
  place.textContent = text ?? first;
  place.classList.toggle("stays", text === null);
  if (text === null) place.title = "at the first sizes: there is no expression of it that can be computed here";
  else place.removeAttribute("title");
}

/** The text of a number at other sizes, null if its expression is not known to be right.
 * @param {HTMLElement} place
 * @param {Sizes} sizes
 * @param {Map<string, bigint>} now */
function textAt(place, sizes, now) {
  const { formula = "", unit = "", whole = "", over, first = "" } = place.dataset;
  const value = place.getAttribute("value") ?? "";
  if (unit === "dims") {
    const dims = dimsAt(sizes, formula, value, now);
    return dims && `= [${dims.map((dim) => dim ?? "?").join(", ")}]`;
  }
  const [before, after] = [sizes.at(formula, over ? sizes.start(overOf(over)) : sizes.first),
    sizes.at(formula, over ? sizes.now(overOf(over)) : now)];
  if (!formula || after === null || String(before) !== value) return null;
  if (whole) {
    const of = sizes.at(whole, now);
    if (!of) return null;
    const part = Number(after) / Number(of);
    return unit === "%" ? `${tenths(100 * part)} %` : unit === "ratio" ? part.toFixed(2) : tenths(part);
  }
  return `${first.startsWith(">= ") || sizes.isLeast ? ">= " : ""}${sized(after, unit)}`;
}

/** The symbol of a row of a curve, and its size there.
 * @param {string} over
 * @returns {[string, number]} */
function overOf(over) {
  const end = over.lastIndexOf(" ");
  return [over.slice(0, end), Number(over.slice(end + 1))];
}

/** The dims of a shape at some sizes, null for one that these do not tell; null where their expressions are not known
 * to be right.
 * @param {Sizes} sizes
 * @param {string} shape
 * @param {string} first those at the first sizes
 * @param {Map<string, bigint>} now */
export function dimsAt(sizes, shape, first, now) {
  const dims = dimsOf(shape);
  const isKnown = dims.map((dim) => String(sizes.at(dim, sizes.first) ?? "")).join() === first;
  return isKnown ? dims.map((dim) => sizes.at(dim, now)) : null;
}

/** The dims in `[batch, min(a, b), 4]`, divided at commas outside of parentheses.
 * @param {string} text */
export function dimsOf(text) {
  const dims = [""];
  let depth = 0;
  for (const character of text.slice(1, -1)) {
    depth += Number(character === "(") - Number(character === ")");
    if (character === "," && !depth) dims.push("");
    else dims[dims.length - 1] += character;
  }
  return dims.map((dim) => dim.trim());
}

/** A number in units of a thousand, a million and so on, as `sized` of `render/document_blocks.py` writes it.
 * @param {bigint} number
 * @param {string} unit */
export function sized(number, unit) {
  if (unit === ",") return number.toLocaleString("en");
  for (const [power, prefix] of /** @type {[number, string][]} */ ([[4, "T"], [3, unit ? "G" : "B"], [2, "M"], [1, "k"]])) {
    if (number >= 1000n ** BigInt(power)) {
      return `${tenths(Number(number) / 1000 ** power)} ${prefix}${unit}`;
    }
  }
  return `${number.toLocaleString("en")}${unit ? ` ${unit}` : ""}`;
}

/** @param {number} number */
function tenths(number) {
  return number.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
}
