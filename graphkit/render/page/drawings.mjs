// The drawings of a page: one model, or two beside each other, with a control for colours, by a pointer and by keys.
import { coloursOf } from "./colours.mjs";
import { Drawing } from "./drawing.mjs";
import { drawn, element } from "./elements.mjs";
import { keyOf } from "./kinds.mjs";

const [LEAST, MOST, STEP] = [0.15, 2.5, 1.25]; // scales
const [SMALL, LARGE] = [14, 36]; // boxes that a drawing begins with, at most, beside another one and alone
const MOSTLY = 0.95; // of the nodes of a part, those that its twin has at least
const FITS = 0.6; // the least scale of a drawing that is made to fit
/** @type {Record<string, [number, number]>} */
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "font-weight", "text-anchor", "paint-order"];

/** @typedef {import("./modules.mjs").Part} Part
 * @typedef {import("./graph.mjs").Graph} Graph */

/** Add the drawings to their section.
 * @param {Element} section
 * @param {Graph[]} graphs */
export function addDrawings(section, graphs) {
  const isPair = graphs.some(({ twins }) => twins?.size);
  const panes = (isPair ? [0, twinOf(graphs, 0)] : [0]).map((model) => new Pane(graphs, model, isPair ? SMALL : LARGE));
  const choice = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Colours of the drawing" }));
  const key = element("div");
  const paint = (/** @type {string} */ name) => {
    key.replaceChildren(keyOf(panes.flatMap((pane) => pane.paint(name).key)));
  };
  const names = [...new Set(panes.flatMap(({ colours }) => colours.map((each) => each.name)))];
  choice.append(...names.map((name) => element("option", {}, name)));
  choice.addEventListener("change", () => paint(choice.value));
  const button = (/** @type {string} */ text, /** @type {string} */ title, /** @type {(pane: Pane) => void} */ act) => {
    const made = element("button", { type: "button", title, "aria-label": title }, text);
    made.addEventListener("click", () => panes.forEach(act));
    return made;
  };
  section.append(element("div", { class: "tools" }, element("label", {}, "Colours ", choice),
    button("−", "Smaller", (pane) => pane.zoom(1 / STEP)), button("+", "Larger", (pane) => pane.zoom(STEP)),
    button("Fit", "As wide as the page", (pane) => pane.fit()), button("Close all", "Close all modules", (pane) => pane.closeAll()),
    button("Save as SVG", "Save the drawing as SVG", (pane) => pane.save())), key,
  element("div", { class: isPair ? "panes pair" : "panes" }, ...panes.map(({ shown }) => shown)),
  element("p", { class: "hint" }, "Arrow keys go from box to box, Enter opens one; < and > turn to another layer."));
  for (const pane of panes) pane.others = panes.filter((other) => other !== pane);
  if (isPair) panes[1].openAs(panes[0]);
  paint(names[0]);
  for (const pane of panes) pane.fit();
  return {
    /** @param {number} model
     * @param {number} node */
    show(model, node) {
      const pane = panes.find((each) => each.model === model) ?? panes[panes.length - 1];
      if (pane.model !== model) pane.choose(model);
      pane.show(node);
    },
    /** Show shapes and costs at other sizes. */
    resize() {
      for (const pane of panes) pane.paint(choice.value);
    },
  };
}

/** The first model that one was made of, or that was made of it.
 * @param {Graph[]} graphs
 * @param {number} model */
function twinOf(graphs, model) {
  return Math.min(...(graphs[model].twins?.keys() ?? []), graphs.length - 1);
}

