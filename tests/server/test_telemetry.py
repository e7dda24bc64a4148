"""Spans of a request: their times, their parents, and what they tell."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from vivavoce.errors import MissingDependency
from vivavoce.frontend.speech import FinishReason, Verdict
from vivavoce.logs import request_scope
from vivavoce.server.request_log import RequestLog
from vivavoce.server.telemetry import Tracing, traces_address

TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
SAMPLED = f"00-{TRACE:032x}-{PARENT:016x}-01"
STOP = Verdict(FinishReason.STOP, 2.5, 3, 3)
BEGAN = 1_700_000_000.0


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Iterator[Tracing]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider)
    yield tracing
    tracing.close()


def ask(
    tracing: Tracing,
    verdict: Verdict = STOP,
    *,
    admission_s: float | None = 0.5,
    first_audio_s: float | None = 0.75,
    traceparent: str = "",
    tracestate: str = "",
) -> None:
    log = RequestLog()
    log.observers.append(tracing.write)
    with request_scope("req_1", traceparent=traceparent, tracestate=tracestate):
        record = log.begin("req_1", "anna", "http", BEGAN)
    record.admission_s, record.first_audio_s = admission_s, first_audio_s
    log.end(record, verdict, 2.0)  # maybe in another task, whose scope is not its own


def times(exporter: InMemorySpanExporter) -> dict[str, tuple[float, float]]:
    """Name → begin and end, in seconds from the request's start."""

    def seconds(nanoseconds: int | None) -> float:
        return round(((nanoseconds or 0) - int(BEGAN * 1e9)) / 1e9, 3)

    return {span.name: (seconds(span.start_time), seconds(span.end_time)) for span in exporter.get_finished_spans()}


def speech_in(exporter: InMemorySpanExporter) -> ReadableSpan:
    return next(span for span in exporter.get_finished_spans() if span.name == "speech")


def test_a_request_is_a_span_with_its_parts(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    ask(tracing)
    assert times(exporter) == {
        "admission": (0.0, 0.5),
        "first audio": (0.5, 0.75),
        "stream": (0.75, 2.0),
        "speech": (0.0, 2.0),
    }
    speech = speech_in(exporter)
    assert speech.kind is SpanKind.SERVER
    parts = [span for span in exporter.get_finished_spans() if span is not speech]
    assert all(part.parent == speech.get_span_context() for part in parts)
    assert speech.attributes == {
        "vivavoce.request_id": "req_1",
        "vivavoce.door": "http",
        "vivavoce.caller": "anna",
        "vivavoce.reason": "stop",
        "vivavoce.audio_seconds": 2.5,
        "vivavoce.segments_spoken": 3,
        "vivavoce.segments_given": 3,
        "vivavoce.first_audio_seconds": 0.75,
    }
    assert speech.status.status_code is StatusCode.UNSET


def test_it_belongs_to_its_senders_trace(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    ask(tracing, traceparent=SAMPLED, tracestate="vendor=7")
    speech = speech_in(exporter)
    assert speech.context is not None
    assert speech.parent is not None
    assert (speech.context.trace_id, speech.parent.span_id, speech.parent.is_remote) == (TRACE, PARENT, True)
    assert speech.context.trace_state.get("vendor") == "7"
    assert {span.context.trace_id for span in exporter.get_finished_spans() if span.context} == {TRACE}
    exporter.clear()
    ask(tracing, traceparent=SAMPLED[:-1] + "0")  # its sender does not sample it
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize("sent", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "x" * 100_000])
def test_without_a_right_parent_each_request_is_a_trace(
    tracing: Tracing, exporter: InMemorySpanExporter, sent: str
) -> None:
    ask(tracing, traceparent=sent)
    assert speech_in(exporter).parent is None
    ask(tracing)
    assert len({span.context.trace_id for span in exporter.get_finished_spans() if span.context}) == 2


def test_a_request_that_is_refused_or_has_no_audio_has_fewer_parts(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    ask(tracing, Verdict(FinishReason.CANCELLED, 0.0, 0, 1), first_audio_s=None)
    assert times(exporter) == {"admission": (0.0, 0.5), "first audio": (0.5, 2.0), "speech": (0.0, 2.0)}
    exporter.clear()
    refused = Verdict(FinishReason.ERROR, 0.0, 0, 0, "slots: 'my secret' are all taken", "overloaded")
    ask(tracing, refused, admission_s=None, first_audio_s=None)
    assert times(exporter) == {"admission": (0.0, 2.0), "speech": (0.0, 2.0)}
    speech = speech_in(exporter)
    assert (speech.status.status_code, speech.status.description) == (StatusCode.ERROR, "overloaded")
    assert dict(speech.attributes or {})["error.type"] == "overloaded"
    assert all("secret" not in span.to_json() for span in exporter.get_finished_spans())


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://collector/otlp/v1/traces", "http://collector/otlp/v1/traces"),
    ],
)
def test_where_traces_go(endpoint: str, address: str) -> None:
    assert traces_address(endpoint) == address


def test_without_the_packages_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(MissingDependency, match=r"pip install 'vivavoce\[telemetry\]'"):
        Tracing.exporting("http://localhost:4318", "vivavoce")
