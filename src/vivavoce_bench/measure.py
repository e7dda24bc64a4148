"""Percentiles, playback of a stream, JSON files and pictures, for benchmarks, evaluations and clients."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vivavoce.cli.output import explaining
from vivavoce.errors import InvalidRequest, MissingDependency

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

T = TypeVar("T")

PERCENTS = (50, 90, 95, 99)
BRIEF_GAP_S = 0.05
_DIGITS = 6


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile by nearest rank: the smallest value that at least `percent` % of the values do not exceed.

    With fewer than 100 values the 99th percentile is the largest. values: not empty; percent: above 0, at most 100.
    """
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


def percentiles(name: str, values: Sequence[float], percents: Sequence[int] = PERCENTS) -> dict[str, float | None]:
    """Return {`NAME_p50`: value, …}, a key per percentile; all are None if `values` is empty."""
    return {f"{name}_p{percent}": percentile(values, percent) if values else None for percent in percents}


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Return `NAME_mean`, the percentiles and `NAME_max`; all are None if `values` is empty."""
    return {f"{name}_mean": mean(values), **percentiles(name, values), f"{name}_max": max(values, default=None)}


@dataclass(frozen=True, eq=False)
class Arrival:
    """A piece of audio and its arrival time.

    samples: [num_samples] float32, None if not kept; sound_at: place of its first audible sample, None for silence.
    """

    at_s: float
    num_samples: int
    samples: NDArray[np.float32] | None = None
    sound_at: int | None = 0


@dataclass(frozen=True, eq=False)
class PlaybackTrace:
    """A response and its times in seconds, by one clock. end_s: time when the response was complete or failed."""

    start_s: float
    end_s: float
    sample_rate: int
    arrivals: tuple[Arrival, ...] = ()

    @property
    def total_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def audio_s(self) -> float:
        return sum(arrival.num_samples for arrival in self.arrivals) / self.sample_rate

    @property
    def rtf(self) -> float:
        return self.total_s / self.audio_s

    @property
    def ttfb_s(self) -> float:
        return self.arrivals[0].at_s - self.start_s

    @property
    def sound_s(self) -> float | None:
        """Seconds until a listener hears the first sound, if each piece is played at once; None if all is silence."""
        for one, plays_s in zip(self.arrivals, self._plays_s, strict=True):
            if one.sound_at is not None:
                return plays_s + one.sound_at / self.sample_rate - self.start_s
        return None

    @property
    def samples(self) -> NDArray[np.float32]:
        """The audio, if it was kept: [n] float32."""
        import numpy as np

        return np.concatenate([one.samples for one in self.arrivals if one.samples is not None])

    @property
    def gaps_s(self) -> list[float]:
        return [after.at_s - before.at_s for before, after in pairwise(self.arrivals)]

    @property
    def margins_s(self) -> list[float]:
        """Seconds of audio left to play when each piece after the first arrives. Playback starts with the first piece.

        A negative margin is an underrun: the listener hears silence for that time before the piece.
        """
        pieces = zip(self.arrivals, self._plays_s, self.arrivals[1:], strict=False)
        return [plays_s + one.num_samples / self.sample_rate - after.at_s for one, plays_s, after in pieces]

    @property
    def _plays_s(self) -> list[float]:
        """Times at which the pieces begin to be played: as they arrive, and not before the piece in front has ended."""
        times, free_s = list[float](), -math.inf
        for one in self.arrivals:
            times.append(max(free_s, one.at_s))
            free_s = times[-1] + one.num_samples / self.sample_rate
        return times

    def chunk_s(self, index: int) -> float | None:
        """Seconds from the call to the arrival of piece `index` (from 0), or None if it did not arrive."""
        return self.arrivals[index].at_s - self.start_s if index < len(self.arrivals) else None


def window_s(streams: Sequence[PlaybackTrace]) -> float:
    return max((one.end_s for one in streams), default=0.0) - min((one.start_s for one in streams), default=0.0)


def stream_figures(streams: Sequence[PlaybackTrace], heard: Sequence[PlaybackTrace]) -> dict[str, Any]:
    """Return playback and audio figures of `heard`, and the wall time of all streams; None if not measured."""
    audio_s, wall_s = sum(one.audio_s for one in heard), window_s(streams)
    margins = [one.margins_s for one in heard]
    silences = [[-margin for margin in one if margin < 0] for one in margins]
    return {
        "chunks": sum(len(one.arrivals) for one in heard),
        "underruns": sum(map(len, silences)),
        "underrun_requests": sum(map(bool, silences)),
        "stall_s": sum(map(sum, silences)),
        "continuous_share": sum(not one for one in silences) / len(heard) if heard else None,
        "brief_gaps_share": sum(max(one, default=0.0) < BRIEF_GAP_S for one in silences) / len(heard)
        if heard
        else None,
        "margin_ms_min": min(map(min, filter(None, margins))) * 1000 if any(margins) else None,
        "audio_s": audio_s,
        "wall_s": wall_s,
        "throughput_audio_s_per_s": audio_s / wall_s if wall_s > 0 else None,
    }


def read_lines(path: Path, field: str) -> list[str]:
    """Read the lines of a UTF-8 file; `InvalidRequest` about `field` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{field}: {str(path)!r} is not UTF-8 (at byte {error.start}); save it as UTF-8 text"
        ) from None
    except OSError as error:
        raise InvalidRequest(f"{field}: {str(path)!r} cannot be read ({error.strerror}); check the path") from None


