/** Run the scenarios in Node: node bundle_in_node.mjs PLAN, of JSON. */
import { createRequire } from 'node:module';
import { readFile, readdir } from 'node:fs/promises';
import { pathToFileURL } from 'node:url';
import { decodes, fails, grows, refuses, sameLogits } from './bundle_scenarios.mjs';

const plan = JSON.parse(process.argv[2]);
const require = createRequire(`${plan.modules}/package.json`);
const [node, web] = [require('onnxruntime-node'), require('onnxruntime-web')];
web.env.wasm.numThreads = 1;
const { Bundle, GraphkitError } = await import(pathToFileURL(plan.host));

const filesOf = async (folder) => Object.fromEntries(await Promise.all(
  (await readdir(folder)).map(async (name) => [name, new Uint8Array(await readFile(`${folder}/${name}`))])));
const opened = {
  'in place': (folder) => Bundle.open(node, folder),
  copied: async (folder) => Bundle.open(node, await filesOf(folder), { inPlace: false }),
  web: (folder) => Bundle.open(web, pathToFileURL(folder)),
};
/** Open a bundle with one file changed at a time, by its size or not, and say what comes of it. */
async function changedFiles(folder, files) {
  const said = {};
  const failure = (open) => open().then(() => '', (error) => String(error));
  for (const name of Object.keys(files).filter((name) => name !== 'bundle.json')) {
    const bytes = files[name], { [name]: _, ...others } = files;
    const flipped = Uint8Array.from(bytes, (byte, at) => (at === bytes.length - 1 ? byte ^ 1 : byte));
    said[name] = {
      missing: await failure(() => Bundle.open(node, others)),
      short: await failure(() => Bundle.open(node, { ...files, [name]: bytes.slice(0, -1) })),
      flipped: await failure(() => Bundle.open(node, { ...files, [name]: flipped }, { checksums: true })),
    };
  }
  said.whole = await failure(() => Bundle.open(node, folder, { checksums: true }));
  said.absent = await failure(() => Bundle.open(node, `${folder}.absent`));
  return said;
}
const found = {};
for (const [name, { folder, all, ways, given }] of Object.entries(plan.bundles)) {
  for (const way of ways) {
    const bundle = await opened[way](folder);
    (found[name] ??= {})[way] = { ...await decodes(bundle, given), grown: await grows(bundle, given) };
  }
  const files = await filesOf(folder);
  const { logits, slots } = await grows(await Bundle.open(node, all), given);
  const isSame = (grown) => sameLogits(grown.logits, logits);
  found[name].all = { slots, isSame: isSame(found[name]['in place'].grown), faults: {} };
  for (const [fault, [from, to]] of Object.entries(plan.faults)) {
    const parts = (await readFile(plan.host, 'utf8')).split(from);
    if (parts.length !== 2) throw new Error(`${fault}: no place for it`);
    const beside = (text) => text.replaceAll(/from '(\..*?)'/g, (_, file) => `from '${new URL(file, pathToFileURL(plan.host))}'`);
    const host = await import(`data:text/javascript,${encodeURIComponent(beside(parts.join(to)))}`);
    const run = host.Bundle.open(node, files).then((bundle) => grows(bundle, given));
    found[name].all.faults[fault] = await run.then(isSame, () => false);
  }
}
const { folder } = plan.bundles[plan.failing];
const files = await filesOf(folder);
const open = (text) => Bundle.open(node, { ...files, 'bundle.json': new TextEncoder().encode(text) });
found.failures = await fails(await Bundle.open(node, folder), GraphkitError);
found.refusals = await refuses(open, new TextDecoder().decode(files['bundle.json']));
found.files = await changedFiles(folder, files);
process.stdout.write(JSON.stringify(found), () => process.exit(0));
