"""A server from its settings: what speaks, the ports, and an end in which nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TypeVar

from vivavoce.doors.cli.console import Reporter
from vivavoce.doors.http.app import build_app, build_legacy_app
from vivavoce.doors.http.desk import Desk
from vivavoce.doors.http.listener import Listener, bind
from vivavoce.errors import InvalidRequest
from vivavoce.service.host.host import EngineHost
from vivavoce.service.host.speaker import Speaker
from vivavoce.service.operations.allowances import Allowances
from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.ledger import Ledger
from vivavoce.service.operations.logs import LogFormat, configure, watch_requests
from vivavoce.service.operations.meters import Meters
from vivavoce.service.operations.reception import Reception
from vivavoce.service.operations.settings import ServerSection, ServerSettings
from vivavoce.service.operations.settings_checks import tls_problems
from vivavoce.service.operations.telemetry import Tracing

log = logging.getLogger(__name__)

Result = TypeVar("Result")

LAST_WORDS_S = 5.0
"""For calls whose speech has ended to tell their clients so."""


async def run_server(settings: ServerSettings, reporter: Reporter) -> None:
    """Serve until a signal says otherwise; then let requests finish. A second signal ends them.

    Raises:
        VivavoceError: the model cannot be loaded, a port is taken, the keys cannot be read.
    """
    configure(LogFormat(settings.logging.format), settings.logging.level, log_text=settings.logging.log_text)
    # What it says every day is in lines of our own.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))
    server, tell = settings.server, _teller(settings, reporter)
    signals = _Signals()
    async with AsyncExitStack() as stack:
        # What can go wrong at once goes wrong before the model is loaded.
        keys = KeyRing.none() if settings.auth.keys_file is None else KeyRing.load(Path(settings.auth.keys_file))
        for problem in tls_problems(server):
            raise InvalidRequest(problem)
        sockets = _sockets(server, stack)
        ledger = _ledger(settings, stack)
        began = time.perf_counter()
        host = None if server.upstream is not None else EngineHost(settings)
        if host is not None:
            stack.push_async_callback(host.close)
        speaker: Speaker | None = host or await signals.unless_stopped(_open_bridge(server, stack))
        if speaker is None:
            return
        reception = Reception(speaker, ledger=ledger, meters=Meters(), allowances=Allowances())
        desk = Desk(reception, keys, settings)
        listeners = [
            Listener(build(desk), listening, server)
            for build, listening in zip((build_app, build_legacy_app), sockets, strict=False)
        ]
        for listener in listeners:
            await listener.start()
            stack.push_async_callback(listener.stop)
        if host is not None:
            # Whoever watches the server learns from it that it loads, and that it has not died.
            tell(f"loading the model; {_address(server, listeners[0])}/health/ready says when it can speak")
            await signals.unless_stopped(host.start())
            if signals.stop.is_set():
                return
        _report(tell, settings, speaker, listeners, time.perf_counter() - began)
        if server.grpc_port is not None:
            from vivavoce.doors.grpc.server import start_grpc

            grpc = await start_grpc(desk, server.host, server.grpc_port, server.max_conc)
            stack.push_async_callback(grpc.stop, LAST_WORDS_S)
            tell(f"CosyVoice's gRPC service is at {server.host}:{grpc.port}")
        await signals.stop.wait()
        tell(f"stopping: requests that run: {reception.visits}, seconds that they have: {server.drain_s:g}")
        await signals.unless_hurried(reception.drain(server.drain_s))
        await reception.drain(0.0)  # what still runs was told to hurry, and ends as if its time was over
        tell("stopped")


class _Signals:
    """SIGINT and SIGTERM: the first asks for the end, the second for a quick one."""

    def __init__(self) -> None:
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._take)

    def _take(self) -> None:
        if self.stop.is_set():
            self.hurry.set()
        self.stop.set()

    async def unless_stopped(self, work: Awaitable[Result]) -> Result | None:
        """The result of some work; None: a signal came first, and it was given up."""
        return await _unless(self.stop, work)

    async def unless_hurried(self, work: Awaitable[None]) -> None:
        """Wait for some work, but not after the second signal."""
        await _unless(self.hurry, work)


async def _unless(event: asyncio.Event, work: Awaitable[Result]) -> Result | None:
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        waiting.cancel()
        working.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await working


def _teller(settings: ServerSettings, reporter: Reporter) -> Callable[[str], None]:
    """How the server says what it does: in lines for people, or in its log where programs read that."""
    if reporter.quiet or LogFormat(settings.logging.format) is not LogFormat.JSON:
        return reporter.report
    return lambda line: log.info("%s", line)


def _sockets(server: ServerSection, stack: AsyncExitStack) -> list[socket.socket]:
    """Those of the HTTP ports, which listen; InvalidRequest: one of the server's ports is taken."""
    ports = [(server.port, "port")] + ([(server.legacy_port, "legacy_port")] if server.legacy else [])
    sockets = []
    for port, field in ports:
        sockets.append(bind(server.host, port, field))
        stack.callback(sockets[-1].close)
    if server.grpc_port is not None:
        bind(server.host, server.grpc_port, "grpc_port").close()  # gRPC takes it later, by itself
    return sockets


async def _open_bridge(server: ServerSection, stack: AsyncExitStack) -> Speaker:
    """What speaks through the server that `upstream` names; the stack closes it."""
    from vivavoce.doors.bridge.triton_speaker import TritonSpeaker

    assert server.upstream is not None
    bridge = await TritonSpeaker.open(server.upstream, server.reference_dir)
    stack.push_async_callback(bridge.close, 0.0)
    return bridge


def _ledger(settings: ServerSettings, stack: AsyncExitStack) -> Ledger:
    """The book of requests, with logs and, where they are wanted, traces."""
    endpoint = settings.telemetry.otlp_endpoint
    if endpoint is None:
        return Ledger(watchers=[watch_requests])
    tracing = Tracing.exporting(str(endpoint), settings.telemetry.service_name)
    stack.callback(tracing.close)
    return Ledger(watchers=[watch_requests, tracing.watch])


def _report(
    tell: Callable[[str], None], settings: ServerSettings, speaker: Speaker, listeners: list[Listener], seconds: float
) -> None:
    """Say where it can be reached, and by whom."""
    server, about = settings.server, speaker.about
    tell(f"{about.name} speaks at {_address(server, listeners[0])} (ready after {seconds:.1f} s)")
    if len(listeners) > 1:
        tell(f"CosyVoice's own routes are at {_address(server, listeners[1])}")
    if settings.auth.keys_file is None and server.host not in ("127.0.0.1", "localhost", "::1"):
        tell("note: everyone who reaches this address may speak and add voices; --keys asks for a key")
    if about.demo:
        tell(f"note: model {about.name} is {about.description or 'a demo'}; --model takes a real one")


def _address(server: ServerSection, listener: Listener) -> str:
    """The URL of one of its ports."""
    scheme = "http" if server.tls_certificate is None else "https"
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{scheme}://{host}:{listener.port}"
