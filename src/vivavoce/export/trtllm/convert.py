"""A merged Qwen2 model → a TensorRT-LLM checkpoint."""

from __future__ import annotations

import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vivavoce.errors import InvalidRequest
from vivavoce.export.fresh_folder import check_target
from vivavoce.export.hf.write import CONFIG, EMBEDDING_BIAS
from vivavoce.export.named_errors import naming
from vivavoce.export.trtllm.calibration import Calibration, measure, read_calibration, write_ranges
from vivavoce.export.trtllm.config_json import checkpoint_config
from vivavoce.export.trtllm.earlier import holds, rank_path
from vivavoce.export.trtllm.options import ConvertOptions, chosen_dtype
from vivavoce.export.trtllm.rank_file import RankFile
from vivavoce.export.trtllm.rank_tensors import Filling, Plan
from vivavoce.export.trtllm.source import Source
from vivavoce.export.trtllm.workshop import Workshop, workshop_for

RECORD = "conversion.json"
"""What was asked for; TensorRT-LLM does not read it, the next conversion and the comparison of logits do."""
RANGES = "calibration.safetensors"
"""The ranges that were measured; it can be given as the calibration of another conversion."""
_FORMAT = 1
_JOURNAL_EVERY_S = 10.0


@dataclass(frozen=True)
class Progress:
    """done, total: layers and blocks; what: "calibrating" or "converting"."""

    what: str
    done: int
    total: int


@dataclass(frozen=True)
class Conversion:
    """A checkpoint that is complete. num_bytes: of all ranks; was_there: an earlier conversion made the same."""

    folder: Path
    dtype: torch.dtype
    num_bytes: int
    was_there: bool


