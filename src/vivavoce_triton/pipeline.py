"""`vivavoce triton`: deploy and measure a model in seven stages.

Each stage saves a note of its inputs and results. A stage that was done before with the same inputs is skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import SPEAKERS, detect_generation
from vivavoce.checkpoint.known_models import known_model
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.spk2info import read_spk2info
from vivavoce.child import python_command
from vivavoce.engine.chunk_policy import Schedule
from vivavoce.errors import DownloadError, InvalidRequest, ModelNotFound, StageFailed
from vivavoce.files import fresh_folder, replace_file
from vivavoce.frontend.model_choice import model_folder
from vivavoce_export.trtllm.options import build_command
from vivavoce_hub.download import DownloadProgress, download, open_client
from vivavoce_runtimes.merged_vocabulary import CONTROLS
from vivavoce_triton.client.utterance import LoadMode, check_reference_text
from vivavoce_triton.model_repository import (
    BUILDER,
    LanguageModelRuntime,
    ModelSet,
    RepositoryPlan,
    check_fits,
    check_values,
    choose_runtime,
    has_package,
    render_repository,
)
from vivavoce_triton.server import TritonServer, TritonServerSettings, ask, ensure_environment, find_installation

Say = Callable[[str], None]
Run = Callable[[Sequence[str]], None]
"""Runs a command and waits until it ends; raises `VivavoceError` if it fails."""
Results = dict[str, Any]
DEFAULT_TEXT = "The harbour was quiet this morning, and the ships lay still."
MAX_SPEAKERS_BYTES = 256 << 20
"""Largest size of a file of speakers; this much holds thousands of speakers."""
_SERVED = {
    LanguageModelRuntime.ENGINE: "the built engine serves the language model, by Triton's TensorRT-LLM backend",
    LanguageModelRuntime.LLMAPI: "TensorRT-LLM's LLM API serves the language model, from the merged folder",
    LanguageModelRuntime.VIVAVOCE: "this package's own language model serves, from the model's folder",
}


@dataclass(frozen=True)
class PipelineSettings:
    """Settings of one run. `InvalidRequest`: a value is unknown or out of its limits.

    first, last: stages 0 to 6; work: folder of all results; model: a name or a folder; hub: hf or modelscope; spk2info:
    file or URL of stored speakers; language_model: its runtime, None for the best that is installed; engine_dtype: data
    type of a built engine; values: template variables; environment: folder for the wheel's server, None for the
    default. Clients request `text`, or the manifest's lines, in the voice of `reference` (None: the server's default).
    num_tasks: concurrent users; batch_sizes: None for the usual ones that the texts fill; device: of stages 1 and 6.
    """

    first: int
    last: int
    work: Path
    model: str = "mini"
    hub: str = "hf"
    spk2info: str | None = None
    language_model: LanguageModelRuntime | None = None
    engine_dtype: str = "bfloat16"
    mode: LoadMode = LoadMode.STREAMING
    models: ModelSet = ModelSet.STAGED
    values: Mapping[str, str] = field(default_factory=dict)
    server: TritonServerSettings = field(default_factory=TritonServerSettings)
    environment: Path | None = None
    text: str = DEFAULT_TEXT
    reference: Path | None = None
    reference_text: str = ""
    manifest: Path | None = None
    num_tasks: int = 4
    backends: Sequence[str] = ("torch",)
    batch_sizes: Sequence[int] | None = None
    device: str = "auto"
    force: bool = False

    def __post_init__(self) -> None:
        last = len(STAGES) - 1
        if not 0 <= self.first <= self.last <= last:
            raise InvalidRequest(
                f"stage: {self.first}–{self.last} is not a range; stages are 0 to {last}, first ≤ last"
            )
        if self.hub not in ("hf", "modelscope"):
            raise InvalidRequest(f"hub: {self.hub!r} is unknown; choose hf or modelscope")
        if self.num_tasks < 1:
            raise InvalidRequest(f"num_tasks: {self.num_tasks} is below 1; give the number of users at a time")
        check_reference_text(self.reference, self.reference_text)
        for name, path in (("reference_audio", self.reference), ("manifest_path", self.manifest)):
            if path is not None and not path.is_file():
                raise InvalidRequest(f"{name}: {path} is not a file; check the path")
        check_values(self.values)

    @property
    def speaking_model(self) -> str:
        return self.models.speaking

    @property
    def utterance(self) -> list[object]:
        """Arguments of `vivavoce client` that request one text."""
        recording: list[object] = ["--reference-audio", self.reference, "--reference-text", self.reference_text]
        return [*(recording if self.reference is not None else []), "--target-text", self.text]


def run_command(command: Sequence[str]) -> None:
    """Run a command with our own streams. `InvalidRequest`: its exit code is 2. `StageFailed`: it failed otherwise."""
    code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    name = " ".join(["vivavoce", *command[5:7]]) if command[1] == "-c" else command[0]
    if code == 2:
        raise InvalidRequest(f"{name}: it was refused; see its message above")
    if code:
        raise StageFailed(f"{name}: it ended with {code}; see its message above")


def run_pipeline(settings: PipelineSettings, say: Say, run: Run = run_command) -> None:
    """Run the chosen stages, then stop the server if they started it.

    say: called with a line for each step. `VivavoceError`: a stage failed, or needs an earlier stage.
    """
    pipeline = Pipeline(settings, say, run)
    try:
        for number in range(settings.first, settings.last + 1):
            _run_stage(pipeline, number)
    finally:
        pipeline.stop_server()


def _run_stage(pipeline: Pipeline, number: int) -> None:
    stage, note = STAGES[number], pipeline.note_path(number)
    inputs = _inputs(pipeline, stage) if stage.needs else {}
    if stage.needs and not pipeline.settings.force and _is_done(note, inputs):
        pipeline.say(f"stage {number}: {stage.title}: done before, see {note} (--force repeats it)")
        return
    pipeline.say(f"stage {number}: {stage.title}")
    note.unlink(missing_ok=True)
    started = time.perf_counter()
    results = stage.work(pipeline)
    pipeline.write_note(number, inputs, results, time.perf_counter() - started)


def _inputs(pipeline: Pipeline, stage: Stage) -> Results:
    """Return all that a stage's result depends on. Files are given by path, size and time of change."""
    found: Results = {name: getattr(pipeline.settings, name) for name in stage.settings.split()}
    installed = [BUILDER] * (shutil.which(BUILDER) is not None) + ["tensorrt_llm"] * has_package("tensorrt_llm")
    found |= {"stages": [pipeline.results_of(number) for number in stage.needs], "installed": installed}
    return cast(Results, json.loads(json.dumps(found, default=_file_facts)))


