"""A server's settings, each with its type, limits, default, meaning and flag of `vivavoce serve`.

Flags, variables, the TOML file, `vivavoce config` and the tables in docs/configuration.md are made from these classes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from vivavoce.checkpoint.config import MAX_ADAPTER_RANK
from vivavoce.engine.adapters import MAX_ADAPTERS
from vivavoce.engine.admission import AdmissionMode
from vivavoce.server import setting_kinds as kinds

_MIB = 1 << 20


def _setting(default: object, flag: str = "", *, example: object = None, **more: Any) -> Any:
    """Declare a field of a section.

    flag: the flag of `serve` in one string, with its other spellings, metavar and help, such as "--drain SECONDS: For
    running requests.". The help may end with the default that it shows. example: a value for the example file, for a
    default that is unset or empty.
    """
    extra: dict[str, Any] = {name: value for name, value in (("x-flag", flag), ("x-example", example)) if value}
    return Field(default, json_schema_extra=extra, **more)


def _unset(example: object, flag: str = "", **more: Any) -> Any:
    """Declare a field that is None by default; see `_setting`."""
    return _setting(None, flag, example=example, **more)


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class ServerSection(_Section):
    """Where the server listens, and what it grants its clients."""

    host: kinds.Host = _setting("127.0.0.1", "--host ADDRESS: Address to listen at; 0.0.0.0: all.")
    """Address to listen at; 0.0.0.0: all addresses of this machine."""
    port: kinds.Port = _setting(8880, "--port -p: Port of the HTTP API.")
    """Port of the HTTP API, WebSockets and pages; 0: a free one."""
    legacy: bool = _setting(False, "--legacy: Also serve CosyVoice's own HTTP routes, on a port of their own.")
    """Also serve the routes of CosyVoice's own HTTP service, on a port of their own."""
    legacy_port: kinds.Port = _setting(50_000, "--legacy-port: Port of CosyVoice's own routes.")
    """Port of CosyVoice's own routes."""
    grpc_port: kinds.Port | None = _unset(50_051, "--grpc-port: Port of the gRPC service.  [default: off]")
    """Port of the gRPC service; unset: it is off."""
    wyoming_port: kinds.Port | None = _unset(
        10_300, "--wyoming-port: Port of the Wyoming protocol, for Home Assistant.  [default: off]"
    )
    """Port of the Wyoming protocol (Home Assistant), without keys and TLS; unset: it is off."""
    wyoming_key: str | None = _unset("home", min_length=1)
    """Name of the API key for all requests at server.wyoming_port; needed if auth.keys_file is set."""
    health_port: kinds.Port | None = _unset(9_090, "--health-port: Port of /health and /metrics only.  [default: off]")
    """Plain HTTP port for /health and /metrics only; other ports then do not serve /metrics. Unset: it is off."""
    max_conc: int = _setting(4, "--max-conc: Most concurrent gRPC requests.", ge=1, le=4_096)
    """Largest number of concurrent gRPC requests; further ones are refused."""
    tls_certificate: kinds.FilePath | None = _unset(
        "/etc/vivavoce/tls.crt", "--tls-cert: The server's certificate, PEM."
    )
    """PEM file of the server's certificate chain."""
    tls_key: kinds.FilePath | None = _unset("/etc/vivavoce/tls.key", "--tls-key: The certificate's private key, PEM.")
    """PEM file of the server's private key, without a password."""
    tls_client_ca: kinds.FilePath | None = _unset("/etc/vivavoce/clients.crt")
    """PEM file of the authority that signs clients' certificates; if set, clients without a certificate are refused."""
    cors_origins: Annotated[tuple[kinds.Origin, ...], kinds.CommaSeparated] = _setting(
        (),
        "--cors-origin ORIGIN: Web pages of this origin may use the API; may be repeated; *: any.",
        example=["https://example.org"],
    )
    """Origins of web pages that may use the API; *: any."""
    allowed_hosts: Annotated[tuple[kinds.HostName, ...], kinds.CommaSeparated] = _setting(
        (),
        "--allowed-host: Host name under which clients may reach the server; may be repeated; *: any.",
        example=["tts.example.org"],
        description="Host names under which clients may reach the server, besides localhost and IP addresses; *: any. "
        "Empty: any name, but only localhost if the server listens on a loopback address without API keys.",
    )
    root_path: kinds.RootPath = _setting("", example="/tts")
    """Path under which a proxy in front serves this server."""
    drain_s: float = _setting(
        30.0, "--drain SECONDS: Time for running requests to finish when the server stops.", ge=0, le=86_400
    )
    """Seconds that running requests have to finish when the server stops."""
    listener_timeout_s: float = _setting(30.0, gt=0, le=86_400)
    """Seconds after which a request is ended if its client stops reading the audio or sending the body."""
    request_timeout_s: float = _setting(30.0, gt=0, le=86_400)
    """Seconds that a TLS handshake, the headers of a request, or a gRPC message may take to arrive."""
    keep_alive_s: int = _setting(75, ge=1, le=86_400)
    """Seconds that a connection stays open between requests."""
    max_body_bytes: int = _setting(32 * _MIB, ge=65_536, le=1_024 * _MIB)
    """Largest body of a request and message of a WebSocket, in bytes; gRPC messages are also limited to 1.2 MB."""
    max_header_bytes: int = _setting(65_536, ge=4_096, le=_MIB)
    """Largest size of a request's headers, in bytes."""
    max_connections: int = _setting(1_024, ge=1, le=1_000_000)
    """Most open connections to a port, by default for each GPU; a further one replaces an idle one, or gets 503."""
    web_page: bool = _setting(True, "--web-page: Serve the web page.  [default: yes]")
    """Serve the web page at /."""
    docs: bool = True
    """Serve the API's description at /openapi.json."""
    metrics: bool = True
    """Serve metrics for Prometheus at /metrics."""
    metrics_key_required: bool = False
    """/metrics requires an API key."""
    upstream: kinds.TritonAddress | None = _unset(
        "triton://localhost:8001", "--upstream triton://HOST:PORT: Speak through a Triton server, without a model."
    )
    """Speak through this Triton server, instead of loading a model."""
    reference_dir: kinds.FilePath | None = _unset(
        "/srv/voices", "--reference-dir FOLDER: With --upstream: recordings to use as voices."
    )
    """Folder of recordings (NAME.wav with NAME.txt), which are the voices of the Triton server."""


