// Boxes whose areas are parts of a whole, those of a group inside the group's box.
// Squarified: Bruls, Huizing, van Wijk, "Squarified Treemaps", 2000.
import { drawn } from "./elements.mjs";

const [WIDTH, HEIGHT, HEAD, LEAST, CHARACTER] = [880, 360, 16, 3, 6.6];
const COLORS = 6;
const LEVELS = 3;
const NAME = /[^/.]+(?:[/.]\d+(?=[/.]|$))?/g;

/** @typedef {{path: string, own: number, value: number, parts: Map<string, Part>}} Part */
/** @typedef {{x: number, y: number, width: number, height: number}} Box */

/** @param {[string, number][]} rows path and value of each part
 * @param {string} unit */
export function treemap(rows, unit) {
  const whole = tree(rows);
  return whole.value ? boxes(whole, { x: 0, y: 0, width: WIDTH, height: HEIGHT }, whole.value, unit) : [];
}

/** @param {string} path
 * @returns {Part} */
function partOf(path) {
  return { path, own: 0, value: 0, parts: new Map() };
}

/** @param {[string, number][]} rows
 * @returns {Part} */
function tree(rows) {
  const whole = partOf("");
  for (const [path, value] of rows) {
    let part = whole;
    for (const name of path.matchAll(NAME)) {
      if (!part.parts.has(name[0])) part.parts.set(name[0], partOf(path.slice(0, name.index + name[0].length)));
      part = /** @type {Part} */ (part.parts.get(name[0]));
    }
    part.own += value;
  }
  return short(whole);
}

/** A part with its value; a group of one part alone is that part.
 * @param {Part} part
 * @returns {Part} */
function short(part) {
  let kept = part;
  while (kept.parts.size === 1 && !kept.own) [kept] = kept.parts.values();
  const parts = new Map([...kept.parts].map(([name, inner]) => [name, short(inner)]));
  return { ...kept, parts, value: [...parts.values()].reduce((sum, { value }) => sum + value, kept.own) };
}

/** @param {Part} part
 * @returns {Part[]} */
function largestFirst(part) {
  const rest = part.own && part.parts.size ? [{ ...partOf(part.path), own: part.own, value: part.own }] : [];
  return [...part.parts.values(), ...rest].filter(({ value }) => value).sort((a, b) => b.value - a.value);
}

/** @param {Part} part
 * @param {Box} box
 * @param {number} whole
 * @param {string} unit
 * @param {string} [around] the path of the part around it
 * @param {number} [depth]
 * @param {number} [color]
 * @returns {SVGElement[]} */
function boxes(part, box, whole, unit, around = "", depth = 0, color = 0) {
  if (Math.min(box.width, box.height) < LEAST) return [];
  const share = `${Number(((100 * part.value) / whole).toPrecision(3))} %`;
  const own = drawn("g", { "data-module": part.path },
    drawn("title", {}, `${part.path || "all"}: ${part.value.toLocaleString("en")} ${unit}, ${share}`),
    drawn("rect", { class: `part${color} depth${depth}`, x: box.x.toFixed(1), y: box.y.toFixed(1),
      width: box.width.toFixed(1), height: box.height.toFixed(1) }), ...label(part, around, box, share));
  const inside = depth ? { x: box.x + 2, y: box.y + HEAD, width: box.width - 4, height: box.height - HEAD - 2 } : box;
  const isFilled = depth < LEVELS && part.parts.size && Math.min(inside.width, inside.height) >= 2 * LEAST;
  const parts = isFilled ? largestFirst(part) : [];
  const isMost = 10 * part.value >= 9 * whole; // those in it have colors of their own
  const places = squarified(parts.map(({ value }) => value), inside);
  const inner = parts.flatMap((each, at) => boxes(each, places[at], whole, unit, part.path, depth + 1, isMost ? at % COLORS : color));
  return depth ? [own, ...inner] : inner;
}

/** @param {Part} part
 * @param {string} around
 * @param {Box} box
 * @param {string} share */
function label(part, around, box, share) {
  const room = Math.floor((box.width - 6) / CHARACTER);
  if (box.height < HEAD || room < 4) return [];
  const inner = (part.path.startsWith(around) ? part.path.slice(around.length) : part.path).replace(/^[/.]+|[/.]+$/g, "");
  const last = part.path ? [...part.path.matchAll(NAME)].at(-1)?.[0] ?? part.path : "all";
  const name = inner && inner.length <= room ? inner : last;
  const text = name.length + share.length < room ? `${name} ${share}` : name;
  return [drawn("text", { x: (box.x + 4).toFixed(1), y: (box.y + 12).toFixed(1) },
    text.length <= room ? text : `${text.slice(0, room - 1)}…`)];
}

/** A box for each value, the largest first, that together fill a box and are nearly square.
 * @param {number[]} values
 * @param {Box} box
 * @returns {Box[]} */
function squarified(values, box) {
  const scale = (box.width * box.height) / values.reduce((sum, value) => sum + value, 0);
  const areas = values.map((value) => value * scale);
  /** @type {Box[]} */
  const made = [];
  let room = box;
  while (made.length < areas.length) {
    const rest = areas.slice(made.length);
    const side = Math.min(room.width, room.height);
    let count = 1;
    while (count < rest.length && worst(rest.slice(0, count + 1), side) <= worst(rest.slice(0, count), side)) count += 1;
    const [inRow, left] = row(rest.slice(0, count), room);
    made.push(...inRow);
    room = left;
  }
  return made;
}

/** The largest ratio of the sides of boxes in a row along a side.
 * @param {number[]} areas
 * @param {number} side */
function worst(areas, side) {
  const thickness = areas.reduce((sum, area) => sum + area, 0) / side;
  return Math.max(...areas.map((area) => Math.max(area / thickness ** 2, thickness ** 2 / area)));
}

/** The boxes of a row along the shorter side of a box, and the rest of the box.
 * @param {number[]} areas
 * @param {Box} box
 * @returns {[Box[], Box]} */
function row(areas, box) {
  const isWide = box.width >= box.height;
  const [side, long] = isWide ? [box.height, box.width] : [box.width, box.height];
  const all = areas.reduce((sum, area) => sum + area, 0);
  const thickness = Math.min(all / side, long); // rounding may want more
  let at = isWide ? box.y : box.x;
  const inRow = areas.map((area) => {
    const length = side * (area / all);
    at += length;
    return isWide ? { x: box.x, y: at - length, width: thickness, height: length }
      : { x: at - length, y: box.y, width: length, height: thickness };
  });
  return [inRow, isWide ? { ...box, x: box.x + thickness, width: Math.max(box.width - thickness, 1e-9) }
    : { ...box, y: box.y + thickness, height: Math.max(box.height - thickness, 1e-9) }];
}
