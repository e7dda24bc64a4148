"""Speech against its texts, and controls that must fail."""

from __future__ import annotations

import json

import numpy as np
import pytest
from evaluate_fakes import HIGH, LOW, RATE, Constant, FakeTts, FakeVoice, PitchMeter, Spelling, hum, noise, voice
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce_bench.evaluate import Case, Clip, Control, Instruments, Manner, assess, evaluate
from vivavoce_bench.evaluate.report import MOST_REFERENCES
from vivavoce_bench.evaluate.speaking import embed_with, parse_control, read_all, spoil_audio, spoil_texts
from vivavoce_bench.measure import write_wav

SENTENCES = ("The cat sat.", "The cat ran away.", "The dog sat on the mat.")
VOICES = {"low": voice(LOW), "high": voice(HIGH)}


def run(**options):
    tts = options.pop("tts", None) or FakeTts()
    arguments = {"recogniser": Constant, **options}
    return evaluate(tts, VOICES, SENTENCES, **arguments)  # type: ignore[arg-type]


def test_every_voice_speaks_every_sentence():
    tts = FakeTts()
    report = run(tts=tts, manner=Manner(seed=7))
    assert tts.calls == [(text, 7 + place) for _ in VOICES for place, text in enumerate(SENTENCES)]
    assert [(one["voice"], one["text"], one["seed"]) for one in report.utterances] == [
        (name, text, 7 + place) for name in VOICES for place, text in enumerate(SENTENCES)
    ]
    assert list(report.voices) == ["low", "high"]


def test_words_are_scored():
    report = run()
    # "the cat sat" against: the same; the cat ran away; the dog sat on the mat.
    assert report.summary["wer_free_errors"] == 2 * (0 + 2 + 4)
    assert report.summary["wer_free_total"] == 2 * (3 + 4 + 6)
    assert report.summary["wer_free"] == pytest.approx(12 / 26)
    assert report.summary["wer_free_low"] < 12 / 26 < report.summary["wer_free_high"]
    assert report.voices["low"]["wer_free_errors"] == 6
    assert not {key for key in report.summary if key.startswith(("wer_closed", "per", "cer"))}


def test_closed_words_and_phones_are_scored_where_the_recogniser_has_them_and_unknown_words_left_out():
    report = run(recogniser=Spelling)
    assert report.summary["wer_closed_total"] == report.summary["wer_free_total"] == 26
    assert report.summary["per_total"] == 2 * len("thecatsat" + "thecatranaway" + "thedogsatonthemat")
    assert 0 < report.summary["per"] < 1
    report = evaluate(FakeTts(), {"low": voice(LOW)}, ["The cat xylophone."], recogniser=Spelling)
    assert (report.summary["wer_free_total"], report.summary["wer_free_errors"]) == (2, 0)
    assert report.summary["unknown_units"] == 1
    assert report.utterances[0]["unknown"] == ["xylophone"]


def test_a_text_of_unknown_words_is_refused_before_anything_is_spoken():
    tts = FakeTts()
    with pytest.raises(InvalidRequest, match=r"knows no word of sentence 0002, 'Xx xy\.'"):
        evaluate(tts, VOICES, ["The cat.", "Xx xy."], recogniser=Spelling)
    assert tts.calls == []


def test_chinese_is_scored_by_characters():
    report = evaluate(FakeTts(), {"low": voice(LOW)}, ["你好，世界。"], recogniser=lambda: Constant("你好是界"))
    assert (report.summary["cer_free"], report.summary["cer_free_total"]) == (0.25, 4)
    assert "wer_free" not in report.summary
    assert report.utterances[0]["unit"] == "character"


