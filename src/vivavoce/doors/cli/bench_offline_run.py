"""The work of `vivavoce bench offline`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vivavoce.bench import json_file
from vivavoce.bench.offline import Figures, Job, LanguageModel, Rig, Samples, measure
from vivavoce.bench.offline_report import HEADER, OfflineReport, draw
from vivavoce.doors.cli.bench_backends.choosing import Backend, Load, open_backend
from vivavoce.doors.cli.bench_backends.merged import MergedModel, merged_model
from vivavoce.doors.cli.bench_machine import machine, reset_peaks, resources
from vivavoce.doors.cli.bench_offline import OfflineRequest
from vivavoce.doors.cli.bench_studio import Studio, load_studio
from vivavoce.doors.cli.bench_token2wav import StageToken2Wav
from vivavoce.doors.cli.console import Reporter, print_table
from vivavoce.doors.cli.model import note_if_no_real_model
from vivavoce.doors.cli.output import STDOUT
from vivavoce.service.audio.wav import write_wav
from vivavoce.version import __version__


def run(request: OfflineRequest, reporter: Reporter) -> None:
    """Measure every batch size of every runtime, and hand out the figures."""
    lines = request.texts.read()
    sizes = request.sizes(len(lines))
    with reporter.working("loading …") as say:
        studio = load_studio(request.choice)
        say("reading texts and voices …")
        jobs = studio.jobs(lines, request.seed, request.tokens)
        say("making the merged language model …")
        merged = _merged(request, studio)
        token2wav = StageToken2Wav(studio.models, request.engine.settings())
        reset_peaks(studio.models.device)
        runs: list[Figures] = []
        for backend in request.backends:
            say(f"loading {backend.value} …")
            with _opened(request, studio, backend, Load.of([job.prompt for job in jobs], max(sizes)), merged) as model:
                rig = Rig(backend.value, model, token2wav, _keeper(request.output_dir, backend, token2wav.sample_rate))
                for size in sizes:
                    say(f"{backend.value}, batches of {size} …")
                    runs.append(measure(rig, jobs, size, request.token2wav_batch_size or size))
    _deliver(request, OfflineReport(_settings(request, studio), runs))
    note_if_no_real_model(studio.front_end.card, reporter)


def _merged(request: OfflineRequest, studio: Studio) -> MergedModel | None:
    if all(backend is Backend.TORCH for backend in request.backends):
        return None
    return merged_model(studio, request.choice.variant, request.llm_model)


@contextmanager
def _opened(
    request: OfflineRequest, studio: Studio, backend: Backend, load: Load, merged: MergedModel | None
) -> Iterator[LanguageModel]:
    model = open_backend(backend, studio, request.engine.settings(), load, merged, request.engine_dir)
    try:
        yield model
    finally:
        model.close()


def _keeper(folder: Path | None, backend: Backend, sample_rate: int) -> Any:
    def keep(size: int, job: Job, samples: Samples) -> None:
        if folder is None:
            return
        place = folder / f"{backend.value}-{size}"
        place.mkdir(exist_ok=True)
        write_wav(place / f"{job.id}.wav", samples, sample_rate)

    return keep


def _settings(request: OfflineRequest, studio: Studio) -> dict[str, Any]:
    models = studio.models
    return {
        "vivavoce": __version__,
        "command": request.command,
        "model": studio.front_end.card.name,
        "trained": studio.front_end.card.trained,
        "dtype": str(models.dtype).removeprefix("torch."),
        "llm_model": request.llm_model,
        "seed": request.seed,
        "exact_tokens": request.tokens,
        "text_source": request.texts.source,
        "kernels": request.engine.kernels,
        **machine(models.device),
        **resources(models.device),
    }


def _deliver(request: OfflineRequest, report: OfflineReport) -> None:
    print_or_save(report.to_json(), report.rows(), HEADER, request.json_file)
    if request.plot is not None:
        draw(report.runs, request.plot)


def print_or_save(
    keys: dict[str, Any], rows: Sequence[Sequence[str]], header: Sequence[str] | None, target: str | None
) -> None:
    """A table on stdout, or JSON in its place; JSON in a file besides if one was named."""
    if target == STDOUT:
        print(json_file.as_text(keys))
        return
    print_table(rows, header)
    if target is not None:
        json_file.save(keys, Path(target))
