"""What is read from files, and what is said of bad lines."""

from __future__ import annotations

import pytest

from vivavoce.errors import InvalidRequest
from vivavoce_bench.evaluate.cases import cases_of, read_audio_table, read_seed_tts_list, read_sentences, with_audio


@pytest.fixture
def wavs(tmp_path):
    (tmp_path / "wavs").mkdir()
    for name in ("p1.wav", "p2.wav", "truth.wav"):
        (tmp_path / "wavs" / name).touch()
    return tmp_path


def write(folder, text):
    path = folder / "list.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_sentences_one_per_line(tmp_path):
    cases = read_sentences(write(tmp_path, "\ufeffHello there.\n\n  You，好。 \t 1.5\n"))
    assert [(case.id, case.text, case.truth_s) for case in cases] == [
        ("0001", "Hello there.", None),
        ("0003", "You，好。", 1.5),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb", "line 1 of .* has 'b' after the tab; give the seconds, a number above 0"),
        ("ok\n\na\t-1", "line 3 of .* has '-1' after the tab"),
        ("a\tinf", "has 'inf'"),
        ("a\t1\t2", "has 3 fields"),
        ("\t2", "has no text before the tab"),
        ("\n \n", "holds no lines"),
        (b"caf\xe9", "is not UTF-8 .at byte 3.; save it as UTF-8"),
    ],
)
def test_bad_sentences_are_named(tmp_path, text, message):
    with pytest.raises(InvalidRequest, match=f"^sentences: .*{message}"):
        read_sentences(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match=r"^sentences: .*absent.txt' cannot be read \(No such file"):
        read_sentences(tmp_path / "absent.txt")


def test_a_list_of_seed_tts_eval(wavs):
    lines = "one|What I say.|wavs/p1.wav|Hello.|wavs/truth.wav\ntwo| |wavs/p2.wav|你好。\nthree|Me.|wavs/p1.wav|Bye.|\n"
    first, second, third = read_seed_tts_list(write(wavs, lines))
    assert (first.id, first.prompt_text, first.text) == ("one", "What I say.", "Hello.")
    assert first.voice == str(wavs / "wavs" / "p1.wav")
    assert first.truth == wavs / "wavs" / "truth.wav"
    assert (second.prompt_text, second.truth, third.truth) == ("", None, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("one|text|wavs/p1.wav", r"line 2 of .* has 3 fields; write id\|prompt text\|prompt recording\|text"),
        ("one|text|wavs/p1.wav|a|b|c", "has 6 fields"),
        ("|text|wavs/p1.wav|Hello.", "has an empty id; fill it in"),
        ("one|text||Hello.", "has an empty prompt recording"),
        ("one|text|wavs/p1.wav|", "has an empty text"),
        ("one|text|wavs/p9.wav|Hello.", "names 'wavs/p9.wav', which is not a file in .*; check the path"),
        ("one|text|wavs|Hello.", "names 'wavs', which is not a file"),
        ("one|text|wavs/p1.wav|Hello.|wavs/p9.wav", "names 'wavs/p9.wav'"),
        ("../one|text|wavs/p1.wav|Hello.", "cannot be a file's name; leave slashes out"),
        ("zero|text|wavs/p1.wav|Hello.", "the id 'zero' more than once"),
    ],
)
def test_bad_lines_of_a_list_are_named(wavs, line, message):
    with pytest.raises(InvalidRequest, match=f"^list: .*{message}"):
        read_seed_tts_list(write(wavs, f"zero|text|wavs/p1.wav|Hello.\n{line}\n"))


def test_a_table_of_recordings(wavs):
    first, second, third = read_audio_table(
        write(wavs, "wavs/p1.wav\tHello.\nwavs/p2.wav\tBye.\tanna\nwavs/p2.wav\tHm.\twavs/p1.wav")
    )
    assert (first.audio, first.text, first.voice) == (wavs / "wavs" / "p1.wav", "Hello.", None)
    assert (second.voice, third.voice) == ("anna", str(wavs / "wavs" / "p1.wav"))


@pytest.mark.parametrize("line", ["wavs/p1.wav", "\tHello.", "wavs/p1.wav\t", "a\tb\tc\td"])
def test_bad_lines_of_a_table_are_named(wavs, line):
    with pytest.raises(InvalidRequest, match=r"^audio: line 1 of .* is not of the form recording, tab, text"):
        read_audio_table(write(wavs, line))


def test_recordings_are_matched_by_id_or_by_order(wavs):
    cases = cases_of(["One.", "Two.", "Three."])
    in_order = with_audio(cases, wavs / "wavs")
    assert [case.audio.name for case in in_order if case.audio] == ["p1.wav", "p2.wav", "truth.wav"]
    (wavs / "wavs" / "notes.txt").touch()
    for name in ("0003.wav", "0001.flac", "0002.wav"):
        (wavs / "wavs" / name).touch()
    by_id = with_audio(cases, wavs / "wavs")
    assert [case.audio.name for case in by_id if case.audio] == ["0001.flac", "0002.wav", "0003.wav"]
    with pytest.raises(InvalidRequest, match="holds 6 recordings for 2 sentences"):
        with_audio(cases_of(["a", "b"])[:1] + cases_of(["c"] * 9)[8:], wavs / "wavs")
