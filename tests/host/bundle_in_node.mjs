/** Run the scenarios in Node: node bundle_in_node.mjs PLAN, of JSON. */
import { createRequire } from 'node:module';
import { readFile, readdir } from 'node:fs/promises';
import { pathToFileURL } from 'node:url';
import { decodes, fails, refuses } from './bundle_scenarios.mjs';

const plan = JSON.parse(process.argv[2]);
const require = createRequire(`${plan.modules}/package.json`);
const [node, web] = [require('onnxruntime-node'), require('onnxruntime-web')];
web.env.wasm.numThreads = 1;
const { Bundle, BundleError } = await import(pathToFileURL(plan.host));

const filesOf = async (folder) => Object.fromEntries(await Promise.all(
  (await readdir(folder)).map(async (name) => [name, new Uint8Array(await readFile(`${folder}/${name}`))])));
const opened = {
  'in place': (folder) => Bundle.open(node, folder),
  copied: async (folder) => Bundle.open(node, await filesOf(folder), { inPlace: false }),
  web: (folder) => Bundle.open(web, pathToFileURL(folder)),
};
const found = {};
for (const [name, { folder, ways, given }] of Object.entries(plan.bundles)) {
  for (const way of ways) (found[name] ??= {})[way] = await decodes(await opened[way](folder), given);
}
const { folder } = plan.bundles[plan.failing];
const files = await filesOf(folder);
const open = (text) => Bundle.open(node, { ...files, 'bundle.json': new TextEncoder().encode(text) });
found.failures = await fails(await Bundle.open(node, folder), BundleError);
found.refusals = await refuses(open, new TextDecoder().decode(files['bundle.json']));
process.stdout.write(JSON.stringify(found), () => process.exit(0));
