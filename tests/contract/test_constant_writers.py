"""Constants of a contract as code: exact text, the compilers' word for it, and names that try to be code."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asking_programs import compiled
from small_contract import SMALL

from graphkit.cli import app
from graphkit.contract import Contract, Method, Port, Source
from graphkit.contract.contract_writers import WRITERS
from graphkit.errors import ModelError, UsageError

C = """\
/* Host contract of lowered models for generic-npu, written by `graphkit contract`. */
#ifndef HOST_CONTRACT_H
#define HOST_CONTRACT_H

#include <stddef.h>

#define HOST_CONTRACT_VERSION 3 /* Version of this form. */
#define HOST_PROVEN 0 /* 1 where the proof of models and host passed; 0 where not. */
#define HOST_BATCH 1 /* Sequences at a time. */
#define HOST_SOURCE 0 /* Positions of the padded source; 0 for none. */
#define HOST_CAPACITY 3 /* Slots of the cache; 0 for none. */
#define HOST_POSITIONS 4 /* Tokens that the decoder takes at most; 0 for no decoder. */
#define HOST_LAYERS 1 /* Layers of the decoder's cache; 0 for none. */
#define HOST_HEADS 2 /* Heads of keys and values in a layer; 0 where layers differ. */
#define HOST_HEAD_DIM 4 /* Numbers of a head; 0 where layers differ. */
#define HOST_VOCABULARY 11 /* Logits of a step; 0 for none. */
#define HOST_SOUND 0 /* Samples or frames of a padded sound; 0 for none, and for one all of which counts. */
#define HOST_STRIDE 1 /* Samples or frames of a sound that make a position of the source. */
#define HOST_OFFSET 0 /* Added to the valid ones before they are divided by that. */
#define HOST_TOKEN_PAD 0 /* Pads the source; -1 where the export does not say. */
#define HOST_TOKEN_START 7 /* Decoding starts with it; -1 where the export does not say. */
#define HOST_TOKEN_POOLED (-1) /* Its first place in the source chooses a row; -1 where no row is chosen by it. */
#define HOST_MAX_LENGTH 20 /* Most tokens, with those of the prompt; -1 where the export does not say. */
#define HOST_MAX_NEW_TOKENS (-1) /* Most tokens behind the prompt, before that; -1 where the export does not say. */
#define HOST_MIN_LENGTH 0 /* No sequence ends before it has so many tokens, with those of the prompt. */
#define HOST_MIN_NEW_TOKENS 0 /* The same behind the prompt. */
#define HOST_FORCED_BOS_TOKEN_ID (-1) /* Follows a prompt of one token; -1 for any. */
#define HOST_STATE_BYTES 96 /* Bytes of all states. */
#define HOST_MASK_FLOOR (-255.0f) /* Added to scores that do not count. */
#define HOST_MASK_FLOOR_HALF 0xdbf8 /* The bits of the nearest finite float16. */
#define HOST_MAX_RANK 4 /* The most dims of a tensor. */
#define HOST_FILE_COUNT 2
#define HOST_TABLE_COUNT 1
#define HOST_STATE_COUNT 1
#define HOST_METHOD_COUNT 1
#define HOST_END_TOKEN_COUNT 2 /* Of HOST_END_TOKENS. Decoding stops at any of these. */
static const long long HOST_END_TOKENS[] = {5, 9};
#define HOST_PROMPT_TOKEN_COUNT 0 /* Of HOST_PROMPT_TOKENS. Behind the start token, decoding begins with these. */
static const long long HOST_PROMPT_TOKENS[] = {-1};
#define HOST_FORCED_EOS_TOKEN_COUNT 1 /* Of HOST_FORCED_EOS_TOKENS. The last one of as many as there may be is one of \
these. */
static const long long HOST_FORCED_EOS_TOKENS[] = {5};
#define HOST_BAD_WORDS_TOKEN_COUNT 0 /* Of HOST_BAD_WORDS_TOKENS. Not chosen unless they are forced. */
static const long long HOST_BAD_WORDS_TOKENS[] = {-1};
#define HOST_SUPPRESS_TOKEN_COUNT 2 /* Of HOST_SUPPRESS_TOKENS. Never chosen. */
static const long long HOST_SUPPRESS_TOKENS[] = {1, 2};
"""
C_DATA = """
enum { /* places in HOST_TABLES */
    HOST_TABLE_STEP_INPUTS_EMBEDS = 0,
};

