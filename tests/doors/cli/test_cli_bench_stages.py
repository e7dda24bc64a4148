"""`vivavoce bench offline` and `vivavoce bench streaming` as commands."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from cli_harness import Run, read_wav

from vivavoce.doors.cli.bench_offline import _batch_sizes
from vivavoce.doors.cli.bench_texts import TextChoice
from vivavoce.errors import InvalidRequest, MissingDependency

DOCUMENTATION = (Path(__file__).parents[3] / "docs" / "benchmark.md").read_text(encoding="utf-8")


def undocumented(keys: dict[str, Any]) -> list[str]:
    inner = [name for value in keys.values() if isinstance(value, list) for one in value for name in one]
    return sorted({name for name in (*keys, *inner) if f"`{name}`" not in DOCUMENTATION})


def test_offline_leaves_a_table_a_report_and_recordings(run: Run) -> None:
    options = ("-n", 2, "--tokens", 12, "--batch-size", "2,1", "--seed", 3)
    result = run("bench", "offline", *options, "--output-dir", "speech", "--json", "offline.json", "--quiet")
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


def test_flags_of_earlier_scripts_are_understood(run: Run, recording: Path) -> None:
    Path("meta.lst").write_text(f"one|Hello.|{recording}|Good morning.\n", encoding="utf-8")
    result = run(
        *("bench", "offline", "--backend", "torch", "--token2wav_path", "babble", "--output_dir", "out"),
        *("--batch_size", 1, "--token2wav_batch_size", 1, "--manifest", "meta.lst", "--tokens", 10, "--json", "-"),
    )
    assert result.code == 0
    keys = json.loads(result.out)
    assert keys["runs"][0]["texts"] == 1
    assert len(read_wav(Path("out/torch-1/one.wav"))) == 9600


def test_streaming_leaves_tables_a_report_and_recordings(run: Run) -> None:
    options = ("-n", 1, "--tokens", 40, "--chunk-size", 10, "--strategy", "exponential")
    result = run("bench", "streaming", *options, "--output-dir", "speech", "--json", "s.json", "--quiet")
    assert (result.code, result.err) == (0, "")
    for label in ("first chunk (ms)", "each chunk (ms)", "RTF in chunks", "joins", "spectrum to whole, joins (dB)"):
        assert label in result.text
    keys = json.loads(Path("s.json").read_text(encoding="utf-8"))
    assert undocumented(keys) == []
    expected = {"texts": 1, "tokens": 40, "chunks": 3, "joins": 2, "audio_s": 1.6, "chunk_size": 10, "overlap": 0}
    assert {name: keys[name] for name in expected} == expected
    assert [len(one["chunk_ms"]) for one in keys["speeches"]] == [3], "10, 20 and 10 tokens"
    assert len(read_wav(Path("speech/0001.wav"))) == len(read_wav(Path("speech/0001.whole.wav"))) == 40 * 960


def test_a_recordings_tokens_are_spoken(run: Run, recording: Path) -> None:
    result = run("bench", "streaming", "--recording", recording, "--overlap", 4, "--json", "-", "--quiet")
    assert result.code == 0
    keys = json.loads(result.out)
    assert (keys["text_source"], keys["overlap"], keys["texts"]) == ("recordings", 4, 1)
    assert keys["audio_s"] == keys["tokens"] * 0.04


def test_the_load_is_put_on_as_ever(run: Run) -> None:
    result = run("bench", "-c", 2, "-n", 2, "--tokens", 8, "--warmup", 0, "--json", "-", "--quiet")
    assert result.code == 0
    assert (json.loads(result.out)["ok"], json.loads(result.out)["concurrency"]) == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-c", 4, "offline"), "bench: --concurrency stands before offline; write it after offline"),
        (("offline", "--backend", "onnx"), "backend: 'onnx' is unknown; use one of torch, hf, vllm, trtllm"),
        (("offline", "--batch-size", "4,many"), "batch_size: 'many' is no number in 1 … 256"),
        (("offline", "--batch-size", "0"), "batch_size: '0' is no number in 1 … 256"),
        (("offline", "--batch-size", "4", "-n", 2), "batch_size: 4 is more than the 2 texts"),
        (("offline", "--engine-dir", "nowhere"), "engine_dir: only the backend trtllm runs engines"),
        (("offline", "--tokens", 0), "exact_tokens: 0 is outside of 1"),
        (("offline", "--seed", -1), "seed: -1"),
        (("offline", "--manifest", "a", "--text-file", "b"), "texts: --text-file and --manifest exclude one another"),
        (("offline", "--manifest", "missing.lst"), "list: 'missing.lst' cannot be read"),
        (("offline", "--split-name", "test"), "split_name: belongs to a data set"),
        (("offline", "--manifest", "a.lst", "--voice", "anna"), "voice: each text of 'a.lst' has its own"),
        (("offline", "--prompt-text", "Hello."), "prompt_text: belongs to a recording"),
        (("offline", "--json", "missing/a.json"), "json: folder"),
        (("offline", "--plot", "missing/a.png"), "plot: folder"),
        (("offline", "--model", "missing"), "model: 'missing' is neither a folder nor a known model"),
        (("streaming", "--strategy", "none"), "strategy: 'none' is unknown; use one of equal, exponential"),
        (("streaming", "--chunk-size", 3), "chunk_size: 3 is outside of 5 … 1000"),
        (("streaming", "--overlap", 25), "overlap: 25 is outside of 0 … 24; a chunk has 25 tokens"),
        (("streaming", "--recording", "missing.wav"), "recording: 'missing.wav' is no file"),
        (("streaming", "--recording", "missing.wav", "-n", 1), "recording: its tokens are spoken"),
        (("streaming", "--recording", "missing.wav", "--tokens", 5), "recording: its tokens are spoken"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[object, ...], message: str, run: Run) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib", reason="needs the extra eval")
    assert run("bench", *arguments).error.startswith(f"error: {message}")


def test_a_runtime_that_is_not_there_is_told_before_a_model_loads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce.doors.cli.bench_backends.choosing.find_spec", lambda _: None)
    error = run("bench", "offline", "--backend", "torch", "--backend", "hf", "--model", "missing").error
    assert error == "error: backend: hf needs the package transformers, which is not here; pip install 'vivavoce[hf]'\n"


@pytest.mark.parametrize("command", ["offline", "streaming"])
def test_help_has_examples(command: str, run: Run) -> None:
    result = run("bench", command, "--help")
    assert result.code == 0
    assert f"vivavoce bench {command}" in result.text.split("Examples:")[1]
    assert all(len(line) < 110 for line in result.text.splitlines())
    assert command in run("bench", "--help").text.split("Commands:")[1]


def test_batch_sizes_are_a_list_or_several_options() -> None:
    assert _batch_sizes(["16,8", "8", " 1 "]) == [16, 8, 1]
    assert _batch_sizes([]) is None


def test_built_in_sentences_have_a_number_lists_are_whole() -> None:
    Path("texts.txt").write_text("\n".join(f"Sentence {place}." for place in range(20)), encoding="utf-8")
    assert len(TextChoice().read()) == 16
    assert len(TextChoice(text_file=Path("texts.txt"), voice="anna").read()) == 20
    (line,) = TextChoice(text_file=Path("texts.txt"), count=1, voice="anna").read()
    assert (line.id, line.text, line.voice) == ("0001", "Sentence 0.", "anna")


class FakeDataset(list[dict[str, Any]]):
    """Rows, and how they were asked for."""

    def cast_column(self, name: str, kind: Any) -> FakeDataset:
        assert (name, kind) == ("prompt_audio", ("audio", False)), "bytes, whatever decodes them"
        return self

    def select(self, places: range) -> FakeDataset:
        return FakeDataset(self[place] for place in places)


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> FakeDataset:
    """The package `datasets` with one split; tests fill it."""
    rows = FakeDataset()

    def load(name: str, split: str) -> FakeDataset:
        if (name, split) != ("someone/speech", "test"):
            raise FileNotFoundError(f"no {split}\nin {name}")
        return rows

    module = ModuleType("datasets")
    module.__spec__ = ModuleSpec("datasets", None)
    module.__dict__.update(load_dataset=load, Audio=lambda decode: ("audio", decode))
    monkeypatch.setitem(sys.modules, "datasets", module)
    return rows


def test_a_data_set_is_read_row_by_row(datasets: FakeDataset) -> None:
    audio = {"bytes": b"RIFF", "path": "a.wav"}
    datasets += [
        {"id": "a/1", "target_text": "One.", "prompt_text": "Hello.", "prompt_audio": audio},
        {"text": "Two.", "prompt_text": "Hi.", "prompt_audio": {"bytes": None, "path": "b.wav"}},
        {"text": "Three.", "prompt_text": "Hi.", "prompt_audio": audio},
    ]
    one, two = TextChoice(dataset="someone/speech", split="test", count=2).read()
    assert (one.id, one.text, one.voice, one.prompt_text) == ("a_1", "One.", b"RIFF", "Hello.")
    assert (two.id, two.text, two.voice) == ("0002", "Two.", "b.wav")


def test_a_data_set_that_cannot_be_read_is_named(datasets: FakeDataset) -> None:
    with pytest.raises(InvalidRequest, match=r"split 'train' of 'someone/speech' cannot be read .*no train in"):
        TextChoice(dataset="someone/speech").read()
    datasets.append({"prompt_text": "Hi.", "prompt_audio": {"bytes": None, "path": "b.wav"}})
    with pytest.raises(InvalidRequest, match="needs the columns id, prompt_text, prompt_audio and target_text"):
        TextChoice(dataset="someone/speech", split="test").read()


def test_data_sets_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependency, match="pip install datasets"):
        TextChoice(dataset="someone/speech").read()
