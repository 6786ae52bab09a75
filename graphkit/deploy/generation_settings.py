"""How an export's own `generate` chooses tokens, as `generation_config.json` says, or `config.json` without one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from graphkit.deploy.contract.contract_parts import Generation
from graphkit.errors import ModelError
from graphkit.io.stream_files import shown_path

__all__ = ["CONFIGURATIONS", "TokenSettings", "read_token_settings"]

CONFIGURATIONS = ("generation_config.json", "config.json")
KEYS = {"pad": "pad_token_id", "start": "decoder_start_token_id", "first": "bos_token_id", "ends": "eos_token_id"}
MOST = (1 << 31) - 1  # what every language counts to
UNSET = (
    "exponential_decay_length_penalty", "sequence_bias", "constraints", "force_words_ids", "stop_strings", "max_time",
    "watermarking_config", "dola_layers", "language", "task",
)  # fmt: skip
OFF = ("do_sample", "renormalize_logits", "remove_invalid_values", "token_healing", "return_timestamps")
NONE = ("diversity_penalty", "penalty_alpha", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size")
ONE = ("num_beam_groups", "repetition_penalty", "encoder_repetition_penalty", "guidance_scale")
NOT_FOLLOWED = {  # settings that change tokens, each with the value that changes nothing, as null does
    **dict.fromkeys(UNSET), **dict.fromkeys(OFF, False), **dict.fromkeys(NONE, 0), **dict.fromkeys(ONE, 1),
}  # fmt: skip


@dataclass(frozen=True)
class TokenSettings:
    """What an export says of tokens.

    Attributes:
        tokens: `pad` and `start`, None where nothing says.
        ends: The tokens of which any ends a sequence.
        generation: How they are chosen.
    """

    tokens: Mapping[str, int | None]
    ends: tuple[int, ...] = ()
    generation: Generation = field(default_factory=Generation)


def read_token_settings(path: Path, *, has_encoder: bool) -> TokenSettings:
    """Return what the configurations beside models say of tokens.

    Args:
        path: The folder of an export, or a model in it.
        has_encoder: Whether the decoder has one: then it starts with the token that begins a text where nothing says
            otherwise.

    Raises:
        ModelError: A configuration is no JSON.
    """
    folder = path if path.is_dir() else path.parent
    named, configuration = (_read_settings(folder / name) for name in CONFIGURATIONS)
    files = named, _decoder_settings(configuration)
    ids = {name: next((ids for file in files if (ids := _token_ids(file.get(key)))), ()) for name, key in KEYS.items()}
    starts = ids["start"] or (ids["first"] if has_encoder else ())
    tokens = {"pad": next(iter(ids["pad"]), None), "start": starts[0] if len(starts) == 1 else None}
    of_generation = _Settings(named or files[1])
    if len(starts) > 1:
        of_generation.note(KEYS["start"])
    return TokenSettings(tokens, ids["ends"], of_generation.generation(tokens["start"], ids["ends"]))


def _read_settings(path: Path) -> Mapping[str, object]:
    if not path.is_file():
        return {}
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"it cannot be read: {error}", file=shown_path(path), hint="mend it or move it away"
        ) from error
    return plain if isinstance(plain, dict) else {}


def _decoder_settings(configuration: Mapping[str, object]) -> Mapping[str, object]:
    """Return a model's configuration, with the settings of its decoder where it has none itself."""
    parts = (configuration.get(name) for name in ("text_config", "decoder"))
    decoder: Mapping[str, object] = next((part for part in parts if isinstance(part, dict)), {})
    return {**decoder, **{name: value for name, value in configuration.items() if value is not None}}


def _token_ids(entry: object) -> tuple[int, ...]:
    """Return the tokens of an entry, which is one or a list of them."""
    listed = entry if isinstance(entry, list) else [entry]
    return tuple(dict.fromkeys(token for token in listed if type(token) is int and 0 <= token <= MOST))