enum { /* places in HOST_STATES */
    HOST_STATE_PAST = 0,
};

enum { /* places in HOST_METHODS */
    HOST_METHOD_STEP = 0,
};

enum { /* places in HOST_STEP_INPUTS */
    HOST_STEP_INPUT_PAST = 0,
    HOST_STEP_INPUT_INPUTS_EMBEDS = 1,
    HOST_STEP_INPUT_MASK = 2,
};

enum { /* places in HOST_STEP_OUTPUTS */
    HOST_STEP_OUTPUT_LOGITS = 0,
    HOST_STEP_OUTPUT_PRESENT = 1,
};

static const HostFile HOST_FILES[] = {
    {"step.onnx", 9, "abababababababababababababababababababababababababababababababab"},
    {"rows.bin", 9, "abababababababababababababababababababababababababababababababab"},
};

static const HostTable HOST_TABLES[] = {
    /* embeddings */
    {"step.inputs_embeds", "rows.bin", "float32", 16, 11, 32},
};

static const HostState HOST_STATES[] = {
    {"past", "float32", 4, {1, 2, 3, 4}, 2, 3, 16, 2, 96},
};

static const HostPort HOST_STEP_INPUTS[] = {
    /* the cache */
    {"past", "float32", 4, {1, 2, 3, 4}, 4, 96, HOST_SOURCE_STATE, 0, -1, HOST_BY_NONE, 0, -1},
    /* rows */
    {"inputs_embeds", "float32", 3, {1, 1, 8}, 4, 32, HOST_SOURCE_EMBEDDING, 0, -1, HOST_BY_TOKEN, 0, -1},
    /* the mask */
    {"mask", "float32", 2, {1, 4}, 4, 16, HOST_SOURCE_SLOTS_MASK, -1, -1, HOST_BY_NONE, 2, -1},
};

static const HostPort HOST_STEP_OUTPUTS[] = {
    /* logits */
    {"logits", "float32", 2, {1, 11}, 4, 44, HOST_SOURCE_NONE, -1, -1, HOST_BY_NONE, 0, -1},
    /* what is new */
    {"present", "float32", 4, {1, 2, 1, 4}, 4, 32, HOST_SOURCE_NONE, -1, -1, HOST_BY_NONE, 0, 0},
};

static const HostMethod HOST_METHODS[] = {
    {"step", "step.onnx", 1, HOST_STEP_INPUTS, 3, HOST_STEP_OUTPUTS, 2},
};

#endif /* HOST_CONTRACT_H */
"""
RUST = """\
//! Host contract of lowered models for generic-npu, written by `graphkit contract`.
#![allow(dead_code)]

/// Version of this form.
pub const CONTRACT_VERSION: usize = 3;
/// 1 where the proof of models and host passed; 0 where not.
pub const PROVEN: usize = 0;
/// Sequences at a time.
pub const BATCH: usize = 1;
"""
RUST_DATA = """
/// Place of the output of step `logits`.
pub const STEP_OUTPUT_LOGITS: usize = 0;
/// Place of the output of step `present`.
pub const STEP_OUTPUT_PRESENT: usize = 1;

pub static FILES: [RecordedFile; 2] = [
    RecordedFile { name: "step.onnx", bytes: 9, sha256: \
"abababababababababababababababababababababababababababababababab" },
    RecordedFile { name: "rows.bin", bytes: 9, sha256: \
"abababababababababababababababababababababababababababababababab" },
];

