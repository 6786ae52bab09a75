/** What hosts, contracts and callers exchange: dtypes as typed arrays, nested arrays as tensors, errors, warnings. */
export const ARRAYS = new Map(Object.entries({ float32: Float32Array, float64: Float64Array, bool: Uint8Array,
  float16: globalThis.Float16Array ?? Uint16Array, int8: Int8Array, int16: Int16Array, int32: Int32Array,
  int64: BigInt64Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array }));
/** What the caller, or a contract, has wrong: an error before anything runs. */
export class GraphkitError extends Error { name = 'GraphkitError'; }
export const need = (holds, problem) => { if (!holds) throw new GraphkitError(problem.call?.() ?? problem); };
export const quoted = (value) =>
  JSON.stringify(value)?.replace(/[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, '?');
export const volume = (dims) => dims.reduce((product, size) => product * size, 1);
export const asRows = (ids) => (ids.dims || typeof ids[0] === 'object' ? ids : [ids]);
const half = (b, e = (b >> 10) & 31) => (b >> 15 ? -1 : 1) * ((e && 1024) + (b & 1023)) * 2 ** ((e || 1) - 25);
export const widened = (data) => (data instanceof Uint16Array ? Float32Array.from(data, (bits) => half(bits)) : data);
const even = (number, near = Math.round(number)) => near - (near - number === 0.5 && near % 2);
const halfBits = (number) => { // of float16
  const [size, sign] = [Math.abs(number), number < 0 ? 0x8000 : 0];
  const exponent = Math.max(Math.floor(Math.log2(size)), -14);
  return sign + (exponent + 14) * 1024 + even(size / 2 ** (exponent - 10));
};
/** Return a number as an element of a typed array. */
export function elementOf(dtype, number) {
  if (/int64/.test(dtype)) return BigInt(number);
  return dtype === 'float16' && ARRAYS.get(dtype) === Uint16Array ? halfBits(number) : number;
}
/** Return what a caller gives as { dims, data }: a number, nested or typed arrays, or a tensor. */
export function flattened(value) {
  const { dims = [value.length], data = value } = value;
  if (!Array.isArray(value)) return typeof value === 'object' ? { dims: [...dims], data } : { dims: [], data: [value] };
  const parts = value.map(flattened);
  need(parts.every(({ dims }) => `${dims}` === `${parts[0].dims}`), 'rows of an array differ in length');
  return { dims: [parts.length, ...(parts[0]?.dims ?? [])], data: parts.flatMap(({ data }) => [...data]) };
}
const warned = new Set();
/** Warn of something, once. */
export function say(text) {
  if (!warned.has(text)) console.warn(text);
  warned.add(text);
}
