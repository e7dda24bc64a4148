"""The options of speech are declared once: each way to ask for speech offers them by the same names and limits."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest

from vivavoce.api import Manner, ReadingManner
from vivavoce.cli.speak import SpeechManner
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import MAX_SPEED, MIN_SPEED, SamplingParams
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.speech import Mode, SpeakOptions, SpeechRequest
from vivavoce.frontend.speech_options import (
    CHUNK_POLICY,
    CODE,
    EMOJIS,
    LANGUAGE,
    LEXICON,
    MODE,
    READING,
    READING_OPTIONS,
    SAMPLING_OPTIONS,
    SPEECH_OPTIONS,
    SPEED,
    Option,
)
from vivavoce.frontend.text.text_input import Code, Emojis, Normalization
from vivavoce.server.http.normalize import NormalizeFields
from vivavoce.server.http.speech_fields import SamplingFields, SpeechFields
from vivavoce_grpc.protos import message
from vivavoce_textnorm import Language

NAMES = {option.name for option in SPEECH_OPTIONS}


def test_python_has_each_option_with_its_default() -> None:
    defaults = {field.name: field.default for field in fields(SpeechRequest)}
    for option in SPEECH_OPTIONS:
        assert defaults[option.field] == option.default, option.name
    inherited = {field.name for field in fields(SpeakOptions)}
    assert inherited == {option.field for option in (*SPEECH_OPTIONS, LEXICON)} - {"policy", "priority"} | {"sampling"}


def test_the_keywords_are_the_options() -> None:
    """The keywords are written out for readers and type checkers; `transcript` belongs to the voice."""
    former = {"prompt_text", "instruct"}
    assert (
        set(Manner.__annotations__)
        == NAMES - {"chunk_policy", "priority"} | {"lexicon", "options", "sampling", "transcript"} | former
    )
    assert set(ReadingManner.__annotations__) == {option.name for option in (*READING_OPTIONS, LEXICON)}


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        (MODE, [mode.value for mode in Mode]),
        (LANGUAGE, [*get_args(Language)[:2], "en-GB", *get_args(Language)[2:]]),
        (READING, get_args(Normalization)),
        (EMOJIS, get_args(Emojis)),
        (CODE, get_args(Code)),
    ],
)
def test_choices_are_those_of_the_types(option: Option, choices: Any) -> None:
    assert option.choices == tuple(choices)
    assert all(choice in option.help for choice in choices)


def test_choices_of_chunk_policies_are_known() -> None:
    with pytest.raises(InvalidRequest) as refused:
        ChunkPolicy.parse("nope")
    known = str(refused.value).partition("use one of ")[2].replace("-", "_").split(", ")
    assert sorted(known) == sorted(CHUNK_POLICY.choices)
    assert all(choice in CHUNK_POLICY.help for choice in known)


def test_limits_are_those_of_the_engine() -> None:
    assert (SPEED.minimum, SPEED.maximum) == (MIN_SPEED, MAX_SPEED)
    for option in SAMPLING_OPTIONS:
        assert option.minimum is not None
        assert option.maximum is not None
        for value in (option.minimum, option.maximum):
            SamplingParams(**{"max_ratio": 50.0, "min_ratio": 0.0, option.name: value})
        for value in (option.minimum - 1, option.maximum + 1):
            with pytest.raises(InvalidRequest, match=option.name):
                SamplingParams(**{"max_ratio": 50.0, "min_ratio": 0.0, option.name: value})


def test_http_has_each_option() -> None:
    shown = SpeechFields.model_json_schema()["properties"]
    for option in SPEECH_OPTIONS:
        field = SpeechFields.model_fields[option.name]
        assert field.default == option.default
        assert option is SPEED or field.description == option.description
        assert shown[option.name].get("enum", option.choices) in (list(option.choices), option.choices)
    assert set(SamplingFields.model_fields) == {option.name for option in SAMPLING_OPTIONS}
    assert set(NormalizeFields.model_fields) == {option.name for option in READING_OPTIONS} | {"input", "voice"}


def test_grpc_has_the_options_without_a_choice_of_reading() -> None:
    known = set(message("vivavoce.v1.Start").DESCRIPTOR.fields_by_name)
    assert NAMES - known == {"emojis", "code", "reasoning"}
    sampling = set(message("vivavoce.v1.Sampling").DESCRIPTOR.fields_by_name)
    assert sampling == {option.name for option in SAMPLING_OPTIONS}


def test_the_command_line_has_the_options_by_their_names() -> None:
    flags = {field.name: field.default for field in fields(SpeechManner)}
    assert NAMES - set(flags) == {"chunk_policy", "priority"}
    by_name = {option.name: option for option in (*SPEECH_OPTIONS, *SAMPLING_OPTIONS, LEXICON)}
    assert set(flags) - set(by_name) == {"voice", "transcript"}
    for name in set(flags) & set(by_name):
        assert flags[name] == by_name[name].default, name
    assert get_type_hints(SpeechManner)["top_k"] == int | None
