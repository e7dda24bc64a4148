"""The stages in order, with programs that stand in for the server and for the commands."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import sys
import wave
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_tritonserver
import pytest
import torch

from vivavoce.checkpoint.spk2info import SpeakerEntry, write_spk2info
from vivavoce.doors.triton.pipeline import conversion, run
from vivavoce.doors.triton.pipeline.context import run_command
from vivavoce.doors.triton.pipeline.settings import Asked, LanguageModelChoice, PipelineSettings
from vivavoce.doors.triton.plan import LanguageModel, Mode, ModelSet
from vivavoce.doors.triton.server import ServerSettings, ask
from vivavoce.errors import (
    CheckpointError,
    InvalidRequest,
    MissingDependency,
    ModelNotFound,
    StageFailed,
    VivavoceError,
)

FREE = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, ready_within_s=30)


class Commands:
    """Stands in for processes: keeps the lines, and leaves the files that each would."""

    def __init__(self, fail: str = "") -> None:
        self.lines: list[list[str]] = []
        self._fail = fail

    def __call__(self, command: Sequence[str]) -> None:
        words = [str(word) for word in command]
        line = words[3:] if words[1:3] == ["-m", "vivavoce"] else words
        self.lines.append(line)
        name = " ".join(line[:2])
        if self._fail and name.startswith(self._fail):
            raise StageFailed(f"{name}: failed")
        match name:
            case "convert hf":
                Path(self.option("--out")).mkdir(exist_ok=True)
            case "client http":
                with wave.open(self.option("--output-audio"), "wb") as audio:
                    audio.setparams((1, 2, 24_000, 0, "NONE", ""))
                    audio.writeframes(bytes(48_000))
            case "client grpc":
                folder = Path(self.option("--log-dir"))
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "report-single.json").write_text("{}")
            case "bench offline":
                Path(self.option("--json")).write_text('{"runs": [{}, {}]}')
            case _ if line[0] == "trtllm-build":
                Path(self.option("--output_dir")).mkdir()

    def option(self, name: str) -> str:
        """What the last command was given for an option."""
        return self.lines[-1][self.lines[-1].index(name) + 1]

    @property
    def names(self) -> list[str]:
        return [" ".join(line[:2]) if line[0] != "trtllm-build" else line[0] for line in self.lines]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def server_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a server on PATH; what it is started with ends in this file."""
    notes = fake_tritonserver.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    # Clients for gRPC are there or not: no environment is to be made for them.
    monkeypatch.setattr(run.Context, "with_grpc", lambda context: Path(sys.executable))
    return notes


@pytest.fixture
def settings(tmp_path: Path, babble: Path) -> PipelineSettings:
    return PipelineSettings(0, 6, tmp_path / "work", model=str(babble), server=FREE)


@pytest.fixture
def go(settings: PipelineSettings, said: list[str]) -> Callable[..., Commands]:
    """Run stages; returns the commands that they ran."""

    def call(commands: Commands | None = None, **changes: Any) -> Commands:
        commands = commands or Commands()
        run.run_pipeline(replace(settings, **changes), said.append, commands)
        return commands

    return call


