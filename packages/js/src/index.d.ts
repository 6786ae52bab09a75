/** Numbers of a tensor. Of bool it is a Uint8Array, and of float16 a Float16Array, or their bits in a Uint16Array. */
export type TensorData =
  | Float32Array | Float64Array | Int8Array | Int16Array | Int32Array | BigInt64Array
  | Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

/** A tensor, such as those of onnxruntime. */
export interface TensorLike {
  readonly dims: readonly number[];
  readonly data: TensorData;
}

export type Nested = number | bigint | boolean | readonly Nested[];

/** What an input may be: a number, nested arrays, a typed array of one dim, or a tensor. */
export type Value = Nested | TensorLike | TensorData;

/** The module `onnxruntime-node` or `onnxruntime-web`. */
export interface Onnxruntime {
  readonly Tensor: unknown;
  readonly InferenceSession: unknown;
  readonly env: unknown;
}

/** A folder: its path, its URL, or its files by name, as bytes. */
export type Source = string | URL | Readonly<Record<string, Uint8Array>>;

export interface Progress {
  /** The file that is read. */
  file: string;
  /** Bytes that have come, of all files. */
  loaded: number;
  /** Bytes of all files. */
  total: number;
}

export interface OpenOptions {
  /** Options for onnxruntime's sessions, such as `{ executionProviders: ['webgpu'] }`. */
  session?: Record<string, unknown>;
  /** Compare the SHA-256 of each file, which reads it; else the sizes alone. */
  checksums?: boolean;
  /** Is told of bytes as they come. */
  progress?: (progress: Progress) => void;
  /** Aborts the reading. */
  signal?: AbortSignal;
}

/** How to draw tokens, by the names of transformers' `generate`; hosts in Python draw the same. */
export interface Sampling {
  /** Chooses the numbers that tokens are drawn by. Row `n` of a batch draws as a row alone with `seed + n`. */
  seed: number | bigint;
  /** What logits are divided by: 1 by default. */
  temperature?: number;
  /** How many of the likeliest tokens may be drawn; 0, the default, for all. */
  topK?: number;
  /** The likeliest tokens whose probabilities reach this may be drawn; 1, the default, for all. */
  topP?: number;
}

export interface GenerateOptions {
  /** The most tokens to give; by default as many as the export says. */
  maxNewTokens?: number;
  /** A token to stop at, or several of which any stops, which is given too; by default those of the export. */
  eos?: number | readonly number[];
  /** Draw tokens, in place of the most likely one. */
  sampling?: Sampling;
  /** What a decoder begins with; by default what the export says. */
  prompt?: Value;
  /** Other inputs, by name. */
  inputs?: Readonly<Record<string, Value>>;
  /** Other rules than those of the export, by their names in the contract. */
  generation?: Readonly<Record<string, unknown>>;
  /** Is told, after each token, the tokens so far of each row; it is awaited. With beams, the best may change. */
  onToken?: (rows: number[][]) => unknown;
  /** Aborts between two tokens: the promise rejects with the signal's reason. */
  signal?: AbortSignal;
}

export interface BundleGenerateOptions extends GenerateOptions {
  /** Beams of each row; 1, the default, takes the most likely token. */
  beams?: number;
  lengthPenalty?: number;
  earlyStopping?: boolean | 'never';
  /** 1 for each of the ids that counts, 0 for padding; ones by default. */
  mask?: Value;
}

export interface SavedTensor {
  dims: number[];
  data: TensorData;
}

/** The state of a bundle, as `structuredClone`, `postMessage` and IndexedDB take it. */
export interface BundleSnapshot {
  bundle: string;
  rows: number;
  lengths: Record<string, number>;
  states: Record<string, SavedTensor>;
}

/** The state of lowered models, as `structuredClone`, `postMessage` and IndexedDB take it. */
export interface HostSnapshot {
  folder: string;
  position: number;
  valid: number[];
  states: Record<string, SavedTensor>;
  given: Record<string, SavedTensor>;
}

/** What the caller, or a contract, has wrong: an error before anything runs. */
export class GraphkitError extends Error {}

