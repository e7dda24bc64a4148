"""The deployment from nothing to measured figures, in seven stages that can be run one by one and again.

Each stage leaves a note of what it made and of what; a stage that was done with the same inputs is passed over.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import wave
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, cast

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.download import DownloadProgress, download
from vivavoce.checkpoint.folder import SPEAKERS, detect_generation
from vivavoce.checkpoint.known_models import known_model
from vivavoce.checkpoint.merged_vocabulary import CONTROLS
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.spk2info import read_spk2info
from vivavoce.child import python_command
from vivavoce.engine.chunk_policy import Schedule
from vivavoce.errors import DownloadError, InvalidRequest, MissingDependency, ModelNotFound, StageFailed
from vivavoce.files import replace_file
from vivavoce.frontend.model_choice import model_folder
from vivavoce_triton.environment import ensure_environment, find_installation
from vivavoce_triton.model_repository import (
    LanguageModelRuntime,
    ModelSet,
    RepositoryPlan,
    render_repository,
)
from vivavoce_triton.pipeline_settings import STAGES, PipelineSettings
from vivavoce_triton.server import TritonServer, ask

Say = Callable[[str], None]
Run = Callable[[Sequence[str]], None]
"""Runs a command line to its end; raises `VivavoceError` if it fails."""
Made = dict[str, Any]
"""What a stage made, for its note."""
BUILDER = "trtllm-build"
_MOST_SPEAKERS_BYTES = 256 << 20
"""Of a speakers' file: thousands of speakers."""
_TIMEOUT_S = 60.0
_SERVED = {
    LanguageModelRuntime.ENGINE: "the built engine serves the language model, by Triton's TensorRT-LLM backend",
    LanguageModelRuntime.LLMAPI: "TensorRT-LLM's LLM API serves the language model, from the merged folder",
    LanguageModelRuntime.VIVAVOCE: "this package's own language model serves, from the model's folder",
}


def run_command(command: Sequence[str]) -> None:
    """Run a command with our own streams; `InvalidRequest`: it found a user's mistake; `StageFailed`: it failed."""
    code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    name = " ".join(["vivavoce", *command[5:7]]) if command[1] == "-c" else command[0]
    if code == 2:
        raise InvalidRequest(f"{name}: it was refused; see its message above")
    if code:
        raise StageFailed(f"{name}: it ended with {code}; see its message above")


def run_pipeline(settings: PipelineSettings, say: Say, run: Run = run_command) -> None:
    """Run the stages that are asked for; a server that was started in between is stopped at the end.

    say: called with a line about everything that is done. Raises `VivavoceError` if a stage failed, or needs an earlier
    one that was not done.
    """
    pipeline = _Pipeline(settings, say, run)
    try:
        for number in range(settings.first, settings.last + 1):
            pipeline.run_stage(number)
    finally:
        pipeline.stop_server()


