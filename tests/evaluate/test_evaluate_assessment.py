"""A whole evaluation around a model that hums."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from evaluate_fakes import HIGH, LOW, RATE, Constant, FakeTts, FakeVoice, PitchMeter, Spelling, hum, voice

from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce.evaluate import Case, Clip, Control, Instruments, Manner, Report, assess, evaluate
from vivavoce.evaluate.audio_files import write_recording
from vivavoce.evaluate.similarity import MOST_KEPT, embed_with
from vivavoce.evaluate.speaking import read_all

SENTENCES = ("The cat sat.", "The cat ran away.", "The dog sat on the mat.")
VOICES = {"low": voice(LOW), "high": voice(HIGH)}


def run(**options: object) -> Report:
    tts = options.pop("tts", None) or FakeTts()
    arguments = {"recogniser": Constant, **options}
    return evaluate(tts, VOICES, SENTENCES, **arguments)  # type: ignore[arg-type]


def test_every_voice_speaks_every_sentence() -> None:
    tts = FakeTts()
    report = run(tts=tts, manner=Manner(seed=7))
    assert tts.calls == [(text, 7 + place) for _ in VOICES for place, text in enumerate(SENTENCES)]
    assert [(one.voice, one.text, one.seed) for one in report.utterances] == [
        (name, text, 7 + place) for name in VOICES for place, text in enumerate(SENTENCES)
    ]
    assert list(report.voices) == ["low", "high"]


def test_words_are_scored() -> None:
    report = run()
    # "the cat sat" against: the same; the cat ran away; the dog sat on the mat.
    assert report.summary["wer_free_errors"] == 2 * (0 + 2 + 4)
    assert report.summary["wer_free_total"] == 2 * (3 + 4 + 6)
    assert report.summary["wer_free"] == pytest.approx(12 / 26)
    assert report.summary["wer_free_low"] < 12 / 26 < report.summary["wer_free_high"]
    assert report.voices["low"]["wer_free_errors"] == 6
    assert not {key for key in report.summary if key.startswith(("wer_closed", "per", "cer"))}


def test_closed_words_and_phones_are_scored_where_the_recogniser_has_them() -> None:
    report = run(recogniser=Spelling)
    assert report.summary["wer_closed_total"] == report.summary["wer_free_total"] == 26
    assert report.summary["per_total"] == 2 * len("thecatsat" + "thecatranaway" + "thedogsatonthemat")
    assert 0 < report.summary["per"] < 1


def test_words_that_the_recogniser_cannot_write_are_left_out_and_counted() -> None:
    report = evaluate(FakeTts(), {"low": voice(LOW)}, ["The cat xylophone."], recogniser=Spelling)
    assert (report.summary["wer_free_total"], report.summary["wer_free_errors"]) == (2, 0)
    assert report.summary["unknown_units"] == 1
    assert report.utterances[0].to_json()["unknown"] == ["xylophone"]


def test_a_text_of_unknown_words_is_refused_before_anything_is_spoken() -> None:
    tts = FakeTts()
    with pytest.raises(InvalidRequest, match=r"knows not one word of sentence 0002, 'Xx xy\.'"):
        evaluate(tts, VOICES, ["The cat.", "Xx xy."], recogniser=Spelling)
    assert tts.calls == []


def test_chinese_is_scored_by_characters() -> None:
    report = evaluate(FakeTts(), {"low": voice(LOW)}, ["你好，世界。"], recogniser=lambda: Constant("你好是界"))
    assert (report.summary["cer_free"], report.summary["cer_free_total"]) == (0.25, 4)
    assert "wer_free" not in report.summary
    assert report.utterances[0].to_json()["unit"] == "character"


def test_texts_and_transcripts_are_spelled_alike() -> None:
    def spell(text: str) -> str:
        if "☃" in text:
            raise InvalidText("text: no letter; use another")
        return text.replace("2", "two")

    report = evaluate(
        FakeTts(), {"low": voice(LOW)}, ["The 2 cats."], recogniser=lambda: Constant("the 2 cats"), spell=spell
    )
    assert report.summary["wer_free_errors"] == 0
    assert report.utterances[0].to_json()["said"] == "the two cats"
    assert report.utterances[0].sound.num_characters == len("thetwocats")
    odd = evaluate(FakeTts(), {"low": voice(LOW)}, ["The 2 cats."], recogniser=lambda: Constant("☃"), spell=spell)
    assert odd.summary["wer_free"] == 1.0
    own = evaluate(FakeTts(), {"low": voice(LOW)}, ["The 2 cats."], recogniser=lambda: Constant("the 2 cats"))
    assert own.utterances[0].to_json()["said"] == "the two cats", "the model's own normalisation"
    with pytest.raises(InvalidText, match="sentence 0001: text: no letter"):
        evaluate(FakeTts(), {"low": voice(LOW)}, ["☃"], recogniser=Constant, spell=spell)


def test_voices_are_told_apart() -> None:
    report = run()
    assert report.summary["identification_rate"] == 1.0
    assert report.summary["identification_chance"] == 0.5
    assert report.summary["speaker_similarity"] == pytest.approx(1.0)
    matrix = report.similarity_matrix()
    assert matrix["low"]["low"] == pytest.approx(1.0)
    assert matrix["low"]["high"] == matrix["high"]["low"] < 0.95
    swapped = evaluate(FakeTts(), {"low": voice(HIGH), "high": voice(HIGH)}, SENTENCES, recogniser=None)
    assert swapped.voices["high"]["identification_rate"] == 0.0  # both alike: the first wins


def test_of_many_references_the_nearest_and_the_own_are_kept() -> None:
    angles = np.linspace(0, np.pi / 2, MOST_KEPT + 1)
    crowd = {f"{number}": FakeVoice(np.array([np.cos(a), np.sin(a)])) for number, a in enumerate(angles)}
    instruments = Instruments(embed=lambda samples, rate: np.array([np.cos(angles[3]), np.sin(angles[3])], np.float32))
    clips = [Clip(Case(name, "Hello."), name, hum(1.0), RATE) for name in ("3", "5")]
    report = assess(clips, crowd, instruments)
    assert [list(one.similarities or ()) for one in report.utterances] == [["3"], ["5", "3"]]
    assert [one.nearest_voice for one in report.utterances] == ["3", "3"]
    assert report.summary["identification_rate"] == 0.5
    assert report.summary["identification_chance"] == pytest.approx(1 / 33)
    assert report.similarity_matrix() == {}


def test_one_voice_is_not_identified() -> None:
    report = evaluate(FakeTts(), {"low": voice(LOW)}, SENTENCES, recogniser=None)
    assert "speaker_similarity" in report.summary
    assert "identification_rate" not in report.summary


def test_audio_too_short_for_the_encoder_has_no_similarity() -> None:
    report = evaluate(FakeTts(), {"low": voice(LOW)}, ["Hi."], recogniser=None)
    assert report.utterances[0].speaker_similarity is None
    assert "speaker_similarity" not in report.summary


def test_lengths_and_levels() -> None:
    report = run(recogniser=None)
    row = report.utterances[0].to_json()
    assert row["duration_s"] == pytest.approx(0.06 * len(SENTENCES[0]))
    assert row["s_per_character"] == pytest.approx(row["duration_s"] / len("Thecatsat"))
    assert row["f0_p50_hz"] == pytest.approx(LOW, rel=0.01)
    assert (row["silence_ratio"], row["clipping_share"], row["length_ratio"], row["runaway"]) == (0, 0, None, None)
    assert row["rtf"] > 0
    assert report.summary["rtf"] > 0


def test_length_against_a_person() -> None:
    report = evaluate(FakeTts(), VOICES, [Case("a", "The cat sat.", truth_s=0.36)], recogniser=None)
    assert report.summary["length_ratio"] == pytest.approx(2.0)


def test_runaways_are_counted() -> None:
    report = run(tts=FakeTts(long_texts=[SENTENCES[2]]), recogniser=None)
    assert report.summary["runaways"] == 2
    assert [one.runaway for one in report.utterances[:2]] == [None, None]
    assert "times the expected length" in str(report.utterances[2].runaway)


def test_the_length_limit_makes_runaways_of_all() -> None:
    clip = Clip(Case("a", "Hello there."), "low", hum(2.0), RATE)
    report = assess([clip], {}, Instruments(longest_s=lambda text: 0.17 * len(text)))
    assert report.utterances[0].runaway == "length limit"
    assert assess([clip], {}, Instruments(longest_s=lambda text: 3.0)).summary["runaways"] == 0


@pytest.mark.parametrize(("click", "over"), [(0.0, 0), (0.3, 12)])
def test_streams_are_compared_with_whole_speech(click: float, over: int) -> None:
    tts = FakeTts(click=click)
    report = run(tts=tts, recogniser=None, manner=Manner(stream=True))
    assert len(tts.calls) == 12  # each once whole and once as a stream
    assert report.summary["joins"] == 12  # three pieces have two joins
    assert report.summary["joins_over"] == over
    assert (report.summary["join_worst_ratio"] > 1) == (over > 0)
    assert report.summary["first_audio_s"] <= report.summary["first_audio_p95_s"]
    assert report.utterances[0].to_json()["joins"] == 2
    assert "joins" not in run(recogniser=None).summary


def test_controls_spoil_what_they_say() -> None:
    def heard(control: Control | None) -> list[tuple[str, str]]:
        rows = [one.to_json() for one in run(recogniser=PitchMeter, control=control).utterances]
        return [(row["said"], row["heard_free"]) for row in rows]

    plain = heard(None)
    assert [text for text, _ in heard(Control.WRONG_TEXT)] == [text for text, _ in plain[1:] + plain[:1]]
    assert [text for _, text in heard(Control.WRONG_TEXT)] == [text for _, text in plain]
    assert run(control=Control.SHUFFLED).settings["control"] == "shuffled"
    assert "joins" not in run(control=Control.REVERSED, manner=Manner(stream=True), recogniser=None).summary
    one = evaluate(FakeTts(), VOICES, SENTENCES[:1], recogniser=None).utterances[0]
    spoiled = evaluate(FakeTts(), VOICES, SENTENCES[:1], recogniser=None, control=Control.SHUFFLED).utterances[0]
    assert one.sound.duration_s == spoiled.sound.duration_s


def test_recordings_are_scored_as_they_are(tmp_path: Path) -> None:
    for name, hz in (("a.wav", LOW), ("b.wav", HIGH)):
        write_recording(tmp_path / name, hum(1.0, hz), RATE)
    cases = [
        Case("1", "Low.", "low", audio=tmp_path / "a.wav"),
        Case("2", "High.", audio=tmp_path / "b.wav", truth=tmp_path / "a.wav"),
    ]
    instruments = Instruments(PitchMeter, embed=embed_with(FakeTts().embed))
    report = assess(read_all(cases, "high"), VOICES, instruments)
    assert [one.to_json()["heard_free"] for one in report.utterances] == ["hum 100", "hum 200"]
    assert [one.nearest_voice for one in report.utterances] == ["low", "high"]
    assert report.utterances[1].sound.length_ratio == pytest.approx(1.0)
    assert "rtf" not in report.summary
    silent = assess([Clip(Case("1", "Hm."), "x", np.zeros(RATE, np.float32), RATE)], {}, Instruments(Constant))
    json.dumps(silent.to_json(), allow_nan=False)


def test_no_clips_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="sentences: there are none"):
        assess([], {})


def test_progress_is_told() -> None:
    said: list[str] = []
    run(show=said.append)
    assert said[0] == "speaking … 1 of 6"
    assert said[-1] == "listening … 6 of 6"
