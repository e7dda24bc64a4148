"""What a run leaves behind: JSON, a table, a picture, recordings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from evaluate_fakes import HIGH, LOW, RATE, FakeTts, Spelling, hum, voice

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce_bench.evaluate import Case, Clip, Manner, evaluate
from vivavoce_bench.evaluate.cases import read_audio_table
from vivavoce_bench.evaluate.report import SCHEMA, RecordingsFolder, draw, report_rows
from vivavoce_bench.evaluate.speaking import UNNAMED
from vivavoce_bench.measure import check_drawing, write_wav

DOCUMENTATION = (Path(__file__).parents[3] / "docs" / "measuring.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def report():
    voices = {"low": voice(LOW), "high": voice(HIGH)}
    cases = [Case("1", "The cat sat.", truth_s=1.0), Case("2", "The dog ran away."), Case("3", "你 the cat")]
    return evaluate(FakeTts(), voices, cases, recogniser=Spelling, manner=Manner(stream=True))


def test_the_json_file_is_what_its_schema_says(report, tmp_path):
    report.save(tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert list(found) == ["schema", "settings", "summary", "voices", "similarity_matrix", "utterances"]
    assert found["schema"] == SCHEMA
    assert set(found["voices"]) == {"low", "high"}
    assert all(isinstance(value, (int, float)) for value in found["summary"].values())
    assert len(found["utterances"]) == 6
    assert not [value for row in found["utterances"] for value in row.values() if isinstance(value, dict)]
    assert len({tuple(row) for row in found["utterances"]}) == 1, "every row has the same keys"


def test_every_key_is_documented(report):
    found = report.to_json()
    for key in (*found["utterances"][0], *found["settings"]):
        assert f"`{key}`" in DOCUMENTATION, key
    for key in found["summary"]:
        stem = key
        for suffix in ("_low", "_high", "_errors", "_total", "_substitutions", "_deletions", "_insertions"):
            stem = stem.removesuffix(suffix)
        assert f"`{stem}`" in DOCUMENTATION or f"`{key}`" in DOCUMENTATION, key


def test_the_table_has_a_row_per_figure_and_a_column_per_voice(report):
    header, rows = report_rows(report)
    assert header == ["", "all", "low", "high"]
    cells = {row[0]: row[1:] for row in rows}
    assert cells["utterances"] == ["6", "3", "3"]
    assert cells["WER, free"][0].startswith(f"{100 * report.summary['wer_free']:.1f} % (")
    assert cells["right voice nearest"][0].startswith("100.0 %")
    assert cells["joins that click"] == ["0 of 12", "0 of 6", "0 of 6"]
    assert all(len(row) == len(header) for row in rows)


def test_a_single_voice_needs_no_column_of_its_own():
    header, _ = report_rows(evaluate(FakeTts(), {"low": voice(LOW)}, ["The cat."], recogniser=None))
    assert header == ["", "all"]


def test_the_picture_is_a_png(report, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra eval")
    draw(report, tmp_path / "report.png")
    content = (tmp_path / "report.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000
    plain = evaluate(FakeTts(), {"low": voice(LOW)}, ["Hi."], recogniser=None)
    draw(plain, tmp_path / "plain.png")
    with pytest.raises(InvalidRequest, match=r"out: .* cannot be written"):
        draw(plain, tmp_path / "absent" / "plain.png")


def test_without_matplotlib_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r"pip install 'vivavoce\[eval\]'"):
        check_drawing("out")


def clip(name, speaker="anna"):
    return Clip(Case(name, f"Text of {name}."), speaker, hum(0.1), RATE)


def test_recordings_are_named_and_listed(report, tmp_path):
    folder = RecordingsFolder(tmp_path / "new" / "out", by_voice=True)
    assert folder.write(clip("0001")) == "0001-anna.wav"
    assert folder.write(clip("0001", "/some/where/a b.flac")) == "0001-a_b.wav"
    assert folder.write(clip("0001", f"{'n' * 50}.wav")) == f"0001-{'n' * 40}.wav"
    assert folder.write(clip("0001", "a/b.wav")) == "0001-b.wav"
    assert folder.write(clip("0001", "c/b.wav")) == "0001-b-2.wav"
    assert RecordingsFolder(tmp_path / "one", by_voice=False).write(clip("x1")) == "x1.wav"
    audio = decode_audio(tmp_path / "one" / "x1.wav")
    assert audio.sample_rate == RATE
    np.testing.assert_allclose(audio.samples, hum(0.1), atol=1e-4)


def test_the_table_of_recordings_can_be_scored_again(tmp_path):
    from vivavoce_bench.evaluate import assess

    for speaker, expected in ((UNNAMED, None), ("anna", "anna"), (str(tmp_path / "x.wav"), str(tmp_path / "x.wav"))):
        write_wav(tmp_path / "x.wav", hum(0.1), RATE)
        folder = RecordingsFolder(tmp_path / "out", by_voice=False)
        assess([clip("0001", speaker), clip("0002", speaker)], {}, folder=folder)
        cases = read_audio_table(tmp_path / "out" / "utterances.tsv")
        assert [(case.text, case.voice) for case in cases] == [("Text of 0001.", expected), ("Text of 0002.", expected)]


def test_places_that_cannot_be_written_are_named(report, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match=r"out: folder .* cannot be made"):
        RecordingsFolder(tmp_path / "file", by_voice=False)
    with pytest.raises(InvalidRequest, match=r"out: .* cannot be written"):
        report.save(tmp_path / "absent" / "report.json")
