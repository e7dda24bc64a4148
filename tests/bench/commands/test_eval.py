"""`eval` around the untrained model and around recordings."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.cli.cli_harness import AUDIO, Run

CLIP = AUDIO.parent / "evaluate" / "eleven_forty_two.flac"
TEXT = "It is 11:42 in Boston."


@pytest.fixture
def speech() -> Path:
    """A table of two recordings: one that says what it should, and one that does not."""
    samples, rate = soundfile.read(CLIP)
    soundfile.write("good.wav", samples, rate)
    soundfile.write("bad.wav", samples[::-1], rate)
    Path("table.tsv").write_text(f"good.wav\t{TEXT}\nbad.wav\tThe dog barked at the gate.\n")
    return Path("table.tsv")


def sentences(*texts: str) -> Path:
    Path("sentences.txt").write_text("\n".join(texts), encoding="utf-8")
    return Path("sentences.txt")


@pytest.mark.long
def test_a_model_is_measured(run: Run) -> None:
    pytest.importorskip("pocketsphinx", reason="needs the extra eval")
    said = sentences("Hi you.", "Go now.")
    result = run(f"eval --model babble -v babble-b --sentences {said} --stream --jobs 1 --out report")
    assert result.code == 0, result.err
    lines = dict(line.split("  ", 1) for line in result.text.splitlines() if not line.startswith(" "))
    for label in ("WER, free", "WER, closed", "phone error rate", "speaker similarity", "RTF", "joins that click"):
        assert label in lines
    report = json.loads(Path("report/report.json").read_text(encoding="utf-8"))
    assert report["summary"]["wer_free"] >= 0.5
    assert report["summary"]["utterances"] == 2
    assert list(report["voices"]) == ["babble-b"]
    assert report["settings"]["model"] == "babble"
    assert report["settings"]["stream"] is True
    assert Path("report/report.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in Path("report").glob("*.wav")) == ["0001.wav", "0002.wav"]
    assert "report: 2 recordings, utterances.tsv, report.json, report.png" in result.err
    assert "note: model babble" in result.err

    again = run("eval --model babble --audio report/utterances.tsv --recogniser none --json")
    figures = json.loads(again.text)["summary"]
    for key in ("s_per_character", "speaker_similarity", "voiced_share"):
        assert figures[key] == pytest.approx(report["summary"][key], abs=0.01)
    assert "rtf" not in figures


def test_all_voices_of_the_model_speak_if_none_is_named(run: Run) -> None:
    line = f"eval --model babble --sentences {sentences('Hi.')} --recogniser none"
    result = run(f"{line} --out report --json")
    assert list(json.loads(result.text)["voices"]) == ["babble-a", "babble-b"]
    names = sorted(path.name for path in Path("report").glob("*.wav"))
    assert names == ["0001-babble-a.wav", "0001-babble-b.wav"]


@pytest.mark.slow
def test_recordings_are_measured_and_no_network_loads(run: Run, no_loading: None, speech: Path) -> None:
    pytest.importorskip("pocketsphinx", reason="needs the extra eval")
    result = run(f"eval --model babble --audio {speech} --jobs 1 --json -q")
    assert (result.code, result.err) == (0, "")
    good, bad = json.loads(result.text)["utterances"]
    assert good["said"] == good["heard_closed"] == "it is eleven forty two in boston"
    assert (good["closed_errors"], good["closed_total"]) == (0, 7)
    assert bad["closed_errors"] >= 4
    assert good["speaker_similarity"] is None


def test_recordings_are_compared_with_voices(run: Run, no_loading: None, speech: Path, recording: Path) -> None:
    line = "eval --model babble --recogniser none --json -q"
    one = json.loads(run(f"{line} --audio {speech} --voice good.wav").text)
    assert list(one["voices"]) == ["good.wav"]
    # The model's random encoder hears no voices, but the same recording is the same recording.
    assert one["utterances"][0]["speaker_similarity"] == pytest.approx(1.0, abs=1e-3)
    Path("two.tsv").write_text(f"good.wav\tHi.\tgood.wav\ngood.wav\tHi.\t{recording}\n")
    two = json.loads(run(f"{line} --audio two.tsv").text)
    assert two["summary"]["identification_rate"] == 0.5
    assert [row["nearest_voice"] for row in two["utterances"]] == ["good.wav", "good.wav"]


def test_a_list_names_its_prompts(run: Run, recording: Path) -> None:
    shutil.copy(recording, "prompt.wav")
    Path("meta.lst").write_text("first|some words|prompt.wav|Hi you.|prompt.wav\nsecond||prompt.wav|Go.\n")
    result = run("eval --model babble --list meta.lst --recogniser none --out out --limit 1")
    assert result.code == 0, result.err
    report = json.loads(Path("out/report.json").read_text())
    (row,) = report["utterances"]
    assert (row["id"], row["audio"], row["text"]) == ("first", "first.wav", "Hi you.")
    assert row["length_ratio"] == pytest.approx(row["duration_s"] / 1.2)
    assert row["speaker_similarity"] is not None
    assert "identification_rate" not in report["summary"], "one recording"
    shutil.copy(recording, "out/second.wav")
    scored = run("eval --model babble --list meta.lst --audio out --recogniser none --json")
    assert [one["id"] for one in json.loads(scored.text)["utterances"]] == ["first", "second"]
    assert json.loads(scored.text)["utterances"][1]["speaker_similarity"] == pytest.approx(1.0, abs=1e-3)


def test_a_list_of_several_prompts_tells_how_often_the_right_one_is_nearest(run: Run, recording: Path) -> None:
    shutil.copy(recording, "a.wav")
    soundfile.write("b.wav", soundfile.read(recording)[0][::-1].astype(np.float32), 24_000)
    Path("meta.lst").write_text("one|words|a.wav|How are you?\ntwo|words|b.wav|How are you?\nthree||a.wav|Hi.\n")
    line = "eval --model babble --list meta.lst --recogniser none --json"
    spoken = json.loads(run(line).text)
    assert spoken["summary"]["identification_chance"] == 0.5
    assert [len(row) for row in spoken["similarity_matrix"].values()] == [2, 2]
    Path("said").mkdir()
    for name, prompt in (("one", "a"), ("two", "b"), ("three", "b")):
        shutil.copy(f"{prompt}.wav", f"said/{name}.wav")
    scored = json.loads(run(f"{line} --audio said").text)
    # Each is one of the prompts, the third not its own.
    assert [Path(row["nearest_voice"]).name for row in scored["utterances"]] == ["a.wav", "b.wav", "b.wav"]
    assert scored["summary"]["identification_rate"] == pytest.approx(2 / 3, abs=1e-5)


def test_a_recogniser_of_ones_own_is_imported_from_here(
    run: Run, speech: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != os.getcwd()])
    Path("my_ears.py").write_text("class Ears:\n    def transcribe(self, samples):\n        return '11:42 in Boston'\n")
    line = f"eval --model babble --audio {speech} --recogniser my_ears:Ears --json -q"
    result = run(line)
    good, _ = json.loads(result.text)["utterances"]
    assert (good["free_errors"], good["free_deletions"], good["heard_closed"]) == (2, 2, None)
    assert json.loads(result.text)["settings"]["recogniser"] == "my_ears:Ears"
    wrong = json.loads(run(f"{line} --control wrong-text").text)
    assert [row["said"] for row in wrong["utterances"]] == ["the dog barked at the gate", good["said"]]


def test_several_voices_with_their_transcripts(run: Run, recording: Path) -> None:
    shutil.copy(recording, "a.wav")
    soundfile.write("b.wav", soundfile.read(recording)[0][::-1].astype(np.float32), 24_000)
    line = f"eval --model babble --sentences {sentences('Hi.')} --recogniser none --json -q"
    result = run(f"{line} -v a.wav -v babble-a -v b.wav --prompt-text one --prompt-text two")
    assert list(json.loads(result.text)["voices"]) == ["a.wav", "babble-a", "b.wav"]


@pytest.mark.parametrize(
    ("package", "arguments"), [("pocketsphinx", ()), ("matplotlib.figure", ("--out", "x", "--recogniser", "none"))]
)
def test_the_missing_extra_is_named(
    run: Run, no_loading: None, monkeypatch: pytest.MonkeyPatch, package: str, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'vivavoce[eval]'" in run("eval --model babble", *arguments).error


def test_recordings_are_never_replaced(run: Run, no_loading: None, speech: Path) -> None:
    before = {name: Path(name).read_bytes() for name in ("good.wav", "bad.wav")}
    result = run(f"eval --audio {speech} --recogniser none --control reversed --out .")
    assert result.code == 2
    assert "choose another folder" in result.err
    assert {name: Path(name).read_bytes() for name in before} == before