class ModelSection(_Section):
    """The model that speaks, its device and its runtime."""

    model: kinds.ModelPlace | None = _unset(
        "CosyVoice2-0.5B",
        "--model",
        description="A downloaded model's name, or a model's folder; unset: mini, a small demo in English. NAME=MODEL "
        "gives it a name in requests, MODEL+FILE another language model of the same sizes, as a fine-tuned llm.pt.",
    )
    device: kinds.DeviceName = _setting("auto", "--device: auto, cpu, cuda, cuda:N or mps.")
    """Device of the model: auto (CUDA if available, else the CPU), cpu, cuda, cuda:N or mps (untested)."""
    gpus: kinds.GpuNumbers | None = _unset(
        "0,1", "--gpus all|N,N: GPUs, each with its own engine.  [default: one engine on --device]"
    )
    """GPUs, each with its own engine: all, or their numbers; unset: one engine, on model.device."""
    engines: int = _setting(1, "--engines: Number of engine processes on one device; for CPUs.", ge=1, le=64)
    """Number of engine processes on one device: for CPUs, whose threads are divided among them."""
    dtype: kinds.DtypeName = _setting(
        "auto", "--dtype: float32, bfloat16 or float16.  [default: auto, float16 on a GPU]"
    )
    """Precision; auto: float16 on a GPU; bfloat16 for large models on a CPU that supports it; otherwise float32."""
    variant: kinds.VariantName | None = _unset(
        "rl", "--variant: Load llm.NAME.pt and the like where the model has them."
    )
    """Load llm.VARIANT.pt instead of llm.pt, and likewise the other weights, where the model has them."""
    memory_gb: float | None = _unset(
        16.0, "--memory GB: Limit of GPU memory, including the weights.  [default: all]", gt=0, le=10_000
    )
    """Limit of GPU memory in GB, including the weights; unset: all."""
    state_gb: float | None = _unset(0.5, ge=0, le=10_000)
    """GB for cached states of voices; unset: the rest of the GPU's memory, or a quarter of the CPU's, 2.1 at most."""
    kernels: bool | None = _unset(True, "--kernels: Use vivavoce's own GPU kernels.  [default: where they are faster]")
    """Use vivavoce's own GPU kernels and CUDA graphs; unset: where they are faster."""
    flow_steps: Literal["official", "fast"] = _setting(
        "official", "--flow-steps: official (ten Euler steps, mini five) or fast (three midpoint steps)."
    )
    """Steps of the flow if a request names none: official, or fast (three fifths of the flow's work)."""
    adapters: Annotated[dict[kinds.AdapterName, kinds.FilePath], BeforeValidator(kinds.parse_pairs)] = _setting(
        {},
        "--adapter NAME=FOLDER: A LoRA adapter of the language model, which requests may name; may be repeated.",
        example={"brand": "/srv/adapters/brand"},
    )
    """Folders of LoRA adapters that are loaded at the start, by the names that requests know them by."""
    adapters_dir: kinds.FilePath | None = _unset(
        "/srv/adapters", "--adapters-dir FOLDER: Adapters in it may be loaded over HTTP.  [default: off]"
    )
    """Folder below which adapters may be loaded while the server runs; unset: none may be loaded."""
    max_adapters: int = _setting(8, ge=1, le=MAX_ADAPTERS)
    """Most adapters that are loaded at once; with adapters or adapters_dir a GPU keeps memory for all of them."""
    max_adapter_rank: int = _setting(64, ge=1, le=MAX_ADAPTER_RANK)
    """Largest rank of an adapter."""
    deterministic: bool = _setting(False, "--deterministic: Make results independent of other requests; slower.")
    """Make results bitwise independent of other requests, for audits; slower."""
    lm_backend: Literal["torch", "vllm", "trtllm"] = _setting("torch", "--lm-backend: torch, vllm or trtllm.")
    """Runtime of the language model: torch (vivavoce's own), vllm or trtllm; see backends.md."""
    flow_backend: Literal["torch", "tensorrt", "onnx", "jit", "aoti"] = _setting(
        "torch", "--flow-backend: torch, tensorrt, onnx, jit or aoti."
    )
    """Runtime of the flow's estimator: torch (vivavoce's own), or one that runs a file from `vivavoce export`."""
    trt_concurrent: int = _setting(1, "--trt-concurrent: Batches that TensorRT runs at once.", ge=1, le=64)
    """Execution contexts of TensorRT, which is the number of batches that it runs at once."""
    tp: int = _setting(1, "--tp: GPUs that share each layer of the language model.", ge=1, le=64)
    """Number of GPUs that share each layer of the language model. Only vllm and trtllm support it."""
    pp: int = _setting(1, "--pp: GPUs among which the language model's layers are divided.", ge=1, le=64)
    """Number of GPUs among which the language model's layers are divided. Only vllm and trtllm support it."""
    trust_model_code: bool = _setting(False, "--trust-model-code: Run code from the model's folder.")
    """Also run TorchScript files, engines and packages that were not exported on this machine."""
    text_processes: int | None = _unset(4, ge=0, le=64)
    """Processes that normalise texts; 0: the engine's process does it; unset: 2 to 4 with a GPU, else 2."""
    lexicons: kinds.FilePath | None = _unset(
        "/etc/vivavoce/lexicons",
        "--lexicons FOLDER: Pronunciations of words: all.tsv, voices/NAME.tsv, keys/NAME.tsv.",
    )
    """Pronunciations of words, read at the start: all.tsv, voices/NAME.tsv and keys/NAME.tsv."""
    warm_up_s: float = _setting(3.0, ge=0, le=3_600)
    """Seconds for which the engine measures its speed before the server is ready; 0: it does not."""


