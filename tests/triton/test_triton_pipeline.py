"""The stages in order, with programs that stand in for the server and for the commands."""

from __future__ import annotations

import json
import os
import shutil
import sys
import wave
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vivavoce.checkpoint.spk2info import SpeakerEntry, write_spk2info
from vivavoce.errors import (
    CheckpointError,
    InvalidRequest,
    MissingDependency,
    StageFailed,
    UnsupportedModel,
)
from vivavoce_triton import pipeline
from vivavoce_triton.model_repository import LanguageModelRuntime, ModelSet
from vivavoce_triton.pipeline import PipelineSettings
from vivavoce_triton.server import ServerInstallation, TritonServer, TritonServerSettings

FREE = TritonServerSettings(http_port=0, grpc_port=0, metrics_port=0, ready_within_s=30)


SERVER = """#!{python}
import http.server, json, signal, sys
options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
json.dump(options, open({notes!r}, "w"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        body = b'[{{"name": "cosyvoice2", "state": "READY"}}]'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *words): pass

http.server.HTTPServer(("127.0.0.1", int(options["http-port"])), Handler).serve_forever()
"""
"""A program in tritonserver's place: it says that it is ready, and writes down how it was started."""


def program(folder, name, text, monkeypatch):
    """Put a program on PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


class Commands:
    """Stands in for processes: keeps the lines, and leaves the files that each would."""

    def __init__(self, fail=""):
        self.lines, self._fail = [], fail

    def __call__(self, command):
        line = [str(word) for word in command]
        line = line[5:] if line[1] == "-c" else line  # after the interpreter, what it runs, and where that is
        self.lines.append(line)
        if self.names[-1] == self._fail:
            raise StageFailed(f"{self._fail}: failed")
        match self.names[-1]:
            case "export hf":
                Path(option(line, "--out")).mkdir(exist_ok=True)
            case "client http":
                with wave.open(option(line, "--output-audio"), "wb") as audio:
                    audio.setparams((1, 2, 24_000, 0, "NONE", ""))
                    audio.writeframes(bytes(48_000))
            case "client grpc":
                folder = Path(option(line, "--log-dir"))
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "report-single.json").write_text("{}")
            case "bench offline":
                Path(option(line, "--json")).write_text('{"runs": [{}, {}]}')
            case "trtllm-build":
                Path(option(line, "--output_dir")).mkdir()

    @property
    def names(self):
        return [" ".join(line[:2]) if line[0] != "trtllm-build" else line[0] for line in self.lines]


def option(line, name):
    return line[line.index(name) + 1]


@pytest.fixture
def server_options(tmp_path, monkeypatch):
    """Put a server on PATH; what it is started with ends in this file."""
    notes = tmp_path / "options.json"
    program(tmp_path / "bin", "tritonserver", SERVER.format(python=sys.executable, notes=str(notes)), monkeypatch)
    # Clients for gRPC are there or not: no environment is to be made for them.
    monkeypatch.setattr(pipeline, "interpreter_with_grpc", lambda environment, say: Path(sys.executable))
    return notes


class Runs:
    """Runs stages in one work folder, and gives the commands that they ran."""

    def __init__(self, work, model):
        self.settings, self.said = PipelineSettings(0, 6, work, model=str(model), server=FREE), []
        self.work = work

    def __call__(self, commands=None, **changes):
        commands = commands or Commands()
        pipeline.run_pipeline(replace(self.settings, **changes), self.said.append, commands)
        return commands

    def made(self, name):
        """What a stage's note says that it made."""
        (path,) = (self.work / "stages").glob(f"?-{name}.json")
        return json.loads(path.read_text(encoding="utf-8"))["made"]


@pytest.fixture
def go(tmp_path, babble):
    return Runs(tmp_path / "work", babble)


CONVERT = ["export hf", "export trtllm", "triton test-llm"]
ALL = [*CONVERT, "client http", "client grpc", "bench offline"]


