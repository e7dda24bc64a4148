"""A server's settings: every field with its meaning, its limits and what it is if nobody says.

They come from a TOML file, variables of the environment and flags: see `settings_resolve`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vivavoce.engine.admission import AdmissionMode
from vivavoce.service.operations.settings_forms import (
    Device,
    FilePath,
    Host,
    HostName,
    Model,
    Origin,
    RootPath,
    TritonAddress,
    Variant,
    VoicePlace,
    WebAddress,
)

FLAG, EXAMPLE = "x-flag", "x-example"
"""What a field's schema holds beside the usual: its flag of `vivavoce serve`, and a value where its default is none."""
_MIB = 1 << 20


def _setting(
    default: object, description: str, *, flag: str | None = None, example: object = None, **limits: Any
) -> Any:
    extra: dict[str, Any] = {key: value for key, value in ((FLAG, flag), (EXAMPLE, example)) if value is not None}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class ServerSection(_Section):
    """Where the server listens, and what it grants its clients."""

    host: Host = _setting("127.0.0.1", "Address to listen at; 0.0.0.0: all of this machine.", flag="--host")
    port: int = _setting(
        8880, "Port of the HTTP API, WebSockets and pages; 0: a free one.", flag="--port", ge=0, le=65_535
    )
    legacy: bool = _setting(
        False, "Also serve the routes of CosyVoice's own HTTP service, on a port of their own.", flag="--legacy"
    )
    legacy_port: int = _setting(50_000, "Port of those routes.", flag="--legacy-port", ge=0, le=65_535)
    grpc_port: int | None = _setting(
        None, "Port of the gRPC service; unset: there is none.", flag="--grpc-port", example=50_051, ge=0, le=65_535
    )
    max_conc: int = _setting(
        4,
        "Requests at once through gRPC; more are refused.",
        flag="--max-conc",
        ge=1,
        le=4_096,
    )
    tls_certificate: FilePath | None = _setting(
        None,
        "PEM file of the server's certificate and those above it.",
        flag="--tls-cert",
        example="/etc/vivavoce/tls.crt",
    )
    tls_key: FilePath | None = _setting(
        None, "PEM file of its private key, without a password.", flag="--tls-key", example="/etc/vivavoce/tls.key"
    )
    tls_client_ca: FilePath | None = _setting(
        None,
        "PEM file of who signs clients' certificates; clients without one are refused then.",
        example="/etc/vivavoce/clients.crt",
    )
    cors_origins: tuple[Origin, ...] = _setting(
        (),
        "Web pages of other origins that may use the API; * is any.",
        flag="--cors-origin",
        example=["https://example.org"],
    )
    allowed_hosts: tuple[HostName, ...] = _setting(
        (),
        "Names that clients may ask this server under, beside localhost and addresses; * is any. None given: any name, "
        "but no other where only this machine reaches the server and no keys are wanted.",
        flag="--allowed-host",
        example=["tts.example.org"],
    )
    root_path: RootPath = _setting("", "Path under which a proxy in front serves this server.", example="/tts")
    drain_s: float = _setting(
        30.0,
        "Seconds that running requests have to finish when the server is told to stop.",
        flag="--drain",
        ge=0,
        le=86_400,
    )
    listener_timeout_s: float = _setting(
        30.0, "Seconds that a listener may leave its audio unread before its request is ended.", gt=0, le=86_400
    )
    request_timeout_s: float = _setting(30.0, "Seconds that a request's headers may take to arrive.", gt=0, le=86_400)
    keep_alive_s: int = _setting(75, "Seconds that a connection stays open between requests.", ge=1, le=86_400)
    max_body_bytes: int = _setting(
        32 * _MIB,
        "Bytes of a request's body; a message through gRPC or a WebSocket likewise.",
        ge=65_536,
        le=1_024 * _MIB,
    )
    max_header_bytes: int = _setting(65_536, "Bytes of a request's headers.", ge=4_096, le=_MIB)
    max_connections: int = _setting(1_024, "Connections at once; more are answered with 503.", ge=1, le=1_000_000)
    web_page: bool = _setting(True, "Serve the web page at /, with its parts.", flag="--web-page")
    docs: bool = _setting(True, "Serve the API's description at /openapi.json.")
    metrics: bool = _setting(True, "Serve figures for Prometheus at /metrics.")
    metrics_key_required: bool = _setting(False, "Figures are for callers with an API key only.")
    upstream: TritonAddress | None = _setting(
        None,
        "Speak through this Triton server instead of a model here.",
        flag="--upstream",
        example="triton://localhost:8001",
    )
    reference_dir: FilePath | None = _setting(
        None,
        "Recordings (NAME.wav with NAME.txt) that are voices of the Triton server.",
        flag="--reference-dir",
        example="/srv/voices",
    )