class FurtherModel(_Section):
    """A further model of the same server; unset fields are as in [model], except variant and adapters."""

    base: kinds.ModelPlace = Field(
        description="A downloaded model's name, a model's folder, or another served model's name."
    )
    llm: kinds.FilePath | None = None
    """File with the weights of another language model of the same sizes, such as a fine-tuned llm.pt."""
    load: kinds.LoadTime | None = None
    """When the model is loaded; unset: as models.load says."""
    device: kinds.DeviceName | None = None
    gpus: kinds.GpuNumbers | None = None
    dtype: kinds.DtypeName | None = None
    variant: kinds.VariantName | None = None
    memory_gb: float | None = Field(None, gt=0, le=10_000)


class ModelsSection(_Section):
    """Further models of the same server, besides the default model in [model]."""

    more: Annotated[dict[kinds.ModelName, FurtherModel], BeforeValidator(kinds.parse_further_models)] = _setting(
        {},
        "--model -m --model-dir [NAME=]MODEL[+FILE]: A downloaded model or a model folder; FILE: another language "
        "model for it, such as a fine-tuned llm.pt. May be repeated; the first is the default model.  "
        "[default: $VIVAVOCE_MODEL, else mini, a small demo in English]",
        example={"mine": {"base": "CosyVoice2-0.5B", "llm": "/srv/mine/llm.pt", "load": "on_demand"}},
        description="Further models by their names in requests: MODEL, MODEL+FILE, or a table of base, llm, load, "
        "device, gpus, dtype, variant and memory_gb; other fields are as in [model], except variant and adapters."
        " Each --model after the first adds one.",
    )
    load: kinds.LoadTime = _setting("start", "--load: Load the further models at the start, or on_demand.")
    """Load the further models at the start, and keep them; or on_demand: when a request names one."""
    max_loaded: int | None = _unset(
        2, "--max-loaded: Most models in memory; idle ones are unloaded for others.  [default: all]", ge=1, le=1_000
    )
    """Most models in memory. To load one more, one that was loaded on demand is unloaded. Unset: no limit."""
    unload_after_s: float = _setting(60.0, ge=0, le=86_400)
    """Seconds without a request after which a model that was loaded on demand may be unloaded for another one."""
    keep_idle_s: float | None = _unset(1_800.0, gt=0, le=31_536_000)
    """Seconds without a request for which a model that was loaded on demand stays in memory; unset: no limit."""


