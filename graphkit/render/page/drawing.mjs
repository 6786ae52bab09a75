// A drawing of a model: its modules as boxes that open, each laid out when it is.
import { address, cut, drawn } from "./elements.mjs";
import { kindOf } from "./kinds.mjs";
import { layered } from "./layered.mjs";
import { Levels } from "./levels.mjs";
import { dimsAt, dimsOf } from "./sizes.mjs";

const [CHARACTER, LINE, PAD, HEAD] = [6.6, 13, 10, 24];
const [LABEL, SHAPE, PORT] = [28, 40, 16]; // characters
const EDGE = 3; // of a layer behind another one
const BEHIND = [2 * EDGE, EDGE]; // layers that are closed, the last one first
const SHORT = /^(?:int64|int32|bool) \[\d{0,2}\]$/; // the type of a shape, or of a number of it

/** @typedef {import("./modules.mjs").Part} Part
 * @typedef {import("./levels.mjs").Level} Level
 * @typedef {{style: string, text: string}} Paint how a part is coloured, and what is said of it
 * @typedef {import("./layered.mjs").Box & {part: Part, words: string[], gives: string, paint: Paint, frame: Frame | null, behind: number}} Shown
 * @typedef {{part: Part, width: number, height: number, boxes: Shown[], level: Level, ends: Map<Part, Shown>[],
 *            ways: {line: import("./levels.mjs").Line, way: [number, number][]}[]}} Frame */

export class Drawing {
  /** @param {import("./graph.mjs").Graph} graph
   * @param {number} model
   * @param {Levels} levels that it shows */
  constructor(graph, model, levels = new Levels(graph)) {
    this.graph = graph;
    this.model = model;
    this.levels = levels;
    this.open = new Set([this.levels.whole]);
    this.hasNumbers = false; // for dims, at the sizes
    /** @type {(part: Part) => Paint} */
    this.paint = (part) => ({ style: part.kind === "node" ? kindOf(graph.nodes[part.nodes[0]].op) : "", text: "" });
    /** Where each box is.
     * @type {Map<Part, {element: SVGElement, x: number, y: number, width: number, height: number}>} */
    this.places = new Map();
  }

  /** Open the largest modules while all that is drawn can be taken in.
   * @param {number} most */
  openFirst(most) {
    const within = (/** @type {Part} */ part) => part.inner.parts.filter(({ kind }) => kind !== "input" && kind !== "output");
    let shown = within(this.levels.whole);
    for (;;) {
      const isModule = (/** @type {Part} */ { kind }) => kind === "module" || kind === "body" || kind === "layers";
      const [largest] = shown.filter((part) => part.isGroup && isModule(part)).sort((a, b) => b.count - a.count);
      if (largest === undefined || shown.length + within(largest).length > most) return;
      this.open.add(largest);
      shown = [...shown.filter((part) => part !== largest), ...within(largest)];
    }
  }

  /** Open what is around a node, an input or an output.
   * @param {Part} leaf */
  show(leaf) {
    for (let part = leaf; part.around !== null; part = part.around) {
      if (part.around.kind === "layers") part.around.chosen = part.around.parts.indexOf(part);
      this.open.add(part.around);
    }
  }

  /** @returns {SVGElement} */
  picture() {
    const frame = this.#frame(this.levels.whole);
    const [width, height] = [Math.ceil(frame.width + 2 * PAD), Math.ceil(frame.height + 2 * PAD)];
    this.places.clear();
    const picture = drawn("svg", { class: "drawing", viewBox: `0 0 ${width} ${height}`, width, height, role: "group",
      "aria-label": `The graph of ${this.graph.model}` });
    this.#draw(frame, picture, PAD, PAD);
    return picture;
  }

