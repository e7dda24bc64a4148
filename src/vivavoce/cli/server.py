"""Run a server from its settings: the engine, the ports, and a shutdown that loses no request."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

from vivavoce.cli.console import Reporter
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.speech_backend import SpeechBackend
from vivavoce.frontend.voices.names import NameRules
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.http.app import build_app, build_health_app, build_legacy_app
from vivavoce.server.http.app_state import AppState, JobService
from vivavoce.server.http.listener import MARGIN, Listener, bind
from vivavoce.server.key_limits import open_limits
from vivavoce.server.keys import KeyRing
from vivavoce.server.request_log import RequestLog
from vivavoce.server.served_models import further_sections, is_on_demand
from vivavoce.server.setting_kinds import is_loopback
from vivavoce.server.settings import ServerSection, ServerSettings
from vivavoce.server.settings_checks import tls_problems
from vivavoce.server.settings_sources import unread_variables
from vivavoce.server.telemetry import Tracing
from vivavoce_dialects.table import DIALECTS
from vivavoce_fleet.reload import Reloader, configure_logs, engine_sections, has_terminal
from vivavoce_textnorm import Lexicons, read_lexicons

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_APPS = {"port": build_app, "legacy_port": build_legacy_app, "health_port": build_health_app}

FILES_BESIDE = 512
"""Open files that a server needs besides connections to its ports: for the engine, Redis, voices and others."""
GRPC_GRACE_S = 5.0


async def run_server(read: Callable[[], ServerSettings], reporter: Reporter) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests finish; a second signal ends them at once.

    read: returns the settings; SIGHUP and SIGUSR2 call it again.
    """
    settings = read()
    server = settings.server
    configure_logs(settings.logging)
    as_log = settings.logging.format == "json" and not reporter.quiet

    for line in unread_variables(os.environ):
        log.warning("variable unknown: %(line)s", {"line": line})

    def report(line: str) -> None:
        if as_log:
            log.info("server: %(line)s", {"line": line})
        else:
            with suppress(OSError):  # the terminal may have gone
                reporter.report(line)

    stop, hurry = _signals()
    async with AsyncExitStack() as stack:
        # Errors that need no model are raised before it is loaded.
        keys, lexicons = KeyRing(settings.auth.keys_file), read_lexicons(settings.model.lexicons)
        for problem in tls_problems(server):
            raise InvalidRequest(problem)
        sockets = _sockets(server, stack)
        server = fit_open_files(connections_of_gpus(settings), len(sockets) + (server.grpc_port is not None))
        own_ports = {field: sockets.pop(field) for one in DIALECTS for field in one.listeners if field in sockets}
        began = time.perf_counter()
        backend, start = await _open_backend(settings, lexicons, stack, stop)
        if backend is None:
            return
        dispatcher = _dispatcher(backend, settings, stack)
        jobs = await _jobs(dispatcher, keys, settings, stack)
        state = AppState(dispatcher, keys, settings, jobs, DIALECTS)
        listeners = await _listen(state, sockets, server, stack)
        if start is not None:
            # The ports are open already, so a monitor sees that the server is alive while it loads.
            report(f"loading the model; {_address(server, listeners['port'])}/health/ready says when it can speak")
            await _unless(stop, start())
            if stop.is_set():
                return
        reloader = Reloader(read, state, listeners.values())
        stack.push_async_callback(_cancelled, asyncio.ensure_future(reloader.run()))
        _on_reload(stop, reloader.ask)
        for line in _ready_lines(settings, backend, listeners, time.perf_counter() - began):
            report(line)
        for line in await _other_protocols(dispatcher, keys, server, own_ports, stack):
            report(line)
        await stop.wait()
        if jobs is not None:
            await jobs.close()
        drain_s = state.settings.server.drain_s
        report(f"stopping: {dispatcher.active} running requests may end within {drain_s:g} s")
        await _unless(hurry, dispatcher.drain(drain_s))
        await dispatcher.drain(0.0)  # a second signal ends running requests at once
        report("stopped")


