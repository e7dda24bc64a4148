"""A server's settings, each with its type, limits, default, meaning and flag of `vivavoce serve`.

Flags, variables, the TOML file, `vivavoce config` and the table in docs/configuration.md are made from them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from vivavoce.engine.admission import AdmissionMode

_MIB = 1 << 20
_NAME_PARTS = r"[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*"


def is_address(place: str) -> bool:
    """Whether it is an address such as redis://host, and not a folder."""
    return "://" in place


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _like(pattern: str, wanted: str, change: Callable[[str], str] = str) -> AfterValidator:
    """Accepts text of this form; an address needs a host, and a port in 0 … 65535 if any. `wanted` ends the error."""

    def check(value: str) -> str:
        if value.isprintable() and re.fullmatch(pattern, value) and (not is_address(value) or _has_host(value)):
            return change(value)
        raise ValueError(wanted)

    return AfterValidator(check)


def _has_host(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.hostname is not None and (parts.port or 0) >= 0
    except ValueError:  # the port's
        return False


def _path(wanted: str) -> BeforeValidator:
    """Accepts the path of a file or folder; ~ is the user's own folder."""

    def check(value: object) -> object:
        if value == "" or (isinstance(value, str) and "\x00" in value):
            raise ValueError(wanted)
        return os.path.expanduser(value) if isinstance(value, (str, Path)) else value

    return BeforeValidator(check)


def _redis(value: str) -> str:
    if is_address(value) and not value.startswith(("redis://", "rediss://")):
        raise ValueError("a folder, or an address of redis://, rediss://")
    return value


def _parted(value: object, info: ValidationInfo) -> object:
    """Names: separated by commas in a variable; a list in a file, which is validated as JSON."""
    if isinstance(value, str) and info.mode == "python":
        value = [part.strip() for part in value.split(",")]
    return tuple(value) if isinstance(value, list) else value


def _paired(value: object) -> object:
    """A table of names; in a variable name=value separated by commas, from flags a list of them."""
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, list):
        pairs = [str(pair).partition("=") for pair in value]
        return {name.strip(): meant.strip() for name, _, meant in pairs}
    return value


_Port = Annotated[int, Field(ge=0, le=65_535)]
_FilePath = Annotated[Path, _path("a path")]
_Host = Annotated[str, _like(r"[^\s/]+", "an address of this machine, such as 127.0.0.1, ::1 or 0.0.0.0 for all")]
_HostName = Annotated[
    str, _like(rf"[*]|{_NAME_PARTS}", "* or a host's name without a port, such as tts.example.org", str.lower)
]
_Origin = Annotated[str, _like(r"[*]|https?://[^/?#\s]+", "* or a page's origin, such as https://example.org")]
_Commas = BeforeValidator(_parted)
_RootPath = Annotated[str, _like("(/[A-Za-z0-9._~-]+)*", "a path such as /tts, without a slash at its end")]
_TritonAddress = Annotated[str, _like(r"triton://[^/?#@\s]+:\d+/*", "triton://HOST:PORT of its gRPC interface")]
_WebAddress = Annotated[str, _like(r"(?i:https?)://\S*", "an address such as http://localhost:4318")]
_Model = Annotated[str, _path("a downloaded model's name, or a model's folder")]
_Device = Annotated[str, _like(r"auto|cpu|(cuda|mps)(:\d{1,3})?", "auto, cpu, cuda, cuda:N or mps")]
_Gpus = Annotated[str, _like(r"all|\d{1,3}(,\d{1,3})*", "all, or numbers of GPUs such as 0,1")]
_Variant = Annotated[str, _like(_NAME_PARTS, "the middle of a file's name, as llm.VARIANT.pt")]
_VoiceName = Annotated[str, Field(min_length=1, max_length=200)]
_VoicePlace = Annotated[str, _path("a folder, or redis://HOST:PORT"), AfterValidator(_redis)]


def _setting(default: object, flag: str = "", *, example: object = None, **more: Any) -> Any:
    """A field.

    flag: its flag of `serve` with other spellings, metavar and help: "--drain SECONDS: For running requests."; the help
    may end with a default to show; example: a value for the example file, if the default is unset or empty.
    """
    extra: dict[str, Any] = {name: value for name, value in (("x-flag", flag), ("x-example", example)) if value}
    return Field(default, json_schema_extra=extra, **more)


