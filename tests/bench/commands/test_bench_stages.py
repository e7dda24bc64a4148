"""`vivavoce bench offline` and `vivavoce bench streaming` as commands, and the texts that they speak."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.cli.cli_harness import Run, read_wav
from vivavoce_bench.commands import bench_stages
from vivavoce_bench.commands.bench_stages import Batches, TextChoice
from vivavoce_triton.client.utterance import Utterance

DOCUMENTATION = (Path(__file__).parents[3] / "docs" / "measuring.md").read_text(encoding="utf-8")


def undocumented(keys: dict[str, Any]) -> list[str]:
    inner = [name for value in keys.values() if isinstance(value, list) for one in value for name in one]
    return sorted({name for name in (*keys, *inner) if f"`{name}`" not in DOCUMENTATION})


@pytest.mark.slow
def test_offline_leaves_a_table_a_report_and_recordings(run: Run) -> None:
    options = "-n 2 --tokens 12 --batch-size 2,1 --seed 3"
    result = run(f"bench offline {options} --output-dir speech --json offline.json --quiet")
    assert (result.code, result.err) == (0, "")
    header, two, one = result.text.splitlines()
    assert header.split()[:4] == ["backend", "batch", "texts", "tokens"]
    assert [line.split()[:5] for line in (two, one)] == [
        ["torch", "2", "2", "24", "1.0"],
        ["torch", "1", "2", "24", "1.0"],
    ]
    for name in ("0001.wav", "0002.wav"):
        together, alone = (read_wav(Path("speech") / folder / name) for folder in ("torch-2", "torch-1"))
        assert len(together) == 12 * 960
        assert np.corrcoef(together, alone)[0, 1] > 0.999, "whoever shares the batch"
    keys = json.loads(Path("offline.json").read_text(encoding="utf-8"))
    assert undocumented(keys) == []
    assert [(run["batch_size"], run["token2wav_batch_size"]) for run in keys["runs"]] == [(2, 2), (1, 1)]
    assert (keys["model"], keys["seed"], keys["exact_tokens"], keys["text_source"]) == ("babble", 3, 12, "built in")
    assert all(run["total_time_seconds"] > 0 for run in keys["runs"])


@pytest.mark.slow
def test_cosyvoice_1_is_measured_whole_and_not_chunk_by_chunk(run: Run, babble_v1: Path) -> None:
    done = run(f"bench offline -n 2 --tokens 12 --batch-size 2 --model {babble_v1} --json offline.json --quiet")
    assert (done.code, done.err) == (0, "")
    (measured,) = json.loads(Path("offline.json").read_text(encoding="utf-8"))["runs"]
    assert (measured["tokens"], measured["audio_s"]) == (24, round(2 * 20 * 256 / 22_050, 6))
    refused = run(f"bench streaming -n 1 --model {babble_v1} --quiet")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "CosyVoice 1 has fixed chunk sizes" in refused.err


@pytest.mark.slow
def test_flags_of_earlier_scripts_are_understood(run: Run, recording: Path) -> None:
    Path("meta.lst").write_text(f"one|Hello.|{recording}|Good morning.\n", encoding="utf-8")
    flags = "--token2wav_path babble --output_dir out --batch_size 1 --token2wav_batch_size 1 --manifest meta.lst"
    result = run(f"bench offline --backend torch {flags} --tokens 10 --json -")
    assert result.code == 0
    keys = json.loads(result.out)
    assert keys["runs"][0]["texts"] == 1
    assert len(read_wav(Path("out/torch-1/one.wav"))) == 9600


@pytest.mark.slow
def test_streaming_leaves_tables_a_report_and_recordings(run: Run) -> None:
    options = "-n 1 --tokens 40 --chunk-size 10 --strategy exponential"
    result = run(f"bench streaming {options} --output-dir speech --json s.json --quiet")
    assert (result.code, result.err) == (0, "")
    for label in ("first chunk (ms)", "each chunk (ms)", "RTF in chunks", "joins", "spectrum to whole, joins (dB)"):
        assert label in result.text
    keys = json.loads(Path("s.json").read_text(encoding="utf-8"))
    assert undocumented(keys) == []
    expected = {"texts": 1, "tokens": 40, "chunks": 3, "joins": 2, "audio_s": 1.6, "chunk_size": 10}
    assert {name: keys[name] for name in expected} == expected
    assert [len(one["chunk_ms"]) for one in keys["speeches"]] == [3], "10, 20 and 10 tokens"
    assert len(read_wav(Path("speech/0001.wav"))) == len(read_wav(Path("speech/0001.whole.wav"))) == 40 * 960


@pytest.mark.slow
def test_a_recordings_tokens_are_spoken(run: Run, recording: Path) -> None:
    result = run(f"bench streaming --recording {recording} --json - --quiet")
    assert result.code == 0
    keys = json.loads(result.out)
    assert (keys["text_source"], keys["texts"]) == ("recordings", 1)
    assert keys["audio_s"] == keys["tokens"] * 0.04


def test_a_runtime_that_is_not_there_is_told_before_a_model_loads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_bench.halves.find_spec", lambda _: None)
    error = run("bench offline --backend torch --backend vllm --model missing").error
    assert error.startswith("error: backend: vllm needs the package vllm, which is not installed; pip install 'vllm>=")


def test_batch_sizes_are_a_list_or_several_options() -> None:
    assert Batches(batch_size=["16,8", "8", " 1 "]).sizes() == [16, 8, 1]
    assert Batches().sizes(5) == [4, 2, 1]


def test_built_in_sentences_have_a_number_lists_are_whole() -> None:
    Path("texts.txt").write_text("\n".join(f"Sentence {place}." for place in range(20)), encoding="utf-8")
    assert len(TextChoice().read()) == 16
    assert len(TextChoice(text_file=Path("texts.txt"), voice="anna").read()) == 20
    (line,) = TextChoice(text_file=Path("texts.txt"), num_texts=1).read()
    assert (line.name, line.text) == ("0001", "Sentence 0.")


def test_of_a_data_set_the_first_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [Utterance("a", "A.")]
    read = Mock(return_value=given)
    monkeypatch.setattr(bench_stages, "read_dataset", read)
    assert TextChoice(dataset="someone/speech", num_texts=2).read() == given
    read.assert_called_once_with("someone/speech", "train", 2)