/** The methods of a bundle, and the state of one user, which they update in place. */
export class Bundle {
  /**
   * Open a bundle. A warning on the console says, once, that it is not proven.
   * @param options `inPlace`: whether outputs are written into the state; by default where onnxruntime can.
   */
  static open(ort: Onnxruntime, source: Source, options?: OpenOptions & { inPlace?: boolean }): Promise<Bundle>;
  private constructor();
  /** What `bundle.json` says. */
  readonly contract: Readonly<Record<string, any>>;
  /** How many tokens the decoder has seen: the first length, 0 where there is none. */
  readonly length: number;
  /** Views of the state until the next call: rows in use, and slots in use where they come first. */
  readonly state: Record<string, TensorLike>;
  /** Return a bundle for another user: the same sessions, and a state of its own, at its start. */
  fork(): Bundle;
  /** Release the sessions, and with them those of every fork. */
  release(): Promise<void>;
  /**
   * Start a sequence of an encoder-decoder.
   * @param inputs Each input by name; `tokens` and `mask` also name the decoder's: by default what the export says, and
   *   ones.
   * @returns The logits of the last token, [batch, 1, vocabulary], or with `allLogits` of each.
   */
  encode(inputs?: Readonly<Record<string, Value>>, options?: { allLogits?: boolean }): Promise<TensorLike>;
  /** Start a sequence of a decoder alone; see `encode`. */
  prefill(inputs?: Readonly<Record<string, Value>>, options?: { allLogits?: boolean }): Promise<TensorLike>;
  /** Start a sequence, with `encode` or `prefill`, whichever there is. */
  start(inputs?: Readonly<Record<string, Value>>, options?: { allLogits?: boolean }): Promise<TensorLike>;
  /** Go on with a token, one for each row, or [batch, tokens], and return the logits. */
  step(tokens: Value, options?: { mask?: Value }): Promise<TensorLike>;
  /** Run a method by its name, such as an encoder of pictures, and return its outputs that are no state. */
  run(name: string, inputs?: Readonly<Record<string, Value>>): Promise<Record<string, TensorLike>>;
  /** Let rows of the state be copies of others: `reorder([0, 0, 1])` makes three rows of two. */
  reorder(rows: Iterable<number>): Promise<void>;
  /** Give all state its initial value, and forget the sequence. */
  reset(): Promise<void>;
  /** Forget the last tokens, so that only so many stay; where there are several lengths, by the name of one. */
  rewind(length: number, name?: string): void;
  /** Return a copy of the state in use. */
  snapshot(): BundleSnapshot;
  /** Let the state be that of a snapshot of this bundle. */
  restore(snapshot: BundleSnapshot): void;
  /**
   * Return the tokens of each row: greedy, drawn, or those that transformers gives with so many beams.
   * @param ids Token ids, [batch, tokens] or of one row: of the source for an encoder, else the prompt.
   */
  generate(ids?: Value | null, options?: BundleGenerateOptions): Promise<number[][]>;
}

/** Lowered models with their tables, and the state of one user: one sequence, or as many as they were lowered for. */
export class Host {
  /** Open a lowered folder. A warning on the console says, once, that it is not proven. */
  static open(ort: Onnxruntime, source: Source, options?: OpenOptions): Promise<Host>;
  private constructor();
  /** What `contract.json` says. */
  readonly contract: Readonly<Record<string, any>>;
  /** How many sequences run at a time. */
  readonly batch: number;
  /** Tokens in the cache. */
  readonly position: number;
  /** Valid positions of the source of each sequence. */
  readonly valid: readonly number[];
  /** The state, which is written in place. */
  readonly state: Record<string, TensorLike>;
  /** Return a host for another user: the same sessions and tables, and a state of its own. */
  fork(): Host;
  /** Release the sessions, and with them those of every fork. */
  release(): Promise<void>;
  /**
   * Forget the state, run what runs once for a source, and return its outputs.
   * @param source Token ids, of a batch a list for each sequence; none for a decoder alone. Of a sound, how many
   *   samples or frames are valid in each sequence: by default all that it has.
   * @param inputs Inputs that the caller makes, by name.
   */
  start(source?: Value, inputs?: Readonly<Record<string, Value>>): Promise<Record<string, TensorLike>>;
  /** The same of a model that reads no text: its inputs alone. */
  start(inputs: Readonly<Record<string, Value>>): Promise<Record<string, TensorLike>>;
  /** Run a token of each sequence, and return the logits of each. */
  step(tokens: number | readonly number[]): Promise<TensorData[]>;
  /** Return a copy of the state. */
  snapshot(): HostSnapshot;
  /** Let the state be that of a snapshot of this folder. */
  restore(snapshot: HostSnapshot): void;
  /** Return the tokens of each sequence, greedy or drawn; prompts may differ in length. */
  generate(source?: Value, options?: GenerateOptions): Promise<number[][]>;
}