def _unset(example: object, flag: str = "", **more: Any) -> Any:
    """A field that is None by default."""
    return _setting(None, flag, example=example, **more)


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class ServerSection(_Section):
    """Where the server listens, and what it grants its clients."""

    host: _Host = _setting("127.0.0.1", "--host ADDRESS: Where to listen; 0.0.0.0: everywhere.")
    """Address to listen at; 0.0.0.0: all of this machine."""
    port: _Port = _setting(8880, "--port -p: Of the HTTP API.")
    """Port of the HTTP API, WebSockets and pages; 0: a free one."""
    legacy: bool = _setting(False, "--legacy: Also serve CosyVoice's own HTTP routes, on a port of their own.")
    """Also serve the routes of CosyVoice's own HTTP service, on a port of their own."""
    legacy_port: _Port = _setting(50_000, "--legacy-port: Of those routes.")
    """Port of those routes."""
    grpc_port: _Port | None = _unset(50_051, "--grpc-port: Of the gRPC service.  [default: there is none]")
    """Port of the gRPC service; unset: it is off."""
    wyoming_port: _Port | None = _unset(
        10_300, "--wyoming-port: Of the Wyoming protocol, for Home Assistant.  [default: there is none]"
    )
    """Port of the Wyoming protocol (Home Assistant), without keys and TLS; unset: it is off."""
    wyoming_key: str | None = _unset("home", min_length=1)
    """Name of the API key for all requests at that port; needed if auth.keys_file is set."""
    health_port: _Port | None = _unset(9_090, "--health-port: Of health and metrics alone.  [default: there is none]")
    """Port of /health and /metrics alone, in plain HTTP; /metrics is then at no other port. Unset: it is off."""
    max_conc: int = _setting(4, "--max-conc: Requests at once through gRPC.", ge=1, le=4_096)
    """Requests at once through gRPC; more are refused."""
    tls_certificate: _FilePath | None = _unset("/etc/vivavoce/tls.crt", "--tls-cert: The server's certificate, PEM.")
    """PEM file of the server's certificate and those above it."""
    tls_key: _FilePath | None = _unset("/etc/vivavoce/tls.key", "--tls-key: Its private key, PEM.")
    """PEM file of its private key, without a password."""
    tls_client_ca: _FilePath | None = _unset("/etc/vivavoce/clients.crt")
    """PEM file of the authority of clients' certificates; if set, clients without a certificate are refused."""
    cors_origins: Annotated[tuple[_Origin, ...], _Commas] = _setting(
        (),
        "--cors-origin ORIGIN: Web pages of this origin may use the API; may be repeated; *: any.",
        example=["https://example.org"],
    )
    """Web pages of other origins that may use the API; * is any."""
    allowed_hosts: Annotated[tuple[_HostName, ...], _Commas] = _setting(
        (),
        "--allowed-host: Clients may ask under this name; may be repeated; *: any; see docs.",
        example=["tts.example.org"],
        description="Names that clients may ask this server under, beside localhost and addresses; * is any. None "
        "given: any name, but no other where only this machine reaches the server and no keys are wanted.",
    )
    root_path: _RootPath = _setting("", example="/tts")
    """Path under which a proxy in front serves this server."""
    drain_s: float = _setting(30.0, "--drain SECONDS: For running requests when told to stop.", ge=0, le=86_400)
    """Seconds that running requests have to finish when the server is told to stop."""
    listener_timeout_s: float = _setting(30.0, gt=0, le=86_400)
    """Seconds that a listener may leave its audio unread, or a body may pause, before its request is ended."""
    request_timeout_s: float = _setting(30.0, gt=0, le=86_400)
    """Seconds that a request's headers may take to arrive, and before them the handshake of TLS; a message of gRPC."""
    keep_alive_s: int = _setting(75, ge=1, le=86_400)
    """Seconds that a connection stays open between requests."""
    max_body_bytes: int = _setting(32 * _MIB, ge=65_536, le=1_024 * _MIB)
    """Bytes of a request's body; a WebSocket's message likewise, gRPC's up to 1.2 MB."""
    max_header_bytes: int = _setting(65_536, ge=4_096, le=_MIB)
    """Bytes of a request's headers."""
    max_connections: int = _setting(1_024, ge=1, le=1_000_000)
    """Connections at once to a port; one more takes the place of one that sends nothing, or is answered with 503."""
    web_page: bool = _setting(True, "--web-page: Serve the web page.  [default: yes]")
    """Serve the web page at /, with its parts."""
    docs: bool = True
    """Serve the API's description at /openapi.json."""
    metrics: bool = True
    """Serve figures for Prometheus at /metrics."""
    metrics_key_required: bool = False
    """Figures are for callers with an API key only."""
    upstream: _TritonAddress | None = _unset(
        "triton://localhost:8001", "--upstream triton://HOST:PORT: Speak through a Triton server, without a model."
    )
    """Speak through this Triton server instead of a model here."""
    reference_dir: _FilePath | None = _unset(
        "/srv/voices", "--reference-dir FOLDER: With --upstream: recordings that are its voices."
    )
    """Recordings (NAME.wav with NAME.txt) that are voices of the Triton server."""


