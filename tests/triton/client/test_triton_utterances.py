"""Where a load's texts are from: lists, JSON lines and data sets; and what a load refuses."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce_triton.client.utterance import LoadOptions, Manner, Utterance, read_dataset, read_manifest


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "a.wav").touch()
    return tmp_path


def read(folder, content):
    path = folder / "meta.lst"
    path.write_text(content, encoding="utf-8")
    return read_manifest(path)


def test_a_list_of_seed_tts_eval(folder):
    found = read(folder, "\ufeffx-1|its words|prompts/a.wav|你好\n\n |w|prompts/a.wav|Two|truth.wav\nz||| Three \n")
    audio = folder / "prompts" / "a.wav"
    assert found == [
        Utterance("x-1", "你好", audio, "its words"),
        Utterance("00003", "Two", audio, "w"),
        Utterance("z", "Three", None, ""),
    ]


def test_json_lines(folder):
    found = read(
        folder,
        '{"id": 0, "target_text": "One", "prompt_audio": "prompts/a.wav", "prompt_text": "w"}\n'
        '{"name": "b", "text": "Two"}\n'
        '{"text": "Three", "reference_audio": null, "audio_filepath": "prompts/a.wav"}\n',
    )
    audio = folder / "prompts" / "a.wav"
    assert found == [Utterance("0", "One", audio, "w"), Utterance("b", "Two"), Utterance("00003", "Three", audio)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no lines"),
        ("a|b|c", "line 1 of .* has 3 fields"),
        ("\na|w|prompts/a.wav|", "line 2 of .* has no text"),
        ("{oh", "is not JSON"),
        ('{"text": 5}', "has no text"),
        ('{"text": "a", "reference_audio": "none.wav"}', "names 'none.wav'"),
    ],
)
def test_lines_that_are_none(folder, content, message):
    with pytest.raises(InvalidRequest, match=f"^manifest_path: .*{message}"):
        read(folder, content)


class FakeRows(list[dict[str, Any]]):
    """A split of a data set."""

    @property
    def column_names(self):
        return list(self[0])

    def cast_column(self, column, feature):
        assert feature == ("audio", False)
        return FakeRows({**row, column: {"bytes": row[column]["data"], "path": row[column]["path"]}} for row in self)


def install(monkeypatch, parts):
    def load(name, split):
        if name != "known":
            raise FileNotFoundError("no such\nset")
        return parts if split is None else parts[split]

    fake = SimpleNamespace(load_dataset=load, Audio=lambda *, decode: ("audio", decode))
    monkeypatch.setitem(sys.modules, "datasets", fake)


def test_a_data_set(monkeypatch):
    rows = FakeRows(
        [
            {"id": "a/1", "prompt_text": "w", "target_text": "One", "prompt_audio": {"data": b"wav", "path": None}},
            {"id": 0, "prompt_text": "", "target_text": "Nought", "prompt_audio": {"data": b"wav", "path": None}},
            {"id": None, "prompt_text": "", "target_text": "Two", "prompt_audio": {"data": None, "path": "b.wav"}},
        ]
    )
    install(monkeypatch, {"test": rows})
    expected = [
        Utterance("a_1", "One", b"wav", "w"),
        Utterance("0", "Nought", b"wav"),
        Utterance("00003", "Two", Path("b.wav")),
    ]
    assert read_dataset("known", None) == read_dataset("known", "test") == expected


def test_a_data_set_that_does_not_fit(monkeypatch):
    install(monkeypatch, {"a": FakeRows([{"words": "x"}]), "b": FakeRows([{"text": "x"}])})
    for name, split, message in (
        ("unknown", None, "cannot be loaded .FileNotFoundError: no such set."),
        ("known", None, "split_name: 'known' has the splits a, b; name one of them"),
        ("known", "c", "cannot be loaded .KeyError: 'c'."),
        ("known", "a", "'known' has words, and no target_text or text"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            read_dataset(name, split)


def test_without_the_package_the_message_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependency, match="pip install datasets"):
        read_dataset("known", None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_tasks": 0}, "num_tasks: 0 is outside of 1"),
        ({"requests": 0}, "requests: 0 is outside"),
        ({"warmup": -1}, "warmup: -1 is outside"),
        ({"chunk_overlap_s": math.nan}, "chunk_overlap_duration: nan is outside"),
        ({"timeout_s": 1e12}, r"timeout: 1e\+12 s is not above 0 and at most 86400 s"),
        ({"utterances": []}, "utterances: the list is empty"),
        ({"utterances": [Utterance("a/b", "x")]}, "name: 'a/b' cannot be a file's name"),
        ({"utterances": [Utterance("a", "x"), Utterance("a", "y")]}, "name: 'a' occurs more than once"),
    ],
)
def test_a_load_that_makes_no_sense(given, message):
    with pytest.raises(InvalidRequest, match=message):
        LoadOptions(**{"server": "s:1", "utterances": [Utterance("a", "x")], **given})


def test_a_manner_that_makes_no_sense():
    with pytest.raises(InvalidRequest, match="seed: 9223372036854775808 does not fit"):
        Manner(seed=1 << 63)
    with pytest.raises(InvalidRequest, match="speed: nan is not"):
        Manner(speed=math.nan)


def test_each_text_once_and_one_per_task():
    three = [Utterance(name, "x") for name in "abc"]
    assert LoadOptions("s:1", three).total == 3
    assert LoadOptions("s:1", three, num_tasks=5).total == 5
    assert LoadOptions("s:1", three, num_tasks=5, requests=2).total == 2
    names = [LoadOptions("s:1", three, requests=7).utterance(place).name for place in range(7)]
    assert names == ["a-000", "b-000", "c-000", "a-001", "b-001", "c-001", "a-002"]
