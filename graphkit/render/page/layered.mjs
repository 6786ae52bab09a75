// A layout of boxes in rows, so that lines run downwards: rows by the longest way, then places beside each other.
// Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981.

const [GAP, SPACE, THIN] = [16, 34, 6]; // between boxes of a row, between rows, and the width of a line that passes a row
const WIDE = 14; // boxes of a row
const SWEEPS = 10;

/** @typedef {{width: number, height: number, x: number, y: number, place: number, row: number, end?: "in" | "out"}} Box
 * `place` is its place in the file, by which cycles are broken; an `end` is in the first or in the last row
 * @typedef {{from: Box, to: Box, start?: number, end?: number}} Line from one box to another, at offsets from their left
 * @typedef {{box: Box | null, width: number, x: number, row: number, above: Tie[], below: Tie[]}} Item
 * @typedef {{y: number, height: number, items: Item[]}} Row
 * @typedef {{item: Item, mine: number, theirs: number}} Tie two items that a line joins, at these offsets */

/** Give boxes their places, and return the size of all, and the way of each line as points.
 * @param {Box[]} boxes
 * @param {Line[]} lines
 * @returns {{width: number, height: number, ways: Map<Line, [number, number][]>}} */
export function layered(boxes, lines) {
  const forward = intoRows(boxes, lines);
  const count = Math.max(0, ...boxes.map(({ row }) => row + 1));
  /** @type {Row[]} */
  const rows = Array.from({ length: count }, () => ({ y: 0, height: 0, items: [] }));
  const put = (/** @type {Item} */ item) => {
    rows[item.row].items.push(item);
    return item;
  };
  const itemOf = new Map(boxes.map((box) => [box, put({ box, width: box.width, x: 0, row: box.row, above: [], below: [] })]));
  const passing = passingLines(forward, itemOf, put);
  arrange(rows.map(({ items }) => items));
  const items = rows.flatMap((row) => row.items);
  const left = Math.min(...items.map(({ x }) => x));
  for (const item of items) item.x -= left;
  let height = 0;
  for (const row of rows) {
    row.y = height;
    for (const { box, x } of row.items) if (box !== null) Object.assign(box, { x, y: height });
    row.height = Math.max(0, ...row.items.map(({ box }) => box?.height ?? 0));
    height += row.height + SPACE;
  }
  const ways = new Map(lines.map((line) => [line, wayOf(line, passing.get(line) ?? [], rows)]));
  return { width: Math.max(0, ...items.map(({ x, width }) => x + width)), height: Math.max(height - SPACE, 0), ways };
}

/** Give boxes their rows, and return the lines with those turned around that would close a cycle.
 * @param {Box[]} boxes
 * @param {Line[]} lines */
function intoRows(boxes, lines) {
  /** @type {Map<Box, Line[]>} */
  const from = new Map(boxes.map((box) => [box, []]));
  const open = new Map(boxes.map((box) => [box, 0])); // lines into each from boxes that are not in order yet
  for (const line of lines) {
    from.get(line.from)?.push(line);
    open.set(line.to, (open.get(line.to) ?? 0) + 1);
  }
  const waiting = new Set([...boxes].sort((a, b) => a.place - b.place));
  const ready = [...waiting].filter((box) => !open.get(box));
  /** @type {Box[]} */
  const order = [];
  while (waiting.size) {
    const box = ready.shift() ?? /** @type {Box} */ (waiting.values().next().value); // the first of a cycle
    if (!waiting.delete(box)) continue;
    order.push(box);
    for (const { to } of from.get(box) ?? []) {
      open.set(to, (open.get(to) ?? 0) - 1);
      if (!open.get(to)) ready.push(to);
    }
  }
  const at = new Map(order.map((box, number) => [box, number]));
  const isForward = (/** @type {Line} */ line) => (at.get(line.from) ?? 0) < (at.get(line.to) ?? 0);
  const forward = lines.map((line) => (isForward(line) ? { line, from: line.from, to: line.to } : { line, from: line.to, to: line.from }));
  const [before, after] = [new Map(), new Map()];
  for (const { from: one, to: two } of forward) {
    before.set(two, [...(before.get(two) ?? []), one]);
    after.set(one, [...(after.get(one) ?? []), two]);
  }
  const first = boxes.some(({ end }) => end === "in") ? 1 : 0;
  /** @type {number[]} */
  const filled = [];
  for (const box of order) {
    box.row = box.end === "in" ? 0 : Math.max(first, ...(before.get(box) ?? []).map((/** @type {Box} */ { row }) => row + 1));
    while (!box.end && (filled[box.row] ?? 0) >= WIDE) box.row += 1;
    filled[box.row] = (filled[box.row] ?? 0) + 1;
  }
  for (const box of order.reverse()) { // down to what reads them, where that makes lines shorter
    const readers = after.get(box) ?? [];
    if (box.end || !readers.length || (before.get(box)?.length ?? 0) > readers.length) continue;
    const lowest = Math.min(...readers.map((/** @type {Box} */ { row }) => row)) - 1;
    if ((filled[lowest] ?? 0) < WIDE) {
      filled[box.row] -= 1;
      filled[lowest] = (filled[lowest] ?? 0) + 1;
      box.row = lowest;
    }
  }
  const last = Math.max(0, ...boxes.filter(({ end }) => end !== "out").map(({ row }) => row + 1));
  for (const box of boxes) if (box.end === "out") box.row = last;
  const used = [...new Set(boxes.map(({ row }) => row))].sort((a, b) => a - b);
  const numbers = new Map(used.map((row, number) => [row, number]));
  for (const box of boxes) box.row = /** @type {number} */ (numbers.get(box.row));
  return forward;
}