@pytest.mark.usefixtures("server_options")
def test_all_stages(go, babble):
    commands = go()
    assert commands.names == ALL
    assert "--batch-size" not in commands.lines[-1], "those that the texts fill"
    assert {path.name for path in (go.work / "stages").iterdir()} == {
        *("0-download.json", "1-convert.json", "2-repository.json", "3-server.json"),
        *("4-http.json", "5-grpc.json", "6-offline.json"),
    }
    assert go.made("download")["model_dir"] == str(babble.resolve())
    assert go.made("convert")["language_model"] == "vivavoce"
    assert go.made("http")["seconds"] == 1.0
    assert go.made("offline")["runs"] == 2
    assert "stopping the server" in go.said
    assert any("trtllm-build --checkpoint_dir" in line and "--max_num_tokens 32768" in line for line in go.said)
    assert any(line.startswith("trtllm-build is not installed here") for line in go.said)


def test_where_no_other_runtime_is_the_engine_s_own_model_needs_no_conversion(go, babble_v1, babble_v3):
    assert go(model=str(babble_v3), last=1).names == CONVERT
    assert go(model=str(babble_v1), models=ModelSet.FAST, last=2).names == []
    assert go.made("convert")["language_model"] == "vivavoce"
    assert (go.work / "model_repo" / "vivavoce" / "config.pbtxt").is_file()
    assert "CosyVoice 1's language model" in next(line for line in go.said if line.startswith("nothing to"))


@pytest.mark.usefixtures("server_options")
def test_what_was_done_is_passed_over(go):
    go()
    go.said.clear()
    assert go().names == []
    assert sum("done before" in line for line in go.said) == 4
    assert go(text="Something else.").names == ["client http", "client grpc"]
    (offline,) = go(first=6, batch_sizes=(4, 1)).lines
    assert option(offline, "--batch-size") == "4,1"
    shutil.rmtree(go.work / "llm_hf")
    assert go(last=1).names == CONVERT
    assert go(first=1, last=1, force=True).names == CONVERT


@pytest.mark.usefixtures("server_options")
def test_other_content_under_the_same_name_is_spoken_again(go, tmp_path):
    recording, manifest = tmp_path / "me.wav", tmp_path / "list"
    for file in (recording, manifest):
        file.touch()
    sent = {"text": "Hello.", "reference": recording, "reference_text": "What I say.", "manifest": manifest}
    go(**sent)
    for file, again in ((recording, ALL[-3:-1]), (manifest, ALL[-3:])):
        os.utime(file, ns=(1, 1))
        assert go(**sent).names == again
        assert go(**sent).names == []


def test_a_repository_of_cosyvoice_1_tells_its_rate_and_its_strategy(go, babble_v1, babble_v3):
    told = []
    for folder in (babble_v1, babble_v3):
        go(model=str(folder), models=ModelSet.FAST, last=2)
        made = go.made("repository")["values"]
        told.append((made["sample_rate"], made.get("dynamic_chunk_strategy")))
    assert told == [("22050", "official"), ("24000", None)]


def test_a_layout_of_its_own(go, babble, babble_v3, tmp_path):
    go(model=str(babble_v3), models=ModelSet.COSYVOICE3, last=2)
    assert go.made("repository")["models"][1] == "cosyvoice3"
    assert go.settings.speaking_model == "cosyvoice2"
    assert replace(go.settings, models=ModelSet.COSYVOICE3).speaking_model == "cosyvoice3"
    with pytest.raises(InvalidRequest, match=r"models: dit needs a folder with cosyvoice2\.yaml"):
        go(model=str(babble_v3), models=ModelSet.DIT, last=2)
    go(model=str(babble), models=ModelSet.DIT, last=2)
    assert "CosyVoice2's own flow: no DiT" in go.said[-2]
    with pytest.raises(InvalidRequest, match="models: dit needs"):
        go(first=2, last=2, models=ModelSet.DIT, values={"model_dir": str(babble_v3)})
    (tmp_path / "step" / "token2wav").mkdir(parents=True)
    (tmp_path / "step" / "token2wav" / "flow.yaml").touch()
    with pytest.raises(UnsupportedModel, match="step is Step-Audio 2's"):
        go(model=str(tmp_path / "step"), models=ModelSet.DIT, last=0)


