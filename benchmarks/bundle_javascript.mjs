/**
 * Time steps of a bundle and of a growing cache in turns: what `bundle_javascript.py` runs in Node.
 *
 *     node bundle_javascript.mjs PLAN
 *
 * PLAN is JSON: `modules`, the folder with onnxruntime-node; `host`, the file bundle.mjs; `bundle`, its folder;
 * `folded`, a model; `inputs`, its inputs, each with its dtype, its shape, where "past" is the tokens, and the present
 * that it becomes, or null; `tokens`; `rounds`; `steps`. It prints the milliseconds of processor time of a step, by tokens and contender, of each round.
 */
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const plan = JSON.parse(process.argv[2]);
const ort = createRequire(`${plan.modules}/package.json`)('onnxruntime-node');
const { Bundle } = await import(pathToFileURL(plan.host));
const session = { intraOpNumThreads: 1 };

class Growing {
  async open() { this.session = await ort.InferenceSession.create(plan.folded, session); }

  /** Let so many tokens be in the cache. */
  fill(tokens) {
    this.feeds = {};
    for (const { name, dtype, shape } of plan.inputs) {
      const dims = shape.map((dim) => (dim === 'past' ? tokens : dim));
      const size = dims.reduce((product, dim) => product * dim, 1);
      const data = dtype === 'float32' ? Float32Array.from({ length: size }, () => Math.random() - 0.5)
        : new BigInt64Array(size).fill(1n);
      this.feeds[name] = new ort.Tensor(dtype, data, dims);
    }
  }

  async step() {
    const outputs = await this.session.run(this.feeds);
    for (const { name, present } of plan.inputs) if (present) this.feeds[name] = outputs[present];
  }
}

class InPlace {
  async open() { this.bundle = await Bundle.open(ort, plan.bundle, { session, inPlace: true }); }

  fill(tokens) { return this.bundle.encode({ ...plan.source, tokens: [new Array(tokens).fill(5)] }); }

  step() { return this.bundle.step(5); }
}

async function timed(contender, tokens) {
  await contender.fill(tokens);
  for (let step = 0; step < 2; step += 1) await contender.step();
  const start = process.cpuUsage();
  for (let step = 0; step < plan.steps; step += 1) await contender.step();
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1000 / plan.steps;
}

const contenders = { bundle: new InPlace(), growing: new Growing() };
for (const contender of Object.values(contenders)) await contender.open();
const times = {};
for (const tokens of plan.tokens) {
  times[tokens] = { bundle: [], growing: [] };
  for (let round = -1; round < plan.rounds; round += 1) {
    for (const [name, contender] of Object.entries(contenders)) {
      const value = await timed(contender, tokens);
      if (round >= 0) times[tokens][name].push(value);
    }
  }
}
console.log(JSON.stringify(times));
