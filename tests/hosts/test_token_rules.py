"""Which tokens may come next: as transformers has it, in Python, in JavaScript and in C++.

`rules.json` has what `generate` of transformers 4.57 gives, by settings that were drawn at random, for a table: the
logits of a token depend on the one before and on its position. The exports in `tests/deploy/generation` are real.
"""

from __future__ import annotations

import json
import lzma
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_beam_search import POSITIONS, Table, generated_in_node

import graphkit
from graphkit.contract import Generation
from graphkit.deploy.export_pipeline import TokenSettings, read_token_settings
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.errors import GenerationWarning, ModelError, UsageError
from graphkit.hosts.token_search import BeamOptions, TokenRules, beam_search, greedy_search, most_new_tokens

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("rules.json").read_text())
EXPORTS = Path(__file__).parents[1] / "deploy" / "generation"
REAL: dict[str, list[dict[str, Any]]] = json.loads((EXPORTS / "cases.json").read_text())


def settings_of(plain: dict[str, Any], folder: Path, name: str = "generation_config.json") -> TokenSettings:
    (folder / name).write_text(json.dumps(plain))
    return read_token_settings(folder, has_encoder=True)


def drawn(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the table of a case and its prompts: drawn as for transformers."""
    random = np.random.RandomState(case["seed"])
    size = int(random.choice([6, 9, 14]))
    random.choice([1, 1, 2, 3])
    width = int(random.choice([1, 1, 2, 3]))
    random.choice(size, int(random.choice([1, 1, 2])), replace=False)
    table = np.round((random.standard_normal((POSITIONS, size, size)) * 2).astype(np.float32), 3)
    return table.astype(np.float32), random.randint(0, size, (2, width))


def test_the_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    assert len(CASES) == 120
    for case in CASES:
        table, prompts = drawn(case)
        settings, width = settings_of(case["settings"], tmp_path), prompts.shape[1]
        rules = settings.generation
        steps = most_new_tokens(rules, None, width)
        allowed, model = TokenRules(rules, settings.ends, width, steps), Table(table, prompts[:, -1], width - 1)
        first = table[(width - 1) % POSITIONS, prompts[:, -1]]
        if case["beams"] == 1:
            tokens = greedy_search(model, first, steps, settings.ends, allowed)
        else:
            options = BeamOptions(case["beams"], rules.length_penalty, rules.early_stopping)
            tokens = beam_search(model, first, steps, settings.ends, options, allowed)
        assert tokens == case["tokens"], case


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_the_tokens_are_the_same_in_javascript(tmp_path: Path) -> None:
    def planned() -> Iterator[dict[str, Any]]:
        for case in CASES:
            table, prompts = drawn(case)
            settings = settings_of(case["settings"], tmp_path)
            decoder = {"table": table.reshape(-1).tolist(), "vocabulary": table.shape[1], "prompts": prompts.tolist()}
            rules = {"ends": settings.ends, "generation": asdict(settings.generation), "options": {}}
            yield {"beams": case["beams"], **decoder, **rules}

    assert generated_in_node(list(planned())) == [case["tokens"] for case in CASES]


# Real exports


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    for path in EXPORTS.glob("*.xz"):
        name, file = path.name.removesuffix(".xz").split(".", 1)
        (folder / name).mkdir(exist_ok=True)
        (folder / name / file).write_bytes(lzma.decompress(path.read_bytes()))
    return folder


def generated(case: dict[str, Any], name: str, exports: Path, folder: Path) -> list[int]:
    """Return what a bundle of an export with the settings of a case gives by default."""
    export = Path(shutil.copytree(exports / name, folder / "export"))
    (export / "generation_config.json").write_text(json.dumps(case["settings"]))
    sizes = BundleOptions(max_cache=40, max_source=1500 if name == "whisper" else 8, batch=3, verify=False)
    bundle_folder(export, folder / "bundle", sizes)
    bundle = graphkit.Bundle(folder / "bundle")
    if name == "whisper":
        random = np.random.RandomState(1)
        sounds = [random.standard_normal((1, 8, 3000)).astype(np.float32) for _ in range(3)]
        (tokens,) = bundle.generate(beams=case["beams"], input_features=sounds[case["input"]])
        return [token for token in tokens if token not in bundle.contract.ends]
    (tokens,) = bundle.generate(case["ids"], beams=case["beams"])
    return [bundle.contract.tokens["start"] or 0, *tokens]


def places(name: str) -> list[Any]:
    """Return the cases of an export: the first is quick."""
    return [pytest.param(name, at, marks=[pytest.mark.slow] if at else []) for at in range(len(REAL[name]))]


@pytest.mark.cases("whisper")
@pytest.mark.parametrize(("name", "at"), [*places("mbart"), *places("whisper")])
def test_a_bundle_gives_the_tokens_of_its_export(name: str, at: int, exports: Path, tmp_path: Path) -> None:
    case = REAL[name][at]
    output = case["output"]
    tokens = generated(case, name, exports, tmp_path)
    if name == "whisper":
        settings = settings_of(case["settings"], tmp_path)
        begins = [settings.tokens["start"], *settings.generation.prompt]
        output = output[len(begins) :] if output[: len(begins)] == begins else output
        output = [token for token in output if token not in settings.ends]
    assert tokens == output


# What configurations say


def test_a_default_is_no_setting(tmp_path: Path) -> None:
    usual = {
        "max_length": 20, "min_length": 0, "num_beams": 1, "do_sample": False, "temperature": 0.7, "top_k": 50,
        "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "length_penalty": 1.0, "early_stopping": False,
        "guidance_scale": None, "diversity_penalty": 0.0, "use_cache": True, "forced_bos_token_id": None,
        "suppress_tokens": [], "num_return_sequences": 1, "transformers_version": "4.57.6",
    }  # fmt: skip
    assert settings_of(usual, tmp_path).generation == Generation()


def test_what_is_not_followed_is_named(tmp_path: Path) -> None:
    unusual = {
        "do_sample": True, "temperature": 0.7, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3,
        "encoder_no_repeat_ngram_size": 4, "exponential_decay_length_penalty": [2, 1.1], "sequence_bias": [[[5], 2.0]],
        "guidance_scale": 1.5, "bad_words_ids": [[7], [3, 4]], "num_beam_groups": 2, "min_length": "9",
        "forced_bos_token_id": [4, 5], "num_beams": 4,
    }  # fmt: skip
    rules = settings_of(unusual, tmp_path).generation
    assert rules.not_followed == tuple(sorted({*unusual} - {"temperature", "num_beams"}))
    assert (rules.bad_words_ids, rules.num_beams) == ((7,), 4)
    assert rules.caveat() == (
        f"The export chooses tokens by {', '.join(rules.not_followed)} too, which no host follows. "
        "The export searches with 4 beams, and hosts with 1 where none are given."
    )


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "9" * 400])
def test_a_number_that_no_contract_holds_is_not_followed(number: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(f'{{"length_penalty": {number}}}')
    rules = read_token_settings(tmp_path, has_encoder=True).generation
    assert (rules.length_penalty, rules.not_followed) == (1.0, ("length_penalty",))


WHISPER = {"decoder_start_token_id": 3, "eos_token_id": 1, "forced_decoder_ids": [[1, 7], [2, 9]]}


@pytest.mark.parametrize(
    ("plain", "prompt", "not_followed"),
    [
        (WHISPER, (7, 9), ()),
        ({**WHISPER, "no_timestamps_token_id": 11}, (7, 9, 11), ()),
        ({**WHISPER, "no_timestamps_token_id": 9}, (7, 9), ()),
        ({**WHISPER, "no_timestamps_token_id": 11, "return_timestamps": True}, (7, 9), ("return_timestamps",)),
        ({**WHISPER, "forced_decoder_ids": [[1, None], [2, 9]]}, (), ("forced_decoder_ids",)),
        ({**WHISPER, "forced_decoder_ids": [[2, 9]]}, (), ("forced_decoder_ids",)),
        ({**WHISPER, "forced_decoder_ids": None, "lang_to_id": {"<|en|>": 7}}, (), ("lang_to_id",)),
        ({"decoder_start_token_id": 3, "decoder_input_ids": [[3, 5, 5]]}, (5, 5), ()),
        ({"decoder_start_token_id": 3, "decoder_input_ids": [5, 6]}, (5, 6), ()),
        ({"decoder_start_token_id": 3, "decoder_input_ids": [[1], [2]]}, (), ("decoder_input_ids",)),
    ],
)
def test_what_the_decoder_begins_with(
    plain: dict[str, Any], prompt: tuple[int, ...], not_followed: tuple[str, ...], tmp_path: Path
) -> None:
    rules = settings_of(plain, tmp_path).generation
    assert (rules.prompt, rules.not_followed) == (prompt, not_followed)


def test_one_configuration_is_that_of_the_model_where_there_is_no_other(tmp_path: Path) -> None:
    """A model of two parts has its settings in the decoder, as transformers looks for them."""
    decoder = {"num_beams": 3, "max_length": 64, "forced_eos_token_id": 2, "bos_token_id": 8}
    plain = {"decoder": decoder, "max_length": 32, "eos_token_id": 2, "num_beams": None}
    settings = settings_of(plain, tmp_path, "config.json")
    rules = settings.generation
    assert (rules.num_beams, rules.max_length, rules.forced_eos_token_id, settings.ends) == (3, 32, (2,), (2,))
    assert settings.tokens["start"] == 8  # where nothing says otherwise, the token that begins a text
    assert settings_of({"eos_token_id": 2}, tmp_path).generation == Generation()  # which then says nothing of these


def test_start_tokens_for_each_row_are_none_for_all(tmp_path: Path) -> None:
    settings = settings_of({"decoder_start_token_id": [4, 5]}, tmp_path)
    assert settings.tokens["start"] is None
    assert settings.generation.not_followed == ("decoder_start_token_id",)


def test_a_configuration_may_be_above_the_folder_of_the_models(tmp_path: Path) -> None:
    models = tmp_path / "onnx"
    models.mkdir()
    (models / "model.onnx").touch()
    (tmp_path / "config.json").write_text('{"eos_token_id": 7, "pad_token_id": 3}')
    for path in (models, models / "model.onnx"):
        settings = read_token_settings(path, has_encoder=False)
        assert (settings.ends, settings.tokens["pad"]) == ((7,), 3)
    (models / "generation_config.json").write_text('{"eos_token_id": 8}')
    assert read_token_settings(models, has_encoder=False).ends == (8,)


def test_what_onnxruntime_genai_is_told_counts_where_nothing_else_says_it(tmp_path: Path) -> None:
    plain = {"model": {"eos_token_id": [7, 9], "pad_token_id": 3}, "search": {"num_beams": 2, "max_length": 64}}
    settings = settings_of(plain, tmp_path, "genai_config.json")
    assert (settings.ends, settings.tokens["pad"]) == ((7, 9), 3)
    assert settings.generation == Generation(num_beams=2, max_length=64)
    assert settings_of({"eos_token_id": 2}, tmp_path).ends == (2,)
    (tmp_path / "generation_config.json").unlink()
    assert settings_of({"model": [], "search": 1}, tmp_path, "genai_config.json").ends == ()


@pytest.mark.parametrize("text", ["{", "[1, 2]", "7"])
def test_a_configuration_that_is_no_json_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json: it cannot be read: .* - mend it or move it away"):
        read_token_settings(tmp_path, has_encoder=False)


# Bundles


@pytest.fixture
def bundle(exports: Path, tmp_path: Path) -> Iterator[graphkit.Bundle]:
    export = Path(shutil.copytree(exports / "mbart", tmp_path / "export"))
    settings = {**REAL["mbart"][0]["settings"], "repetition_penalty": 1.1, "num_beams": 2, "max_length": 6}
    settings = {name: value for name, value in settings.items() if name != "max_new_tokens"}
    (export / "generation_config.json").write_text(json.dumps(settings))
    bundle_folder(export, tmp_path / "bundle", BundleOptions(max_cache=40, max_source=8, verify=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield graphkit.Bundle(tmp_path / "bundle")


@pytest.mark.slow
def test_settings_that_are_not_followed_are_said_once(bundle: graphkit.Bundle) -> None:
    with pytest.warns(GenerationWarning, match=r"by repetition_penalty too, which no host follows\. .* with 2 beams"):
        bundle.generate([[8, 9]])
    with warnings.catch_warnings():
        warnings.simplefilter("error", GenerationWarning)
        bundle.generate([[8, 9]])


@pytest.mark.slow
def test_a_caller_may_have_other_rules(bundle: graphkit.Bundle) -> None:
    rules = bundle.contract.generation
    first = rules.forced_bos_token_id
    assert [tokens[0] for tokens in bundle.generate([[8, 9]], eos=())] == [first]
    other = replace(rules, forced_bos_token_id=9)
    assert bundle.generate([[8, 9]], eos=(), generation=other)[0][0] == 9
    assert len(bundle.generate([[8, 9]], eos=(), prompt=[[2]])[0]) == 5  # six with the prompt
    assert len(bundle.generate([[8, 9]], eos=(), max_new_tokens=9)[0]) == 9
    with pytest.raises(UsageError, match="the export does not say how many tokens to give - give max_new_tokens"):
        bundle.generate([[8, 9]], generation=Generation())
    with pytest.raises(UsageError, match="-1 tokens: max_length of the export is 6, and the prompt has 7"):
        bundle.generate([[8, 9]], prompt=[[2] * 7])