def test_a_broken_off_stage_is_run_again(go):
    with pytest.raises(StageFailed, match="triton test-llm: failed"):
        go(Commands(fail="triton test-llm"), last=1)
    assert go(last=1).names == CONVERT


@pytest.mark.parametrize(("stage", "missing"), [(1, 0), (2, 1), (3, 2), (5, 2), (6, 0)])
def test_a_stage_says_what_it_needs(go, stage, missing):
    if missing == 1:
        go(last=0)
    with pytest.raises(InvalidRequest, match=rf"stage: {missing} \(\w+\) was not done in .*--stage {missing}"):
        go(first=stage, last=stage)


def test_the_server_and_its_clients(go, server_options):
    commands = go(last=5)
    options = json.loads(server_options.read_text())
    assert options["model-repository"] == str((go.work / "model_repo").resolve())
    assert options["http-address"] == "127.0.0.1"
    http, grpc = commands.lines[-2], commands.lines[-1]
    assert option(http, "--server-url") == f"http://127.0.0.1:{options['http-port']}"
    assert option(grpc, "--server-port") == options["grpc-port"]
    assert option(grpc, "--mode") == "streaming"


def test_a_server_that_is_there_is_used(go, server_options, tmp_path):
    go(last=2)
    with TritonServer(ServerInstallation(tmp_path / "bin" / "tritonserver"), tmp_path, None, FREE) as other:
        port = int(other.http_url.rpartition(":")[2])
        server_options.unlink()
        go(first=4, last=4, server=replace(FREE, http_port=port, grpc_port=7))
    assert f"using the server at 127.0.0.1:{port}" in go.said
    assert not server_options.exists()