def test_texts_and_transcripts_are_spelled_alike():
    def spell(text):
        if "☃" in text:
            raise InvalidText("text: no letter; use another")
        return text.replace("2", "two")

    report = evaluate(
        FakeTts(), {"low": voice(LOW)}, ["The 2 cats."], recogniser=lambda: Constant("the 2 cats"), spell=spell
    )
    assert report.summary["wer_free_errors"] == 0
    assert report.utterances[0]["said"] == "the two cats"
    assert report.utterances[0]["num_characters"] == len("thetwocats")
    odd = evaluate(FakeTts(), {"low": voice(LOW)}, ["The 2 cats."], recogniser=lambda: Constant("☃"), spell=spell)
    assert odd.summary["wer_free"] == 1.0
    own = evaluate(FakeTts(), {"low": voice(LOW)}, ["The 2 cats."], recogniser=lambda: Constant("the 2 cats"))
    assert own.utterances[0]["said"] == "the two cats", "the model's own normalisation"
    with pytest.raises(InvalidText, match="sentence 0001: text: no letter"):
        evaluate(FakeTts(), {"low": voice(LOW)}, ["☃"], recogniser=Constant, spell=spell)


def test_voices_are_told_apart():
    report = run()
    assert report.summary["identification_rate"] == 1.0
    assert report.summary["identification_chance"] == 0.5
    assert report.summary["speaker_similarity"] == pytest.approx(1.0)
    matrix = report.similarity_matrix
    assert matrix["low"]["low"] == pytest.approx(1.0)
    assert matrix["low"]["high"] == matrix["high"]["low"] < 0.95
    swapped = evaluate(FakeTts(), {"low": voice(HIGH), "high": voice(HIGH)}, SENTENCES, recogniser=None)
    assert swapped.voices["high"]["identification_rate"] == 0.0  # both alike: the first wins
    alone = evaluate(FakeTts(), {"low": voice(LOW)}, SENTENCES, recogniser=None)
    assert "speaker_similarity" in alone.summary
    assert "identification_rate" not in alone.summary


def test_of_many_references_the_nearest_and_the_own_are_kept():
    angles = np.linspace(0, np.pi / 2, MOST_REFERENCES + 1)
    crowd = {f"{number}": FakeVoice(np.array([np.cos(a), np.sin(a)])) for number, a in enumerate(angles)}
    instruments = Instruments(embed=lambda samples, rate: np.array([np.cos(angles[3]), np.sin(angles[3])], np.float32))
    clips = [Clip(Case(name, "Hello."), name, hum(1.0), RATE) for name in ("3", "5")]
    report = assess(clips, crowd, instruments)
    assert [one["nearest_voice"] for one in report.utterances] == ["3", "3"]
    assert report.summary["identification_rate"] == 0.5
    assert report.summary["identification_chance"] == pytest.approx(1 / 33)
    assert report.similarity_matrix == {}


def test_lengths_and_levels():
    report = run(recogniser=None)
    row = report.utterances[0]
    assert row["duration_s"] == pytest.approx(0.06 * len(SENTENCES[0]))
    assert row["s_per_character"] == pytest.approx(row["duration_s"] / len("Thecatsat"))
    assert row["f0_p50_hz"] == pytest.approx(LOW, rel=0.01)
    assert (row["silence_ratio"], row["clipping_share"], row["length_ratio"], row["runaway"]) == (0, 0, None, None)
    assert row["rtf"] > 0
    assert report.summary["rtf"] > 0


def test_runaways_are_counted():
    report = run(tts=FakeTts(long_texts=[SENTENCES[2]]), recogniser=None)
    assert report.summary["runaways"] == 2
    assert [one["runaway"] for one in report.utterances[:2]] == [None, None]
    assert "times the expected length" in report.utterances[2]["runaway"]
    clip = Clip(Case("a", "Hello there."), "low", hum(2.0), RATE)
    for limit_s, runaway in ((2.04, "length limit"), (3.0, None)):
        (row,) = assess([clip], {}, Instruments(longest_s=lambda _, limit_s=limit_s: limit_s)).utterances
        assert row["runaway"] == runaway


@pytest.mark.parametrize(("click", "over"), [(0.0, 0), (0.3, 12)])
def test_streams_are_compared_with_whole_speech(click, over):
    tts = FakeTts(click=click)
    report = run(tts=tts, recogniser=None, manner=Manner(stream=True))
    assert len(tts.calls) == 12  # each once whole and once as a stream
    assert report.summary["joins"] == 12  # three pieces have two joins
    assert report.summary["joins_over"] == over
    assert (report.summary["join_worst_ratio"] > 1) == (over > 0)
    assert report.summary["first_audio_s"] <= report.summary["first_audio_p95_s"]
    assert report.utterances[0]["joins"] == 2
    assert "joins" not in run(recogniser=None).summary


