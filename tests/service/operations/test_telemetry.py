"""Spans of a request: their times, their parents, and what they tell."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from vivavoce.errors import MissingDependency
from vivavoce.service.host.verdict import FinishReason, Verdict
from vivavoce.service.operations.ledger import Ledger
from vivavoce.service.operations.scope import request_scope
from vivavoce.service.operations.telemetry import Tracing, traces_address

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
    ledger = Ledger(watchers=[tracing.watch])
    with request_scope("req_1", traceparent=traceparent, tracestate=tracestate):
        ledger.begin("req_1", "anna", "http", BEGAN)
    if admission_s is not None:
        ledger.admitted("req_1", admission_s)
    # It may end in another task, whose scope is not its own.
    ledger.end("req_1", verdict, first_audio_s=first_audio_s, total_s=2.0)


def times(spans: Sequence[ReadableSpan]) -> dict[str, tuple[float, float]]:
    """Name → begin and end, in seconds from the request's start."""
    return {span.name: (_after(span.start_time), _after(span.end_time)) for span in spans}


def _after(nanoseconds: int | None) -> float:
    assert nanoseconds is not None
    return round((nanoseconds - int(BEGAN * 1e9)) / 1e9, 3)


def named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    return next(span for span in exporter.get_finished_spans() if span.name == name)


def test_a_request_is_a_span_with_its_parts(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    ask(tracing)
    spans = exporter.get_finished_spans()
    assert times(spans) == {
        "admission": (0.0, 0.5),
        "first audio": (0.5, 0.75),
        "stream": (0.75, 2.0),
        "speech": (0.0, 2.0),
    }
    speech = named(exporter, "speech")
    assert speech.kind is SpanKind.SERVER
    parts = [span for span in spans if span is not speech]
    assert all(part.parent == speech.get_span_context() for part in parts)


def test_it_tells_who_where_and_how_it_ended(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    ask(tracing)
    speech = named(exporter, "speech")
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


def test_it_belongs_to_the_callers_trace(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    ask(tracing, traceparent=SAMPLED, tracestate="vendor=7")
    speech = named(exporter, "speech")
    assert speech.context is not None
    assert speech.parent is not None
    assert (speech.context.trace_id, speech.parent.span_id, speech.parent.is_remote) == (TRACE, PARENT, True)
    assert speech.context.trace_state.get("vendor") == "7"
    assert {span.context.trace_id for span in exporter.get_finished_spans() if span.context} == {TRACE}


def test_a_caller_that_samples_its_trace_away_gets_no_spans(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    ask(tracing, traceparent=SAMPLED[:-1] + "0")
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize("sent", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "x" * 100_000])
def test_a_wrong_parent_is_none(tracing: Tracing, exporter: InMemorySpanExporter, sent: str) -> None:
    ask(tracing, traceparent=sent)
    assert named(exporter, "speech").parent is None


def test_two_requests_without_a_parent_are_two_traces(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    ask(tracing)
    ask(tracing)
    traces = {span.context.trace_id for span in exporter.get_finished_spans() if span.context}
    assert len(traces) == 2


def test_a_refused_request_is_admission_alone(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    refused = Verdict(FinishReason.ERROR, 0.0, 0, 0, "slots: all 2 are taken", "overloaded")
    ask(tracing, refused, admission_s=None, first_audio_s=None)
    assert times(exporter.get_finished_spans()) == {"admission": (0.0, 2.0), "speech": (0.0, 2.0)}
    speech = named(exporter, "speech")
    assert (speech.status.status_code, speech.status.description) == (StatusCode.ERROR, "overloaded")
    assert dict(speech.attributes or {})["error.type"] == "overloaded"


def test_a_request_that_was_never_heard_waits_for_audio_to_its_end(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    ask(tracing, Verdict(FinishReason.CANCELLED, 0.0, 0, 1), first_audio_s=None)
    assert times(exporter.get_finished_spans()) == {
        "admission": (0.0, 0.5),
        "first audio": (0.5, 2.0),
        "speech": (0.0, 2.0),
    }


def test_nothing_that_was_sent_is_told(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    ask(tracing, Verdict(FinishReason.ERROR, 0.0, 0, 0, "text: 'my secret' cannot be spoken", "invalid_text"))
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


def test_an_exporting_one_names_its_service_and_closes() -> None:
    tracing = Tracing.exporting("http://127.0.0.1:9", "tts-west")
    assert tracing._provider.resource.attributes["service.name"] == "tts-west"
    tracing.close()


def test_without_the_packages_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(MissingDependency, match=r"pip install 'vivavoce\[telemetry\]'"):
        Tracing.exporting("http://localhost:4318", "vivavoce")