def convert(
    source: Source,
    target: Path,
    options: ConvertOptions,
    *,
    calibration: Calibration = Calibration(),
    workers: int = 1,
    force: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Conversion:
    """Write the checkpoint: `config.json`, a file for each rank, the head's bias if the source has one.

    Each worker holds one layer in memory, and all write the same bytes as one would. The folder appears complete or
    not at all. After a break the same call goes on where it stopped; a folder that the same call has made stays, if
    it is undamaged and nothing is forced.

    Args:
        source: what to convert.
        target: the folder to make.
        options: what to make of it.
        calibration: needed for SmoothQuant and an int8 cache.
        workers: threads.
        force: replace an earlier conversion at the target, also one of the same call.
        progress: called from this thread.

    Raises:
        InvalidRequest: an option does not fit the model, the target holds something else, or there is no calibration.
        CheckpointError: the source or the calibration is damaged, or the dtype cannot hold its values.
        OSError: the place cannot be written.
    """
    if workers < 1:
        raise InvalidRequest(f"workers: {workers} is below 1; give the number of threads")
    options.check_fits(source.sizes)
    plan = Plan(source.sizes, options, chosen_dtype(options, source.dtype))
    record = _record(source, plan, calibration)
    config = json.dumps(checkpoint_config(plan.sizes, options, plan.dtype), indent=4) + "\n"
    if not force and holds(target, plan, {RECORD: record, CONFIG: config}, source.bias):
        sizes = [rank_path(target, rank).stat().st_size for rank in range(options.world)]
        return Conversion(target, plan.dtype, sum(sizes), was_there=True)
    check_target(target, source.files[0].parent, force=force, mark=RECORD)
    if options.needs_calibration:
        calibration.check_fits(source.sizes)
    with workshop_for(target, record) as workshop:
        ranges = _ranges(source, options, calibration, workshop, progress)
        num_bytes = _fill(workshop, plan, source, ranges, workers, progress)
        with naming(workshop.folder):
            _write_beside(workshop.folder, {CONFIG: config, RECORD: record}, source.bias)
        workshop.finish(target)
    return Conversion(target, plan.dtype, num_bytes, was_there=False)


def _record(source: Source, plan: Plan, calibration: Calibration) -> str:
    content = {
        "format": _FORMAT,
        "source": source.fingerprint(),
        "sizes": asdict(plan.sizes),
        "speech_from": None if source.vocabulary is None else source.vocabulary.text_size,
        "dtype": str(plan.dtype).removeprefix("torch."),
        "options": asdict(plan.options),
        "calibration": calibration.digest() if plan.options.needs_calibration else None,
    }
    return json.dumps(content, indent=2) + "\n"


def _ranges(
    source: Source,
    options: ConvertOptions,
    calibration: Calibration,
    workshop: Workshop,
    progress: Callable[[Progress], None],
) -> Mapping[str, Tensor]:
    if not options.needs_calibration:
        return {}
    if calibration.recorded is not None:
        return calibration.recorded
    path = workshop.folder / RANGES
    if not path.is_file():
        done = 0

        def layer_done() -> None:
            nonlocal done
            done += 1
            progress(Progress("calibrating", done, source.sizes.num_layers))

        write_ranges(path, measure(source, calibration.prompts, layer_done))
    recorded = read_calibration(path, source).recorded
    assert recorded is not None
    return recorded


def _fill(
    workshop: Workshop,
    plan: Plan,
    source: Source,
    ranges: Mapping[str, Tensor],
    workers: int,
    progress: Callable[[Progress], None],
) -> int:
    """Do what the journal does not have; returns the bytes of all files."""
    with ExitStack() as open_files:
        files = [
            open_files.enter_context(closing(RankFile(rank_path(workshop.folder, rank), plan.specs(rank))))
            for rank in range(plan.options.world)
        ]
        num_bytes = sum(file.num_bytes for file in files)
        _check_space(workshop.folder, num_bytes)
        pieces = Filling(plan, source, ranges, files).pieces()
        left = {name: work for name, work in pieces.items() if name not in workshop.done}

        with _journal(workshop, files) as journal, ThreadPoolExecutor(workers, "convert") as pool:
            running = [pool.submit(journal.do, name, work) for name, work in left.items()]
            try:
                for number, piece in enumerate(as_completed(running), start=len(pieces) - len(left) + 1):
                    piece.result()
                    journal.save_at_times()
                    progress(Progress("converting", number, len(pieces)))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return num_bytes


class _Journal:
    """Which pieces of work are done, written down now and then."""

    def __init__(self, workshop: Workshop, files: Sequence[RankFile]) -> None:
        self._workshop, self._files = workshop, files
        self._waiting: deque[str] = deque()
        self._saved_at = time.monotonic()

    def do(self, name: str, work: Callable[[], None]) -> None:
        """Do a piece of work, on any thread."""
        work()
        self._waiting.append(name)

    def save_at_times(self) -> None:
        """Save if the last time is long ago."""
        if time.monotonic() - self._saved_at > _JOURNAL_EVERY_S:
            self.save()

    def save(self) -> None:
        """First the bytes, then the word that they are there: power may fail in between."""
        names = [self._waiting.popleft() for _ in range(len(self._waiting))]
        for file in self._files:
            file.flush()
        self._workshop.note(names)
        self._saved_at = time.monotonic()


@contextmanager
def _journal(workshop: Workshop, files: Sequence[RankFile]) -> Iterator[_Journal]:
    journal = _Journal(workshop, files)
    try:
        yield journal
    finally:
        journal.save()


def _check_space(folder: Path, num_bytes: int) -> None:
    used = sum(path.stat().st_blocks * 512 for path in folder.glob("rank*.safetensors"))
    free = shutil.disk_usage(folder).free
    if num_bytes - used > free:
        raise InvalidRequest(
            f"out: {num_bytes / 1e9:.3g} GB do not fit, {free / 1e9:.3g} GB are free in {folder.parent}; make room "
            "or choose another place"
        )


def _write_beside(folder: Path, texts: Mapping[str, str], bias: Tensor | None) -> None:
    if bias is not None:
        np.save(folder / EMBEDDING_BIAS, bias.numpy(), allow_pickle=False)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