def test_controls_spoil_what_they_say():
    def heard(control):
        rows = run(recogniser=PitchMeter, control=control).utterances
        return [(row["said"], row["heard_free"]) for row in rows]

    plain = heard(None)
    assert [text for text, _ in heard(Control.WRONG_TEXT)] == [text for text, _ in plain[1:] + plain[:1]]
    assert [text for _, text in heard(Control.WRONG_TEXT)] == [text for _, text in plain]
    assert run(control=Control.SHUFFLED).settings["control"] == "shuffled"
    assert "joins" not in run(control=Control.REVERSED, manner=Manner(stream=True), recogniser=None).summary
    one = evaluate(FakeTts(), VOICES, SENTENCES[:1], recogniser=None).utterances[0]
    spoiled = evaluate(FakeTts(), VOICES, SENTENCES[:1], recogniser=None, control=Control.SHUFFLED).utterances[0]
    assert one["duration_s"] == spoiled["duration_s"]


def test_recordings_are_scored_as_they_are(tmp_path):
    for name, hz in (("a.wav", LOW), ("b.wav", HIGH)):
        write_wav(tmp_path / name, hum(1.0, hz), RATE)
    cases = [
        Case("1", "Low.", "low", audio=tmp_path / "a.wav"),
        Case("2", "High.", audio=tmp_path / "b.wav", truth=tmp_path / "a.wav"),
    ]
    instruments = Instruments(PitchMeter, embed=embed_with(FakeTts().embed))
    report = assess(read_all(cases, "high"), VOICES, instruments)
    assert [one["heard_free"] for one in report.utterances] == ["hum 100", "hum 200"]
    assert [one["nearest_voice"] for one in report.utterances] == ["low", "high"]
    assert report.utterances[1]["length_ratio"] == pytest.approx(1.0)
    assert "rtf" not in report.summary
    silent = assess([Clip(Case("1", "Hm."), "x", np.zeros(RATE, np.float32), RATE)], {}, Instruments(Constant))
    json.dumps(silent.to_json(), allow_nan=False)


def test_spoiled_audio_is_the_same_samples_in_another_order():
    samples = noise(1.7)
    shuffled = spoil_audio(samples, RATE, Control.SHUFFLED)
    assert not np.array_equal(shuffled, samples)
    np.testing.assert_array_equal(np.sort(shuffled), np.sort(samples))
    np.testing.assert_array_equal(shuffled, spoil_audio(samples, RATE, Control.SHUFFLED))
    piece = samples[: round(0.16 * RATE)]
    assert any(np.array_equal(shuffled[at : at + len(piece)], piece) for at in np.flatnonzero(shuffled == piece[0]))
    again = spoil_audio(spoil_audio(samples, RATE, Control.REVERSED), RATE, Control.REVERSED)
    np.testing.assert_array_equal(again, samples)
    assert spoil_audio(samples, RATE, None) is samples
    assert spoil_audio(samples, RATE, Control.WRONG_TEXT) is samples


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=8).filter(lambda texts: len(set(texts)) > 1))
def test_every_text_is_another(texts):
    wrong = spoil_texts(texts, Control.WRONG_TEXT)
    assert len(wrong) == len(texts)
    assert all(one != other for one, other in zip(wrong, texts, strict=True))
    assert spoil_texts(texts, Control.SHUFFLED) == texts


def test_what_cannot_be_spoiled_or_scored_is_refused():
    with pytest.raises(InvalidRequest, match="sentences: the list is empty"):
        assess([], {})
    with pytest.raises(InvalidRequest, match="two different sentences"):
        spoil_texts(["same", "same"], Control.WRONG_TEXT)
    with pytest.raises(InvalidRequest, match="'noisy' is unknown; choose one of shuffled, wrong-text, reversed"):
        parse_control("noisy")
    assert parse_control("wrong_text") is Control.WRONG_TEXT
