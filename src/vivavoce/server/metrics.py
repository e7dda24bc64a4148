"""A server's metrics for Prometheus.

Labels are protocols (`door`), codes, reasons and stages, which have few values. Metrics by caller have a value for each
key, so they are only at the port for monitoring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, chain

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from vivavoce.engine.cost_model import Stage
from vivavoce.engine.request import Fault
from vivavoce.engine.statistics import Histogram as EngineHistogram
from vivavoce.engine.statistics import StatisticsSnapshot, log_bounds
from vivavoce.frontend.speech import FinishReason
from vivavoce.frontend.speech_backend import BackendStatistics
from vivavoce.server.request_log import RequestRecord
from vivavoce.version import __version__

SECONDS = tuple(float(f"{bound:.4g}") for bound in log_bounds(1e-3, 1e3, per_decade=5))
_REFUSED = "refused"
_OUTCOMES = (*(reason.value for reason in FinishReason), _REFUSED)
MOST_CALLERS, OTHERS = 1_000, "(others)"
"""Largest number of keys with time series of their own, and the label of all other keys."""

disable_created_metrics()  # type: ignore[no-untyped-call]


class RequestMetrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._of_callers = CollectorRegistry()
        self._callers: set[str] = set()

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"vivavoce_{name}", text, labels, buckets=SECONDS, registry=registry)

        def counter(name: str, text: str, *labels: str, of: CollectorRegistry = registry) -> Counter:
            return Counter(f"vivavoce_{name}", text, labels, registry=of)

        self._active = Gauge(
            "vivavoce_streams_active", "Requests for speech that were accepted and have not ended.", registry=registry
        )
        self.reloads = counter("reloads", "Reloads of the settings, by outcome.", "outcome")
        for outcome in ("done", "refused", "engine_kept"):
            self.reloads.labels(outcome)
        text = "Requests for speech that ended, by the reason of the verdict, or refused."
        self._requests = counter("requests", text, "door", "outcome")
        self._refused = counter("refused", "Requests for speech that were refused, by error code.", "door", "code")
        self.first_audio = histogram("first_audio_seconds", "Seconds from a request to its first audio.", "door")
        self._wall = histogram("request_seconds", "Seconds from a request to its end.", "door")
        self._gap = histogram("gap_seconds", "Seconds between two pieces of audio of a stream.")
        self._late = histogram("late_seconds", "Delay of audio after the client had played all earlier audio.")
        self._underruns = counter("underruns", "Pieces of audio that came too late for playing without a gap.")
        self._audio_s = counter("audio_seconds", "Seconds of audio sent to clients, in requests that ended.")
        self.characters = counter("characters", "Characters of text received.")
        text = "Faults of speech that the guard found, and whether a listener heard them."
        self._faults = counter("speech_faults", text, "fault", "outcome")
        for fault in Fault:
            for outcome in ("heard", "mended"):
                self._faults.labels(fault.value, outcome)
        self._missing = counter("missing_words", "Words that seem to be missing in speech that was checked.")
        usage = {
            "requests": "Requests for speech that were accepted and ended, by the name of their key.",
            "characters": "Characters of text in these requests.",
            "audio_seconds": "Seconds of audio sent in answer to these requests.",
        }
        self._usage = [counter(f"caller_{name}", text, "caller", of=self._of_callers) for name, text in usage.items()]

    def admitted(self, record: RequestRecord) -> None:
        self._show(record.protocol)
        self._active.inc()

    def ended(self, record: RequestRecord) -> None:
        if record.admission_s is None:
            self.refuse(record.protocol, record.error_code or "")
            return
        assert record.reason is not None
        self._active.dec()
        self._requests.labels(record.protocol, record.reason.value).inc()
        self._wall.labels(record.protocol).observe(record.total_s or 0.0)
        self._audio_s.inc(record.audio_s)
        if (delivery := record.delivery) is not None:
            self._missing.inc(len(delivery.missing))
            for outcome, faults in (("heard", delivery.faults), ("mended", delivery.mended)):
                for fault in faults:
                    self._faults.labels(fault, outcome).inc()
        if name := record.principal_name:
            name = name if name in self._callers or len(self._callers) < MOST_CALLERS else OTHERS
            self._callers.add(name)
            for counted, amount in zip(self._usage, (1, record.characters, record.audio_s), strict=True):
                counted.labels(name).inc(amount)

    def refuse(self, protocol: str, code: str) -> None:
        self._show(protocol)
        self._requests.labels(protocol, _REFUSED).inc()
        self._refused.labels(protocol, code).inc()

    def next_audio(self, gap_s: float, late_s: float) -> None:
        """Count a piece of audio. gap_s: seconds since the last piece; late_s: seconds since the client had played all
        earlier pieces, negative if it still plays them.
        """
        self._gap.observe(gap_s)
        if late_s > 0:
            self._late.observe(late_s)
            self._underruns.inc()

    def families(self, callers: bool = False) -> Iterator[Metric]:
        """Yield all metrics; callers: also those by key. Bucket bounds are written like the engine's: 1, not 1.0."""
        for family in chain(self.registry.collect(), self._of_callers.collect() if callers else ()):
            for index, sample in enumerate(family.samples):
                if "le" in sample.labels:
                    labels = {**sample.labels, "le": sample.labels["le"].removesuffix(".0")}
                    family.samples[index] = sample._replace(labels=labels)
            yield family

    def _show(self, protocol: str) -> None:
        """Create all series of a protocol, so that those without a request are 0 and not missing."""
        for outcome in _OUTCOMES:
            self._requests.labels(protocol, outcome)
        self.first_audio.labels(protocol)
        self._wall.labels(protocol)


