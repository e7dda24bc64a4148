from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.errors import InvalidRequest
from vivavoce.frontend.voices.names import (
    OPENAI_VOICES,
    NameRules,
    check_voice_name,
    folded,
    is_voice_name,
    unknown_voice,
)

GOOD = ["a", "Anna", "中文女", "हिन्दी", "Strauß", "x" * 64, "a b", "v1.2_final-3", "-x", "_", "٣", "é", "a..b", "a."]
BAD = [
    ("", "is empty"),
    ("x" * 65, "has 65 characters, more than 64"),
    ("x" * 1_000_000, "has 1000000 characters, more than 64"),
    ("../x", "begins with '.'"),
    ("..", "begins with '.'"),
    (".", "begins with '.'"),
    (".hidden", "begins with '.'"),
    ("a/b", "holds '/'"),
    ("/etc/passwd", "holds '/'"),
    ("a\\b", "holds '\\\\'"),
    ("x\x00y", "holds '\\x00'"),
    ("a\nb", "holds '\\n'"),
    ("a\u2028b", "holds '\\u2028'"),
    ("a\u202eb", "holds '\\u202e'"),
    ("a\u200bb", "holds '\\u200b'"),
    ("a\ud800b", "holds '\\ud800'"),
    ("a:b", "holds ':'"),
    ("a*", "holds '*'"),
    ("😀", "holds '\\U0001f600'"),
    (" a", "begins or ends with a space"),
    ("a ", "begins or ends with a space"),
    ("\u0301a", "begins with the mark"),
    ("\U00020000" * 64, "takes 256 bytes in UTF-8, more than 240"),
]


@pytest.mark.parametrize("name", GOOD)
def test_possible_names_are_kept_as_they_are(name):
    assert check_voice_name(name) == name


@pytest.mark.parametrize(("name", "problem"), BAD)
def test_impossible_names_are_refused_in_one_line(name, problem):
    with pytest.raises(InvalidRequest) as caught:
        check_voice_name(name)
    message = str(caught.value)
    assert message.startswith("voice name: ")
    assert problem in message
    assert "use 1 to 64 letters, digits" in message
    assert message.isprintable()
    assert len(message) < 300
    assert not is_voice_name(name)


def test_length_is_counted_after_normalising():
    assert check_voice_name("e\u0301" * 64) == "\u00e9" * 64


@given(st.text(max_size=80))
def test_every_accepted_name_is_a_file_in_its_folder(name):
    try:
        checked = check_voice_name(name)
    except InvalidRequest:
        return
    assert checked == check_voice_name(checked) == unicodedata.normalize("NFC", name)
    assert 1 <= len(checked) <= 64
    assert os.path.normpath(os.path.join("/folder", checked + ".safetensors")) == f"/folder/{checked}.safetensors"
    assert os.path.dirname(checked) == ""
    assert len(os.fsencode(checked + ".safetensors")) <= 255
    assert checked.isprintable()
    assert not checked.startswith(".")


@given(st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=40))
def test_letters_and_digits_are_always_accepted(name):
    normal = unicodedata.normalize("NFC", name)
    if len(normal) <= 64 and len(normal.encode()) <= 240:
        assert check_voice_name(name) == normal


@given(st.sampled_from(["/", "\\", "\0", "\n", "\r", "\u2028"]), st.text(max_size=30), st.text(max_size=30))
def test_no_separator_is_ever_accepted(separator, before, after):
    assert not is_voice_name(before + separator + after)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("Anna", "aNNA", True),
        ("STRASSE", "straße", True),
        ("\u00c9", "\u00e9", True),
        ("Σ", "ς", True),
        ("a", "a", True),
        ("anna", "anne", False),
        ("e", "é", False),
        ("1", "１", False),
    ],
)
def test_names_that_a_folding_file_system_takes_for_one(one, other, alike):
    assert (folded(one) == folded(other)) == alike


def test_unknown_voice_lists_eight_names_and_takes_no_more_than_it_needs():
    known = map("v{}".format, range(1000))
    assert str(unknown_voice("x", known)) == (
        "voice: 'x' is not registered (known: v0, v1, v2, v3, v4, v5, v6, v7 and more); "
        "choose a known name, or add a voice from a recording"
    )
    assert next(known) == "v32"
    assert "(known: v0)" in str(unknown_voice("x", ["v0"]))
    assert str(unknown_voice("x", [])).endswith(
        "(no voice is known yet); add one from a recording, or send a recording in its place"
    )


def test_a_mistyped_name_is_told_the_one_that_was_meant():
    assert str(unknown_voice("clam", ["bright", "calm"])).endswith("(known: bright, calm); did you mean calm?")
    assert "did you mean" not in str(unknown_voice("c" * 100_000, ["calm"]))


def test_openai_names_are_spread_over_a_models_voices_and_stay_where_they_are():
    table = NameRules(aliases={"nova": "anna", "me": "alloy"}).table(["bright", "calm", "robot"])
    assert [table[name] for name in OPENAI_VOICES[:4]] == ["bright", "calm", "robot", "bright"]
    assert (table["nova"], table["me"], len(OPENAI_VOICES)) == ("anna", "alloy", 13)
    assert NameRules().table([]) == {}
    assert set(NameRules(default="anna").table([]).values()) == {"anna"}
