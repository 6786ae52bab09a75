/** Choose tokens as transformers' `generate` and token_search.py do: by rules of an export, greedy, drawn, by beams. */
import { need, say } from './values.mjs';

/**
 * Return the tokens of each row, from the logits of its first one. How to choose them: the `rules` of the export, the
 * `width` of the prompt, `ends`, `steps` at most, `beams` or `sampling`, `lengthPenalty`, `earlyStopping`; `onToken` is
 * told the tokens so far of each row, and `signal` may abort. `step` gives logits behind a token of each row, and
 * `reorder` lets rows be copies of others.
 */
export async function search(first, how, { step, reorder }) {
  const rows = first.map((logits) => ({ open: [{ text: [], score: 0, logits }], ended: [] }));
  for (;;) {
    rows.forEach((row, at) => advance(row, at * row.open.length, how));
    await how.onToken?.(rows.map(({ isDone, ended, open }) => (isDone ? ended : open)[0].text));
    if (rows.every(({ isDone }) => isDone)) return rows.map(({ ended }) => ended[0].text);
    how.signal?.throwIfAborted();
    const open = rows.flatMap((row) => row.open);
    if (how.beams > 1) await reorder(open.map(({ source }) => source));
    const logits = await step(open.map(({ text }) => text.at(-1)));
    open.forEach((one, at) => { one.logits = logits[at]; });
  }
}
/**
 * Let the beams of a row, which begin at a row of the state, go on with what is most likely; of equals, the first. The
 * rule is that of transformers, whatever else is in the batch.
 */