class ModelSection(_Section):
    """Which model speaks, and on what."""

    model: _Model | None = _unset(
        "CosyVoice2-0.5B",
        "--model -m --model-dir NAME|FOLDER: A downloaded model or a model folder.  "
        "[default: $VIVAVOCE_MODEL, else mini, a small demo in English]",
    )
    """A downloaded model's name, or a model's folder; unset: mini, a small demo in English."""
    device: _Device = _setting("auto", "--device: auto, cpu, cuda, cuda:N or mps.")
    """Where it computes: auto (CUDA if there is one), cpu, cuda, cuda:N or mps (untested)."""
    gpus: _Gpus | None = _unset(
        "0,1", "--gpus all|N,N: An engine on each of these GPUs, behind one server.  [default: one on --device]"
    )
    """An engine on each of these GPUs, behind one server: all, or their numbers; unset: one, on model.device."""
    engines: int = _setting(1, "--engines: That share one device, each a process; for CPUs.", ge=1, le=64)
    """Engines that share one device, each in a process of its own: for CPUs, whose threads are divided among them."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _setting(
        "auto", "--dtype: float32, bfloat16 or float16.  [default: auto, float16 on a GPU]"
    )
    """Precision; auto: float16 on a GPU, on a CPU with such products bfloat16 for large models, else float32."""
    variant: _Variant | None = _unset("rl", "--variant: Take llm.NAME.pt and the like where the model has them.")
    """Take llm.VARIANT.pt and the like where the model has them."""
    memory_gb: float | None = _unset(
        16.0, "--memory GB: Most GPU memory that is taken, the weights included.  [default: all]", gt=0, le=10_000
    )
    """Most GPU memory in GB that is taken, the weights included; unset: all."""
    kernels: bool | None = _unset(True, "--kernels: Our own GPU kernels.  [default: where they are faster]")
    """Our own GPU kernels and recorded launches; unset: where they are faster."""
    deterministic: bool = _setting(False, "--deterministic: Results independent of other requests: slower.")
    """Results independent of other requests, bit by bit: slower, for audits."""
    lm_backend: Literal["torch", "vllm", "trtllm"] = _setting("torch", "--lm-backend: torch, vllm or trtllm.")
    """The engine of the language model: torch (our own), vllm or trtllm; see backends.md."""
    flow_backend: Literal["torch", "tensorrt", "onnx", "jit", "aoti"] = _setting(
        "torch", "--flow-backend: torch, tensorrt, onnx, jit or aoti."
    )
    """The engine of the flow's estimator: torch (our own), or a file that `vivavoce export` made."""
    trt_concurrent: int = _setting(1, "--trt-concurrent: Batches that TensorRT runs at once.", ge=1, le=64)
    """Execution contexts of TensorRT: batches that it runs at once."""
    tp: int = _setting(1, "--tp: GPUs that share each layer of the language model.", ge=1, le=64)
    """GPUs that share each layer of the language model, with vllm or trtllm."""
    pp: int = _setting(1, "--pp: GPUs among which its layers are divided.", ge=1, le=64)
    """GPUs among which the language model's layers are divided, with vllm or trtllm."""
    trust_model_code: bool = _setting(False, "--trust-model-code: Run code of the model's folder.")
    """Run TorchScript files, engines and packages of the model's folder that were not exported on this machine."""
    text_processes: int | None = _unset(4, ge=0, le=64)
    """Processes that read texts out (numbers, dates); 0: the engine's own; unset: two to four with a GPU, else two."""
    lexicons: _FilePath | None = _unset(
        "/etc/vivavoce/lexicons",
        "--lexicons FOLDER: Words and how to say them: all.tsv, voices/NAME.tsv, keys/NAME.tsv.",
    )
    """Words and how to say them, read at the start: all.tsv, and voices/NAME.tsv and keys/NAME.tsv of some requests."""
    warm_up_s: float = _setting(3.0, ge=0, le=3_600)
    """Seconds of measuring before the server is ready; 0: none."""