def server_families(*, model: str, draining: bool) -> Iterator[Metric]:
    """Yield the metrics of the server itself. model: its name, or "" until it is known."""
    yield InfoMetricFamily("vivavoce_build", "The version and the model.", {"version": __version__, "model": model})
    yield _gauge("draining", "1 while the server refuses new requests and finishes the running ones.", draining)


def backend_families(statistics: BackendStatistics | None, up: bool) -> Iterator[Metric]:
    yield _gauge("engine_up", "1 if the engine accepts requests and sends metrics, else 0.", up)
    if statistics is None:
        return
    yield _gauge("engine_streams", "Requests that were sent to the engine and have not ended.", statistics.streams)
    yield _gauge("engine_capacity", "Streams that the engine can serve in time, as measured.", statistics.capacity)
    yield _counter("engine_starts", "Started engine processes; above 1: the engine was restarted.", statistics.starts)
    yield _gauge("device_memory_bytes", "Memory in use on the engine's device.", statistics.memory_used)
    yield _gauge("device_memory_total_bytes", "Memory of the engine's device.", statistics.memory_total)
    yield _counter("voices_extracted", "Recordings whose voices were extracted.", statistics.voices_extracted)
    yield _counter("voices_remembered", "Recordings whose voices were in the cache.", statistics.voices_remembered)
    yield _gauge(
        "voice_store_ok", "1 if stored voices can be read and written, else 0.", statistics.voice_store == "ok"
    )
    yield from _engine_families(statistics.engine)


def labelled(engines: Mapping[str, Iterable[Metric]], by_model: bool = False) -> list[Metric]:
    """Merge the metrics of several engines, by name; each sample gets the label `engine`.

    by_model: each sample also gets the label `model`, the engine's name up to the slash.
    """
    merged: dict[str, Metric] = {}
    for engine, families in engines.items():
        labels = {"engine": engine, "model": engine.partition("/")[0]} if by_model else {"engine": engine}
        for family in families:
            samples = [one._replace(labels={**one.labels, **labels}) for one in family.samples]
            family.samples = []
            merged.setdefault(family.name, family).samples += samples
    return list(merged.values())


def _engine_families(engine: StatisticsSnapshot) -> Iterator[Metric]:
    text = "Requests at the engine, by event."
    events = CounterMetricFamily("vivavoce_engine_requests", text, labels=["event"])
    for event, count in asdict(engine.requests).items():
        events.add_metric([event], count)
    yield events
    yield _gauge("requests_waiting", "Requests that the engine accepted and has not begun.", engine.waiting)
    text = "Seconds from the engine's acceptance of a stream to its first chunk."
    yield _histogram("engine_first_chunk_seconds", text, {"": engine.streams.first_chunk_s})
    text = "Delay of chunks that were made after the client had played all earlier chunks."
    yield _histogram("engine_late_seconds", text, {"": engine.streams.lateness_s})
    yield _gauge("slots_used", "Sequences that are decoded now.", engine.slots.used)
    yield _gauge("slots_peak", "The most sequences that were decoded at once.", engine.slots.peak)
    yield _gauge("slots", "The most sequences that can be decoded at once.", engine.slots.total)
    yield _counter("prompt_cache_hits", "Sequences that found their prompt's state.", engine.prompt_cache_hits)
    yield _counter("prompt_cache_misses", "Sequences that found no state of their prompt.", engine.prompt_cache_misses)
    yield _counter("engine_audio_seconds", "Seconds of audio made, heard or not.", engine.audio_s)
    tokens = engine.stage(Stage.DECODE).rows
    yield _counter("speech_tokens", "Speech tokens decoded, end tokens included.", tokens)
    for name, field, text in (
        ("batch_size", "batch_size", "Rows of a stage's batches."),
        ("busy_seconds", "busy_s", "Seconds of a stage's batches."),
        ("queued_seconds", "queued_s", "Seconds that rows waited for a stage's batch."),
    ):
        counted = {entry.stage.value: getattr(entry, field) for entry in engine.stages}
        yield _histogram(f"stage_{name}", text, counted, ["stage"])


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"vivavoce_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"vivavoce_{name}", text, value=value)


def _histogram(name: str, text: str, counted: dict[str, EngineHistogram], labels: Sequence[str] = ()) -> Metric:
    """Return one histogram, or one for each value of a label, with cumulative buckets, as Prometheus needs them."""
    family = HistogramMetricFamily(f"vivavoce_{name}", text, labels=labels)
    for label, one in counted.items():
        bounds = [*(f"{bound:.4g}" for bound in one.bounds), "+Inf"]
        buckets = [(bound, float(below)) for bound, below in zip(bounds, accumulate(one.counts), strict=True)]
        family.add_metric([label] if labels else [], buckets, one.total)
    return family