/** Join the items of lines, by thin ones in the rows between: lines from one place share them.
 * @param {{line: Line, from: Box, to: Box}[]} forward
 * @param {Map<Box, Item>} itemOf
 * @param {(item: Item) => Item} put
 * @returns {Map<Line, Item[]>} the thin items of each line, from the top */
function passingLines(forward, itemOf, put) {
  /** @type {Map<string, Item>} */
  const shared = new Map();
  const numbers = new Map([...itemOf.keys()].map((box, number) => [box, number]));
  /** @type {Map<Line, Item[]>} */
  const found = new Map();
  for (const { line, from, to } of forward) {
    const isTurned = line.from !== from;
    const [start, end] = [isTurned ? line.end : line.start, isTurned ? line.start : line.end];
    let [last, mine] = [/** @type {Item} */ (itemOf.get(from)), start ?? from.width / 2];
    /** @type {Item[]} */
    const thin = [];
    for (let row = from.row + 1; row < to.row; row += 1) {
      const key = `${numbers.get(from)} ${start ?? ""} ${row} ${isTurned ? numbers.get(to) : ""}`;
      let item = shared.get(key);
      if (item === undefined) {
        item = put({ box: null, width: THIN, x: 0, row, above: [], below: [] });
        shared.set(key, item);
        join(last, mine, item, THIN / 2);
      }
      thin.push(item);
      [last, mine] = [item, THIN / 2];
    }
    join(last, mine, /** @type {Item} */ (itemOf.get(to)), end ?? to.width / 2);
    found.set(line, isTurned ? thin.reverse() : thin);
  }
  return found;
}

/** @param {Item} upper
 * @param {number} mine
 * @param {Item} lower
 * @param {number} theirs */
function join(upper, mine, lower, theirs) {
  upper.below.push({ item: lower, mine, theirs });
  lower.above.push({ item: upper, mine: theirs, theirs: mine });
}

/** Give items their places from left to right: each as near as can be to the mean of those that it is joined to.
 * @param {Item[][]} rows */
function arrange(rows) {
  for (const row of rows) placed(row, row.map((_, at) => at));
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const isDown = sweep % 2 === 0;
    for (const row of isDown ? rows : [...rows].reverse()) {
      const isLast = sweep >= SWEEPS - 2;
      const wish = new Map(row.map((item) => {
        const ties = isLast ? [...item.above, ...item.below] : isDown ? item.above : item.below;
        const places = ties.map(({ item: other, mine, theirs }) => other.x + theirs - mine);
        return [item, places.length ? places.reduce((sum, place) => sum + place, 0) / places.length : item.x];
      }));
      const wished = (/** @type {Item} */ item) => /** @type {number} */ (wish.get(item));
      if (sweep < SWEEPS - 3) row.sort((a, b) => wished(a) + a.width / 2 - wished(b) - b.width / 2);
      placed(row, row.map(wished));
    }
  }
}

/** Place items beside each other with the least squares of the ways to their wishes, by pooling those that overlap.
 * @param {Item[]} row
 * @param {number[]} wishes */
function placed(row, wishes) {
  let offset = 0;
  const offsets = row.map(({ width, box }) => {
    const here = offset;
    offset += width + (box === null ? THIN : GAP);
    return here;
  });
  /** @type {{sum: number, weight: number, count: number}[]} */
  const pools = [];
  row.forEach((item, at) => {
    const weight = item.box === null ? 2 : 1; // long lines are straight
    let pool = { sum: weight * (wishes[at] - offsets[at]), weight, count: 1 };
    for (let before = pools.at(-1); before && before.sum / before.weight >= pool.sum / pool.weight; before = pools.at(-1)) {
      pools.pop();
      pool = { sum: before.sum + pool.sum, weight: before.weight + pool.weight, count: before.count + pool.count };
    }
    pools.push(pool);
  });
  let at = 0;
  for (const { sum, weight, count } of pools) {
    for (const end = at + count; at < end; at += 1) row[at].x = sum / weight + offsets[at];
  }
}

/** The way of a line: straight down, or up, through the rows that it passes, and slanting between them.
 * @param {Line} line
 * @param {Item[]} thin
 * @param {Row[]} rows
 * @returns {[number, number][]} */
function wayOf({ from, to, start = from.width / 2, end = to.width / 2 }, thin, rows) {
  const isDown = from.row < to.row;
  const edges = (/** @type {number} */ row) => {
    const { y, height } = rows[row];
    return isDown ? [y, y + height] : [y + height, y];
  };
  const passed = thin.flatMap((item) => edges(item.row).map((y) => /** @type {[number, number]} */ ([item.x + THIN / 2, y])));
  return [[from.x + start, isDown ? from.y + from.height : from.y], [from.x + start, edges(from.row)[1]], ...passed,
    [to.x + end, edges(to.row)[0]], [to.x + end, isDown ? to.y : to.y + to.height]];
}