async def _jobs(
    dispatcher: RequestDispatcher, keys: KeyRing, settings: ServerSettings, stack: AsyncExitStack
) -> JobService | None:
    if settings.jobs.folder is None:
        return None
    from vivavoce_books.jobs.service import open_jobs

    return await stack.enter_async_context(open_jobs(dispatcher, keys, settings.jobs))


def _dispatcher(backend: SpeechBackend, settings: ServerSettings, stack: AsyncExitStack) -> RequestDispatcher:
    request_log, endpoint = RequestLog(), settings.telemetry.otlp_endpoint
    if endpoint is not None:
        tracing = Tracing.exporting(endpoint, settings.telemetry.service_name)
        stack.callback(tracing.close)
        request_log.observers.append(tracing.write)
    limits = open_limits(settings.auth, settings.voices)
    stack.push_async_callback(limits.close)
    return RequestDispatcher(
        backend,
        request_log=request_log,
        rules=settings.requests,
        provenance=settings.provenance,
        limits=limits,
        flow_steps=None if settings.server.upstream else settings.model.flow_steps,
    )


async def _other_protocols(
    dispatcher: RequestDispatcher,
    keys: KeyRing,
    server: ServerSection,
    sockets: dict[str, socket.socket],
    stack: AsyncExitStack,
) -> list[str]:
    lines = []
    if server.grpc_port is not None:
        from vivavoce_grpc.server import start_grpc

        grpc, port = await start_grpc(dispatcher, keys, server, DIALECTS)
        stack.push_async_callback(grpc.stop, GRPC_GRACE_S)
        lines.append(f"The gRPC service is at {server.host}:{port}")
    for dialect in DIALECTS:
        for field in dialect.listeners.keys() & sockets.keys():
            listening = dialect.listeners[field](dispatcher, keys, server, sockets[field])
            port = await stack.enter_async_context(listening)
            lines.append(f"{dialect.name} is at {server.host}:{port}")
    return lines


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    stop, hurry, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    _on_reload(stop, lambda _: log.warning("reload refused: the server is starting; ask again when it is ready"))
    return stop, hurry


def _on_reload(stop: asyncio.Event, ask: Callable[[bool], None]) -> None:
    """Make SIGHUP call `ask(False)` and SIGUSR2 `ask(True)`. SIGHUP from a closed terminal sets `stop` instead."""
    loop, had_terminal = asyncio.get_running_loop(), has_terminal()

    def hang_up() -> None:
        if had_terminal and not has_terminal():
            stop.set()
        else:
            ask(False)

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # SIG_IGN: nohup has started this process
        loop.add_signal_handler(signal.SIGHUP, hang_up)
    loop.add_signal_handler(signal.SIGUSR2, ask, True)


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


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


def _sockets(server: ServerSection, stack: AsyncExitStack) -> dict[str, socket.socket]:
    """Return the listening sockets by the names of their settings, without gRPC's. InvalidRequest: a port is taken."""
    legacy_port = server.legacy_port if server.legacy else None
    ports = {"port": server.port, "legacy_port": legacy_port, "health_port": server.health_port}
    ports |= {field: getattr(server, field) for dialect in DIALECTS for field in dialect.listeners}
    wanted = {field: port for field, port in ports.items() if port is not None}
    sockets = {field: stack.enter_context(bind(server.host, port, field)) for field, port in wanted.items()}
    if server.grpc_port is not None:
        bind(server.host, server.grpc_port, "grpc_port").close()  # only a check: gRPC itself binds the port later
    return sockets