def read_records(path: Path, field: str, parse: Callable[[str, int], T]) -> list[T]:
    """Read one record per line of a UTF-8 file; empty lines are skipped.

    parse: (line, number from 1) → record; its `ValueError` says what is wrong with the line. `InvalidRequest` about
    `field`: the file cannot be read, is empty, or has a bad line.
    """
    records = []
    for number, line in enumerate(read_lines(path, field), start=1):
        try:
            records += [parse(line, number)] if line.strip() else []
        except ValueError as error:
            raise InvalidRequest(f"{field}: line {number} of {str(path)!r} {error}") from None
    if not records:
        raise InvalidRequest(f"{field}: {str(path)!r} holds no lines; write at least one")
    return records


def rounded(value: Any) -> Any:
    """Round all floats in a nested value to six decimal places."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return value


def json_text(keys: Any) -> str:
    return json.dumps(keys, ensure_ascii=False, indent=2, allow_nan=False)


def write_text(path: Path, text: str, *, field: str) -> None:
    with explaining(field, str(path)):
        path.write_text(text, encoding="utf-8")


def save_json(keys: Any, path: Path, *, field: str = "json") -> None:
    write_text(path, json_text(keys) + "\n", field=field)


def tell(keys: Any, path: Path | None) -> None:
    """Print figures as JSON. If `path` is not None, also create its folder and write them to it."""
    print(json_text(keys))
    if path is not None:
        make_folder(path.parent, field="json")
        save_json(keys, path)


def make_folder(folder: Path, *, field: str) -> None:
    """Create a folder; it may exist already. `InvalidRequest` about `field`: the folder cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(
            f"{field}: folder {str(folder)!r} cannot be made ({error.strerror}); choose another place"
        ) from None


def write_wav(path: Path, samples: NDArray[np.float32], sample_rate: int, *, field: str = "output") -> None:
    """Write a 16-bit WAV file; samples beyond ±1 are clipped. `InvalidRequest` if the file cannot be written."""
    import soundfile

    try:
        soundfile.write(str(path), samples.clip(-1, 1), sample_rate, subtype="PCM_16", format="WAV")
    except (soundfile.LibsndfileError, OSError) as error:
        raise InvalidRequest(f"{field}: {str(path)!r} cannot be written ({error}); choose another place") from None


def check_drawing(field: str = "plot") -> None:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingDependency(
            f"{field}: the picture needs matplotlib, which is not installed; pip install 'vivavoce[eval]'"
        ) from None


@contextmanager
def picture(path: Path, size: tuple[float, float], columns: int, *, field: str = "plot") -> Iterator[Sequence[Axes]]:
    """Yield the axes of plots side by side. When the block ends, save a PNG file. size: width and height in inches.

    `MissingDependency`: matplotlib is not installed. `InvalidRequest`: the file cannot be written.
    """
    check_drawing(field)
    from matplotlib.figure import Figure

    # Avoid pyplot, which keeps every figure in memory and may need a display.
    figure = Figure(figsize=size, layout="constrained")
    yield list(figure.subplots(1, columns))
    with explaining(field, str(path)):
        figure.savefig(path, format="png", dpi=120)