pub static TABLES: [Table; 1] = [
    Table { name: "step.inputs_embeds", file: "rows.bin", dtype: "float32", offset: 16, rows: 11, row_bytes: 32 },
];

pub static STATES: [State; 1] = [
    State { name: "past", dtype: "float32", dims: &[1, 2, 3, 4], slots: Some(Slots { axis: 2, count: 3, stride: 16, \
blocks: 2 }), bytes: 96 },
];

pub static STEP_INPUTS: [Input; 3] = [
    Input { name: "past", dtype: "float32", dims: &[1, 2, 3, 4], bytes: 96, source: Source::State { state: 0 } },
    Input { name: "inputs_embeds", dtype: "float32", dims: &[1, 1, 8], bytes: 32, source: Source::Embedding \
{ table: 0, by: By::Token } },
    Input { name: "mask", dtype: "float32", dims: &[1, 4], bytes: 16, source: Source::SlotsMask { window: 2 } },
];

pub static STEP_OUTPUTS: [Output; 2] = [
    Output { name: "logits", dtype: "float32", dims: &[1, 11], bytes: 44, writes: None },
    Output { name: "present", dtype: "float32", dims: &[1, 2, 1, 4], bytes: 32, writes: Some(0) },
];

pub static METHODS: [Method; 1] = [
    Method { name: "step", file: "step.onnx", each_step: true, inputs: &STEP_INPUTS, outputs: &STEP_OUTPUTS },
];
"""
TYPESCRIPT = """\
/* Host contract of lowered models for generic-npu, written by `graphkit contract`. */

/** Version of this form. */
export const CONTRACT_VERSION = 3;
/** 1 where the proof of models and host passed; 0 where not. */
export const PROVEN = 0;
/** Sequences at a time. */
export const BATCH = 1;
"""
TYPESCRIPT_DATA = """
/** Place of the output of step `logits`. */
export const STEP_OUTPUT_LOGITS = 0;
/** Place of the output of step `present`. */
export const STEP_OUTPUT_PRESENT = 1;

export const FILES: readonly RecordedFile[] = [
  { name: "step.onnx", bytes: 9, sha256: \
"abababababababababababababababababababababababababababababababab" },
  { name: "rows.bin", bytes: 9, sha256: \
"abababababababababababababababababababababababababababababababab" },
];

export const TABLES: readonly Table[] = [
  { name: "step.inputs_embeds", file: "rows.bin", dtype: "float32", offset: 16, rows: 11, rowBytes: 32 },
];

export const STATES: readonly State[] = [
  { name: "past", dtype: "float32", dims: [1, 2, 3, 4], slots: { axis: 2, count: 3, stride: 16, \
blocks: 2 }, bytes: 96 },
];

export const STEP_INPUTS: readonly Input[] = [
  { name: "past", dtype: "float32", dims: [1, 2, 3, 4], bytes: 96, source: { kind: "state", state: 0 } },
  { name: "inputs_embeds", dtype: "float32", dims: [1, 1, 8], bytes: 32, source: { kind: "embedding", table: 0, \
by: "token" } },
  { name: "mask", dtype: "float32", dims: [1, 4], bytes: 16, source: { kind: "slots_mask", window: 2 } },
];

export const STEP_OUTPUTS: readonly Output[] = [
  { name: "logits", dtype: "float32", dims: [1, 11], bytes: 44, writes: null },
  { name: "present", dtype: "float32", dims: [1, 2, 1, 4], bytes: 32, writes: 0 },
];

export const METHODS: readonly Method[] = [
  { name: "step", file: "step.onnx", eachStep: true, inputs: STEP_INPUTS, outputs: STEP_OUTPUTS },
];
"""
KOTLIN = """\
// Host contract of lowered models for generic-npu, written by `graphkit contract`.
package host

