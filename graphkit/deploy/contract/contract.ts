/* Host contract of lowered models for $target, written by `graphkit contract`. */
$numbers
$lists
/** Added to scores that do not count. */
export const MASK_FLOOR = $floor;
/** The bits of the nearest finite float16. */
export const MASK_FLOOR_HALF = $floor_half;

/** A file beside the contract, as it was when that was written. */
export interface RecordedFile {
  readonly name: string;
  readonly bytes: number;
  /** In hexadecimal digits. */
  readonly sha256: string;
}

/** Rows in a raw little-endian file. */
export interface Table {
  readonly name: string;
  readonly file: string;
  readonly dtype: string;
  /** Of the first row, in bytes. */
  readonly offset: number;
  readonly rows: number;
  /** From one row to the next. */
  readonly rowBytes: number;
}

/** Where the slots of a state lie. */
export interface Slots {
  readonly axis: number;
  readonly count: number;
  /** Bytes of one slot that lie together, from each to the next. */
  readonly stride: number;
  /** How often the slots are repeated. */
  readonly blocks: number;
}

/** A tensor that the host keeps between steps. */
export interface State {
  readonly name: string;
  readonly dtype: string;
  readonly dims: readonly number[];
  /** Null where it does not grow. */
  readonly slots: Slots | null;
  readonly bytes: number;
}

/** What chooses rows of a table. */
export type By = $choices;

/** Who makes an input. A window of 0 means all tokens. */
export type Source =
  | { readonly kind: "embedding" | "rows"; readonly table: number; readonly by: By }
  | { readonly kind: "slots_mask"; readonly window: number }
  | { readonly kind: "source_mask" | "user" }
  | { readonly kind: "state"; readonly state: number }
  | { readonly kind: "output"; readonly method: number; readonly output: number };

/** An input of a method. */
export interface Input {
  readonly name: string;
  readonly dtype: string;
  readonly dims: readonly number[];
  readonly bytes: number;
  readonly source: Source;
}

/** An output of a method. */
export interface Output {
  readonly name: string;
  readonly dtype: string;
  readonly dims: readonly number[];
  readonly bytes: number;
  /** The state that it goes to. */
  readonly writes: number | null;
}

/** A lowered model. */
export interface Method {
  readonly name: string;
  readonly file: string;
  /** Runs for each token; else once for a source. */
  readonly eachStep: boolean;
  readonly inputs: readonly Input[];
  readonly outputs: readonly Output[];
}$places$arrays