def test_the_last_stage_stays_in_the_foreground(go, server_options, monkeypatch):
    waited: list[int] = []

    def wait(server):
        waited.append(server.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr("vivavoce_triton.server.TritonServer.wait", wait)
    with pytest.raises(KeyboardInterrupt):
        go(last=3)
    with pytest.raises(ProcessLookupError):
        os.kill(waited[0], 0)
    assert go.made("server")["models"] == [{"name": "cosyvoice2", "state": "READY"}]


def test_recordings_and_lists_reach_the_clients(go, server_options, tmp_path):
    recording, manifest = tmp_path / "me.wav", tmp_path / "list"
    recording.write_bytes(b"")
    manifest.write_text("")
    sent = {
        "text": "Hello.",
        "reference": recording,
        "reference_text": "What I say.",
        "manifest": manifest,
        "num_tasks": 2,
    }
    http, grpc, offline = go(**sent, backends=("torch", "hf"), models=ModelSet.FAST).lines[-3:]
    assert http[http.index("--reference-audio") :] == [
        *("--reference-audio", str(recording), "--reference-text", "What I say.", "--target-text", "Hello.")
    ]
    assert option(http, "--model-name") == "vivavoce"
    assert grpc[grpc.index("--num-tasks") :] == ["--num-tasks", "2", "--manifest-path", str(manifest)]
    assert offline[-2:] == ["--manifest", str(manifest)]
    assert "--llm-model-name-or-path" in offline
    assert offline.count("--backend") == 2


def test_the_wheel_s_server_is_for_this_machine_alone(go, tmp_path, monkeypatch):
    wheel = ServerInstallation(Path("/bin/false"), backends=tmp_path)
    monkeypatch.setattr(pipeline, "find_installation", lambda folder, say: wheel)
    with pytest.raises(InvalidRequest, match=r"host: 0\.0\.0\.0 would let others reach .* use 127\.0\.0\.1, or"):
        go(last=3, server=replace(FREE, host="0.0.0.0"))
    with pytest.raises(StageFailed, match="ended with 1 while starting"):
        go(last=3, server=FREE)


def test_an_engine_is_built_where_the_builder_is(go, tmp_path, monkeypatch):
    program(tmp_path / "bin", "trtllm-build", "#!/bin/sh\n", monkeypatch)
    commands = go(last=2, engine_dtype="float16")
    assert commands.names == ["export hf", "export trtllm", "trtllm-build", "triton test-llm"]
    assert commands.lines[2][-2:] == ["--gemm_plugin", "float16"]
    tried = commands.lines[3]
    assert option(tried, "--backend") == "trtllm"
    engine = go.work.absolute() / "trtllm_engine"
    assert option(tried, "--engine-dir") == str(engine)
    assert engine.is_dir()
    made = go.made("repository")
    assert made["values"]["engine_dir"] == str(engine)
    assert made["values"]["triton_backend"] == "tensorrtllm"
    assert not (go.work / "model_repo" / "tensorrt_llm" / "1" / "model.py").exists()


def test_what_serves_the_language_model(tmp_path, monkeypatch):
    choose, runtime = pipeline.choose_runtime, LanguageModelRuntime
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose(None) is runtime.VIVAVOCE
    with pytest.raises(MissingDependency, match="trtllm-build, which is not on PATH"):
        choose(runtime.ENGINE)
    with pytest.raises(MissingDependency, match="package tensorrt_llm, which is not installed"):
        choose(runtime.LLMAPI)
    (tmp_path / "tensorrt_llm.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert (choose(None), choose(runtime.VIVAVOCE)) == (runtime.LLMAPI, runtime.VIVAVOCE)


def test_speakers_of_ones_own(go, babble, tmp_path):
    speakers = tmp_path / "speakers.pt"
    write_spk2info(speakers, {"anna": SpeakerEntry(torch.ones(192))})
    before = (babble / "spk2info.pt").read_bytes()
    for _ in range(2):
        go(last=0, spk2info=str(speakers))
    model = go.work / "model"
    assert go.made("download")["speakers"] == ["anna"]
    assert (model / "llm.pt").samefile(babble / "llm.pt")
    assert (babble / "spk2info.pt").read_bytes() == before
    speakers.write_bytes(b"no speakers")
    with pytest.raises(CheckpointError):
        go(last=0, spk2info=str(speakers))
    with pytest.raises(InvalidRequest, match=r"spk2info: .* is not a file"):
        go(last=0, spk2info=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": 3, "last": 2}, "stage: 3–2 is not a range; stages are 0 to 6, first ≤ last"),
        ({"last": 7}, "stage: 0–7 is not a range"),
        ({"hub": "ftp"}, "hub: 'ftp' is unknown; choose hf or modelscope"),
        ({"values": {"model_dri": "x"}}, "model_dri is not a variable"),
        ({"num_tasks": 0}, "num_tasks: 0 is below 1"),
        ({"reference_text": "Hello."}, "reference_text: belongs to a recording"),
        ({"reference": Path("/no/where.wav")}, "reference_audio: /no/where.wav is not a file"),
        ({"manifest": Path("/no/list")}, "manifest_path: /no/list is not a file"),
    ],
)
def test_settings_that_cannot_be(go, changes, message):
    with pytest.raises(InvalidRequest, match=message):
        replace(go.settings, **changes)


@pytest.mark.parametrize(("code", "error"), [(2, InvalidRequest), (1, StageFailed), (-9, StageFailed)])
def test_a_command_that_fails(code, error):
    ending = f"import os, signal; os.kill(os.getpid(), {-code})" if code < 0 else f"raise SystemExit({code})"
    with pytest.raises(error, match="see its message above"):
        pipeline.run_command([sys.executable, "-c", ending])
