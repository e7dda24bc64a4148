"""`vivavoce serve`: speech for programs and people, over HTTP, WebSockets and gRPC."""

from __future__ import annotations

import asyncio
import os

import typer

from vivavoce.doors.cli import options, serve_options
from vivavoce.doors.cli.console import Reporter
from vivavoce.errors import MissingDependency

EXAMPLES = options.examples(
    "vivavoce serve                                          # then open http://127.0.0.1:8880",
    "vivavoce serve --model CosyVoice2-0.5B --host 0.0.0.0 --keys keys.toml",
    "vivavoce serve --legacy --grpc-port 50001               # CosyVoice's own services, too",
    "vivavoce serve --upstream triton://localhost:8001 --reference-dir voices/",
    "vivavoce serve --config vivavoce.toml",
)


def serve(
    context: typer.Context,
    config: serve_options.ConfigOption = None,
    host: serve_options.HostOption = None,
    port: serve_options.PortOption = None,
    model: serve_options.ModelOption = None,
    device: serve_options.DeviceOption = None,
    dtype: serve_options.DtypeOption = None,
    variant: serve_options.VariantOption = None,
    voices: serve_options.VoicesOption = None,
    keys: serve_options.KeysOption = None,
    legacy: serve_options.LegacyOption = None,
    legacy_port: serve_options.LegacyPortOption = None,
    grpc_port: serve_options.GrpcPortOption = None,
    max_conc: serve_options.MaxConcOption = None,
    admission: serve_options.AdmissionOption = None,
    slots: serve_options.SlotsOption = None,
    memory: serve_options.MemoryOption = None,
    kernels: serve_options.KernelsOption = None,
    deterministic: serve_options.DeterministicOption = None,
    int8_lm: serve_options.Int8LmOption = None,
    fp8_flow: serve_options.Fp8FlowOption = None,
    tls_cert: serve_options.TlsCertOption = None,
    tls_key: serve_options.TlsKeyOption = None,
    cors_origin: serve_options.CorsOriginOption = None,
    allowed_host: serve_options.AllowedHostOption = None,
    upstream: serve_options.UpstreamOption = None,
    reference_dir: serve_options.ReferenceDirOption = None,
    web_page: serve_options.WebPageOption = None,
    drain: serve_options.DrainOption = None,
    log_level: serve_options.LogLevelOption = None,
    log_format: serve_options.LogFormatOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Serve speech to programs and people: OpenAI's routes with true streaming, WebSockets, a web page.

    Settings come from flags, then variables (VIVAVOCE_SERVER_PORT …), then --config; `vivavoce config` explains.
    """
    try:
        from vivavoce.doors.cli.serve_run import run_server
        from vivavoce.service.operations.settings_resolve import resolve_settings
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"serve: the package {error.name} is missing; install what servers need: pip install 'vivavoce[server]'"
        ) from None
    resolved = resolve_settings(config, os.environ, serve_options.flags_layer(context.params))
    asyncio.run(run_server(resolved.settings, Reporter(quiet)))