function advance(row, begin, how) {
  const { ends, beams, steps, lengthPenalty, earlyStopping } = how;
  const found = beams > 1 ? likeliest(row, begin, Math.max(2, 1 + ends.length) * beams, how)
    : row.open.map(({ text, logits }) => ({ text: [...text, choose(logits, begin, text.length, how)], score: 0 }));
  const [{ length }, isEnd] = [found[0].text, ({ text }) => text.length === steps || ends.includes(text.at(-1))];
  if (!row.isDone) {
    const isIn = (one) => isEnd(one) && (one.score > -Infinity || !row.ended.length);
    const ended = found.slice(0, beams).filter(isIn); // the others are there to go on with
    row.ended.push(...ended.map((one) => ({ ...one, score: one.score / length ** lengthPenalty })));
    row.ended.sort((one, other) => other.score - one.score).splice(beams);
  }
  const next = found.filter((one) => !isEnd(one));
  const none = () => ({ text: [...row.open[0].text, 0], score: -Infinity, source: begin }); // where too few go on
  row.open = Array.from({ length: beams }, (_, at) => next[at] ?? none());
  const reach = earlyStopping === 'never' && lengthPenalty > 0 ? steps : length;
  const isBetter = () => row.open[0].score / reach ** lengthPenalty > row.ended[beams - 1].score;
  const isFull = row.ended.length === beams && row.ended[beams - 1].score > -Infinity;
  row.isDone ||= length === steps || (isFull && (earlyStopping === true || !isBetter()));
}
function likeliest(row, begin, count, how) {
  const found = [];
  for (const [at, { text, score, logits }] of row.open.entries()) {
    const most = logits.reduce((a, b) => Math.max(a, b));
    const log = Math.log(logits.reduce((sum, one) => sum + Math.exp(one - most), 0));
    const scores = Float64Array.from(logits, (logit) => logit - most - log);
    restrict(scores, text.length, how).forEach((one, token) => {
      const total = score + one;
      if (found.length === count && !(total > found[count - 1].score)) return;
      found.push({ text: [...text, token], score: total, source: begin + at });
      found.sort((one, other) => other.score - one.score).splice(count);
    });
  }
  return found;
}
/** Return the token that a row goes on with, of so many before it: the most likely one, or one that is drawn. */
export function choose(logits, row, given, how) {
  const scores = restrict(new Float64Array(logits), given, how);
  const most = scores.reduce((a, b) => Math.max(a, b), -Number.MAX_VALUE);
  if (!how.sampling) return Math.max(0, scores.indexOf(most)); // one is always chosen
  const { seed, temperature = 1, topK = 0, topP = 1 } = how.sampling;
  const isWhole = Number.isInteger(Number(seed)) && Number.isInteger(topK);
  need(isWhole && temperature > 0 && temperature < Infinity && topK >= 0 && topP > 0 && topP <= 1, 'give a whole seed, ' +
    'a finite temperature above 0, a whole topK of at least 0, and a topP above 0, up to 1');
  const weights = scores; // which nobody else has
  for (let token = 0; token < weights.length; token += 1) weights[token] = Math.exp((scores[token] - most) / temperature);
  if (topK > 0 && topK < weights.length) dropBelow(weights, largest(weights, topK));
  if (topP < 1) {
    const ranked = weights.filter((weight) => weight > 0).sort().reverse(), [sums, total] = sum(ranked);
    dropBelow(weights, ranked[sums.findIndex((reached) => reached >= topP * total)]);
  }
  const [sums, total] = sum(weights);
  need(!Number.isNaN(total), 'the logits are NaN, so no token can be drawn');
  const place = uniform(BigInt(seed) + BigInt(row), given) * total;
  return sums.findIndex((reached) => reached > place || reached === total);
}
/** Let weights that are below a bound be 0. */
function dropBelow(weights, least) {
  for (let token = 0; token < weights.length; token += 1) if (weights[token] < least) weights[token] = 0;
}
/** Return the number that so many, itself included, are not below; no number is below 0. */
function largest(numbers, count) {
  if (count > 1000) return numbers.toSorted().at(-count);
  const top = new Float64Array(count).fill(-1); // the least first
  for (const number of numbers) {
    if (!(number > top[0])) continue;
    let place = 0;
    for (; place + 1 < count && top[place + 1] < number; place += 1) top[place] = top[place + 1];
    top[place] = number;
  }
  return top[0];
}
/** Return the sums of the first numbers, of the first two and so on, and of all. */
function sum(numbers) {
  const sums = new Float64Array(numbers.length);
  let total = 0;
  for (let place = 0; place < numbers.length; place += 1) sums[place] = total += numbers[place];
  return [sums, total];
}
/** Return a number of a sequence, from 0 to below 1, as token_search.py does: 53 bits of what SplitMix64 gives. */
function uniform(seed, place) {
  const short = (bits) => BigInt.asUintN(64, bits);
  let bits = short(seed + BigInt(place + 1) * 0x9E3779B97F4A7C15n);
  bits = short((bits ^ (bits >> 30n)) * 0xBF58476D1CE4E5B9n);
  bits = short((bits ^ (bits >> 27n)) * 0x94D049BB133111EBn);
  return Number((bits ^ (bits >> 31n)) >> 11n) / 2 ** 53;
}
/** Let scores be minus infinity at tokens that may not follow so many others, as token_rules.py does. */
function restrict(scores, given, { rules, ends, steps, width }) {
  const [length, first] = [width + given, rules.forced_bos_token_id];
  const last = given === steps - 1 ? rules.forced_eos_token_id : [];
  const forced = last.length || length !== 1 || first === null ? last : [first];
  const isShort = length < rules.min_length || given < rules.min_new_tokens;
  const isBegin = given === Number(width === 1 && first !== null);
  if (forced.length) scores.fill(-Infinity);
  for (const token of forced) scores[token] = 0;
  const barred = [...rules.suppress_tokens, ...(isBegin ? rules.begin_suppress_tokens : [])];
  if (!forced.length) barred.push(...rules.bad_words_ids, ...(isShort ? ends : []));
  for (const token of barred) scores[token] = -Infinity;
  return scores;
}
const OF_PROMPT = ['decoder_input_ids', 'decoder_start_token_id', 'forced_decoder_ids', 'language', 'lang_to_id',
  'task'];
/** Warn of what the export's own `generate` does otherwise. */
export function warnOf({ not_followed: settings, num_beams: count }, { beams, prompt }) {
  const names = settings.filter((name) => prompt == null || !OF_PROMPT.includes(name));
  if (names.length) say(`The export chooses tokens by ${names.join(', ')} too, which no host follows.`);
  if (count > 1 && !beams) say(`The export searches with ${count} beams, and hosts with 1 where none are given.`);
}