/** Version of this form. */
const val CONTRACT_VERSION: Long = 3L
/** 1 where the proof of models and host passed; 0 where not. */
const val PROVEN: Long = 0L
/** Sequences at a time. */
const val BATCH: Long = 1L
"""
KOTLIN_DATA = """
/** Place of the output of step `logits`. */
const val STEP_OUTPUT_LOGITS: Int = 0
/** Place of the output of step `present`. */
const val STEP_OUTPUT_PRESENT: Int = 1

val FILES: List<RecordedFile> by lazy {
    listOf(
        RecordedFile("step.onnx", 9L, "abababababababababababababababababababababababababababababababab"),
        RecordedFile("rows.bin", 9L, "abababababababababababababababababababababababababababababababab"),
    )
}

val TABLES: List<Table> by lazy {
    listOf(
        Table("step.inputs_embeds", "rows.bin", "float32", 16L, 11L, 32L),
    )
}

val STATES: List<State> by lazy {
    listOf(
        State("past", "float32", longArrayOf(1, 2, 3, 4), Slots(2, 3, 16L, 2L), 96L),
    )
}

val STEP_INPUTS: List<Input> by lazy {
    listOf(
        Input("past", "float32", longArrayOf(1, 2, 3, 4), 96L, Source.State(0)),
        Input("inputs_embeds", "float32", longArrayOf(1, 1, 8), 32L, Source.Embedding(0, By.TOKEN)),
        Input("mask", "float32", longArrayOf(1, 4), 16L, Source.SlotsMask(2)),
    )
}

val STEP_OUTPUTS: List<Output> by lazy {
    listOf(
        Output("logits", "float32", longArrayOf(1, 11), 44L, null),
        Output("present", "float32", longArrayOf(1, 2, 1, 4), 32L, 0),
    )
}

