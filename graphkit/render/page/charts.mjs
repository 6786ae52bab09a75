// Columns over a sequence, and a line over sizes, as `render/charts.py` draws them.
import { drawn } from "./elements.mjs";
import { sized } from "./sizes.mjs";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [880, 220, 76, 12, 18, 34];
const MOST_COLUMNS = 200;
const TICKS = 4;

/** The place of a value above the bottom, in pixels.
 * @param {number} value
 * @param {number} top */
const yOf = (value, top) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);

/** @param {number} value
 * @param {string} unit */
const said = (value, unit) => sized(BigInt(Math.round(value)), unit);

/** @param {number} top
 * @param {string} unit
 * @param {string} axis */
function axes(top, unit, axis) {
  const power = 10 ** Math.floor(Math.log10(top / TICKS));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= top / TICKS) ?? top;
  const lines = Array.from({ length: Math.floor(top / step) + 1 }, (_, number) => step * number).flatMap((value) => {
    const y = yOf(value, top);
    return [drawn("path", { class: "grid", d: `M${LEFT} ${y.toFixed(1)}H${WIDTH - RIGHT}` }),
      drawn("text", { class: "tick", x: LEFT - 6, y: (y + 4).toFixed(1) }, said(value, unit))];
  });
  return [...lines, drawn("text", { class: "axis", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6 }, axis)];
}

/** A column for each point, of neighbours the highest where they are many; the highest of all stands out.
 * @param {{name: string, value: number, node: number}[]} points
 * @param {string} unit
 * @param {string} axis */
export function columns(points, unit, axis) {
  const size = Math.ceil(points.length / MOST_COLUMNS);
  const highestOf = (/** @type {typeof points} */ some) => some.reduce((a, b) => (b.value > a.value ? b : a));
  const shown = Array.from({ length: Math.ceil(points.length / size) }, (_, at) => highestOf(points.slice(at * size, (at + 1) * size)));
  const highest = highestOf(shown);
  const width = (WIDTH - LEFT - RIGHT) / shown.length;
  return [...axes(highest.value, unit, axis), ...shown.map((point, number) => {
    const y = yOf(point.value, highest.value);
    return drawn("g", { class: point === highest ? "column marked" : "column", "data-node-number": point.node },
      drawn("title", {}, `${point.name}: ${said(point.value, unit)}`),
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
  const top = Math.max(...ordered.map(({ value }) => value));
  const places = ordered.map((point) => ({ ...point, y: yOf(point.value, top).toFixed(1),
    x: (LEFT + (point.at / most) * (WIDTH - LEFT - RIGHT - 60)).toFixed(1) }));
  const through = drawn("path", { class: "line", d: `M${places.map(({ x, y }) => `${x} ${y}`).join(" L")}` });
  return [...axes(top, unit, axis), through, ...places.flatMap(({ x, y, at, name, value, isMarked }) => [
    drawn("circle", { cx: x, cy: y, r: isMarked ? 5 : 3.5, class: isMarked ? "here" : "" },
      drawn("title", {}, `${name}: ${said(value, unit)}`)),
    ...(isMarked
      ? [drawn("text", { class: "here", x, y: (Number(y) - 9).toFixed(1) }, `${at.toLocaleString("en")}: ${said(value, unit)}`)]
      : [drawn("text", { class: "tick under", x, y: HEIGHT - BOTTOM + 14 }, at.toLocaleString("en"))]),
  ])];
}