def _file_facts(path: Path) -> list[Any]:
    found = path.stat()
    return [str(path.resolve()), found.st_size, found.st_mtime_ns]


def _is_done(path: Path, inputs: Results) -> bool:
    note = _read_note(path)
    if note is None or note["inputs"] != inputs:
        return False
    # A result that is an absolute path is a file.
    named = [value for value in note["made"].values() if isinstance(value, str) and value.startswith("/")]
    return all(Path(value).exists() for value in named)


def _read_note(path: Path) -> Results | None:
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        return {"inputs": note["inputs"], "made": note["made"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Pipeline:
    """State that the stages of one run share: the work folder, its notes, and a server."""

    def __init__(self, settings: PipelineSettings, say: Say, run: Run) -> None:
        self.settings, self.say, self.run = settings, say, run
        self.root = settings.work.expanduser().absolute()
        self.merged, self.repository = self.root / "llm_hf", self.root / "model_repo"
        self.server_log = self.root / "server.log"
        self.server: TritonServer | None = None

    def vivavoce(self, *arguments: object, python: Path | None = None) -> None:
        """Run a `vivavoce` command in a new process, so that its memory is freed when it ends."""
        words = [str(argument) for argument in arguments]
        self.say("+ " + shlex.join(["vivavoce", *words]))
        self.run(python_command("vivavoce.__main__", *words, python=python or sys.executable))

    def results_path(self, stage: int, name: str = "") -> Path:
        path = self.root / "results" / STAGES[stage].name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def note_path(self, stage: int) -> Path:
        return self.root / "stages" / f"{stage}-{STAGES[stage].name}.json"

    def results_of(self, stage: int) -> Results:
        """Return the results that a stage saved. `InvalidRequest`: the stage was not done in this folder."""
        note = _read_note(self.note_path(stage))
        if note is None:
            raise InvalidRequest(
                f"stage: {stage} ({STAGES[stage].name}) was not done in {self.root}; begin there, with --stage {stage}"
            )
        return dict(note["made"])

    def write_note(self, stage: int, inputs: Results, made: Results, seconds: float) -> None:
        path = self.note_path(stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        note = {"stage": stage, "name": STAGES[stage].name, "at": at, "seconds": round(seconds, 3)}
        text = json.dumps({**note, "inputs": inputs, "made": made}, indent=2, ensure_ascii=False)
        replace_file(path, text + "\n")

    def start_server(self, log_file: Path | None) -> TritonServer:
        installation, host = find_installation(self.settings.environment, self.say), self.settings.server.host
        if installation.backends is not None and host not in ("127.0.0.1", "localhost"):
            raise InvalidRequest(
                f"host: {host} would let others reach the wheel's server, an old release that can be taken over; use "
                "127.0.0.1, or run in NVIDIA's container"
            )
        server = TritonServer(installation, self.repository, log_file, self.settings.server)
        self.say(f"starting {installation.binary.name} on {self.repository}")
        server.start()
        self.server = server
        models = ", ".join(sorted(str(model["name"]) for model in server.models()))
        self.say(f"ready: {models}; HTTP {server.http_url}, gRPC {server.grpc_url}, metrics {server.metrics_url}")
        return server

    def stop_server(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            self.say("stopping the server")
            server.stop()

    def reach_server(self) -> tuple[str, str]:
        """Return host:port for HTTP and gRPC: of this run's server, or of one at the chosen ports, or of a new one."""
        settings = self.settings.server
        if self.server is None and settings.http_port:
            host = settings.reached_at
            url = f"http://{host}:{settings.http_port}/v2/models/{self.settings.speaking_model}/ready"
            if ask(url)[0] == 200:
                self.say(f"using the server at {host}:{settings.http_port}")
                return f"{host}:{settings.http_port}", f"{host}:{settings.grpc_port}"
        server = self.server or self.start_server(self.server_log)
        return server.http_url, server.grpc_url


def _download(pipeline: Pipeline) -> Results:
    settings, folder, files = pipeline.settings, Path(pipeline.settings.model).expanduser(), set[str]()

    def show(now: DownloadProgress) -> None:
        if now.file not in files:
            files.add(now.file)
            pipeline.say(f"{now.file}: {now.file_size / 1e6:,.1f} MB ({now.total / 1e6:,.1f} MB in all)")

    if not folder.is_dir():
        try:
            name = known_model(settings.model).name
        except ModelNotFound:
            folder = model_folder(settings.model)  # the model in the package, or an error that lists the known models
        else:
            folder = download(name, source=cast(Literal["hf", "modelscope"], settings.hub), progress=show)
    folder = folder.resolve()
    check_fits(settings.models, folder)
    if settings.spk2info is not None:
        folder = _with_speakers(folder, settings.spk2info, pipeline.root / "model", pipeline.say)
    voices = sorted(read_spk2info(folder / SPEAKERS)) if (folder / SPEAKERS).is_file() else []
    pipeline.say(f"the model is in {folder}; stored speakers: {', '.join(voices[:5]) or 'none'}")
    # Compare sizes and times of files, because reading all bytes takes minutes.
    facts = sorted(
        (path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    )
    content = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return {"model_dir": str(folder), "speakers": voices, "content": content}


def _convert(pipeline: Pipeline) -> Results:
    """Convert the language model for its runtime, build an engine if possible, and generate a few tokens."""
    settings, model_dir = pipeline.settings, pipeline.results_of(0)["model_dir"]
    wish, dtype = settings.language_model, settings.engine_dtype
    chosen = choose_runtime(wish)
    built, own = chosen is LanguageModelRuntime.ENGINE, chosen is LanguageModelRuntime.VIVAVOCE
    if settings.models is ModelSet.FAST and detect_generation(Path(model_dir)) not in CONTROLS:
        pipeline.say(
            "nothing to convert: CosyVoice 1's language model runs in vivavoce only, which reads the model's folder"
        )
        return {"language_model": LanguageModelRuntime.VIVAVOCE.value, "merged_dir": "", "engine_dir": None}
    checkpoint, engine = pipeline.root / "trtllm_checkpoint", pipeline.root / "trtllm_engine"
    pipeline.vivavoce("export", "hf", "--model", model_dir, "--out", pipeline.merged, "--force", "--quiet")
    made: Results = {"language_model": chosen.value, "merged_dir": str(pipeline.merged), "engine_dir": None}
    # With this command, the engine can be built from the checkpoint on another machine.
    if wish in (None, LanguageModelRuntime.ENGINE):
        made["build"] = shlex.join(build_command(str(checkpoint), str(engine), dtype))
        folders = ["--model-dir", model_dir, "--output-dir", checkpoint]
        pipeline.vivavoce("export", "trtllm", *folders, "--dtype", dtype, "--force", "--quiet")
        pipeline.say("the command that builds the engine: " + made["build"])
    if built:  # build the engine in a temporary folder, so that its own folder is complete or missing
        new = engine.with_name(engine.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        pipeline.run(build_command(str(checkpoint), str(new), dtype))
        shutil.rmtree(engine, ignore_errors=True)
        os.rename(new, engine)
        made["engine_dir"] = str(engine)
    missing = f"{BUILDER} is not installed here (TensorRT-LLM to 1.2 has it): "
    pipeline.say(("" if wish is not None or built else missing) + _SERVED[chosen])
    tried = ["--backend", "torch" if own else "trtllm", "--model", model_dir, "--device", settings.device]
    tried += [] if own else ["--tokenizer-dir", pipeline.merged]
    tried += ["--engine-dir", engine] if built else []
    pipeline.vivavoce("triton", "test-llm", *tried, "--quiet")
    return made


def _create_repository(pipeline: Pipeline) -> Results:
    settings, converted = pipeline.settings, pipeline.results_of(1)
    runtime, merged = LanguageModelRuntime(converted["language_model"]), converted["merged_dir"]
    values = {"model_dir": pipeline.results_of(0)["model_dir"], "llm_tokenizer_dir": merged, "tokenizer_dir": merged}
    if runtime is not LanguageModelRuntime.VIVAVOCE:
        values["engine_dir"] = converted["engine_dir"] or merged
    config = read_config(Path(values["model_dir"]), ())
    values["sample_rate"] = str(config.rates.sample_rate)
    if config.generation is Generation.V1:
        values["dynamic_chunk_strategy"] = Schedule.OFFICIAL.value
    plan = RepositoryPlan({**values, **settings.values}, settings.mode, settings.models, runtime)
    check_fits(settings.models, Path(plan.filled["model_dir"]))
    if settings.models is ModelSet.DIT:
        pipeline.say("token2wav_dit has the tensors of the original deployment, and CosyVoice2's own flow: no DiT")
    unchanged = "" if render_repository(plan, pipeline.repository) else " (unchanged)"
    pipeline.say(f"{settings.mode.value}: {', '.join(plan.names)} in {pipeline.repository}{unchanged}")
    return {"repository": str(pipeline.repository), **plan.facts}


def _serve(pipeline: Pipeline) -> Results:
    """Start the server. If this is the last stage, stay in the foreground until the server ends."""
    pipeline.results_of(2)
    is_last = pipeline.settings.last == 3
    server = pipeline.start_server(None if is_last else pipeline.server_log)
    urls = {"http": server.http_url, "grpc": server.grpc_url, "metrics": server.metrics_url}
    made = {**urls, "mode": pipeline.settings.mode.value, "models": server.models()}
    if is_last:
        pipeline.write_note(3, {}, made, 0.0)
        pipeline.say("Ctrl-C stops it")
        if code := server.wait():
            raise StageFailed(f"server: it ended with {code}; see its output above")
    return made


def _ask_over_http(pipeline: Pipeline) -> Results:
    http, _ = pipeline.reach_server()
    audio = pipeline.results_path(4, "http.wav")
    target = ["--server-url", f"http://{http}", "--model-name", pipeline.settings.speaking_model]
    pipeline.vivavoce("client", "http", *target, "--output-audio", audio, *pipeline.settings.utterance)
    with wave.open(str(audio)) as found:
        seconds = found.getnframes() / found.getframerate()
    if not seconds:
        raise StageFailed(f"http: {audio} holds no audio; see the server's log {pipeline.server_log}")
    pipeline.say(f"{seconds:.2f} s of audio in {audio}")
    return {"audio": str(audio), "seconds": round(seconds, 3)}


def _measure_over_grpc(pipeline: Pipeline) -> Results:
    settings, folder = pipeline.settings, pipeline.results_path(5)
    python = interpreter_with_grpc(settings.environment, pipeline.say)
    host, _, port = pipeline.reach_server()[1].rpartition(":")
    target = ["--server-addr", host, "--server-port", port, "--log-dir", folder]
    load = ["--model-name", settings.speaking_model, "--mode", settings.mode.value, "--num-tasks", settings.num_tasks]
    texts = ["--manifest-path", settings.manifest] if settings.manifest is not None else settings.utterance
    pipeline.vivavoce("client", "grpc", *target, *load, *texts, python=python)
    reports = sorted(folder.glob("report-*.json"), key=lambda path: path.stat().st_mtime)
    if not reports:
        raise StageFailed(f"grpc: the client left no report in {folder}; see its message above")
    return {"report": str(reports[-1])}


def _benchmark(pipeline: Pipeline) -> Results:
    settings, converted = pipeline.settings, pipeline.results_of(1)
    pipeline.stop_server()  # a running server would slow the benchmark down
    figures = pipeline.results_path(6, "offline.json")
    model_dir = pipeline.results_of(0)["model_dir"]
    arguments = ["--model", model_dir, "--device", settings.device, "--json", figures]
    for name in settings.backends:
        arguments += ["--backend", name]
    if settings.batch_sizes is not None:
        arguments += ["--batch-size", ",".join(map(str, settings.batch_sizes))]
    if set(settings.backends) - {"torch"}:
        arguments += ["--llm-model-name-or-path", converted["merged_dir"]]
    if "trtllm" in settings.backends and converted["engine_dir"]:
        arguments += ["--engine-dir", converted["engine_dir"]]
    if settings.manifest is not None:
        arguments += ["--manifest", settings.manifest]
    pipeline.vivavoce("bench", "offline", *arguments)
    return {"figures": str(figures), "runs": len(json.loads(figures.read_text(encoding="utf-8"))["runs"])}


class Stage(NamedTuple):
    """needs: stages whose results it uses; without needs, it always runs. settings: fields that change its result."""

    name: str
    title: str
    work: Callable[[Pipeline], Results]
    needs: tuple[int, ...] = ()
    settings: str = ""


_SENT = "mode models text reference reference_text manifest num_tasks"
STAGES = (
    Stage("download", "download the model", _download),
    Stage("convert", "convert the language model", _convert, (0,), "language_model engine_dtype device"),
    Stage("repository", "create the model repository", _create_repository),
    Stage("server", "start the server", _serve),
    Stage("http", "ask for one utterance over HTTP", _ask_over_http, (2, 1, 0), _SENT),
    Stage("grpc", "measure a load over gRPC", _measure_over_grpc, (2, 1, 0), _SENT),
    Stage("offline", "measure batches without a server", _benchmark, (0, 1), "backends batch_sizes manifest device"),
)


def interpreter_with_grpc(environment: Path | None, say: Say) -> Path:
    """Return a Python interpreter that has Triton's gRPC client: the running one, or the server environment's."""
    return Path(sys.executable) if has_package("tritonclient") else ensure_environment(environment, say).python


def _with_speakers(folder: Path, source: str, target: Path, say: Say) -> Path:
    """Make a folder of links to the model's files, but with another file of speakers."""
    with fresh_folder(target) as new:
        for item in folder.iterdir():
            if item.name != SPEAKERS:
                (new / item.name).symlink_to(item)
        if source.startswith(("http://", "https://")):
            say(f"fetching {source}")
            _fetch(source, new / SPEAKERS)
        elif (path := Path(source).expanduser()).is_file():
            shutil.copyfile(path, new / SPEAKERS)
        else:
            raise InvalidRequest(
                f"spk2info: {path} is not a file; give a file, or an address that begins with https://"
            )
        read_spk2info(new / SPEAKERS)
    return target


def _fetch(url: str, target: Path) -> None:
    import httpx

    try:
        with open_client(url, follow_redirects=True, timeout=60.0) as client, client.stream("GET", url) as reply:
            reply.raise_for_status()
            size = 0
            with target.open("wb") as file:
                for piece in reply.iter_bytes():
                    size += len(piece)
                    if size > MAX_SPEAKERS_BYTES:
                        raise DownloadError(
                            f"spk2info: {url} is larger than {MAX_SPEAKERS_BYTES} bytes; is it the right one?"
                        )
                    file.write(piece)
    except httpx.HTTPError as error:
        raise DownloadError(
            f"spk2info: {url} cannot be fetched ({error or type(error).__name__}); fetch it by hand and give the file"
        ) from None
