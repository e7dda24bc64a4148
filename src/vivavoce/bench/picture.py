"""A load as one picture: the wait for first audio, what was left to play, and when the chunks came."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.bench.outcome import Ending, Outcome, those
from vivavoce.bench.playback import play
from vivavoce.errors import InvalidRequest, MissingDependency

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MS = 1000.0
_FAINT = 0.35
"""Opacity of one request's line among many."""


def check_drawing() -> None:
    """`MissingDependency` if there is nothing to draw with."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingDependency(
            "plot: the picture needs matplotlib, which is not installed; pip install 'vivavoce[eval]'"
        ) from None


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw a PNG file.

    Raises:
        MissingDependency: matplotlib is not installed.
        InvalidRequest: the place cannot be written.
    """
    check_drawing()
    from matplotlib.figure import Figure

    # A figure of its own and not pyplot's, which keeps all figures and may want a display.
    figure = Figure(figsize=(16.0, 4.6), layout="constrained")
    first, margins, timeline = figure.subplots(1, 3)
    ok = those(outcomes, Ending.OK)
    _draw_first_audio(first, ok)
    _draw_margins(margins, ok)
    _draw_timeline(timeline, outcomes)
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise InvalidRequest(
            f"plot: {str(path)!r} cannot be written ({error.strerror}); choose another place"
        ) from None


def _draw_first_audio(axes: Axes, ok: Sequence[Outcome]) -> None:
    waits = sorted(outcome.ttfb_s * _MS for outcome in ok)
    shares = [(place + 1) / len(waits) for place in range(len(waits))]
    axes.step([*waits[:1], *waits], [0.0, *shares] if waits else [], where="post")
    axes.set_title("First audio")
    axes.set_xlabel("ms after the call")
    axes.set_ylabel("share of requests")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=_FAINT)


def _draw_margins(axes: Axes, ok: Sequence[Outcome]) -> None:
    late: tuple[list[float], list[float]] = [], []
    for outcome in ok:
        times = [(arrival.at_s - outcome.arrivals[0].at_s) for arrival in outcome.arrivals[1:]]
        margins = [margin * _MS for margin in play(outcome.arrivals, outcome.sample_rate).margins_s]
        axes.plot(times, margins, marker=".", markersize=3, linewidth=0.8, alpha=_FAINT, color="tab:blue")
        for time, margin in zip(times, margins, strict=True):
            if margin < 0:
                late[0].append(time)
                late[1].append(margin)
    if late[0]:
        axes.scatter(*late, s=14, color="tab:red", label="underruns", zorder=3)
        axes.legend(fontsize="small")
    axes.axhline(0, color="tab:red", linewidth=0.8)
    axes.set_title("Left to play when a chunk comes")
    axes.set_xlabel("s after the first audio")
    axes.set_ylabel("ms")


def _draw_timeline(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    from matplotlib.ticker import MaxNLocator

    colours = {Ending.OK: "tab:blue", Ending.REFUSED: "tab:orange", Ending.FAILED: "tab:red"}
    begin_s = min((outcome.start_s for outcome in outcomes), default=0.0)
    for place, outcome in enumerate(outcomes):
        spans = [outcome.start_s - begin_s, outcome.end_s - begin_s]
        axes.plot(spans, [place, place], color=colours[outcome.ending], linewidth=0.8, alpha=_FAINT)
        times = [arrival.at_s - begin_s for arrival in outcome.arrivals]
        axes.scatter(times, [place] * len(times), s=5, color=colours[outcome.ending])
        if not outcome.arrivals:
            axes.scatter(spans[:1], [place], s=14, marker="x", color=colours[outcome.ending])
    axes.set_title("Chunks of each request")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("s after the first call")
    axes.set_ylabel("request")
