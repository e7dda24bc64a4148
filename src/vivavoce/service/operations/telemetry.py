"""Traces for OpenTelemetry: each request for speech as a span with its parts, in the trace of whoever asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vivavoce.errors import MissingDependency
from vivavoce.service.host.verdict import FinishReason
from vivavoce.service.operations.ledger import Entry
from vivavoce.service.operations.scope import current_scope
from vivavoce.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

_NANOSECONDS = 1_000_000_000
_PATH = "/v1/traces"
"""Where collectors take traces over HTTP, under the address that operators give."""


class Tracing:
    """Writes spans; made by `exporting` for a collector. Its `watch` is a `Ledger`'s watcher.

    A request is one span, "speech", of kind SERVER, whose parent is the span of a `traceparent` header that came with
    it. Below it: "admission" (until it was taken: voice, text, room), "first audio" (from there to the first audio that
    was handed over) and "stream" (to the end). What is spoken is not told. Without tracing there is no object of this
    class, and nothing is imported.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("vivavoce", __version__)

    @classmethod
    def exporting(cls, endpoint: str, service_name: str) -> Tracing:
        """Send to a collector that takes OTLP over HTTP, in a thread of its own, which gives up what it cannot send.

        endpoint: as http://localhost:4318; a path other than / is taken as it is. Sampling and headers follow the
        variables of OpenTelemetry (OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS).

        Raises:
            MissingDependency: the packages are not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise MissingDependency(
                f"telemetry: traces need OpenTelemetry ({error}); pip install 'vivavoce[telemetry]'"
            ) from error
        resource = Resource.create({"service.name": service_name, "service.version": __version__})
        # The server flushes what is left itself, within its own time.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=traces_address(endpoint))))
        return cls(provider)

    def watch(self, _: Entry) -> Callable[[Entry], None]:
        """Note whose trace a request belongs to; the spans are written at its end, with their own times."""
        parent = _parent()
        return lambda entry: self._write(entry, parent)

    def close(self) -> None:
        """Send what is left; blocks for some seconds at most."""
        self._provider.shutdown()

    def _write(self, entry: Entry, parent: Context) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        total_s = entry.total_s or 0.0
        span = self._tracer.start_span("speech", parent, SpanKind.SERVER, start_time=_at(entry, 0.0))
        _describe(span, entry)
        if entry.reason is FinishReason.ERROR:
            span.set_status(Status(StatusCode.ERROR, entry.error_code))
        inside = set_span_in_context(span)
        for name, begin_s, end_s in _parts(entry, total_s):
            part = self._tracer.start_span(name, inside, start_time=_at(entry, begin_s))
            part.end(_at(entry, end_s))
        span.end(_at(entry, total_s))


def traces_address(endpoint: str) -> str:
    """Where traces go, of a collector at `endpoint`."""
    scheme, _, rest = endpoint.partition("://")
    return f"{scheme}://{rest.rstrip('/')}{'' if '/' in rest.rstrip('/') else _PATH}"


def _parent() -> Context:
    """The caller's span, from the headers that came with the request; no span where there were none, or wrong ones."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    scope = current_scope()
    if scope is None or not scope.traceparent:
        return Context()
    sent = {"traceparent": scope.traceparent, "tracestate": scope.tracestate}
    return TraceContextTextMapPropagator().extract(sent, Context())


def _parts(entry: Entry, total_s: float) -> list[tuple[str, float, float]]:
    """Name, begin and end of what a request consists of, in seconds from its start; a refused one only knocks."""
    if entry.admission_s is None:
        return [("admission", 0.0, total_s)]
    heard_s = total_s if entry.first_audio_s is None else entry.first_audio_s
    parts = [("admission", 0.0, entry.admission_s), ("first audio", entry.admission_s, heard_s)]
    return parts if entry.first_audio_s is None else [*parts, ("stream", heard_s, total_s)]


def _describe(span: Span, entry: Entry) -> None:
    span.set_attribute("vivavoce.request_id", entry.request_id)
    span.set_attribute("vivavoce.door", entry.door)
    span.set_attribute("vivavoce.audio_seconds", entry.audio_s)
    span.set_attribute("vivavoce.segments_spoken", entry.segments_spoken)
    span.set_attribute("vivavoce.segments_given", entry.segments_given)
    if entry.caller_name:
        span.set_attribute("vivavoce.caller", entry.caller_name)
    if entry.reason is not None:
        span.set_attribute("vivavoce.reason", entry.reason.value)
    if entry.error_code is not None:
        span.set_attribute("error.type", entry.error_code)
    if entry.first_audio_s is not None:
        span.set_attribute("vivavoce.first_audio_seconds", entry.first_audio_s)


def _at(entry: Entry, seconds: float) -> int:
    """Unix time in nanoseconds, so many seconds after the request's start."""
    return int((entry.started + seconds) * _NANOSECONDS)
