// Expressions of the shape engine, `3072*batch_size*((height + 3) // 4) + 4`, as exact integers; see `shapes/expr.py`.

/** @typedef {(sizes: Map<string, bigint>) => bigint} Formula */

const FUNCTIONS = new Map([
  ["min(", (/** @type {bigint[]} */ values) => values.reduce((a, b) => (b < a ? b : a))],
  ["max(", (/** @type {bigint[]} */ values) => values.reduce((a, b) => (b > a ? b : a))],
]);

/** A name as expressions have it: in quotes where it is no word.
 * @param {string} name */
function spelled(name) {
  return /^(?:[A-Za-z_][A-Za-z0-9_.:]*|\?.*)$/s.test(name) ? name : `'${name.replaceAll("'", "''")}'`;
}

/** A function that parses expressions over these symbols, of which the longest name that fits is meant.
 * @param {Iterable<string>} names
 * @returns {(text: string) => Formula} that throws a SyntaxError where a text is no such expression */
export function parserOf(names) {
  const texts = [...names].map(spelled).sort((a, b) => b.length - a.length);
  const known = texts.map((text) => text.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"));
  const symbol = known.length ? `(${known.join("|")})(?![\\w.])` : "([^\\s\\S])";
  const token = new RegExp(`\\s*(?:(min\\(|max\\()|${symbol}|(\\d+)|(\\*\\*|//|[-+*%(),]))\\s*`, "y");
  return (text) => new Parser(tokensOf(text, token)).whole();
}

/** @typedef {{kind: "call" | "symbol" | "number" | "sign" | "end", text: string}} Token */

/** @param {string} text
 * @param {RegExp} token
 * @returns {Token[]} */
function tokensOf(text, token) {
  /** @type {Token[]} */
  const tokens = [];
  token.lastIndex = 0;
  while (token.lastIndex < text.length) {
    const at = token.lastIndex;
    const found = token.exec(text);
    if (found === null) throw new SyntaxError(`no expression from ${text.slice(at, at + 20)} on`);
    const kinds = /** @type {const} */ (["call", "symbol", "number", "sign"]);
    const place = found.slice(1).findIndex((part) => part !== undefined);
    tokens.push({ kind: kinds[place], text: found[place + 1] });
  }
  return tokens;
}

/** Precedence as in Python: `**`, minus, then `*`, `//` and `%` from the left, then sums. */
class Parser {
  /** @param {Token[]} tokens */
  constructor(tokens) {
    this.tokens = tokens;
    this.at = 0;
  }

  get next() {
    return this.tokens[this.at] ?? { kind: "end", text: "" };
  }

  /** @param {...string} texts */
  takes(...texts) {
    const { kind, text } = this.next;
    if (kind !== "sign" || !texts.includes(text)) return "";
    this.at += 1;
    return text;
  }

  /** @returns {Formula} */
  whole() {
    const sum = this.sum();
    if (this.next.kind !== "end") throw new SyntaxError(`no expression from ${this.next.text} on`);
    return sum;
  }

  /** @returns {Formula} */
  sum() {
    let left = this.product();
    for (let sign = this.takes("+", "-"); sign; sign = this.takes("+", "-")) {
      const [before, after, isMinus] = [left, this.product(), sign === "-"];
      left = (sizes) => (isMinus ? before(sizes) - after(sizes) : before(sizes) + after(sizes));
    }
    return left;
  }

  /** @returns {Formula} */
  product() {
    let left = this.factor();
    for (let sign = this.takes("*", "//", "%"); sign; sign = this.takes("*", "//", "%")) {
      const [before, after, operation] = [left, this.factor(), sign];
      left = (sizes) => combined(operation, before(sizes), after(sizes));
    }
    return left;
  }

  /** @returns {Formula} */
  factor() {
    if (this.takes("-")) {
      const negated = this.factor();
      return (sizes) => -negated(sizes);
    }
    const base = this.atom();
    if (!this.takes("**")) return base;
    const power = this.factor();
    return (sizes) => base(sizes) ** power(sizes);
  }

  /** @returns {Formula} */
  atom() {
    const { kind, text } = this.next;
    this.at += 1;
    if (kind === "number") {
      const number = BigInt(text);
      return () => number;
    }
    if (kind === "symbol") {
      const name = text.startsWith("'") ? text.slice(1, -1).replaceAll("''", "'") : text;
      return (sizes) => sizeOf(sizes, name);
    }
    if (kind === "call") {
      const parts = [this.sum()];
      while (this.takes(",")) parts.push(this.sum());
      this.closes();
      const chosen = /** @type {(values: bigint[]) => bigint} */ (FUNCTIONS.get(text));
      return (sizes) => chosen(parts.map((part) => part(sizes)));
    }
    if (text !== "(") throw new SyntaxError(`no expression at ${text || "the end"}`);
    const inside = this.sum();
    this.closes();
    return inside;
  }

  closes() {
    if (!this.takes(")")) throw new SyntaxError("a parenthesis is not closed");
  }
}

/** @param {Map<string, bigint>} sizes
 * @param {string} name */
function sizeOf(sizes, name) {
  const size = sizes.get(name);
  if (size === undefined) throw new RangeError(`${name} has no size`);
  return size;
}

/** Division rounds down, and a rest has the sign of its divisor.
 * @param {string} operation
 * @param {bigint} a
 * @param {bigint} b */
function combined(operation, a, b) {
  if (operation === "*") return a * b;
  const [quotient, rest] = [a / b, a % b];
  const isBelow = rest !== 0n && rest < 0n !== b < 0n;
  if (operation === "//") return isBelow ? quotient - 1n : quotient;
  return isBelow ? rest + b : rest;
}
