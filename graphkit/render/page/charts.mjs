// Columns over a sequence, on a scale that may be logarithmic, and a line over sizes.
import { drawn } from "./elements.mjs";
import { sized } from "./sizes.mjs";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [880, 220, 76, 12, 18, 34];
const MOST_COLUMNS = 200;
const TICKS = 4;

/** @typedef {{low: number, high: number, unit: string, isLogarithmic: boolean}} Scale from `low`, 0 unless it is logarithmic */

/** The place of a value above the bottom, in pixels.
 * @param {number} value
 * @param {Scale} scale */
function yOf(value, { low, high, isLogarithmic }) {
  const part = isLogarithmic ? Math.log10(Math.max(value, low) / low) / Math.log10(high / low) : value / high;
  return HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP);
}

/** @param {number} value
 * @param {Scale} scale */
const said = (value, { unit, isLogarithmic }) => (isLogarithmic ? Number(value.toPrecision(2)).toExponential() : sized(BigInt(Math.round(value)), unit));

/** @param {number[]} values
 * @param {string} unit
 * @param {boolean} isLogarithmic
 * @returns {Scale} */
function scaleOf(values, unit, isLogarithmic) {
  const high = Math.max(...values);
  if (!isLogarithmic) return { low: 0, high, unit, isLogarithmic };
  const [least, most] = [Math.floor(Math.log10(Math.min(...values.filter((value) => value > 0)))), Math.ceil(Math.log10(high))];
  return { low: 10 ** (least < most ? least : most - 1), high: 10 ** most, unit, isLogarithmic };
}

/** @param {Scale} scale
 * @returns {number[]} */
function ticks({ low, high, isLogarithmic }) {
  if (isLogarithmic) {
    const [first, last] = [low, high].map((value) => Math.round(Math.log10(value)));
    const step = Math.max(1, Math.ceil((last - first) / TICKS));
    return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, number) => 10 ** (first + step * number));
  }
  const power = 10 ** Math.floor(Math.log10(high / TICKS));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= high / TICKS) ?? high;
  return Array.from({ length: Math.floor(high / step) + 1 }, (_, number) => step * number);
}

/** @param {Scale} scale
 * @param {string} axis */
function axes(scale, axis) {
  const lines = ticks(scale).flatMap((value) => {
    const y = yOf(value, scale);
    return [drawn("path", { class: "grid", d: `M${LEFT} ${y.toFixed(1)}H${WIDTH - RIGHT}` }),
      drawn("text", { class: "tick", x: LEFT - 6, y: (y + 4).toFixed(1) }, said(value, scale))];
  });
  return [...lines, drawn("text", { class: "axis", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6 }, axis)];
}

/** A column for each point, of neighbours the highest where they are many; those that are marked stand out, else the highest.
 * @param {{name: string, value: number, node: number | null, isMarked?: boolean}[]} points
 * @param {string} unit
 * @param {string} axis
 * @param {boolean} [isLogarithmic] */
export function columns(points, unit, axis, isLogarithmic = false) {
  const size = Math.ceil(points.length / MOST_COLUMNS);
  const highestOf = (/** @type {typeof points} */ some) => some.reduce((a, b) => (Number(b.isMarked ?? 0) - Number(a.isMarked ?? 0) || b.value - a.value) > 0 ? b : a);
  const shown = Array.from({ length: Math.ceil(points.length / size) }, (_, at) => highestOf(points.slice(at * size, (at + 1) * size)));
  const highest = highestOf(shown);
  const width = (WIDTH - LEFT - RIGHT) / shown.length;
  const scale = scaleOf(shown.map(({ value }) => value), unit, isLogarithmic);
  return [...axes(scale, axis), ...shown.map((point, number) => {
    const y = yOf(point.value, scale);
    const isMarked = point.isMarked || (point === highest && !isLogarithmic);
    return drawn("g", { class: isMarked ? "column marked" : "column", ...(point.node === null ? {} : { "data-node-number": point.node }) },
      drawn("title", {}, `${point.name}: ${said(point.value, scale)}`),
      drawn("rect", { x: (LEFT + number * width).toFixed(1), y: y.toFixed(1),
        width: Math.max(width - (width > 4 ? 1 : 0), 0.5).toFixed(2), height: (HEIGHT - BOTTOM - y).toFixed(1) }));
  })];
}

/** A line through points, of which one may be marked.
 * @param {{name: string, at: number, value: number, isMarked?: boolean}[]} points
 * @param {string} unit
 * @param {string} axis */
export function line(points, unit, axis) {
  const ordered = [...points].sort((a, b) => a.at - b.at);
  const most = Math.max(...ordered.map(({ at }) => at)) || 1;
  const scale = scaleOf(ordered.map(({ value }) => value), unit, false);
  const places = ordered.map((point) => ({ ...point, y: yOf(point.value, scale).toFixed(1),
    x: (LEFT + (point.at / most) * (WIDTH - LEFT - RIGHT - 60)).toFixed(1) }));
  const through = drawn("path", { class: "line", d: `M${places.map(({ x, y }) => `${x} ${y}`).join(" L")}` });
  return [...axes(scale, axis), through, ...places.flatMap(({ x, y, at, name, value, isMarked }) => [
    drawn("circle", { cx: x, cy: y, r: isMarked ? 5 : 3.5, class: isMarked ? "here" : "" },
      drawn("title", {}, `${name}: ${said(value, scale)}`)),
    ...(isMarked
      ? [drawn("text", { class: "here", x, y: (Number(y) - 9).toFixed(1) }, `${at.toLocaleString("en")}: ${said(value, scale)}`)]
      : [drawn("text", { class: "tick under", x, y: HEIGHT - BOTTOM + 14 }, at.toLocaleString("en"))]),
  ])];
}