class _Pipeline:
    """The stages of one run, in their order, and what they share: the work folder, its notes, and a server."""

    def __init__(self, settings: PipelineSettings, say: Say, run: Run) -> None:
        self._settings, self._say, self._run = settings, say, run
        self._root = settings.work.expanduser().absolute()
        self._merged, self._repository = self._root / "llm_hf", self._root / "model_repo"
        self._server_log = self._root / "server.log"
        self._server: TritonServer | None = None
        self._downloads: set[str] = set()
        # What a stage does, the earlier ones that it is made of, and the settings. Those without either are run every
        # time: they find out themselves what is there.
        served = ((2, 1, 0), "mode models asked")
        self._stages: tuple[tuple[str, Callable[[], Made], tuple[int, ...], str], ...] = (
            ("download the model", self._download, (), ""),
            ("convert the language model", self._convert, (0,), "language_model engine_dtype device"),
            ("create the model repository", self._create_repository, (), ""),
            ("start the server", self._serve, (), ""),
            ("ask for one utterance over HTTP", self._ask_over_http, *served),
            ("measure a load over gRPC", self._measure_over_grpc, *served),
            ("measure batches without a server", self._benchmark, (0, 1), "backends batch_sizes asked.manifest device"),
        )

    def run_stage(self, number: int) -> None:
        """Do one stage, unless the same was made of the same and is still there."""
        title, work, needs, fields = self._stages[number]
        inputs = self._inputs(needs, fields) if needs else {}
        note, path = self._read_note(number), self._note(number)
        if needs and not self._settings.force and note is not None and note["inputs"] == inputs:
            # What a stage makes, its note names by absolute paths.
            named = [value for value in note["made"].values() if isinstance(value, str) and value.startswith("/")]
            if all(Path(place).exists() for place in named):
                self._say(f"stage {number}: {title}: done before, see {path} (--force does it again)")
                return
        self._say(f"stage {number}: {title}")
        # A note of an earlier run must not outlive what it describes.
        path.unlink(missing_ok=True)
        started = time.perf_counter()
        made = work()
        self._write_note(number, inputs, made, time.perf_counter() - started)

    def _inputs(self, needs: tuple[int, ...], fields: str) -> Made:
        """What tells one run of a stage from another, as JSON reads it back."""
        found: Made = {name: attrgetter(name)(self._settings) for name in fields.split()}
        installed = [BUILDER] * (shutil.which(BUILDER) is not None) + ["tensorrt_llm"] * _has("tensorrt_llm")
        found |= {"stages": [self._made(number) for number in needs], "installed": installed}
        return cast(Made, json.loads(json.dumps(found, default=_facts)))

    def stop_server(self) -> None:
        """Stop our server if one runs."""
        server, self._server = self._server, None
        if server is not None:
            self._say("stopping the server")
            server.stop()

    # 0: the model, by name from a hub or the program's own, or a folder; and stored speakers if wanted

    def _download(self) -> Made:
        settings = self._settings
        folder = Path(settings.model).expanduser()
        if not folder.is_dir():
            try:
                name = known_model(settings.model).name
            except ModelNotFound:
                folder = model_folder(settings.model)  # the program's own, or an error that lists what there is
            else:
                folder = download(name, source=cast(Literal["hf", "modelscope"], settings.hub), progress=self._show)
        folder = folder.resolve()
        detect_generation(folder)
        if settings.spk2info is not None:
            folder = _with_speakers(folder, settings.spk2info, self._root / "model", self._say)
        voices = sorted(read_spk2info(folder / SPEAKERS)) if (folder / SPEAKERS).is_file() else []
        self._say(f"the model is in {folder}; stored speakers: {', '.join(voices[:5]) or 'none'}")
        # Changes when a file of the model does; sizes and times stand for bytes, which take minutes to read.
        facts = sorted(
            (path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
            for path in folder.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        )
        content = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        return {"model_dir": str(folder), "speakers": voices, "content": content}

    def _show(self, now: DownloadProgress) -> None:
        if now.file not in self._downloads:
            self._downloads.add(now.file)
            self._say(f"{now.file}: {now.file_size / 1e6:,.1f} MB ({now.total / 1e6:,.1f} MB in all)")

    # 1: the language model in the form that its runtime reads, a built engine where that can be, and a try

    def _convert(self) -> Made:
        settings, model_dir = self._settings, self._made(0)["model_dir"]
        wish, dtype, device = settings.language_model, settings.engine_dtype, settings.device
        chosen = choose_runtime(wish)
        built = chosen is LanguageModelRuntime.ENGINE
        if settings.models is ModelSet.FAST and detect_generation(Path(model_dir)) not in CONTROLS:
            self._say(
                "nothing to convert: CosyVoice 1's language model runs nowhere else, and vivavoce needs no other form"
            )
            return {"language_model": LanguageModelRuntime.VIVAVOCE.value, "merged_dir": "", "engine_dir": None}
        checkpoint, engine = self._root / "trtllm_checkpoint", self._root / "trtllm_engine"
        self._vivavoce("export", "hf", "--model", model_dir, "--out", self._merged, "--force", "--quiet")
        made: Made = {"language_model": chosen.value, "merged_dir": str(self._merged), "engine_dir": None}
        # Without the builder, the checkpoint and the line are what another machine builds the engine from.
        if wish in (None, LanguageModelRuntime.ENGINE):
            made["build"] = shlex.join(build_line(checkpoint, engine, dtype))
            places = ["--model-dir", model_dir, "--output-dir", checkpoint]
            self._vivavoce("export", "trtllm", *places, "--dtype", dtype, "--force", "--quiet")
            self._say("the engine's line: " + made["build"])
        if built:  # it appears whole or not at all
            new = engine.with_name(engine.name + ".new")
            shutil.rmtree(new, ignore_errors=True)
            self._run(build_line(checkpoint, new, dtype))
            shutil.rmtree(engine, ignore_errors=True)
            os.rename(new, engine)
            made["engine_dir"] = str(engine)
        lacks = f"{BUILDER} is not installed here (TensorRT-LLM to 1.2 has it): "
        self._say(("" if wish is not None or built else lacks) + _SERVED[chosen])
        own = chosen is LanguageModelRuntime.VIVAVOCE
        tried = ["--backend", "torch" if own else "trtllm", "--model", model_dir, "--device", device]
        tried += [] if own else ["--tokenizer-dir", self._merged]
        tried += ["--engine-dir", engine] if built else []
        self._vivavoce("triton", "test-llm", *tried, "--quiet")
        return made

    # 2: the model repository, from what the stages before it made

    def _create_repository(self) -> Made:
        settings, converted = self._settings, self._made(1)
        runtime, merged = LanguageModelRuntime(converted["language_model"]), converted["merged_dir"]
        values = {"model_dir": self._made(0)["model_dir"], "llm_tokenizer_dir": merged, "tokenizer_dir": merged}
        if runtime is not LanguageModelRuntime.VIVAVOCE:  # our own reads the model's folder, the others their own form
            values["engine_dir"] = converted["engine_dir"] or merged
        config = read_config(Path(values["model_dir"]), ())
        values["sample_rate"] = str(config.rates.sample_rate)
        if config.generation is Generation.V1:
            values["dynamic_chunk_strategy"] = Schedule.OFFICIAL.value
        plan = RepositoryPlan({**values, **settings.values}, settings.mode, settings.models, runtime)
        unchanged = "" if render_repository(plan, self._repository) else " (as they were)"
        self._say(f"{settings.mode.value}: {', '.join(plan.names)} in {self._repository}{unchanged}")
        return {"repository": str(self._repository), **plan.facts}

    # 3: the server; in the foreground where nothing follows, until it is ended

    def _serve(self) -> Made:
        self._made(2)
        last = self._settings.last == STAGES.index("server")
        server = self._start_server(None if last else self._server_log)
        urls = {"http": server.http_url, "grpc": server.grpc_url, "metrics": server.metrics_url}
        made = {**urls, "mode": self._settings.mode.value, "models": server.models()}
        if last:
            self._write_note(3, {}, made, 0.0)
            self._say("Ctrl-C stops it")
            code = server.wait()
            if code:
                raise StageFailed(f"server: it ended with {code}; see its words above")
        return made

    def _start_server(self, log_file: Path | None) -> TritonServer:
        installation, host = find_installation(self._settings.environment, self._say), self._settings.server.host
        if installation.backends is not None and host not in ("127.0.0.1", "::1", "localhost"):
            raise InvalidRequest(
                f"host: {host} would let others reach the wheel's server, an old release that can be taken over; take "
                "127.0.0.1, or run in NVIDIA's container"
            )
        server = TritonServer(installation, self._repository, log_file, self._settings.server)
        self._say(f"starting {installation.binary.name} on {self._repository}")
        server.start()
        self._server = server
        models = ", ".join(sorted(str(model["name"]) for model in server.models()))
        self._say(f"ready: {models}; HTTP {server.http_url}, gRPC {server.grpc_url}, metrics {server.metrics_url}")
        return server

    def _reach_server(self) -> tuple[str, str]:
        """host:port of HTTP and gRPC of our server, else of one at the chosen ports, else of one started now."""
        settings = self._settings.server
        if self._server is None and settings.http_port:
            host = settings.reached_at
            url = f"http://{host}:{settings.http_port}/v2/models/{self._settings.speaking_model}/ready"
            if ask(url)[0] == 200:
                self._say(f"using the server at {host}:{settings.http_port}")
                return f"{host}:{settings.http_port}", f"{host}:{settings.grpc_port}"
        server = self._server or self._start_server(self._server_log)
        return server.http_url, server.grpc_url

    # 4 and 5: one utterance over HTTP, and a load over gRPC

    def _ask_over_http(self) -> Made:
        http, _ = self._reach_server()
        audio = self._results(4, "http.wav")
        where = ["--server-url", f"http://{http}", "--model-name", self._settings.speaking_model]
        self._vivavoce("client", "http", *where, "--output-audio", audio, *self._settings.asked.arguments)
        with wave.open(str(audio)) as found:
            seconds = found.getnframes() / found.getframerate()
        if not seconds:
            raise StageFailed(f"http: {audio} holds no audio; see the server's log {self._server_log}")
        self._say(f"{seconds:.2f} s of audio in {audio}")
        return {"audio": str(audio), "seconds": round(seconds, 3)}

    def _measure_over_grpc(self) -> Made:
        settings, folder = self._settings, self._results(5)
        python = interpreter_with_grpc(settings.environment, self._say)
        host, _, port = self._reach_server()[1].rpartition(":")
        where = ["--server-addr", host, "--server-port", port, "--log-dir", folder]
        load = ["--model-name", settings.speaking_model, "--mode", settings.mode.value]
        asked = settings.asked
        texts = ["--manifest-path", asked.manifest] if asked.manifest is not None else asked.arguments
        self._vivavoce("client", "grpc", *where, *load, "--num-tasks", asked.num_tasks, *texts, python=python)
        reports = sorted(folder.glob("report-*.json"), key=lambda path: path.stat().st_mtime)
        if not reports:
            raise StageFailed(f"grpc: the client left no report in {folder}; see its message above")
        return {"report": str(reports[-1])}

    # 6: texts in batches without a server, by runtime and batch size

    def _benchmark(self) -> Made:
        settings, converted = self._settings, self._made(1)
        self.stop_server()  # it would share the machine
        figures = self._results(6, "offline.json")
        arguments = ["--model", self._made(0)["model_dir"], "--device", settings.device, "--json", figures]
        for name in settings.backends:
            arguments += ["--backend", name]
        if settings.batch_sizes is not None:
            arguments += ["--batch-size", ",".join(map(str, settings.batch_sizes))]
        if set(settings.backends) - {"torch"}:
            arguments += ["--llm-model-name-or-path", converted["merged_dir"]]
        if "trtllm" in settings.backends and converted["engine_dir"]:
            arguments += ["--engine-dir", converted["engine_dir"]]
        if settings.asked.manifest is not None:
            arguments += ["--manifest", settings.asked.manifest]
        self._vivavoce("bench", "offline", *arguments)
        return {"figures": str(figures), "runs": len(json.loads(figures.read_text(encoding="utf-8"))["runs"])}

    # what the stages share

    def _vivavoce(self, *arguments: object, python: Path | None = None) -> None:
        """Run a command of this program as a process of its own: as it would be typed, and its memory goes with it."""
        words = [str(argument) for argument in arguments]
        self._say("+ " + shlex.join(["vivavoce", *words]))
        self._run(python_command("vivavoce.__main__", *words, python=python or sys.executable))

    def _results(self, stage: int, name: str = "") -> Path:
        path = self._root / "results" / STAGES[stage] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _note(self, stage: int) -> Path:
        return self._root / "stages" / f"{stage}-{STAGES[stage]}.json"

    def _made(self, stage: int) -> Made:
        """What an earlier stage made; `InvalidRequest`: it was not done in this folder."""
        note = self._read_note(stage)
        if note is None:
            raise InvalidRequest(
                f"stage: {stage} ({STAGES[stage]}) was not done in {self._root}; begin there, with --stage {stage}"
            )
        return dict(note["made"])

    def _read_note(self, stage: int) -> Made | None:
        """A stage's note; None: it was not done, or not to its end."""
        try:
            note = json.loads(self._note(stage).read_text(encoding="utf-8"))
            return {"inputs": note["inputs"], "made": note["made"]}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write_note(self, stage: int, inputs: Made, made: Made, seconds: float) -> None:
        path = self._note(stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        note = {"stage": stage, "name": STAGES[stage], "at": at, "seconds": round(seconds, 3)}
        text = json.dumps({**note, "inputs": inputs, "made": made}, indent=2, ensure_ascii=False)
        replace_file(path, text + "\n")


def choose_runtime(wish: LanguageModelRuntime | None) -> LanguageModelRuntime:
    """What serves the language model, by what is installed; `MissingDependency`: what is asked for is not."""
    builder, api = shutil.which(BUILDER) is not None, _has("tensorrt_llm")
    if wish is LanguageModelRuntime.ENGINE and not builder:
        raise MissingDependency(
            f"llm: engine needs {BUILDER}, which is not on PATH; run in the container "
            "tritonserver:26.07-trtllm-python-py3, or choose auto"
        )
    if wish is LanguageModelRuntime.LLMAPI and not api:
        raise MissingDependency(
            "llm: llmapi needs the package tensorrt_llm, which is not installed; run in one of NVIDIA's TensorRT-LLM "
            "containers, or choose auto"
        )
    runtimes = LanguageModelRuntime
    return wish or (runtimes.ENGINE if builder else runtimes.LLMAPI if api else runtimes.VIVAVOCE)


def build_line(checkpoint: Path, engine: Path, dtype: str) -> list[str]:
    """The command that builds the engine."""
    places = ["--checkpoint_dir", str(checkpoint), "--output_dir", str(engine)]
    limits = ["--max_batch_size", "16", "--max_num_tokens", "32768"]
    return [BUILDER, *places, *limits, "--gemm_plugin", dtype]


def interpreter_with_grpc(environment: Path | None, say: Say) -> Path:
    """An interpreter that has Triton's client for gRPC: the running one, or the server's."""
    return Path(sys.executable) if _has("tritonclient") else ensure_environment(environment, say).python


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _facts(value: Any) -> Any:
    """What tells one content of a user's file from another; the fields of anything else."""
    if not isinstance(value, Path):
        return vars(value)
    found = value.stat()
    return [str(value.resolve()), found.st_size, found.st_mtime_ns]


def _with_speakers(folder: Path, source: str, target: Path, say: Say) -> Path:
    """A folder of links to the model's files, with this speakers' file in place of its own."""
    target.mkdir(parents=True, exist_ok=True)
    names = {item.name for item in folder.iterdir()}
    for link in target.iterdir():
        if link.is_symlink() and link.name not in names:
            link.unlink()  # of a model that was asked for before
    for item in folder.iterdir():
        link = target / item.name
        if item.name != SPEAKERS and not (link.is_symlink() and link.resolve() == item.resolve()):
            link.unlink(missing_ok=True)
            link.symlink_to(item)
    new = target / f"{SPEAKERS}.new"
    if source.startswith(("http://", "https://")):
        say(f"fetching {source}")
        _fetch(source, new)
    else:
        path = Path(source).expanduser()
        if not path.is_file():
            raise InvalidRequest(f"spk2info: {path} is no file; give a file, or an address that begins with https://")
        shutil.copyfile(path, new)
    try:
        read_spk2info(new)
        os.replace(new, target / SPEAKERS)
    finally:
        new.unlink(missing_ok=True)
    return target


def _fetch(url: str, target: Path) -> None:
    import httpx

    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=_TIMEOUT_S) as reply:
            reply.raise_for_status()
            taken = 0
            with target.open("wb") as file:
                for piece in reply.iter_bytes():
                    taken += len(piece)
                    if taken > _MOST_SPEAKERS_BYTES:
                        most = _MOST_SPEAKERS_BYTES
                        raise DownloadError(f"spk2info: {url} is larger than {most} bytes; is it the right one?")
                    file.write(piece)
    except httpx.HTTPError as error:
        raise DownloadError(
            f"spk2info: {url} cannot be fetched ({error or type(error).__name__}); fetch it by hand and give the file"
        ) from None