def connections_of_gpus(settings: ServerSettings) -> ServerSection:
    """Return the section [server]; if `max_connections` is not set, its default is multiplied by the number of GPUs."""
    server = settings.server
    if "max_connections" in server.model_fields_set or server.upstream is not None:
        return server
    from vivavoce_fleet.model_router import gpus_of

    sections = [settings.model, *further_sections(settings).values()]
    count = len(set[str]().union(*(gpus_of(section) for section in sections)))
    return server.model_copy(update={"max_connections": server.max_connections * max(1, count)})


def fit_open_files(server: ServerSection, ports: int) -> ServerSection:
    """Raise the process' limit of open files to fit all connections; if it stays too low, allow fewer connections."""
    wanted = ports * (server.max_connections + MARGIN) + FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < wanted:  # negative: unlimited
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard >= 0 else wanted, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not 0 <= soft < wanted:
        return server
    fitting = max(1, (soft - min(FILES_BESIDE, soft // 2)) // ports - MARGIN)
    log.warning(
        "max_connections: %(fitting)d instead of %(set)d, since the limit of open files is %(files)d; allow %(wanted)d "
        "(ulimit -Hn, LimitNOFILE of systemd)",
        {"fitting": fitting, "set": server.max_connections, "files": soft, "wanted": wanted},
    )
    return server.model_copy(update={"max_connections": fitting})


async def _listen(
    state: AppState, sockets: dict[str, socket.socket], server: ServerSection, stack: AsyncExitStack
) -> dict[str, Listener]:
    plain = server.model_copy(update=dict.fromkeys(("tls_certificate", "tls_key", "tls_client_ca")))
    listeners = {}
    for field, at in sockets.items():
        listeners[field] = Listener(_APPS[field](state), at, plain if field == "health_port" else server)
        await listeners[field].start()
        stack.push_async_callback(listeners[field].stop)
    return listeners


async def _open_backend(
    settings: ServerSettings, lexicons: Lexicons | None, stack: AsyncExitStack, stop: asyncio.Event
) -> tuple[SpeechBackend | None, Callable[[], Awaitable[None]] | None]:
    """Return the backend, or None if a signal came first, and the function that starts it, or None if it is ready."""
    server = settings.server
    if server.upstream is None:
        from vivavoce_fleet.model_router import Limits, open_models

        further = {
            name: (section, is_on_demand(settings, name)) for name, section in further_sections(settings).items()
        }
        models = settings.models
        wait_s = settings.engine.max_wait_s
        limits = Limits(models.max_loaded, models.unload_after_s, wait_s, models.keep_idle_s)
        engine = open_models(engine_sections(settings, lexicons), further, limits)
        stack.push_async_callback(engine.close)
        return engine, engine.start
    from vivavoce_triton.upstream.triton_backend import TritonBackend

    rules = NameRules(settings.voices.aliases, settings.voices.default, settings.voices.unknown)
    upstream = await _unless(stop, TritonBackend.open(server.upstream, server.reference_dir, rules=rules))
    if upstream is not None:
        stack.push_async_callback(upstream.close)
    return upstream, None


def _ready_lines(
    settings: ServerSettings, backend: SpeechBackend, at: dict[str, Listener], seconds: float
) -> list[str]:
    server, about = settings.server, backend.about
    lines = [f"{about.name} speaks at {_address(server, at['port'])} (ready after {seconds:.1f} s)"]
    if about.others:
        lines.append(f"further models: {', '.join(one.name for one in about.others)}; /v1/models tells of each")
    for field, what in (("legacy_port", "CosyVoice's own routes"), ("health_port", "health and metrics")):
        if field in at:
            lines.append(f"{what} are at {_address(server, at[field])}")
    if settings.auth.keys_file is None and not is_loopback(server.host):
        lines.append("note: everyone who reaches this address may speak and add voices; --keys asks for a key")
    if about.demo:
        lines.append(f"note: model {about.name} is {about.description or 'a demo'}; --model takes a real one")
    return lines


def _address(server: ServerSection, listener: Listener) -> str:
    scheme = "https" if listener.config.is_ssl else "http"
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{scheme}://{host}:{listener.port}"
