"""What a server has done, as Prometheus' metric families. Labels are doors, codes, reasons and stages: few and ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric

from vivavoce.engine.cost_model import Stage
from vivavoce.engine.histogram import HistogramSnapshot
from vivavoce.engine.statistics import StageStatistics, StatisticsSnapshot
from vivavoce.service.host.figures import SpeakerStatistics
from vivavoce.service.operations.meters import DoorSnapshot, MetersSnapshot
from vivavoce.version import __version__


@dataclass(frozen=True)
class Figures:
    """Everything that is exported, of one moment.

    model: its name, "" until it is known; up: the engine takes requests, and answered when it was asked for its
    figures; speaker: those figures, None where there are none.
    """

    model: str
    up: bool
    draining: bool
    meters: MetersSnapshot
    speaker: SpeakerStatistics | None


def families(figures: Figures) -> Iterator[Metric]:
    """All of them; those of the engine only where it told its figures."""
    yield InfoMetricFamily("vivavoce_build", "What runs here.", {"version": __version__, "model": figures.model})
    yield _gauge("vivavoce_engine_up", "1 if the engine takes requests and tells its figures, else 0.", figures.up)
    yield _gauge(
        "vivavoce_draining", "1 while the server takes no more requests and lets its last ones end.", figures.draining
    )
    yield from _of_listeners(figures.meters)
    if figures.speaker is not None:
        yield from _of_speaker(figures.speaker)
        yield from _of_engine(figures.speaker.engine)
        yield from _of_stages(figures.speaker.engine.stages)


def _of_listeners(meters: MetersSnapshot) -> Iterator[Metric]:
    yield _gauge("vivavoce_streams_active", "Requests for speech that were taken and have not ended.", meters.active)
    yield _requests(meters.doors)
    refused = CounterMetricFamily(
        "vivavoce_refused", "Requests for speech that were not taken, by error code.", labels=["door", "code"]
    )
    for door in meters.doors:
        for code, count in sorted(door.refused.items()):
            refused.add_metric([door.door, code], count)
    yield refused
    first_audio = _histograms("vivavoce_first_audio_seconds", "From a request to its first audio.", ["door"])
    wall = _histograms("vivavoce_request_seconds", "From a request to its end, of those that ended.", ["door"])
    for door in meters.doors:
        _add(first_audio, [door.door], door.first_audio_s)
        _add(wall, [door.door], door.wall_s)
    yield first_audio
    yield wall
    yield _histogram("vivavoce_gap_seconds", "Between two pieces of audio of one stream.", meters.gap_s)
    yield _histogram(
        "vivavoce_late_seconds", "How late audio came whose listener had played all before it.", meters.late_s
    )
    yield _counter("vivavoce_underruns", "Pieces of audio that came too late for gapless playing.", meters.underruns)
    yield _counter(
        "vivavoce_audio_seconds", "Seconds of audio handed to listeners, by requests that ended.", meters.audio_s
    )
    yield _counter("vivavoce_characters", "Characters of text taken in.", meters.characters)


def _requests(doors: Sequence[DoorSnapshot]) -> Metric:
    family = CounterMetricFamily(
        "vivavoce_requests",
        "Requests for speech that came to an end, by how: a verdict's reason, or refused.",
        labels=["door", "outcome"],
    )
    for door in doors:
        for reason, count in door.ended.items():
            family.add_metric([door.door, reason.value], count)
        family.add_metric([door.door, "refused"], sum(door.refused.values()))
    return family


def _of_speaker(speaker: SpeakerStatistics) -> Iterator[Metric]:
    yield _counter("vivavoce_engine_starts", "Engine processes begun; above 1: it was restarted.", speaker.starts)
    yield _gauge("vivavoce_device_memory_bytes", "Memory in use on the engine's device.", speaker.memory_used)
    yield _gauge("vivavoce_device_memory_total_bytes", "Memory of the engine's device.", speaker.memory_total)
    yield _counter("vivavoce_voices_extracted", "Recordings whose voices were extracted.", speaker.voices_extracted)
    yield _counter("vivavoce_voices_remembered", "Recordings whose voices were remembered.", speaker.voices_remembered)
    yield _gauge(
        "vivavoce_voice_store_ok", "1 if stored voices can be read and written, else 0.", speaker.voice_store == "ok"
    )


def _of_engine(engine: StatisticsSnapshot) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "vivavoce_engine_requests", "What happened to requests at the engine.", labels=["event"]
    )
    for event, count in asdict(engine.requests).items():
        requests.add_metric([event], count)
    yield requests
    yield _gauge("vivavoce_requests_waiting", "Requests that the engine took and has not begun.", engine.waiting)
    yield _histogram(
        "vivavoce_engine_first_chunk_seconds",
        "From a stream's acceptance by the engine to its first chunk.",
        engine.streams.first_chunk_s,
    )
    yield _histogram(
        "vivavoce_engine_late_seconds",
        "How late the engine made chunks whose listener had played all before them.",
        engine.streams.lateness_s,
    )
    yield _gauge("vivavoce_slots_used", "Sequences that are decoded now.", engine.slots.used)
    yield _gauge("vivavoce_slots_peak", "The most sequences that were decoded at once.", engine.slots.peak)
    yield _gauge("vivavoce_slots_total", "The most sequences that can be decoded at once.", engine.slots.total)
    yield _counter("vivavoce_prompt_cache_hits", "Voices whose state was in memory.", engine.prompt_cache_hits)
    yield _counter("vivavoce_prompt_cache_misses", "Voices whose state was made anew.", engine.prompt_cache_misses)
    yield _counter("vivavoce_engine_audio_seconds", "Seconds of audio made, heard or not.", engine.audio_s)
    yield _counter(
        "vivavoce_speech_tokens", "Speech tokens decoded, end tokens included.", engine.stage(Stage.DECODE).rows
    )


def _of_stages(stages: Sequence[StageStatistics]) -> Iterator[Metric]:
    batch_size = _histograms("vivavoce_stage_batch_size", "Rows of a stage's batches.", ["stage"])
    busy = _histograms("vivavoce_stage_busy_seconds", "Seconds of a stage's batches.", ["stage"])
    queued = _histograms("vivavoce_stage_queued_seconds", "Seconds that rows waited for a stage's batch.", ["stage"])
    for entry in stages:
        _add(batch_size, [entry.stage.value], entry.batch_size)
        _add(busy, [entry.stage.value], entry.busy_s)
        _add(queued, [entry.stage.value], entry.queued_s)
    yield from (batch_size, busy, queued)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    """`name` without "_total"."""
    return CounterMetricFamily(name, text, value=value)


def _histogram(name: str, text: str, counted: HistogramSnapshot) -> Metric:
    family = _histograms(name, text, [])
    _add(family, [], counted)
    return family


def _histograms(name: str, text: str, labels: Sequence[str]) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, labels=labels)


def _add(family: HistogramMetricFamily, labels: Sequence[str], counted: HistogramSnapshot) -> None:
    """Prometheus' buckets hold everything up to their bounds."""
    below, buckets = 0, []
    for bound, count in zip((*counted.bounds, inf), counted.counts, strict=True):
        below += count
        buckets.append((f"{bound:.4g}" if bound < inf else "+Inf", float(below)))
    family.add_metric(labels, buckets=buckets, sum_value=counted.total)