class EngineSection(_Section):
    """The number of requests at once."""

    slots: int | None = _unset(64, "--slots: Sequences at once.  [default: as memory allows]", ge=1, le=4_096)
    """Sequences that are decoded at once; unset: as memory allows."""
    admission: AdmissionMode = _setting(
        AdmissionMode.AUTO,
        "--admission: Streams too many: auto, refuse, queue or all.",
        description="Streams that would let others run dry: refuse (429 at once), queue (they wait), all (there may be "
        "gaps), auto (where the machine keeps up with fewer than 4 listeners 8 may wait, elsewhere they are refused).",
    )
    max_waiting: int = _setting(1_000, ge=1, le=1_000_000)
    """Requests that may wait; more are refused."""
    max_wait_s: float = _setting(30.0, gt=0, le=3_600)
    """Seconds that a request may wait with admission auto; then it is refused."""
    first_chunk_s: float = _setting(1.0, gt=0, le=600)
    """Seconds to a stream's first audio that admission plans for."""
    headroom: float = _setting(0.85, gt=0, le=1)
    """Share of real time that streams may use before more are refused or wait."""


class VoicesSection(_Section):
    """Where voices are kept, and how many."""

    place: _VoicePlace | None = _unset(
        "/srv/vivavoce/voices",
        "--voices FOLDER|ADDRESS: Where voices are kept; redis://HOST:PORT shares them.  "
        "[default: the user's own folder]",
    )
    """A folder, or redis://HOST:PORT/DATABASE that several servers share; unset: the user's own folder."""
    cache: int = _setting(256, ge=1, le=1_000_000)
    """Voices that stay in memory, of a megabyte each at most."""
    default: _VoiceName | None = _unset(
        "calm", "--default-voice NAME: Of requests that name none.  [default: the model's first]"
    )
    """The voice of requests that name none, and of OpenAI's names where the model has no voice; unset: the first."""
    aliases: Annotated[dict[_VoiceName, _VoiceName], BeforeValidator(_paired)] = _setting(
        {},
        "--voice-alias NAME=VOICE: NAME speaks with this voice; may be repeated.",
        example={"alloy": "calm"},
    )
    """More names of voices, beside OpenAI's 13, which are spread over the model's own; a stored voice's name wins."""
    unknown: Literal["refuse", "default"] = _setting("refuse")
    """A name that no voice has: refuse (404), or speak with the default voice."""
    quota: int = _setting(1_000, ge=0, le=100_000)
    """Voices that one owner may store, and that are public."""
    keep_recordings: bool = True
    """Stored voices keep their recording: another model extracts them again from it. false: they fit one."""
    max_recording_bytes: int = _setting(16 * _MIB, ge=65_536, le=1_024 * _MIB)
    """Bytes of a reference recording."""


class AuthSection(_Section):
    """API keys."""

    keys_file: _FilePath | None = _unset(
        "/etc/vivavoce/keys.toml",
        "--keys: File of API keys; see `vivavoce keys`.  [default: none, everyone may send requests]",
    )
    """File of API keys, as `vivavoce keys add` writes it; unset: everyone may send requests."""
    open_lists: bool = False
    """The lists of models and public voices are for callers without a key, too; Open WebUI asks without one."""


class RequestsSection(_Section):
    """Requests for things that the model or server does not have."""

    instructions: Literal["ignore", "refuse"] = "ignore"
    """Instructions to a model that cannot follow them: ignore (with a warning) or refuse (400); never spoken."""
    speed: Literal["clamp", "refuse"] = "clamp"
    """A speed of 0.25 to 4 beyond 0.5 to 2, on OpenAI's routes: clamp (the answer tells the speed) or refuse (400)."""
    empty_text: Literal["silence", "refuse"] = "silence"
    """A text with nothing to say, such as an emoji: silence (a fifth of a second) or refuse (400)."""
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    """Fields that are not known, on OpenAI's routes: refuse (400, with their names) or ignore."""


class LoggingSection(_Section):
    """The log, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "--log-level: debug, info, warning or error."
    )
    """The least severity that is logged."""
    format: Literal["text", "json"] = _setting("text", "--log-format: text or json.")
    """Lines for people, or one JSON object a line."""
    log_text: bool = False
    """Log what is spoken, too: it may be confidential."""


class TelemetrySection(_Section):
    """Traces for OpenTelemetry."""

    otlp_endpoint: _WebAddress | None = _unset("http://localhost:4318")
    """Collector that takes OTLP over HTTP; unset: no traces. Needs vivavoce[telemetry]."""
    service_name: str = _setting("vivavoce", min_length=1, max_length=255)
    """The name of this server in traces."""


class ServerSettings(_Section):
    """All of them, by sections."""

    server: ServerSection = Field(default_factory=ServerSection)
    model: ModelSection = Field(default_factory=ModelSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    voices: VoicesSection = Field(default_factory=VoicesSection)
    auth: AuthSection = Field(default_factory=AuthSection)
    requests: RequestsSection = Field(default_factory=RequestsSection)
    logging: LoggingSection = Field(default_factory=LoggingSection)
    telemetry: TelemetrySection = Field(default_factory=TelemetrySection)
