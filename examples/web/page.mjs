/**
 * Complete or translate with a bundle. The address of the page may have `?bundle=ADDRESS`, and `?modules=/node_modules`
 * for onnxruntime-web and @huggingface/tokenizers from a local copy, in place of a CDN.
 */
import { Bundle } from 'graphkit-host';

const CDN = { 'onnxruntime-web': '1.30.0', '@huggingface/tokenizers': '0.2.0' };
const at = new URLSearchParams(location.search);
const named = (name) => document.getElementById(name);
const [fields, status, progress, answer] = ['fields', 'status', 'progress', 'answer'].map(named);
let [bundle, tokenizer, stopping] = [];

/** Return the address of a file of a package. */
function fileOf(name, file) {
  const folder = at.get('modules'), remote = `https://cdn.jsdelivr.net/npm/${name}@${CDN[name]}`;
  return new URL(folder ? `${folder}/${name}/${file}` : `${remote}/${file}`, location);
}
function say(text, isFault = false) {
  status.textContent = text;
  status.classList.toggle('fault', isFault);
}
/** Return the tokenizer beside a bundle; none where there is no file, and ids are typed. */
async function openTokenizer(address) {
  const [model, settings] = await Promise.all(['tokenizer.json', 'tokenizer_config.json'].map(async (file) => {
    const found = await fetch(`${address}/${file}`);
    return found.ok ? found.json() : null;
  }));
  if (!model) return null;
  const { Tokenizer } = await import(fileOf('@huggingface/tokenizers', 'dist/tokenizers.mjs'));
  return new Tokenizer(model, settings ?? {});
}
async function open(address, provider) {
  const ort = await import(fileOf('onnxruntime-web', `dist/ort.${provider}.min.mjs`));
  ort.env.wasm.wasmPaths = fileOf('onnxruntime-web', 'dist/').href;
  if (!globalThis.crossOriginIsolated) ort.env.wasm.numThreads = 1; // threads share memory, which such a page may not
  const tell = ({ loaded, total }) => { progress.value = total ? loaded / total : 1; };
  const before = bundle;
  bundle = undefined;
  await before?.release();
  bundle = await Bundle.open(ort, address, { session: { executionProviders: [provider] }, progress: tell });
  tokenizer = await openTokenizer(address);
  const isTranslation = bundle.contract.methods.some(({ name }) => name === 'encode');
  named('beginning').hidden = !isTranslation || bundle.contract.tokens.start != null; // which the export says or not
  named('generate').textContent = isTranslation ? 'Translate' : 'Complete';
  named('kind').textContent = tokenizer ? 'Text' : 'Token ids, for there is no tokenizer.json beside the bundle';
}
const numbersIn = (text) => text.split(/[\s,]+/).filter(Boolean).map(Number);
/** Return the ids that the source stands for. */
function idsOf(source) {
  const ids = tokenizer ? tokenizer.encode(source).ids : numbersIn(source);
  if (!ids.length || !ids.every(Number.isInteger)) throw new Error('give token ids: whole numbers');
  return [ids];
}
const textOf = (tokens) => (tokenizer ? tokenizer.decode(tokens, { skip_special_tokens: true }) : tokens.join(' '));
async function generate() {
  const [most, temperature, seed] = ['most', 'temperature', 'seed'].map((name) => Number(named(name).value));
  const sampling = temperature > 0 ? { seed, temperature } : undefined;
  const start = performance.now();
  async function onToken([tokens]) {
    answer.textContent = textOf(tokens);
    const seconds = (performance.now() - start) / 1000;
    say(`${tokens.length} tokens, ${(tokens.length / seconds).toFixed(1)} a second`);
    await new Promise((resolve) => { setTimeout(resolve); }); // so that the page shows it, and Stop is heard
  }
  const ids = idsOf(named('source').value);
  const begin = named('beginning').hidden ? [] : numbersIn(named('begin').value);
  const prompt = begin.length ? [begin] : undefined;
  await bundle.generate(ids, { prompt, maxNewTokens: most, sampling, onToken, signal: stopping.signal });
}

named('opening').addEventListener('submit', async (event) => {
  event.preventDefault();
  [fields.disabled, named('open').disabled, progress.hidden, progress.value] = [true, true, false, 0];
  say('Loading …');
  try {
    await open(named('bundle').value.replace(/\/$/, ''), named('provider').value);
    fields.disabled = false;
    say('Ready.');
  } catch (error) {
    say(error.message, true);
  }
  [named('open').disabled, progress.hidden] = [false, true];
});
named('asking').addEventListener('submit', async (event) => {
  event.preventDefault();
  stopping = new AbortController();
  [named('generate').disabled, named('open').disabled, named('stop').disabled] = [true, true, false];
  [answer.textContent, status.textContent] = ['', 'Reading …'];
  try {
    await generate();
  } catch (error) {
    if (error.name === 'AbortError') say('Stopped.');
    else say(error.message, true);
  }
  [named('generate').disabled, named('open').disabled, named('stop').disabled] = [false, false, true];
});
named('stop').addEventListener('click', () => stopping.abort());
named('bundle').value = at.get('bundle') ?? 'bundle';
if (!navigator.gpu) named('provider').options[1].disabled = true;
document.documentElement.classList.add('live');