val METHODS: List<Method> by lazy {
    listOf(
        Method("step", "step.onnx", true, STEP_INPUTS, STEP_OUTPUTS),
    )
}
"""
LISTS = {
    "kotlin": "/** Never chosen. */\nval SUPPRESS_TOKENS: LongArray = longArrayOf(1, 2)",
    "c": "static const long long HOST_SUPPRESS_TOKENS[] = {1, 2};",
    "rust": "/// Never chosen.\npub const SUPPRESS_TOKENS: [i64; 2] = [1, 2];",
    "typescript": "/** Never chosen. */\nexport const SUPPRESS_TOKENS: readonly number[] = [1, 2];",
}
EXPECTED = {
    "c": (C, C_DATA),
    "rust": (RUST, RUST_DATA),
    "typescript": (TYPESCRIPT, TYPESCRIPT_DATA),
    "kotlin": (KOTLIN, KOTLIN_DATA),
}
SUFFIX = {"c": ".h", "rust": ".rs", "typescript": ".ts", "kotlin": ".kt"}
# Names that try to be code, and one that is the name of a constant.
HOSTILE = ('"; system("x"); //', "*/ int x = y; /*", "a\nb\\", "??/", "é\u202e\u2028 {x} %s", "count", "COUNT", "", "1")


def renamed(name: str) -> Contract:
    """Return the small contract with one name for everything that a model names."""
    method, table, state = SMALL.methods[0], SMALL.tables[0], SMALL.states[0]
    past, embeds, mask = method.inputs
    logits, present = method.outputs
    inputs = (
        replace(past, name=name, meaning=name, source=Source("state", name)),
        replace(embeds, meaning=name, source=Source("embedding", name, "token")),
        mask,
    )
    outputs = (replace(logits, name=f"{name}+", meaning=name), replace(present, writes=name))
    made = replace(method, name=name, inputs=inputs, outputs=outputs)
    tables = (replace(table, name=name, meaning=name),)
    return replace(SMALL, target=name, methods=(made,), tables=tables, states=(replace(state, name=name),))


def many() -> Contract:
    """Return a contract whose states have all hostile names, and all such after that."""
    states = tuple(replace(SMALL.states[0], name=name) for name in HOSTILE)
    return replace(SMALL, states=(*SMALL.states, *states))


def empty() -> Contract:
    """Return a contract of a model without tables, states or inputs."""
    method = Method("encoder", "encoder.onnx", "once", (), (Port("y", "float32", (), "a number"),))
    sizes = {**SMALL.sizes, "capacity": 0, "positions": 0}
    return replace(SMALL, sizes=sizes, methods=(method,), tables=(), states=())


CONTRACTS = {"small": SMALL, "many": many(), "empty": empty(), **{repr(name): renamed(name) for name in HOSTILE}}


@pytest.mark.parametrize("language", EXPECTED)
def test_the_constants_are_these(language: str) -> None:
    text = WRITERS[language](SMALL)
    first, last = EXPECTED[language]
    assert text.startswith(first)
    assert text.endswith(last)
    assert LISTS[language] in text


def test_a_c_compiler_takes_all_headers(tmp_path: Path) -> None:
    for place, contract in enumerate(CONTRACTS.values()):
        (tmp_path / f"{place}.h").write_text(WRITERS["c"](contract))
        (tmp_path / f"{place}.c").write_text(f'#include "{place}.h"\n')
    files = [f"{place}.c" for place in range(len(CONTRACTS))]
    compiled(["cc", "-std=c99", "-trigraphs", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *files], tmp_path)


def test_a_rust_compiler_takes_all_modules(tmp_path: Path) -> None:
    for place, contract in enumerate(CONTRACTS.values()):
        (tmp_path / f"m{place}.rs").write_text(WRITERS["rust"](contract))
    (tmp_path / "lib.rs").write_text("".join(f"pub mod m{place};\n" for place in range(len(CONTRACTS))))
    compiled(["rustc", "--crate-type", "lib", "--emit", "metadata", "-D", "warnings", "lib.rs"], tmp_path)


def test_a_typescript_compiler_takes_all_modules(tmp_path: Path) -> None:
    for place, contract in enumerate(CONTRACTS.values()):
        (tmp_path / f"{place}.ts").write_text(WRITERS["typescript"](contract))
    files = [f"{place}.ts" for place in range(len(CONTRACTS))]
    compiled(["tsc", "--strict", "--noEmit", "--target", "es2020", *files], tmp_path)


def test_a_kotlin_compiler_takes_all_files(tmp_path: Path) -> None:
    for place, contract in enumerate(CONTRACTS.values()):
        (tmp_path / f"{place}.kt").write_text(
            WRITERS["kotlin"](contract).replace("package host", f"package host{place}")
        )
    compiled(["kotlinc", "-d", "out", *(f"{place}.kt" for place in range(len(CONTRACTS)))], tmp_path)


def test_names_come_back_from_a_c_program(tmp_path: Path) -> None:
    names = [state.name for state in many().states]
    (tmp_path / "contract.h").write_text(WRITERS["c"](many()))
    program = '#include "contract.h"\n#include <stdio.h>\nint main(void) {\n'
    program += "  for (int i = 0; i < HOST_STATE_COUNT; i++) { fputs(HOST_STATES[i].name, stdout); putchar(0); }\n}\n"
    (tmp_path / "names.c").write_text(program)
    compiled(["cc", "-std=c99", "names.c", "-o", "names"], tmp_path)
    printed = subprocess.run([tmp_path / "names"], capture_output=True, timeout=300, check=True).stdout
    assert printed.decode().split("\0")[:-1] == names


@pytest.mark.slow
def test_the_host_in_cpp_compiles_where_there_are_no_tables_and_no_states(tmp_path: Path) -> None:
    (tmp_path / "contract.h").write_text(WRITERS["c"](empty()))
    program = Path(__file__).parents[2] / "examples" / "host-cpp" / "replay.cpp"
    compiled(["c++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "-I", str(tmp_path), str(program)], tmp_path)


@pytest.mark.cases(12)
@pytest.mark.parametrize("language", EXPECTED)
@pytest.mark.parametrize("name", HOSTILE)
def test_code_is_ascii_and_no_name_stands_outside_of_a_literal_or_comment(language: str, name: str) -> None:
    text = WRITERS[language](renamed(name))
    assert text.isascii()
    assert all(line.isprintable() for line in text.split("\n"))


def test_a_nul_in_a_name_is_refused_for_c() -> None:
    with pytest.raises(UsageError, match=r"'a\\x00b' holds a NUL, which ends a string in C - rename it in the model"):
        WRITERS["c"](renamed("a\0b"))


def test_a_floor_that_is_no_float32_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the mask floor -1e\+39 is not a float32 - lower"):
        WRITERS["rust"](replace(SMALL, floor=-1e39))


def test_the_command_line_writes_the_language_of_the_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "contract.json").write_text(SMALL.to_json())
    app(["contract", str(tmp_path)], standalone_mode=False)
    assert capsys.readouterr().out == WRITERS["c"](SMALL)
    for language, suffix in SUFFIX.items():
        file = tmp_path / f"contract{suffix}"
        app(["contract", str(tmp_path), "-o", str(file)], standalone_mode=False)
        assert file.read_text() == WRITERS[language](SMALL)
        assert capsys.readouterr().out == f"Wrote {file}.\n"
    with pytest.raises(
        UsageError, match=r"contract\.mjs: its suffix is that of no language - name the language with -l"
    ):
        app(["contract", str(tmp_path), "-o", str(tmp_path / "contract.mjs")], standalone_mode=False)
    app(["contract", str(tmp_path / "contract.json"), "-l", "rust"], standalone_mode=False)
    assert capsys.readouterr().out == WRITERS["rust"](SMALL)


def test_a_folder_without_a_contract_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"it holds no \.onnx file - name the folder of an export, or a model"):
        app(["contract", str(tmp_path)], standalone_mode=False)
    with pytest.raises(ModelError, match=r"it cannot be read: No such file .* - write it with `graphkit lower`"):
        app(["contract", str(tmp_path / "contract.json")], standalone_mode=False)


def test_constants_of_a_lowered_folder_are_not_written_in_python(tmp_path: Path) -> None:
    (tmp_path / "contract.json").write_text(SMALL.to_json())
    with pytest.raises(UsageError, match="are not written in python - --loop writes its program"):
        app(["contract", str(tmp_path), "-l", "python"], standalone_mode=False)


@pytest.mark.parametrize("floor", [-1e9, -30000.0, -1 / 3, -65519.9999, -65504.0, -65505.0])
def test_the_floor_as_a_float16_is_the_nearest_finite_one(floor: float) -> None:
    bits = np.array(max(floor, -65504), np.float16).view(np.uint16)
    assert f"MASK_FLOOR_HALF: u16 = 0x{int(bits):04x};" in WRITERS["rust"](replace(SMALL, floor=floor))
    assert f"HOST_MASK_FLOOR_HALF 0x{int(bits):04x} " in WRITERS["c"](replace(SMALL, floor=floor))


def test_no_end_token_is_none() -> None:
    none = replace(SMALL, ends=())
    assert "#define HOST_END_TOKEN_COUNT 0" in WRITERS["c"](none)
    assert "pub const END_TOKENS: [i64; 0] = [];" in WRITERS["rust"](none)
    assert "export const END_TOKENS: readonly number[] = [];" in WRITERS["typescript"](none)
    assert "pub const END_TOKENS: [i64; 2] = [5, 9];" in WRITERS["rust"](SMALL)
    assert "export const END_TOKENS: readonly number[] = [5, 9];" in WRITERS["typescript"](SMALL)
