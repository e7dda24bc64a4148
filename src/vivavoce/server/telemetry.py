"""Traces for OpenTelemetry: each request for speech gets a span with child spans, in the trace of its client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vivavoce.errors import MissingDependency
from vivavoce.frontend.speech import FinishReason
from vivavoce.server.request_log import RequestRecord
from vivavoce.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer


class Tracing:
    """Writes a span "speech" for each request, with child spans, but without the text that was spoken.

    The span's parent is the span that the client's header `traceparent` names.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("vivavoce", __version__)

    @classmethod
    def exporting(cls, endpoint: str, service_name: str) -> Tracing:
        """Export to a collector of OTLP over HTTP; OpenTelemetry's own variables (OTEL_TRACES_SAMPLER …) apply, too."""
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
        # `close` sends the last spans, so OpenTelemetry need not do so at the exit.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=traces_address(endpoint))))
        return cls(provider)

    def write(self, record: RequestRecord) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        def at(seconds: float) -> int:
            return int((record.started + seconds) * 1_000_000_000)

        scope, parent, total_s = record.scope, Context(), record.total_s or 0.0
        if scope is not None and scope.traceparent:
            sent = {"traceparent": scope.traceparent, "tracestate": scope.tracestate}
            parent = TraceContextTextMapPropagator().extract(sent, parent)
        span = self._tracer.start_span("speech", parent, SpanKind.SERVER, _attributes(record), start_time=at(0.0))
        if record.reason is FinishReason.ERROR:
            span.set_status(Status(StatusCode.ERROR, record.error_code))
        for name, begin_s, end_s in _parts(record, total_s):
            self._tracer.start_span(name, set_span_in_context(span), start_time=at(begin_s)).end(at(end_s))
        span.end(at(total_s))

    def close(self) -> None:
        """Send the last spans; blocks for some seconds at most."""
        self._provider.shutdown()


def traces_address(endpoint: str) -> str:
    """Return the address at which a collector, such as http://localhost:4318, accepts traces; keep a given path."""
    scheme, _, rest = endpoint.partition("://")
    return f"{scheme}://{rest.rstrip('/')}{'' if '/' in rest.rstrip('/') else '/v1/traces'}"


def _parts(record: RequestRecord, total_s: float) -> list[tuple[str, float, float]]:
    """Return name, begin and end of a request's parts, in seconds from its start; if refused, only "admission"."""
    if record.admission_s is None:
        return [("admission", 0.0, total_s)]
    first_s = total_s if record.first_audio_s is None else record.first_audio_s
    parts = [("admission", 0.0, record.admission_s), ("first audio", record.admission_s, first_s)]
    return parts if record.first_audio_s is None else [*parts, ("stream", first_s, total_s)]


def _attributes(record: RequestRecord) -> dict[str, str | int | float]:
    known: dict[str, str | int | float | None] = {
        "vivavoce.request_id": record.request_id,
        "vivavoce.door": record.protocol,
        "vivavoce.audio_seconds": record.audio_s,
        "vivavoce.segments_spoken": record.segments_spoken,
        "vivavoce.segments_given": record.segments_given,
        "vivavoce.model": record.model,
        "vivavoce.caller": record.principal_name or None,
        "vivavoce.reason": record.reason and record.reason.value,
        "error.type": record.error_code,
        "vivavoce.first_audio_seconds": record.first_audio_s,
    }
    return {name: value for name, value in known.items() if value is not None}