class EngineSection(_Section):
    """Limits of concurrent requests."""

    slots: int | None = _unset(
        64, "--slots: Most sequences decoded at once.  [default: as memory allows]", ge=1, le=4_096
    )
    """Largest number of sequences that are decoded at once; unset: as memory allows."""
    admission: AdmissionMode = _setting(
        AdmissionMode.AUTO,
        "--admission: Rule for streams beyond capacity: auto, refuse, queue or all.",
        description="Streams beyond the capacity: refuse (429), queue (they wait), all (they start, and all listeners "
        "may hear gaps), auto (queue up to 8 on a machine with capacity for fewer than 4 streams, otherwise refuse).",
    )
    max_waiting: int = _setting(1_000, ge=1, le=1_000_000)
    """Largest number of waiting requests; further ones are refused."""
    max_wait_s: float = _setting(30.0, gt=0, le=3_600)
    """Seconds that a request may wait with admission auto before it is refused."""
    first_chunk_s: float = _setting(1.0, gt=0, le=600)
    """Time to first audio, in seconds, that admission plans for."""
    headroom: float = _setting(0.85, gt=0, le=1)
    """Share of the device's time that streams may use before further streams wait or are refused."""


class VoicesSection(_Section):
    """Where voices are kept, and how many."""

    place: kinds.VoicePlace | None = _unset(
        "/srv/vivavoce/voices",
        "--voices FOLDER|ADDRESS: Where voices are kept; redis://HOST:PORT shares them.  "
        "[default: the user's own folder]",
    )
    """A folder, or redis://HOST:PORT/DATABASE that several servers share; unset: the user's own folder."""
    cache: int = _setting(256, ge=1, le=1_000_000)
    """Number of voices kept in memory; each takes at most one megabyte."""
    default: kinds.VoiceNameText | None = _unset(
        "calm", "--default-voice NAME: Voice of requests without one.  [default: the model's first]"
    )
    """Voice of requests that name none, and of OpenAI's names if the model has no voices; unset: the model's first."""
    aliases: Annotated[dict[kinds.VoiceNameText, kinds.VoiceNameText], BeforeValidator(kinds.parse_pairs)] = _setting(
        {},
        "--voice-alias NAME=VOICE: NAME speaks with this voice; may be repeated.",
        example={"alloy": "calm"},
    )
    """Further names for voices; a stored voice of the same name comes first. OpenAI's 13 names exist already."""
    unknown: Literal["refuse", "default"] = _setting("refuse")
    """If a request names an unknown voice: refuse it (404), or speak with the default voice."""
    quota: int = _setting(1_000, ge=0, le=100_000)
    """Largest number of voices that each owner may store, and of public voices."""
    require_consent: bool = False
    """Refuse to store a voice that is sent without consent (what the person allows) and consent_by (who)."""
    keep_recordings: bool = True
    """Store voices with their recording, so that another model can extract them again; false: they fit one model."""
    max_recording_bytes: int = _setting(16 * _MIB, ge=65_536, le=1_024 * _MIB)
    """Largest size of a reference recording, in bytes."""


class AuthSection(_Section):
    """API keys."""

    keys_file: kinds.FilePath | None = _unset(
        "/etc/vivavoce/keys.toml",
        "--keys: File of API keys; see `vivavoce keys`.  [default: none, everyone may send requests]",
    )
    """File of API keys, as `vivavoce keys add` writes it; unset: everyone may send requests."""
    limits_place: kinds.RedisAddress | None = _unset("redis://localhost:6379/0")
    """Redis in which several servers count the use of keys together; unset: voices.place, if it is a Redis."""
    open_lists: bool = False
    """Let callers without a key list models and public voices, as Open WebUI does."""


