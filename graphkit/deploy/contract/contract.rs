//! Host contract of lowered models for $target, written by `graphkit contract`.
#![allow(dead_code)]
$numbers
$lists
/// Added to scores that do not count.
pub const MASK_FLOOR: f32 = $floor;
/// The bits of the nearest finite float16.
pub const MASK_FLOOR_HALF: u16 = $floor_half;

/// A file beside the contract, as it was when that was written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecordedFile {
    pub name: &'static str,
    pub bytes: u64,
    /// In hexadecimal digits.
    pub sha256: &'static str,
}

/// Rows in a raw little-endian file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Table {
    pub name: &'static str,
    pub file: &'static str,
    pub dtype: &'static str,
    /// Of the first row, in bytes.
    pub offset: usize,
    pub rows: usize,
    /// From one row to the next.
    pub row_bytes: usize,
}

/// A tensor that the host keeps between steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    pub name: &'static str,
    pub dtype: &'static str,
    pub dims: &'static [usize],
    /// None where it does not grow.
    pub slots: Option<Slots>,
    pub bytes: usize,
}

/// Where the slots of a state lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slots {
    pub axis: usize,
    pub count: usize,
    /// Bytes of one slot that lie together, from each to the next.
    pub stride: usize,
    /// How often the slots are repeated.
    pub blocks: usize,
}

/// What chooses rows of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum By {
$choices
}

/// Who makes an input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source {
    /// Rows of a table at token ids.
    Embedding { table: usize, by: By },
    /// One row of a table.
    Rows { table: usize, by: By },
    /// 0 at the slots in use and, last, at the new token; the floor elsewhere. A window of 0 means all tokens.
    SlotsMask { window: usize },
    /// 0 at the valid positions of the source, the floor at its padding.
    SourceMask,
    State { state: usize },
    Output { method: usize, output: usize },
    /// Whoever calls.
    User,
}

/// An input of a method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Input {
    pub name: &'static str,
    pub dtype: &'static str,
    pub dims: &'static [usize],
    pub bytes: usize,
    pub source: Source,
}

/// An output of a method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Output {
    pub name: &'static str,
    pub dtype: &'static str,
    pub dims: &'static [usize],
    pub bytes: usize,
    /// The state that it goes to.
    pub writes: Option<usize>,
}

/// A lowered model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Method {
    pub name: &'static str,
    pub file: &'static str,
    /// Runs for each token; else once for a source.
    pub each_step: bool,
    pub inputs: &'static [Input],
    pub outputs: &'static [Output],
}$places$arrays
