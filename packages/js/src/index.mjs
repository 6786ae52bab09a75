/** Hosts for what graphkit writes: bundles, and lowered models. */
export { Bundle } from './bundle.mjs';
export { Host } from './host.mjs';
export { GraphkitError } from './values.mjs';