class ModelSection(_Section):
    """Which model speaks, and on what."""

    model: Model | None = _setting(
        None,
        "A downloaded model's name, or a model's folder; unset: mini, a small demo in English.",
        flag="--model",
        example="CosyVoice2-0.5B",
    )
    device: Device = _setting(
        "auto", "Where it computes: auto (CUDA if there is one), cpu, cuda, cuda:N or mps (untested).", flag="--device"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _setting(
        "auto", "Precision; auto: float16 on a GPU, else float32.", flag="--dtype"
    )
    variant: Variant | None = _setting(
        None, "Take llm.VARIANT.pt and the like where the model has them.", flag="--variant", example="rl"
    )
    memory_gb: float | None = _setting(
        None,
        "Most GPU memory in GB that is taken, the weights included; unset: all.",
        flag="--memory",
        example=16.0,
        gt=0,
        le=10_000,
    )
    kernels: bool | None = _setting(
        None, "Our own GPU kernels and recorded launches; unset: where they are faster.", flag="--kernels", example=True
    )
    deterministic: bool = _setting(
        False, "The same bits whoever else is served: slower, for audits.", flag="--deterministic"
    )
    int8_lm: bool = _setting(False, "Read the language model's matrices as int8: less exact.", flag="--int8-lm")
    fp8_flow: bool = _setting(False, "Multiply in fp8 within the flow: less exact.", flag="--fp8-flow")
    text_processes: int | None = _setting(
        None,
        "Processes that read numbers and dates out; unset: up to four with a GPU, none without.",
        example=4,
        ge=0,
        le=64,
    )
    warm_up_s: float = _setting(3.0, "Seconds of measuring before the server is ready; 0: none.", ge=0, le=3_600)


class EngineSection(_Section):
    """How many are served at once."""

    slots: int | None = _setting(
        None, "Sequences that are decoded at once; unset: as memory allows.", flag="--slots", example=64, ge=1, le=4_096
    )
    admission: AdmissionMode = _setting(
        AdmissionMode.REFUSE,
        "Streams that would let others run dry: refuse (429 at once), queue (they wait), all (there may be gaps).",
        flag="--admission",
    )
    max_waiting: int = _setting(1_000, "Requests that may wait; more are refused.", ge=1, le=1_000_000)
    first_chunk_s: float = _setting(1.0, "Seconds to a stream's first audio that admission plans for.", gt=0, le=600)
    headroom: float = _setting(
        0.85, "Share of real time that streams may use before more are refused or wait.", gt=0, le=1
    )


class VoicesSection(_Section):
    """Where voices are kept, and how many."""

    place: VoicePlace | None = _setting(
        None,
        "A folder, or redis://HOST:PORT/DATABASE that several servers share; unset: the user's own folder.",
        flag="--voices",
        example="/srv/vivavoce/voices",
    )
    cache: int = _setting(256, "Voices that stay in memory, of a megabyte each at most.", ge=1, le=1_000_000)
    quota: int = _setting(1_000, "Voices that one owner may store, and that are public.", ge=0, le=100_000)
    max_recording_bytes: int = _setting(16 * _MIB, "Bytes of a reference recording.", ge=65_536, le=1_024 * _MIB)


class AuthSection(_Section):
    """Who may ask."""

    keys_file: FilePath | None = _setting(
        None,
        "File of API keys, as `vivavoce keys add` writes it; unset: everyone may ask.",
        flag="--keys",
        example="/etc/vivavoce/keys.toml",
    )


class LoggingSection(_Section):
    """What is logged, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "The least severity that is logged.", flag="--log-level"
    )
    format: Literal["text", "json"] = _setting(
        "text", "Lines for people, or one JSON object a line.", flag="--log-format"
    )
    log_text: bool = _setting(False, "Log what is spoken, too: it may be confidential.")


class TelemetrySection(_Section):
    """Traces for OpenTelemetry."""

    otlp_endpoint: WebAddress | None = _setting(
        None,
        "Collector that takes OTLP over HTTP; unset: no traces. Needs vivavoce[telemetry].",
        example="http://localhost:4318",
    )
    service_name: str = _setting("vivavoce", "What traces call this server.", min_length=1, max_length=255)


class ServerSettings(_Section):
    """All of them, by sections."""

    server: ServerSection = Field(default_factory=ServerSection)
    model: ModelSection = Field(default_factory=ModelSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    voices: VoicesSection = Field(default_factory=VoicesSection)
    auth: AuthSection = Field(default_factory=AuthSection)
    logging: LoggingSection = Field(default_factory=LoggingSection)
    telemetry: TelemetrySection = Field(default_factory=TelemetrySection)
