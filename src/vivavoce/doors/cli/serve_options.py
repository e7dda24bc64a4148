"""The flags of `vivavoce serve`: each sets a setting of the same meaning, and comes before file and environment.

A flag that is not given is None, so that what the others say holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from vivavoce.doors.cli import options

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="A TOML file of settings; `vivavoce config example` prints one."
    ),
]
HostOption = Annotated[
    str | None,
    typer.Option("--host", metavar="ADDRESS", help="Where to listen; 0.0.0.0: everywhere.  [default: 127.0.0.1]"),
]
PortOption = Annotated[
    int | None, typer.Option("--port", "-p", metavar="NUMBER", help="Of the HTTP API.  [default: 8880]")
]
LegacyOption = Annotated[
    bool | None,
    typer.Option("--legacy/--no-legacy", help="Also serve CosyVoice's own HTTP routes, on a port of their own."),
]
LegacyPortOption = Annotated[
    int | None, typer.Option("--legacy-port", metavar="NUMBER", help="Of those routes.  [default: 50000]")
]
GrpcPortOption = Annotated[
    int | None, typer.Option("--grpc-port", metavar="NUMBER", help="Of the gRPC service.  [default: there is none]")
]
MaxConcOption = Annotated[
    int | None,
    typer.Option("--max-conc", metavar="NUMBER", help="Requests at once through gRPC.  [default: 4]"),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        "--model-dir",
        metavar="NAME|FOLDER",
        help="A downloaded model or a model folder.  [default: $VIVAVOCE_MODEL, else mini, a small demo in English]",
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.  [default: auto]")
]
DtypeOption = Annotated[
    str | None,
    typer.Option("--dtype", metavar="NAME", help="float32, bfloat16 or float16.  [default: auto, float16 on a GPU]"),
]
VariantOption = options.VariantOption
MemoryOption = options.MemoryOption
KernelsOption = Annotated[
    bool | None,
    typer.Option("--kernels/--no-kernels", help="Our own GPU kernels.  [default: where they are faster]"),
]
DeterministicOption = Annotated[
    bool | None,
    typer.Option("--deterministic/--no-deterministic", help="The same bits whoever else is served: slower."),
]
Int8LmOption = Annotated[
    bool | None, typer.Option("--int8-lm/--no-int8-lm", help="Read the language model as int8: less exact.")
]
Fp8FlowOption = Annotated[
    bool | None, typer.Option("--fp8-flow/--no-fp8-flow", help="Multiply in fp8 within the flow: less exact.")
]
SlotsOption = Annotated[
    int | None,
    typer.Option("--slots", metavar="NUMBER", help="Sequences at once.  [default: as memory allows]"),
]
AdmissionOption = Annotated[
    str | None,
    typer.Option("--admission", metavar="NAME", help="Streams too many: refuse, queue or all.  [default: refuse]"),
]
VoicesOption = Annotated[
    str | None,
    typer.Option(
        "--voices",
        metavar="FOLDER|ADDRESS",
        help="Where voices are kept; redis://HOST:PORT shares them.  [default: the user's own folder]",
    ),
]
KeysOption = Annotated[
    Path | None,
    typer.Option("--keys", metavar="FILE", help="API keys of who may ask; see `vivavoce keys`.  [default: everyone]"),
]
TlsCertOption = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="The server's certificate, PEM.")
]
TlsKeyOption = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")]
CorsOriginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin", metavar="ORIGIN", help="Web pages of this origin may use the API; may be repeated; *: any."
    ),
]
AllowedHostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host", metavar="NAME", help="Clients may ask under this name; may be repeated; *: any; see docs."
    ),
]
UpstreamOption = Annotated[
    str | None,
    typer.Option("--upstream", metavar="triton://HOST:PORT", help="Speak through a Triton server, without a model."),
]
ReferenceDirOption = Annotated[
    Path | None,
    typer.Option("--reference-dir", metavar="FOLDER", help="With --upstream: recordings that are its voices."),
]
WebPageOption = Annotated[
    bool | None, typer.Option("--web-page/--no-web-page", help="Serve the web page.  [default: yes]")
]
DrainOption = Annotated[
    float | None,
    typer.Option("--drain", metavar="SECONDS", help="For running requests when told to stop.  [default: 30]"),
]
LogLevelOption = Annotated[
    str | None, typer.Option("--log-level", metavar="NAME", help="debug, info, warning or error.  [default: info]")
]
LogFormatOption = Annotated[
    str | None, typer.Option("--log-format", metavar="NAME", help="text or json.  [default: text]")
]

SETTING_OF: Mapping[str, str] = MappingProxyType(
    {
        "host": "server.host",
        "port": "server.port",
        "legacy": "server.legacy",
        "legacy_port": "server.legacy_port",
        "grpc_port": "server.grpc_port",
        "max_conc": "server.max_conc",
        "model": "model.model",
        "device": "model.device",
        "dtype": "model.dtype",
        "variant": "model.variant",
        "memory": "model.memory_gb",
        "kernels": "model.kernels",
        "deterministic": "model.deterministic",
        "int8_lm": "model.int8_lm",
        "fp8_flow": "model.fp8_flow",
        "slots": "engine.slots",
        "admission": "engine.admission",
        "voices": "voices.place",
        "keys": "auth.keys_file",
        "tls_cert": "server.tls_certificate",
        "tls_key": "server.tls_key",
        "cors_origin": "server.cors_origins",
        "allowed_host": "server.allowed_hosts",
        "upstream": "server.upstream",
        "reference_dir": "server.reference_dir",
        "web_page": "server.web_page",
        "drain": "server.drain_s",
        "log_level": "logging.level",
        "log_format": "logging.format",
    }
)
"""The setting of each flag, by the name of the command's parameter."""


def flags_layer(parameters: Mapping[str, object]) -> dict[str, object]:
    """What `resolve_settings` takes as flags, from a command's parameters (`typer.Context.params`); others are left
    out.
    """
    return {setting: parameters.get(name) for name, setting in SETTING_OF.items()}