class RequestsSection(_Section):
    """Rules for requests that cannot be fulfilled as sent, further names of the model, and the longest text."""

    instructions: Literal["ignore", "refuse"] = "ignore"
    """Instructions to a model that cannot follow them: ignore (with a warning) or refuse (400); never spoken."""
    speed: Literal["clamp", "refuse"] = "clamp"
    """On OpenAI's routes, speeds of 0.25 to 4 outside 0.5 to 2: clamp (the answer says so) or refuse (400)."""
    empty_text: Literal["silence", "refuse"] = "silence"
    """A text with nothing to say, such as an emoji: silence (a fifth of a second) or refuse (400)."""
    model_aliases: Annotated[tuple[kinds.VoiceNameText, ...], kinds.CommaSeparated] = _setting(
        (), "--model-alias NAME: Further name of the served model; may be repeated.", example=["cosyvoice-tts"]
    )
    """Further names of the served model in requests; its ids on the hubs and OpenAI's names are known already."""
    max_text_chars: int = _setting(20_000, ge=1_000, le=20_000_000)
    """Most characters of a text at /v1/audio/speech; all other routes accept 20,000 in one piece."""
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    """Unknown fields in OpenAI's and DashScope's forms: refuse (with their names) or ignore (with a warning)."""


class ProvenanceSection(_Section):
    """The tag, watermark and notice by which programs and listeners learn that a machine speaks; see provenance.md."""

    tag: bool = _setting(True, "--tag: Say in each audio file that its speech is synthetic.  [default: yes]")
    """Write into wav, mp3, opus, aac and flac that the speech is synthetic, with the model's name and the time."""
    watermark: bool = _setting(False, "--watermark: Mark all speech as synthetic, inaudibly.")
    """Put an inaudible mark into all speech, which `vivavoce detect` finds; the first audio comes 20 ms later."""
    notice: kinds.NoticeText | None = _unset(
        "This voice is made by a computer.", "--notice tone|SENTENCE: Notice before each answer.  [default: off]"
    )
    """A notice before each answer: `tone`, or a sentence that the default voice speaks; unset: none."""


class LoggingSection(_Section):
    """The log, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "--log-level: debug, info, warning or error."
    )
    """Lowest severity that is logged."""
    format: Literal["text", "json"] = _setting("text", "--log-format: text or json.")
    """Plain text, or one JSON object per line."""
    log_text: bool = False
    """Also log the texts that are spoken; they may be confidential."""


class TelemetrySection(_Section):
    """Traces for OpenTelemetry."""

    otlp_endpoint: kinds.WebAddress | None = _unset("http://localhost:4318")
    """Address of a collector that accepts OTLP over HTTP; unset: no traces. Needs vivavoce[telemetry]."""
    service_name: str = _setting("vivavoce", min_length=1, max_length=255)
    """Name of this server in traces."""


class JobsSection(_Section):
    """Jobs: books and long texts that are spoken in the background; see books.md."""

    folder: kinds.FilePath | None = _unset(
        "/var/lib/vivavoce/jobs", "--jobs FOLDER: Take jobs (books, long texts) and keep them here.  [default: off]"
    )
    """Folder in which jobs are kept; unset: the server takes no jobs."""
    at_once: int = _setting(2, ge=1, le=64)
    """Jobs that are worked on at once; each has a process of its own."""
    segments: int = _setting(2, ge=1, le=256)
    """Segments of a job that are spoken at once; a GPU can speak more."""
    per_key: int = _setting(20, ge=1, le=100_000)
    """Most jobs of a key that are kept, finished ones too, where the key has no limit of its own."""
    max_characters: int = _setting(2_000_000, ge=1_000, le=20_000_000)
    """Most characters of a key's unfinished jobs together, where the key has no limit of its own."""
    max_disk_gb: float = _setting(20.0, gt=0, le=1_000_000)
    """Most gigabytes in the folder; a job that may need more than is left is refused."""
    keep_days: float = _setting(14.0, gt=0, le=36_500)
    """Days after which a job that has ended is removed."""
    webhooks: Literal["off", "public", "any"] = "off"
    """Addresses that jobs may call at their end: none, public ones, or any, such as those of a private network."""


class ServerSettings(_Section):
    """All settings, by sections."""

    server: ServerSection = Field(default_factory=ServerSection)
    model: ModelSection = Field(default_factory=ModelSection)
    models: ModelsSection = Field(default_factory=ModelsSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    voices: VoicesSection = Field(default_factory=VoicesSection)
    auth: AuthSection = Field(default_factory=AuthSection)
    requests: RequestsSection = Field(default_factory=RequestsSection)
    provenance: ProvenanceSection = Field(default_factory=ProvenanceSection)
    logging: LoggingSection = Field(default_factory=LoggingSection)
    telemetry: TelemetrySection = Field(default_factory=TelemetrySection)
    jobs: JobsSection = Field(default_factory=JobsSection)
