"""`vivavoce client`: its options, its exit codes, and one line for everything that goes wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vivavoce.cli.main import main

RECORDING = Path(__file__).parents[2] / "data" / "audio" / "speech_24k_float.wav"


@pytest.fixture
def grpc():
    """Asks a server over gRPC; the exit code."""
    pytest.importorskip("tritonclient.grpc", reason="needs the extra triton-client")
    from fake_triton import FakeTriton, serving

    with serving(FakeTriton()) as server:
        host, _, port = server.address.rpartition(":")
        where = ["client", "grpc", "--server_addr", host, "--server-port", port]
        yield lambda *arguments: main([*where, *map(str, arguments)])


def error(capsys):
    """The one line on stderr."""
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    return line


def test_a_load_in_the_spelling_of_old_scripts(grpc, tmp_path, capsys):
    (tmp_path / "meta.lst").write_text(f"a|words|{RECORDING}|one\nb|words|{RECORDING}|two\n", encoding="utf-8")
    given = ["--manifest_path", tmp_path / "meta.lst", "--num_tasks", 2, "--log_interval", 1, "--mode", "streaming"]
    assert grpc(*given, "--use_spk2info_cache", "False", "--log_dir", tmp_path / "log") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("RTF: ")
    assert "requests: 2 of 2 answered" in printed.out
    assert printed.err.splitlines()[:2] == ["1 of 2 requests, 0 failed", "2 of 2 requests, 0 failed"]
    names = {"a.wav", "b.wav", "rtf-meta.txt", "stats_summary-meta.txt", "report-meta.json", "requests-meta.jsonl"}
    assert {path.name for path in (tmp_path / "log").iterdir()} == names
    settings = json.loads((tmp_path / "log" / "report-meta.json").read_text(encoding="utf-8"))["settings"]
    assert (settings["source"], settings["num_tasks"], settings["warmup"]) == ("meta", 2, 2)
    assert "vivavoce" in settings


def test_failures_are_counted_and_said_once(grpc, capsys):
    assert grpc("--target-text", "late", "--requests", 3, "--warmup", 0, "--quiet") == 1
    assert "3 of 3 requests failed: server: target_text: late" in error(capsys)


@pytest.mark.parametrize("body", ["return 'hello old world'", "raise OSError('deaf')"])
def test_a_recogniser_listens(grpc, tmp_path, monkeypatch, capsys, body):
    fails = "raise" in body
    module = f"ears_{fails}"
    (tmp_path / f"{module}.py").write_text(f"class Ears:\n    def transcribe(self, samples):\n        {body}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    given = ["--target-text", "Hello, world!", "--compute-wer", "--recogniser", f"{module}:Ears", "--log-dir", "log"]
    assert grpc(*given, "--quiet") == int(fails)
    printed = capsys.readouterr()
    assert "requests: 1 of 1 answered" in printed.out
    assert ("\nwer_free: 0.5\n" in printed.out) is not fails
    assert ("error: recogniser: Ears fails (OSError: deaf)" in printed.err) is fails
    assert (tmp_path / "log" / "report-single.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "target_text: no text is given; give one of --target-text, --manifest-path, --huggingface-dataset"),
        (("--target-text", "a", "--manifest-path", "m"), "--target-text and --manifest-path are given; give one of"),
        (("--manifest-path", "m", "--reference-audio", "r"), "--manifest-path names its own recordings"),
        (("--manifest-path", "m"), "manifest_path: 'm' cannot be read"),
        (("--target-text", "a", "--use-spk2info-cache", "maybe"), "'maybe' is unknown; write True or False"),
        (("--target-text", "a", "--reference-text", "w"), "reference_text: belongs to a recording; name it with"),
        (("--target-text", "a", "--split-name", "test"), "split_name: belongs to a data set; name it with"),
        (("--target-text", "a", "--recogniser", "my:Ears"), "recogniser: is used with --compute-wer only"),
        (("--target-text", "a", "--compute-wer", "--recogniser", "nothing:Here"), "'nothing' cannot be imported"),
        (("--target-text", "a", "--model-name", "b"), "does not serve 'b'"),
        (("--target-text", "a", "--mode", "offline"), "answers in chunks; ask with --mode streaming"),
    ],
)
def test_mistakes_are_one_line(grpc, arguments, message, capsys):
    assert grpc(*arguments) == 2
    assert message in error(capsys)


def test_without_tritonclient_the_message_says_what_to_type(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert main(["client", "grpc", "--target-text", "a"]) == 2
    assert "pip install 'vivavoce[triton-client]'" in error(capsys)


def test_http_writes_a_file_and_says_so(tmp_path, monkeypatch, capsys):
    import numpy as np
    import soundfile

    from vivavoce_triton.client import http_client
    from vivavoce_triton.client.utterance import Manner, Utterance

    asked: list[http_client.HttpOptions] = []

    def answer(options):
        asked.append(options)
        return http_client.SpokenAudio(np.full(2400, 0.5, np.float32), 24_000)

    monkeypatch.setattr(http_client, "speak_http", answer)
    out = tmp_path / "a.wav"
    given = ["--server_url", "gpu:8000", "--reference_audio", "me.wav", "--reference_text", "w", "--target_text", "Hi."]
    others = ["--model_name", "vivavoce", "--output_audio", str(out), "--seed", "3", "--binary", "--timeout", "5"]
    assert main(["client", "http", *given, *others]) == 0
    assert soundfile.info(out).frames == 2400
    assert capsys.readouterr().err.startswith(f"{out}: 0.10 s of audio, RTF ")
    utterance = Utterance("a", "Hi.", Path("me.wav"), "w")
    assert asked == [http_client.HttpOptions(utterance, "gpu:8000", "vivavoce", Manner(seed=3), True, 5.0)]


def test_http_mistakes_are_one_line(tmp_path, capsys):
    assert main(["client", "http", "--target-text", "a", "--output-audio", str(tmp_path / "no" / "a.wav")]) == 2
    assert "output_audio: folder" in error(capsys)
    assert main(["client", "http", "--target-text", "a", "--reference-text", "w"]) == 2
    assert "reference_text: belongs to a recording; name it with --reference-audio" in error(capsys)
    missing = str(tmp_path / "none.wav")
    assert main(["client", "http", "--target-text", "a", "--reference-audio", missing, "-o", missing + "2"]) == 2
    assert "reference audio: " in error(capsys)
