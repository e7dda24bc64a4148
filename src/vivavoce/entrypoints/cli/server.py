"""A server from its settings: the engine, the ports, and an end in which no request is lost."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

from vivavoce.entrypoints.cli.console import Reporter
from vivavoce.entrypoints.http.app import build_app, build_legacy_app
from vivavoce.entrypoints.http.app_state import AppState
from vivavoce.entrypoints.http.listener import Listener, bind
from vivavoce.errors import InvalidRequest
from vivavoce.service.engine_process.client import EngineClient
from vivavoce.service.engine_process.messages import EngineProcessSettings
from vivavoce.service.logs import configure
from vivavoce.service.operations.dispatcher import RequestDispatcher
from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.request_log import RequestLog
from vivavoce.service.operations.settings import ServerSection, ServerSettings, is_loopback
from vivavoce.service.operations.settings_checks import tls_problems
from vivavoce.service.operations.telemetry import Tracing
from vivavoce.service.speaker import Speaker

log = logging.getLogger(__name__)

Result = TypeVar("Result")

GRPC_GRACE_S = 5.0
"""For calls whose speech has ended to send their clients the status."""


async def run_server(settings: ServerSettings, reporter: Reporter) -> None:
    """Serve until a signal stops it; then let requests finish. A second signal ends them.

    VivavoceError: the model cannot be loaded, a port is taken, the keys cannot be read.
    """
    logging_to, server = settings.logging, settings.server
    configure(logging_to.format, logging_to.level, log_text=logging_to.log_text)
    # Its everyday messages are in lines of our own.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))
    as_log = logging_to.format == "json" and not reporter.quiet

    def report(line: str) -> None:
        if as_log:
            log.info("%s", line)
        else:
            reporter.report(line)

    stop, hurry = _signals()
    async with AsyncExitStack() as stack:
        # What can go wrong at once goes wrong before the model is loaded.
        keys = KeyRing(settings.auth.keys_file)
        for problem in tls_problems(server):
            raise InvalidRequest(problem)
        sockets = _sockets(server, stack)
        request_log, endpoint = RequestLog(), settings.telemetry.otlp_endpoint
        if endpoint is not None:
            tracing = Tracing.exporting(endpoint, settings.telemetry.service_name)
            stack.callback(tracing.close)
            request_log.observers.append(tracing.write)
        began = time.perf_counter()
        speaker, engine = await _speaker(settings, stack, stop)
        if speaker is None:
            return
        dispatcher = RequestDispatcher(speaker, request_log=request_log)
        state = AppState(dispatcher, keys, settings)
        builds = (build_app, build_legacy_app)
        listeners = [Listener(build(state), at, server) for build, at in zip(builds, sockets, strict=False)]
        for listener in listeners:
            await listener.start()
            stack.push_async_callback(listener.stop)
        if engine is not None:
            # A monitor learns from it that the server loads, and has not died.
            report(f"loading the model; {_address(server, listeners[0])}/health/ready says when it can speak")
            await _unless(stop, engine.start())
            if stop.is_set():
                return
        for line in _ready_lines(settings, speaker, listeners, time.perf_counter() - began):
            report(line)
        if server.grpc_port is not None:
            from vivavoce.entrypoints.grpc.server import start_grpc

            grpc, port = await start_grpc(dispatcher, keys, server, server.host, server.grpc_port, server.max_conc)
            stack.push_async_callback(grpc.stop, GRPC_GRACE_S)
            report(f"CosyVoice's gRPC service is at {server.host}:{port}")
        await stop.wait()
        report(f"stopping: requests that run: {dispatcher.active}, seconds that they have: {server.drain_s:g}")
        await _unless(hurry, dispatcher.drain(server.drain_s))
        await dispatcher.drain(0.0)  # after a second signal, running requests end as if their time was over
        report("stopped")


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """SIGINT and SIGTERM: the first asks for the end, the second for a quick one."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    return stop, hurry


async def _unless(event: asyncio.Event, work: Awaitable[Result]) -> Result | None:
    """The result of some work; None: the event came first, and it was given up."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        waiting.cancel()
        working.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await working


def _sockets(server: ServerSection, stack: AsyncExitStack) -> list[socket.socket]:
    """Those of the HTTP ports, which listen; InvalidRequest: one of the server's ports is taken."""
    ports = [(server.port, "port")] + ([(server.legacy_port, "legacy_port")] if server.legacy else [])
    sockets = [stack.enter_context(bind(server.host, port, field)) for port, field in ports]
    if server.grpc_port is not None:
        bind(server.host, server.grpc_port, "grpc_port").close()  # gRPC takes it later, by itself
    return sockets


async def _speaker(
    settings: ServerSettings, stack: AsyncExitStack, stop: asyncio.Event
) -> tuple[Speaker | None, EngineClient | None]:
    """What speaks (None: a signal came first), and the engine, if it is one of our own."""
    server = settings.server
    if server.upstream is None:
        sections = EngineProcessSettings(settings.model, settings.engine, settings.voices, settings.logging)
        engine = EngineClient(sections)
        stack.push_async_callback(engine.close)
        return engine, engine
    from vivavoce.entrypoints.upstream.triton_speaker import TritonSpeaker

    upstream = await _unless(stop, TritonSpeaker.open(server.upstream, server.reference_dir))
    if upstream is not None:
        stack.push_async_callback(upstream.close)
    return upstream, None


def _ready_lines(settings: ServerSettings, speaker: Speaker, listeners: list[Listener], seconds: float) -> list[str]:
    """Where it can be reached, and by whom."""
    server, about = settings.server, speaker.about
    lines = [f"{about.name} speaks at {_address(server, listeners[0])} (ready after {seconds:.1f} s)"]
    if len(listeners) > 1:
        lines.append(f"CosyVoice's own routes are at {_address(server, listeners[1])}")
    if settings.auth.keys_file is None and not is_loopback(server.host):
        lines.append("note: everyone who reaches this address may speak and add voices; --keys asks for a key")
    if about.demo:
        lines.append(f"note: model {about.name} is {about.description or 'a demo'}; --model takes a real one")
    return lines


def _address(server: ServerSection, listener: Listener) -> str:
    scheme = "http" if server.tls_certificate is None else "https"
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{scheme}://{host}:{listener.port}"