class _Settings:
    """The settings of a configuration, of which those that no host follows are noted by name."""

    def __init__(self, plain: Mapping[str, object]) -> None:
        self.plain = plain
        self.noted = [name for name, usual in NOT_FOLLOWED.items() if plain.get(name) not in (None, usual)]

    def note(self, name: str) -> None:
        """Note a setting as one that no host follows."""
        self.noted.append(name)

    def generation(self, start: int | None, ends: tuple[int, ...]) -> Generation:
        """Return how tokens are chosen, from the token that starts a sequence and those that end one."""
        first, early = self._read_tokens("forced_bos_token_id"), self.plain.get("early_stopping")
        if len(first) > 1:
            self.note("forced_bos_token_id")
        if early not in (None, True, False, "never"):
            self.note("early_stopping")
        penalty = self.plain.get("length_penalty")
        if not isinstance(penalty, (int, float, type(None))):
            self.note("length_penalty")
        longest, fewest = self._count("max_length"), self._count("min_new_tokens")
        return Generation(
            prompt=self._prompt_tokens(start),
            max_length=longest if longest != 20 else None,  # the default, which is no setting
            max_new_tokens=self._count("max_new_tokens") or None,
            min_length=(self._count("min_length") or 0) if fewest is None else 0,  # which `min_new_tokens` replaces
            min_new_tokens=fewest or 0,
            forced_bos_token_id=first[0] if len(first) == 1 else None,
            forced_eos_token_id=self._read_tokens("forced_eos_token_id"),
            bad_words_ids=tuple(dict.fromkeys(self._bad_words(ends))),
            suppress_tokens=self._read_tokens("suppress_tokens"),
            begin_suppress_tokens=self._read_tokens("begin_suppress_tokens"),
            num_beams=self._count("num_beams") or 1,
            length_penalty=float(penalty) if isinstance(penalty, (int, float)) else 1.0,
            early_stopping="never" if early == "never" else early in (True,),
            not_followed=tuple(sorted(dict.fromkeys(self.noted))),
        )

    def _count(self, name: str) -> int | None:
        entry = self.plain.get(name)
        if type(entry) is int and entry >= 0:
            return min(entry, MOST)
        if entry is not None:
            self.note(name)
        return None

    def _read_tokens(self, name: str) -> tuple[int, ...]:
        entry = self.plain.get(name)
        listed = entry if isinstance(entry, list) else [] if entry is None else [entry]
        if any(type(token) is not int or token > MOST for token in listed):
            self.note(name)
        return _token_ids(listed)

    def _bad_words(self, ends: tuple[int, ...]) -> Iterator[int]:
        """Yield the words of one token that never come; an end token is none, and longer words are not followed."""
        words = self.plain.get("bad_words_ids")
        for word in words if isinstance(words, list) else [words] if words is not None else []:
            ids = _token_ids(word)
            if not isinstance(word, list) or len(word) != 1 or not ids:
                self.note("bad_words_ids")
            elif ids[0] not in ends:
                yield ids[0]

    def _prompt_tokens(self, start: int | None) -> tuple[int, ...]:
        """Return the tokens behind the start token: those of a given start, or those that are forced one by one.

        A model of speech in several languages would first have to hear which one it is: that is not followed.
        """
        given = self.plain.get("decoder_input_ids")
        given = given[0] if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list) else given
        if given is not None:
            tokens = _ids_in_order(given)
            if not tokens:
                self.note("decoder_input_ids")
            return tokens[1:] if tokens[:1] == (start,) else tokens
        forced, silent = self.plain.get("forced_decoder_ids"), self.plain.get("no_timestamps_token_id")
        pairs = forced if isinstance(forced, list) else []
        tokens = _ids_in_order([pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2])
        is_whole = pairs == [[place, token] for place, token in enumerate(tokens, start=1)]
        if forced is not None and not (is_whole and isinstance(forced, list)):
            self.note("forced_decoder_ids")
            return ()
        if self.plain.get("lang_to_id") and not tokens:
            self.note("lang_to_id")
            return ()
        if type(silent) is int and (start, *tokens)[-1] != silent and not self.plain.get("return_timestamps"):
            return (*tokens, *_token_ids(silent))
        return tokens


def _ids_in_order(listed: object) -> tuple[int, ...]:
    """Return a list of tokens, which may come twice; none where it has anything else."""
    tokens = listed if isinstance(listed, list) else []
    return tuple(tokens) if all(type(token) is int and 0 <= token <= MOST for token in tokens) else ()