  /** An open part, laid out with all that is open in it.
   * @param {Part} part
   * @returns {Frame} */
  #frame(part) {
    const level = this.levels.of(part);
    const isWhole = part === this.levels.whole;
    const inside = new Map(level.parts.map((each) => [each, this.#box(each, level)]));
    const ends = [level.ins, level.outs].map((parts, at) => new Map(parts.map((each) => [each, port(each, at ? "out" : "in")])));
    const [ins, outs] = ends;
    const lines = level.lines.map((line) => {
      const from = /** @type {Shown} */ ((line.isIn ? ins : inside).get(line.from));
      const to = /** @type {Shown} */ ((line.isOut ? outs : inside).get(line.to));
      return { line, from, to, start: middle(from.frame?.ends[1].get(line.to)), end: middle(to.frame?.ends[0].get(line.from)) };
    });
    const boxes = [...inside.values(), ...ins.values(), ...outs.values()];
    const { width, height, ways } = layered(boxes, lines);
    const top = isWhole ? 0 : HEAD;
    const head = isWhole ? 0 : this.#headText(part).length * CHARACTER + 52;
    const wide = Math.max(width, head);
    const left = (isWhole ? 0 : PAD) + (wide - width) / 2;
    for (const box of boxes) Object.assign(box, { x: box.x + left, y: box.y + top });
    const moved = (/** @type {[number, number]} */ [x, y]) => /** @type {[number, number]} */ ([x + left, y + top]);
    return { part, boxes, level, ends, width: wide + (isWhole ? 0 : 2 * PAD), height: height + top + (isWhole ? 18 : PAD),
      ways: lines.map((each) => ({ line: each.line, way: (ways.get(each) ?? []).map(moved) })) };
  }

  /** @param {Part} part
   * @param {Level} level
   * @returns {Shown} */
  #box(part, level) {
    const frame = part.isGroup && this.open.has(part) ? this.#frame(part) : null;
    const paint = this.paint(part);
    const words = this.#words(part);
    if (paint.text) words.push(cut(paint.text, LABEL));
    const given = part.kind === "node" ? part.nodes.flatMap((node) => this.graph.nodes[node].outputs.filter((value) => value >= 0))
      : level.lines.filter(({ from, isIn }) => from === part && !isIn).flatMap((line) => [...line.values]);
    const gives = frame === null ? this.#gives(given) : "";
    const width = frame?.width ?? Math.max(...[...words, part.isGroup ? `${words[0]}  ` : "", gives].map(({ length }) => length)) * CHARACTER + 16;
    const height = frame?.height ?? words.length * LINE + 10;
    const behind = part.kind === "layers" && frame === null ? BEHIND.length * EDGE : 0;
    return { part, words, gives, paint, frame, width: width + behind, height: height + behind, behind, x: 0, y: 0, row: 0, place: part.place };
  }

  /** What a box says.
   * @param {Part} part
   * @returns {string[]} */
  #words(part) {
    const { kind, name, nodes, count } = part;
    if (kind === "node") {
      const { op, inputs } = this.graph.nodes[nodes[0]];
      if (nodes.length > 1) return [name];
      const read = inputs.filter((value) => value >= 0).map((value) => this.graph.values[value]);
      const constants = read.flatMap(({ elements, bytes, type }) => elements || (bytes ? type.replace(/^\S+ /, "") : [])).join("  ");
      return [op, cut(nameBeside(op, name), LABEL, true), cut(constants, LABEL)].filter(Boolean);
    }
    if (!part.isGroup) {
      return [cut(name, LABEL, true), nodes.length > 1 ? `${nodes.length} ${kind}s` : this.#type(part)];
    }
    if (kind === "layers") return [cut(name, LABEL, true), `${part.parts.length} × ${part.inner.count.toLocaleString("en")} nodes`];
    return [cut(name, LABEL, true), `${count.toLocaleString("en")} nodes`];
  }

  /** @param {Part} part */
  #type({ nodes: [end] }) {
    const [nodes, values] = [this.graph.nodes.length, this.graph.values.length];
    const value = this.graph.values[(end - nodes) % values];
    return cut(value.type.replace(/\[.*/s, this.#shape(value)), LABEL);
  }

  /** A shape with the numbers that its dims are at the sizes, as far as they are known.
   * @param {import("./graph.mjs").GraphValue} value */
  #shape({ type, dims }) {
    const shape = type.replace(/^[^[]*/, "");
    if (dims === null || !this.hasNumbers) return shape;
    const { sizes } = this.graph;
    const numbers = sizes.isMoved ? dimsAt(sizes, shape, dims.map((dim) => dim ?? "").join(), sizes.now()) : dims;
    return numbers === null ? shape : `[${dimsOf(shape).map((dim, at) => numbers[at] ?? dim).join(", ")}]`;
  }

  /** The shapes of values that a box gives.
   * @param {number[]} values */
  #gives(values) {
    const texts = [...new Set(values.map((value) => this.#shape(this.graph.values[value])))];
    return texts.length ? cut(texts[0], SHAPE) + (texts.length > 1 ? ` and ${texts.length - 1} more` : "") : "";
  }

  /** @param {Part} part */
  #head(part) {
    const { kind, name, parts, inner, alike, count } = part;
    if (kind !== "layers") return count ? `${name}  ${count.toLocaleString("en")} nodes` : name;
    return `${inner.name}  of ${parts.length}, ${alike === parts.length ? "all" : alike} built alike`;
  }

  /** What the frame of an open part says.
   * @param {Part} part */
  #headText(part) {
    const { text } = this.paint(part);
    return `▾ ${this.#head(part)}${text ? `: ${text}` : ""}`;
  }

  /** @param {Frame} frame
   * @param {SVGElement} onto
   * @param {number} x
   * @param {number} y */
  #draw(frame, onto, x, y) {
    for (const { line, way } of frame.ways) onto.append(this.#line(line, way.map(([a, b]) => [a + x, b + y])));
    for (const box of frame.boxes) this.#drawBox(box, frame, onto, x + box.x, y + box.y);
  }

  /** @param {import("./levels.mjs").Line} line
   * @param {number[][]} way */
  #line({ values }, [[x, y], ...way]) {
    let path = `M${x.toFixed(1)} ${y.toFixed(1)}`;
    for (const [nextX, nextY] of way) {
      const half = (y + nextY) / 2;
      path += Math.abs(nextX - x) < 0.5 ? `V${nextY.toFixed(1)}` : `C${[x, half, nextX, half, nextX, nextY].map((each) => each.toFixed(1)).join(" ")}`;
      [x, y] = [nextX, nextY];
    }
    const told = [...values].map((value) => this.graph.values[value]);
    const text = told.slice(0, 8).map(({ name, type }) => `${name}: ${type}`).join("\n");
    const style = told.every(({ type }) => SHORT.test(type)) ? "line shapes" : "line";
    return drawn("path", { d: path, class: style }, drawn("title", {}, text + (told.length > 8 ? `\nand ${told.length - 8} more` : "")));
  }

  /** @param {Shown} box
   * @param {Frame} around
   * @param {SVGElement} onto
   * @param {number} x
   * @param {number} y */
  #drawBox(box, around, onto, x, y) {
    const { part, words, frame, paint } = box;
    const [width, height] = [box.width - box.behind, box.height - box.behind];
    if (box.end) { // where lines come in or go out
      const { op = "" } = this.graph.nodes[part.kind === "node" ? part.nodes[0] : -1] ?? {};
      const label = cut(op ? `${op} ${nameBeside(op, part.name)}`.trim() : part.name, PORT, true);
      const isUnderHead = box.end === "in" && box.x + width / 2 < this.#headText(around.part).length * CHARACTER + 16; // which stays free
      const [edge, inner] = box.end === "in" ? [isUnderHead ? y : y - box.y, y] : [y - box.y + around.height, y + height];
      onto.append(drawn("path", { d: `M${x + width / 2} ${edge}V${inner}`, class: "line" }),
        drawn("rect", { x, y, width, height, rx: 7, class: "port" }), drawn("text", { x: x + width / 2, y: y + 11, class: "port" }, label));
      return;
    }
    const title = drawn("title", {}, this.#title(part, paint));
    const rect = drawn("rect", { x, y, width, height, rx: part.isGroup ? 6 : 3, class: frame === null ? `${paint.style} ${part.kind}` : "frame" });
    const style = { class: "box", tabindex: -1 };
    const made = part.kind === "node"
      ? drawn("a", { ...style, href: address(this.model, this.graph.path(part.nodes[0])) }, title, rect)
      : part.isGroup
        ? drawn("g", { ...style, role: "button", "aria-expanded": String(frame !== null) }, title, rect)
        : drawn("a", { ...style, href: this.#endAddress(part) }, title, rect);
    onto.append(made);
    this.places.set(part, { element: made, x, y, width, height: frame === null ? height : HEAD });
    if (frame !== null) {
      made.append(drawn("text", { x: x + 8, y: y + 16, class: "head" }, this.#headText(part)));
      if (part.kind === "layers") {
        const turns = /** @type {[string, number, string][]} */ ([["‹", -1, "The layer before ( < )"], ["›", 1, "The next layer ( > )"]]);
        made.append(...turns.map(([text, by, title], at) =>
          drawn("text", { x: x + width - 34 + 20 * at, y: y + 17, class: "turn", "data-turn": by }, drawn("title", {}, title), text)));
      }
      this.#draw(frame, onto, x, y);
      return;
    }
    if (part.kind === "layers") rect.before(...BEHIND.map((by) => drawn("rect", { x: x + by, y: y + by, width, height, rx: 6, class: "behind" })));
    words.forEach((text, at) => made.append(drawn("text", { x: x + width / 2, y: y + 16 + at * LINE, class: at ? "" : "name" },
      at || !part.isGroup ? text : `▸ ${text}`)));
    if (box.gives) onto.append(drawn("text", { x: x + box.width / 2, y: y + box.height + LINE, class: "gives" }, box.gives));
  }

  /** @param {Part} part */
  #endAddress({ nodes: [end, ...others], name }) {
    const [nodes, values] = [this.graph.nodes.length, this.graph.values.length];
    if (others.length) return `#search=${encodeURIComponent(name)}`;
    return address(this.model, this.graph.valuePath((end - nodes) % values), "value");
  }

  /** @param {Part} part
   * @param {Paint} paint */
  #title(part, { text }) {
    const { kind, nodes, name } = part;
    const what = kind === "node" ? nodes.slice(0, 12).map((node) => this.graph.path(node)).join("\n") : part.isGroup ? this.#head(part) : name;
    return [what, ...(kind === "node" ? [this.graph.nodes[nodes[0]].op] : []), ...(text ? [text] : [])].join("\n");
  }
}

/** @param {Part} part
 * @param {"in" | "out"} end
 * @returns {Shown} */
function port(part, end) {
  return { part, end, words: [], gives: "", paint: { style: "", text: "" }, frame: null, behind: 0, width: PORT * CHARACTER, height: 15, x: 0, y: 0, row: 0,
    place: end === "in" ? -1 : Infinity };
}

/** The name of a node without that of its operator, `q_proj/MatMul_1`.
 * @param {string} op
 * @param {string} name */
function nameBeside(op, name) {
  const last = name.replace(/_\d+$/, "");
  return last.endsWith(op) ? last.slice(0, -op.length).replace(/\/$/, "") : name;
}

/** @param {Shown | undefined} box */
function middle(box) {
  return box && box.x + box.width / 2;
}
