/**
 * Time steps of a bundle and of a growing cache in turns: what `bundle_javascript.py` runs in Node.
 *
 *     node bundle_javascript.mjs PLAN
 *
 * PLAN is JSON: `modules`, the folder with onnxruntime-node; `host`, the file bundle.mjs; `bundle`, its folder;
 * `folded`, a model; `inputs`, its inputs, each with its dtype, its shape, where "past" is the tokens and "total" one
 * more, and the present that it becomes, or null; `source`, what starts a sequence beside the tokens; `tokens`;
 * `rounds`; `steps`; `order`, of the contenders. It prints the milliseconds of processor time of a step, by tokens and
 * contender: the contenders make each step in turns, and a round gives the median of its steps.
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
    for (const input of plan.inputs) this.fed(input, tokens);
    this.tokens = tokens;
  }

  fed({ name, dtype, shape }, tokens) {
    const dims = shape.map((dim) => ({ past: tokens, total: tokens + 1 })[dim] ?? dim);
    const size = dims.reduce((product, dim) => product * dim, 1);
    const data = dtype === 'float32' ? Float32Array.from({ length: size }, () => Math.random() - 0.5)
      : new BigInt64Array(size).fill(1n);
    this.feeds[name] = new ort.Tensor(dtype, data, dims);
  }

  async step() {
    const outputs = await this.session.run(this.feeds);
    this.tokens += 1;
    for (const input of plan.inputs) {
      if (input.present) this.feeds[input.name] = outputs[input.present];
      else if (input.shape.includes('total')) this.fed(input, this.tokens);
    }
  }
}

class InPlace {
  async open() { this.bundle = await Bundle.open(ort, plan.bundle, { session, inPlace: true }); }

  fill(tokens) { return this.bundle.start({ ...plan.source, tokens: [new Array(tokens).fill(5)] }); }

  step() { return this.bundle.step(5); }
}

async function timed(contender) {
  const start = process.cpuUsage();
  await contender.step();
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1000;
}

const made = { bundle: new InPlace(), growing: new Growing() };
const contenders = plan.order.map((name) => [name, made[name]]);
for (const [, contender] of contenders) await contender.open();
const median = (values) => [...values].sort((one, other) => one - other)[values.length >> 1];
const times = {};
for (const tokens of plan.tokens) {
  times[tokens] = { bundle: [], growing: [] };
  for (let round = -1; round < plan.rounds; round += 1) {
    const taken = { bundle: [], growing: [] };
    for (const [, contender] of contenders) {
      await contender.fill(tokens);
      await contender.step();
    }
    for (let step = 0; step < plan.steps; step += 1) {
      for (const [name, contender] of contenders) taken[name].push(await timed(contender));
    }
    for (const name of plan.order) if (round >= 0) times[tokens][name].push(median(taken[name]));
  }
}
console.log(JSON.stringify(times));
