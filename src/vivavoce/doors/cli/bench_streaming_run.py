"""The work of `vivavoce bench streaming`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vivavoce.bench.chunking import cuts
from vivavoce.bench.json_file import rounded
from vivavoce.bench.spectra import near_places, spectral_distance
from vivavoce.bench.streaming import Speech, Streamed, figures, stream
from vivavoce.bench.streaming_table import rows_of, texts_of
from vivavoce.doors.cli.bench_backends.choosing import Load
from vivavoce.doors.cli.bench_backends.own import OwnModel
from vivavoce.doors.cli.bench_machine import machine, reset_peaks, resources
from vivavoce.doors.cli.bench_offline_run import print_or_save
from vivavoce.doors.cli.bench_streaming import DEFAULT_COUNT, StreamingRequest
from vivavoce.doors.cli.bench_studio import Studio, load_studio
from vivavoce.doors.cli.bench_token2wav import StageToken2Wav
from vivavoce.doors.cli.console import Reporter
from vivavoce.doors.cli.model import note_if_no_real_model
from vivavoce.evaluate.joins import abruptness, abruptness_everywhere, join_clicks
from vivavoce.service.audio.wav import write_wav
from vivavoce.version import __version__

SCHEMA = "vivavoce-bench-streaming-1"
"""The form of the JSON; the number moves when a key changes its meaning."""
_TOGETHER = 8
"""Texts that the language model reads at once; its time is not measured."""


def run(request: StreamingRequest, reporter: Reporter) -> None:
    """Speak everything both ways, and hand out the figures."""
    with reporter.working("loading …") as say:
        studio = load_studio(request.choice)
        say("making speech tokens …")
        speeches = _recorded(request, studio) if request.recordings else _decoded(request, studio)
        settings = request.engine.settings()
        token2wav = StageToken2Wav(studio.models, settings, streams=True, overlap=request.overlap)
        say("warming up …")
        _streamed(request, studio, token2wav, speeches[0])
        reset_peaks(studio.models.device)
        streamed = []
        for number, speech in enumerate(speeches, start=1):
            say(f"speaking … {number} of {len(speeches)}")
            token2wav.hear(speech.voice)
            streamed.append(_streamed(request, studio, token2wav, speech))
            _keep(request, streamed[-1])
    found = {**figures(streamed), **join_figures(streamed, token2wav.fade)}
    keys = {"schema": SCHEMA, **_settings(request, studio), **found, "speeches": texts_of(streamed)}
    header, rows = rows_of(found)
    print_or_save(rounded(keys), rows, header, request.json_file)
    note_if_no_real_model(studio.front_end.card, reporter)


def join_figures(streamed: Sequence[Streamed], fade: int) -> dict[str, Any]:
    """Flat keys of what the joins sound like beside whole speech of the same tokens; fade: samples of each join."""
    rate = streamed[0].sample_rate
    at_joins = np.concatenate([abruptness(one.joined, rate, one.joins) for one in streamed])
    usual = np.concatenate([abruptness_everywhere(one.whole, rate) for one in streamed])
    clicks = join_clicks(at_joins, usual)
    distances = [spectral_distance(one.joined, one.whole, rate) for one in streamed]
    near = np.concatenate(
        [near_places(len(frames), rate, one.joins, fade) for frames, one in zip(distances, streamed, strict=True)]
    )
    distance = np.concatenate(distances)
    return {
        "joins": clicks.joins,
        "join_clicks": clicks.over,
        "join_click_worst": clicks.worst_ratio,
        "join_click_median": clicks.median_ratio,
        "spectral_db_joins": float(distance[near].mean()) if near.any() else None,
        "spectral_db_elsewhere": float(distance[~near].mean()) if not near.all() else None,
    }


def _decoded(request: StreamingRequest, studio: Studio) -> list[Speech]:
    lines = replace(request.texts, count=request.texts.count or _default_count(request)).read()
    jobs = studio.jobs(lines, request.seed, request.tokens)
    load = Load.of([job.prompt for job in jobs], min(len(jobs), _TOGETHER))
    model = OwnModel(studio.models, studio.vocabulary, request.engine.settings(), load)
    speeches = []
    for start in range(0, len(jobs), _TOGETHER):
        part = jobs[start : start + _TOGETHER]
        spoken = model.generate([job.prompt for job in part])
        speeches += [
            Speech(job.id, tuple(tokens), job.voice, job.prompt.seed) for job, tokens in zip(part, spoken, strict=True)
        ]
    model.close()
    return speeches


def _default_count(request: StreamingRequest) -> int | None:
    return DEFAULT_COUNT if request.texts.source == "built in" else None


def _recorded(request: StreamingRequest, studio: Studio) -> list[Speech]:
    voice = studio.voice(request.texts.voice, request.texts.prompt_text)
    extractor = studio.front_end.extractor
    return [
        Speech(f"{place:04d}", tuple(extractor.speech_tokens(path).tolist()), voice, request.seed + place - 1)
        for place, path in enumerate(request.recordings, start=1)
    ]


def _streamed(request: StreamingRequest, studio: Studio, token2wav: StageToken2Wav, speech: Speech) -> Streamed:
    lookahead = studio.models.config.flow.encoder.lookahead
    return stream(token2wav, speech, cuts(len(speech.tokens), request.chunk_size, request.strategy, lookahead))


def _keep(request: StreamingRequest, one: Streamed) -> None:
    if request.output_dir is None:
        return
    write_wav(request.output_dir / f"{one.speech.id}.wav", one.joined, one.sample_rate)
    write_wav(request.output_dir / f"{one.speech.id}.whole.wav", one.whole, one.sample_rate)


def _settings(request: StreamingRequest, studio: Studio) -> dict[str, Any]:
    models = studio.models
    return {
        "vivavoce": __version__,
        "command": request.command,
        "model": studio.front_end.card.name,
        "trained": studio.front_end.card.trained,
        "dtype": str(models.dtype).removeprefix("torch."),
        "chunk_size": request.chunk_size,
        "overlap": request.overlap,
        "strategy": request.strategy.value,
        "lookahead": models.config.flow.encoder.lookahead,
        "seed": request.seed,
        "exact_tokens": request.tokens,
        "text_source": "recordings" if request.recordings else request.texts.source,
        "kernels": request.engine.kernels,
        "memory_gb": request.engine.memory_gb,
        **machine(models.device),
        **resources(models.device),
    }