class Pane {
  /** @param {Graph[]} graphs
   * @param {number} model
   * @param {number} most boxes at first */
  constructor(graphs, model, most) {
    this.graphs = graphs;
    /** @type {Map<number, Drawing>} */
    this.drawings = new Map();
    this.most = most;
    this.scale = 1;
    this.name = "";
    /** @type {Pane[]} */
    this.others = [];
    this.view = element("div", { class: "view" });
    const models = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Model that is drawn" },
      ...graphs.map((graph, number) => element("option", { value: number }, graph.model))));
    models.addEventListener("change", () => {
      this.choose(Number(models.value));
      for (const other of this.others) if (!graphs[this.model].twins?.has(other.model)) other.choose(twinOf(graphs, this.model));
    });
    this.models = models;
    this.shown = element("div", {}, ...(graphs.length > 1 ? [models] : []), this.view);
    this.view.addEventListener("click", (event) => this.#press(event));
    this.view.addEventListener("keydown", (event) => this.#key(event));
    this.view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return; // also of two fingers
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1 / STEP : STEP);
    }, { passive: false });
    this.view.addEventListener("focusin", (event) => {
      const part = this.#partOf(event.target);
      if (part !== undefined) this.focused = part;
    });
    /** @type {Part | undefined} */
    this.focused = undefined;
    this.model = model;
    this.drawing = this.#drawingOf(model);
    this.colours = coloursOf(graphs, model, this.drawing.levels.leaves);
    models.value = String(model);
  }

  /** @param {number} model */
  #drawingOf(model) {
    const known = this.drawings.get(model);
    if (known !== undefined) return known;
    const made = new Drawing(this.graphs[model], model);
    made.hasNumbers = true;
    made.openFirst(this.most);
    this.drawings.set(model, made);
    return made;
  }

  /** Draw another model.
   * @param {number} model */
  choose(model) {
    this.model = model;
    this.models.value = String(model);
    this.drawing = this.#drawingOf(model);
    this.colours = coloursOf(this.graphs, model, this.drawing.levels.leaves);
    this.focused = undefined;
    this.paint(this.name);
    this.fit();
  }

  /** Draw in other colours.
   * @param {string} name */
  paint(name) {
    this.name = name;
    const colour = this.colours.find((each) => each.name === name) ?? this.colours[0];
    colour.begin?.();
    this.drawing.paint = colour.paint;
    this.draw();
    return colour;
  }

  draw() {
    const picture = this.drawing.picture();
    this.picture = picture;
    this.size = [Number(picture.getAttribute("width")), Number(picture.getAttribute("height"))];
    this.view.replaceChildren(picture);
    const { places, levels } = this.drawing;
    const first = this.focused && places.has(this.focused) ? this.focused : levels.whole.parts.find((part) => places.has(part));
    if (first) places.get(first)?.element.setAttribute("tabindex", "0");
    this.#scaled(this.scale);
  }

  /** @param {number} scale */
  #scaled(scale) {
    this.scale = Math.min(Math.max(scale, LEAST), MOST);
    const [width, height] = this.size ?? [0, 0];
    this.picture?.setAttribute("width", String(Math.round(width * this.scale)));
    this.picture?.setAttribute("height", String(Math.round(height * this.scale)));
  }

  /** @param {number} by */
  zoom(by) {
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.view;
    const before = this.scale;
    this.#scaled(this.scale * by);
    const grown = this.scale / before;
    this.view.scrollLeft = (scrollLeft + clientWidth / 2) * grown - clientWidth / 2;
    this.view.scrollTop = (scrollTop + clientHeight / 2) * grown - clientHeight / 2;
  }

  fit() {
    const [width] = this.size ?? [1];
    this.#scaled(Math.max(Math.min(1, (this.view.clientWidth - 2) / width), FITS));
    this.view.scrollLeft = (width * this.scale - this.view.clientWidth) / 2;
  }

  closeAll() {
    this.drawing.open = new Set([this.drawing.levels.whole]);
    this.draw();
    this.fit();
  }

  /** Open or close a part, where it is.
   * @param {Part} part
   * @param {boolean} [isOpen] */
  toggle(part, isOpen = !this.drawing.open.has(part)) {
    const before = this.drawing.places.get(part);
    if (isOpen) this.drawing.open.add(part);
    else this.drawing.open.delete(part);
    this.focused = part;
    this.draw();
    for (const other of this.others) other.follow(this, part.inner, isOpen);
    const after = this.drawing.places.get(part);
    if (before === undefined || after === undefined) return;
    const middle = (/** @type {{x: number, width: number}} */ { x, width }) => x + width / 2;
    this.view.scrollLeft += (middle(after) - middle(before)) * this.scale;
    this.view.scrollTop += (after.y - before.y) * this.scale;
  }

  /** Draw another one of some layers.
   * @param {Part} part
   * @param {number} by */
  turn(part, by) {
    part.chosen = (part.chosen + by + part.parts.length) % part.parts.length;
    this.drawing.open.add(part);
    this.draw();
    for (const other of this.others) other.follow(this, part.inner, true);
  }

  /** Open what another pane has open, as far as it is in this model.
   * @param {Pane} other */
  openAs(other) {
    this.drawing.open = new Set([this.drawing.levels.whole]);
    for (const part of other.drawing.open) if (part.around !== null) this.#open(this.#twinOf(other, part.inner), true);
  }

  /** Open or close what was opened or closed in another pane.
   * @param {Pane} other
   * @param {Part} part
   * @param {boolean} isOpen */
  follow(other, part, isOpen) {
    this.#open(this.#twinOf(other, part), isOpen);
    this.draw();
  }

  /** @param {Part | null} part
   * @param {boolean} isOpen */
  #open(part, isOpen) {
    if (part === null || part.around === null || !part.isGroup) return;
    const closed = part.around.kind === "layers" ? part.around : part;
    if (!isOpen) this.drawing.open.delete(closed);
    else this.drawing.show(part.parts[0]);
  }

  /** The part of this model that is called as a part of another one, or else the smallest that has most of its nodes.
   * @param {Pane} other
   * @param {Part} part
   * @returns {Part | null} */
  #twinOf(other, part) {
    const named = part.isGroup ? this.#named(part) : null;
    if (named !== null) return named;
    const twins = this.graphs[other.model].twins?.get(this.model);
    const { leaves } = other.drawing.levels;
    const nodes = leaves.slice(part.from, part.to).flatMap(({ kind, nodes: [node] }) => (kind === "node" && twins?.get(node)) ?? []);
    const found = nodes.flatMap((node) => (typeof node === "number" && this.drawing.levels.leafOf.get(node)) || []);
    if (!found.length) return null;
    const leaf = found[Math.floor(found.length / 2)];
    /** @type {Part | null} */
    let around = part.isGroup ? leaf.around : leaf;
    while (around !== null && found.filter((each) => around?.has(each)).length < MOSTLY * found.length) around = around.around;
    return around;
  }

  /** @param {Part} part of any model
   * @returns {Part | null} */
  #named(part) {
    if (part.around === null) return this.drawing.levels.whole;
    const around = this.#named(part.around);
    return around?.parts.find(({ name, isGroup }) => isGroup && name === part.name) ?? null;
  }

  /** Show a node where it is.
   * @param {number} node */
  show(node) {
    const leaf = this.drawing.levels.leafOf.get(node);
    if (leaf === undefined) return;
    this.drawing.show(leaf);
    this.draw();
    this.view.scrollIntoView({ block: "nearest" });
    this.#focus(leaf);
  }

  /** @param {Part} part */
  #focus(part) {
    const place = this.drawing.places.get(part);
    if (place === undefined) return;
    if (this.focused) this.drawing.places.get(this.focused)?.element.setAttribute("tabindex", "-1");
    place.element.setAttribute("tabindex", "0");
    this.focused = part;
    this.#reveal(part);
    place.element.focus({ preventScroll: true });
    for (const other of this.others) other.point(this, part);
  }

  /** Mark the box of this model that has what another pane is at.
   * @param {Pane} other
   * @param {Part} part */
  point(other, part) {
    let twin = this.#twinOf(other, part);
    while (twin !== null && !this.drawing.places.has(twin)) twin = twin.around;
    for (const { element: shown } of this.drawing.places.values()) shown.classList.remove("twin");
    if (twin === null) return;
    this.drawing.places.get(twin)?.element.classList.add("twin");
    this.#reveal(twin);
  }

  /** Let a box be seen.
   * @param {Part} part */
  #reveal(part) {
    const { x, y, width, height } = /** @type {{x: number, y: number, width: number, height: number}} */ (this.drawing.places.get(part));
    const { clientWidth, clientHeight, scrollLeft, scrollTop } = this.view;
    const isSeen = (/** @type {number} */ from, /** @type {number} */ size, /** @type {number} */ start, /** @type {number} */ room) =>
      from * this.scale >= start && (from + size) * this.scale <= start + room;
    if (!isSeen(x, width, scrollLeft, clientWidth)) this.view.scrollLeft = (x + width / 2) * this.scale - clientWidth / 2;
    if (!isSeen(y, height, scrollTop, clientHeight)) this.view.scrollTop = (y + height / 2) * this.scale - clientHeight / 2;
  }

  /** @param {EventTarget | null} target
   * @returns {Part | undefined} */
  #partOf(target) {
    const box = target instanceof Element ? target.closest(".box") : null;
    return [...this.drawing.places].find(([, { element: shown }]) => shown === box)?.[0];
  }

  /** @param {Event} event */
  #press(event) {
    const part = this.#partOf(event.target);
    if (part === undefined) return;
    const by = event.target instanceof Element ? event.target.getAttribute("data-turn") : null;
    if (by !== null) this.turn(part, Number(by));
    else if (part.isGroup) this.toggle(part);
    if (part.isGroup) this.#focus(part);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const part = this.#partOf(event.target);
    if (part === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const move = MOVES[event.key];
    if (move) this.#focus(this.#nearest(part, move));
    else if ((event.key === "Enter" || event.key === " ") && part.isGroup) {
      this.toggle(part);
      this.#focus(part);
    } else if (event.key === "+" || event.key === "-") this.zoom(event.key === "+" ? STEP : 1 / STEP);
    else if ((event.key === "<" || event.key === ">") && part.kind === "layers") {
      this.turn(part, event.key === ">" ? 1 : -1);
      this.#focus(part);
    } else return;
    event.preventDefault();
  }

  /** The box that is nearest in a direction.
   * @param {Part} part
   * @param {[number, number]} direction */
  #nearest(part, [dx, dy]) {
    const middle = (/** @type {{x: number, y: number, width: number, height: number}} */ { x, y, width, height }) => [x + width / 2, y + height / 2];
    const here = this.drawing.places.get(part);
    if (here === undefined) return part;
    const [x, y] = middle(here);
    let [best, least] = [part, Infinity];
    for (const [other, place] of this.drawing.places) {
      const [otherX, otherY] = middle(place);
      const along = (otherX - x) * dx + (otherY - y) * dy;
      const aside = Math.abs((otherX - x) * dy) + Math.abs((otherY - y) * dx);
      const way = along + 2 * aside;
      if (along > 1 && (dx === 0 || aside < along) && way < least) [best, least] = [other, way];
    }
    return best;
  }

  save() {
    const made = this.drawing.picture();
    const shown = [.../** @type {SVGElement} */ (this.picture).querySelectorAll("*")];
    made.querySelectorAll("*").forEach((each, at) => {
      const style = getComputedStyle(shown[at]);
      for (const name of STYLES) if (style.getPropertyValue(name)) each.setAttribute(name, style.getPropertyValue(name));
    });
    this.draw();
    const paper = getComputedStyle(/** @type {Element} */ (this.view.closest(".graphkit"))).backgroundColor;
    made.prepend(drawn("rect", { width: "100%", height: "100%", fill: paper }));
    const text = encodeURIComponent(new XMLSerializer().serializeToString(made));
    element("a", { href: `data:image/svg+xml;charset=utf-8,${text}`, download: `${this.graphs[this.model].model}.svg` }).click();
  }
}