def note(work: Path, name: str) -> dict[str, Any]:
    (path,) = (work / "stages").glob(f"?-{name}.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


ALL = ["convert hf", "convert trtllm", "triton test-llm", "client http", "client grpc", "bench offline"]


@pytest.mark.usefixtures("server_options")
def test_all_stages(go: Callable[..., Commands], settings: PipelineSettings, babble: Path, said: list[str]) -> None:
    commands = go()
    assert commands.names == ALL
    assert "--batch-size" not in commands.lines[-1], "those that the texts fill"
    assert {path.name for path in (settings.work / "stages").iterdir()} == {
        *("0-download.json", "1-convert.json", "2-repository.json", "3-server.json"),
        *("4-http.json", "5-grpc.json", "6-offline.json"),
    }
    assert note(settings.work, "download")["made"]["model_dir"] == str(babble.resolve())
    assert note(settings.work, "convert")["made"]["language_model"] == "vivavoce"
    assert note(settings.work, "http")["made"]["seconds"] == 1.0
    assert note(settings.work, "offline")["made"]["runs"] == 2
    assert "stopping the server" in said
    assert any("trtllm-build --checkpoint_dir" in line and "--max_num_tokens 32768" in line for line in said)
    assert any(line.startswith("trtllm-build is not installed here") for line in said)


@pytest.mark.usefixtures("server_options")
def test_what_was_done_is_passed_over(go: Callable[..., Commands], settings: PipelineSettings, said: list[str]) -> None:
    go()
    said.clear()
    assert go().names == []
    assert sum("done before" in line for line in said) == 4
    assert go(asked=Asked(text="Something else.")).names == ["client http", "client grpc"]
    (offline,) = go(first=6, batch_sizes=(4, 1)).lines
    assert offline[offline.index("--batch-size") + 1] == "4,1"
    shutil.rmtree(settings.work / "llm_hf")
    assert go(last=1).names == ["convert hf", "convert trtllm", "triton test-llm"]
    assert go(first=1, last=1, force=True).names == ["convert hf", "convert trtllm", "triton test-llm"]


@pytest.mark.usefixtures("server_options")
def test_a_changed_model_is_converted_again(
    go: Callable[..., Commands], tmp_path: Path, babble: Path, settings: PipelineSettings
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(babble, copy)
    go(last=5, model=str(copy))
    os.utime(copy / "llm.pt", ns=(1, 1))
    assert go(last=5, model=str(copy)).names == ALL[:-1]
    assert go(last=5, model=str(copy), engine_dtype="float16").names == ALL[:-1], "another engine"


@pytest.mark.usefixtures("server_options")
def test_other_content_under_the_same_name_is_spoken_again(go: Callable[..., Commands], tmp_path: Path) -> None:
    recording, manifest = tmp_path / "me.wav", tmp_path / "list"
    for file in (recording, manifest):
        file.touch()
    asked = Asked("Hello.", recording, "What I say.", manifest)
    go(asked=asked)
    for file, again in ((recording, ALL[-3:-1]), (manifest, ALL[-3:])):
        os.utime(file, ns=(1, 1))
        assert go(asked=asked).names == again
        assert go(asked=asked).names == []


@pytest.mark.usefixtures("server_options")
def test_the_device_reaches_what_computes_without_a_server(go: Callable[..., Commands]) -> None:
    stages = ["triton test-llm", "bench offline"]
    for device in ("auto", "cpu"):
        lines = {" ".join(line[:2]): line for line in go(device=device).lines}
        assert [lines[name][lines[name].index("--device") + 1] for name in stages] == [device] * 2


def test_a_broken_off_stage_is_run_again(go: Callable[..., Commands]) -> None:
    with pytest.raises(StageFailed, match="triton test-llm: failed"):
        go(Commands(fail="triton test-llm"), last=1)
    assert go(last=1).names == ["convert hf", "convert trtllm", "triton test-llm"]


@pytest.mark.parametrize(("stage", "missing"), [(1, 0), (2, 1), (3, 2), (5, 2), (6, 0)])
def test_a_stage_says_what_it_needs(go: Callable[..., Commands], stage: int, missing: int) -> None:
    if missing == 1:
        go(last=0)
    with pytest.raises(InvalidRequest, match=rf"stage: {missing} \(\w+\) was not done in .*--stage {missing}"):
        go(first=stage, last=stage)


def test_the_server_and_its_clients(
    go: Callable[..., Commands], settings: PipelineSettings, server_options: Path
) -> None:
    commands = go(last=5)
    options = json.loads(server_options.read_text())
    assert options["model-repository"] == str((settings.work / "model_repo").resolve())
    assert options["http-address"] == "127.0.0.1"
    http, grpc = commands.lines[-2], commands.lines[-1]
    assert http[http.index("--server-url") + 1] == f"http://127.0.0.1:{options['http-port']}"
    assert grpc[grpc.index("--server-port") + 1] == options["grpc-port"]
    assert grpc[grpc.index("--mode") + 1] == "streaming"


def test_a_server_that_is_there_is_used(
    go: Callable[..., Commands], said: list[str], server_options: Path, tmp_path: Path
) -> None:
    from vivavoce.doors.triton.installation import ServerInstallation
    from vivavoce.doors.triton.server import TritonServer

    go(last=2)
    with TritonServer(ServerInstallation(tmp_path / "bin" / "tritonserver"), tmp_path, None, FREE) as other:
        port = int(other.http_url.rpartition(":")[2])
        server_options.unlink()
        go(first=4, last=4, server=replace(FREE, http_port=port, grpc_port=7))
    assert f"using the server at 127.0.0.1:{port}" in said
    assert not server_options.exists()


def test_what_does_not_speak_http_is_no_server(
    go: Callable[..., Commands], server_options: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: object, **__: object) -> Any:
        raise http.client.BadStatusLine("SSH-2.0")

    go(last=2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(http.client.HTTPConnection, "getresponse", answer)
        assert ask(f"http://127.0.0.1:{port}") == (0, b"")
        with pytest.raises(InvalidRequest, match=f"http port: 127.0.0.1:{port} cannot be had"):
            go(first=4, last=4, server=replace(FREE, http_port=port))


def test_the_last_stage_stays_in_the_foreground(
    go: Callable[..., Commands], settings: PipelineSettings, server_options: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []

    def wait(server: Any) -> int:
        waited.append(server.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr("vivavoce.doors.triton.server.TritonServer.wait", wait)
    with pytest.raises(KeyboardInterrupt):
        go(last=3)
    with pytest.raises(ProcessLookupError):
        os.kill(waited[0], 0)
    assert note(settings.work, "server")["made"]["models"] == [{"name": "cosyvoice2", "state": "READY"}]


def test_recordings_and_lists_reach_the_clients(
    go: Callable[..., Commands], server_options: Path, tmp_path: Path
) -> None:
    recording, manifest = tmp_path / "me.wav", tmp_path / "list"
    recording.write_bytes(b"")
    manifest.write_text("")
    asked = Asked("Hello.", recording, "What I say.", manifest, 2)
    http, grpc, offline = go(asked=asked, backends=("torch", "hf"), models=ModelSet.FAST).lines[-3:]
    assert http[http.index("--reference-audio") :] == [
        *("--reference-audio", str(recording), "--reference-text", "What I say.", "--target-text", "Hello.")
    ]
    assert http[http.index("--model-name") + 1] == "vivavoce"
    assert grpc[grpc.index("--num-tasks") :] == ["--num-tasks", "2", "--manifest-path", str(manifest)]
    assert offline[-2:] == ["--manifest", str(manifest)]
    assert "--llm-model-name-or-path" in offline
    assert offline.count("--backend") == 2


def test_an_engine_is_built_where_the_builder_is(
    go: Callable[..., Commands], settings: PipelineSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = tmp_path / "bin" / "trtllm-build"
    builder.parent.mkdir()
    builder.write_text("#!/bin/sh\n")
    builder.chmod(0o755)
    monkeypatch.setenv("PATH", f"{builder.parent}{os.pathsep}{os.environ['PATH']}")
    commands = go(last=2, engine_dtype="float16")
    assert commands.names == ["convert hf", "convert trtllm", "trtllm-build", "triton test-llm"]
    assert commands.lines[2][-2:] == ["--gemm_plugin", "float16"]
    tried = commands.lines[3]
    assert tried[tried.index("--backend") + 1] == "trtllm"
    engine = settings.work.absolute() / "trtllm_engine"
    assert tried[tried.index("--engine-dir") + 1] == str(engine)
    assert engine.is_dir()
    made = note(settings.work, "repository")["made"]
    assert made["values"]["engine_dir"] == str(engine)
    assert made["values"]["triton_backend"] == "tensorrtllm"
    assert not (settings.work / "model_repo" / "tensorrt_llm" / "1" / "model.py").exists()


def test_what_serves_the_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion.shutil, "which", lambda name: None)
    monkeypatch.setattr(conversion, "_api_installed", lambda: False)
    assert conversion.choose(LanguageModelChoice.AUTO) is LanguageModel.VIVAVOCE
    with pytest.raises(MissingDependency, match="trtllm-build, which is not on PATH"):
        conversion.choose(LanguageModelChoice.ENGINE)
    with pytest.raises(MissingDependency, match="package tensorrt_llm, which is not installed"):
        conversion.choose(LanguageModelChoice.LLMAPI)
    monkeypatch.setattr(conversion, "_api_installed", lambda: True)
    assert conversion.choose(LanguageModelChoice.AUTO) is LanguageModel.LLMAPI
    assert conversion.choose(LanguageModelChoice.VIVAVOCE) is LanguageModel.VIVAVOCE


def test_speakers_of_ones_own(
    go: Callable[..., Commands], settings: PipelineSettings, babble: Path, tmp_path: Path, said: list[str]
) -> None:
    speakers = tmp_path / "speakers.pt"
    write_spk2info(speakers, {"anna": SpeakerEntry(torch.ones(192))})
    before = (babble / "spk2info.pt").read_bytes()
    for _ in range(2):
        go(last=0, spk2info=str(speakers))
    model = settings.work / "model"
    assert note(settings.work, "download")["made"]["speakers"] == ["anna"]
    assert (model / "llm.pt").samefile(babble / "llm.pt")
    assert (babble / "spk2info.pt").read_bytes() == before
    speakers.write_bytes(b"no speakers")
    with pytest.raises(CheckpointError):
        go(last=0, spk2info=str(speakers))
    with pytest.raises(InvalidRequest, match=r"spk2info: .* is no file"):
        go(last=0, spk2info=str(tmp_path / "none"))


def test_the_former_model_leaves_nothing(
    go: Callable[..., Commands], settings: PipelineSettings, babble: Path, tmp_path: Path
) -> None:
    former = tmp_path / "former"
    shutil.copytree(babble, former)
    (former / "flow.former.pt").touch()
    for model in (former, babble):
        go(last=0, model=str(model), spk2info=str(babble / "spk2info.pt"))
    assert {path.name for path in (settings.work / "model").iterdir()} == {path.name for path in babble.iterdir()}


def test_an_unknown_model(go: Callable[..., Commands]) -> None:
    with pytest.raises(ModelNotFound, match="neither a folder nor a known model"):
        go(last=0, model="cosyvoice-9")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": 3, "last": 2}, "stage: 3 to 2 cannot be; stages go from 0 to 6"),
        ({"last": 7}, "stage: 0 to 7 cannot be"),
        ({"hub": "ftp"}, "hub: 'ftp' is no hub"),
        ({"values": {"model_dri": "x"}}, "model_dri is no variable"),
    ],
)
def test_settings_that_cannot_be(settings: PipelineSettings, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        replace(settings, **changes)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"num_tasks": 0}, "num_tasks: 0 is below 1"),
        ({"reference_text": "Hello."}, "reference_text: belongs to a recording"),
        ({"reference": Path("/no/where.wav")}, "reference_audio: /no/where.wav is no file"),
        ({"manifest": Path("/no/list")}, "manifest_path: /no/list is no file"),
    ],
)
def test_questions_that_cannot_be(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Asked(**asked)


def test_modes_reach_the_repository(go: Callable[..., Commands], settings: PipelineSettings) -> None:
    go(last=2, mode=Mode.OFFLINE, values={"bls_instance_num": "2"})
    config = (settings.work / "model_repo" / "cosyvoice2" / "config.pbtxt").read_text()
    assert "decoupled: false" in config
    assert "count: 2" in config
    go(first=2, last=2, mode=Mode.STREAMING)
    assert "decoupled: true" in (settings.work / "model_repo" / "cosyvoice2" / "config.pbtxt").read_text()


@pytest.mark.parametrize(("code", "error"), [(2, InvalidRequest), (1, StageFailed), (-9, StageFailed)])
def test_a_command_that_fails(code: int, error: type[VivavoceError]) -> None:
    ending = f"import os, signal; os.kill(os.getpid(), {-code})" if code < 0 else f"raise SystemExit({code})"
    with pytest.raises(error, match="see its message above"):
        run_command([sys.executable, "-c", ending])
