"""`python -m tests.soak.upgrade`: the engine of a `vivavoce serve` is replaced while listeners hear it.

Each listener asks again as soon as its text was spoken. Some time later the server gets SIGUSR2, and when its new
engine has taken over, all hear their last text to its end. A request is lost if it is refused, cut, or has less audio
than the same request alone. A gap is a piece of audio that comes after its listener has played all before it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.server.http.serve_process import ServerProcess, serving_process
from vivavoce_bench.random_checkpoint import make_babble_checkpoint

TEXT = "One two three four five six seven eight. " * 3
BYTES_PER_S = 48_000
SHORTEST_GAP_S = 0.05
"""Of what is counted: shorter ones are within what a player buffers."""
PATIENCE_S = 600.0
TINY = {"sampling": {"max_ratio": 2.0, "min_ratio": 2.0}}
"""Random weights do not end by themselves."""
PHASES = ("before", "during", "after")


@dataclass(frozen=True)
class UpgradePlan:
    """model: a name or folder, or "tiny", random weights; seconds: before and after the replacement; request: fields of
    each request beside text and format; flags, variables: of the server."""

    model: str = "tiny"
    listeners: int = 64
    seconds: float = 5.0
    request: Mapping[str, object] = field(default_factory=lambda: TINY)
    flags: Sequence[str] = ("--device", "cpu", "--admission", "queue", "--drain", "600")
    variables: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Hearing:
    """One request as its listener heard it. phase: of its beginning; gaps_s: each pause in what was played."""

    phase: str
    first_s: float
    gaps_s: tuple[float, ...]
    audio: int
    problem: str = ""


@dataclass
class UpgradeReport:
    hearings: list[Hearing] = field(default_factory=list)
    alone: int = 0
    """Bytes of the same request alone."""
    start_s: float = 0.0
    """From the signal until the new engine was ready."""
    replaced_s: float = 0.0
    """From the signal until the old one had ended."""

    @property
    def lost(self) -> list[str]:
        short = (one for one in self.hearings if one.audio < self.alone)
        return [one.problem or f"{one.audio} bytes of {self.alone}" for one in short]

    @property
    def broken(self) -> list[str]:
        wrong = [f"lost: {problem}" for problem in self.lost]
        missing = [phase for phase in PHASES if not any(one.phase == phase for one in self.hearings)]
        return wrong + [f"nobody began to listen {phase} the replacement" for phase in missing]

    def __str__(self) -> str:
        lines = [
            f"{len(self.hearings)} requests, {len(self.lost)} lost; the new engine was ready after {self.start_s:.1f} "
            f"s, the old one had ended after {self.replaced_s:.1f} s",
            f"{'begun':<8}{'requests':>9}{'first audio p50':>17}{'max':>8}{'gaps':>6}{'longest':>9}",
        ]
        for phase in PHASES:
            own = [one for one in self.hearings if one.phase == phase]
            first = sorted(one.first_s for one in own) or [0.0]
            gaps = [gap for one in own for gap in one.gaps_s]
            lines.append(
                f"{phase:<8}{len(own):>9}{statistics.median(first):>15.2f} s{first[-1]:>6.2f} s{len(gaps):>6}"
                f"{max(gaps, default=0.0):>7.2f} s"
            )
        return "\n".join([*lines, *(self.broken or ["all kept"])])


class _Drill:
    def __init__(self, plan: UpgradePlan, server: ServerProcess) -> None:
        self._plan, self._server = plan, server
        self._phase, self._goes_on, self._report = PHASES[0], True, UpgradeReport()

    async def run(self) -> UpgradeReport:
        report, limits = self._report, httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=PATIENCE_S, limits=limits) as http:
            report.alone = (await self._hear(http)).audio
            listeners = [asyncio.ensure_future(self._listen(http)) for _ in range(self._plan.listeners)]
            await asyncio.sleep(self._plan.seconds)
            began, lines, self._phase = time.monotonic(), len(self._server.log.lines), PHASES[1]
            self._server.process.send_signal(signal.SIGUSR2)
            for event, name in (("engine ready", "start_s"), ("engine replaced", "replaced_s")):
                await asyncio.to_thread(self._server.log.await_event, event, lines)
                setattr(report, name, time.monotonic() - began)
            self._phase = PHASES[2]
            await asyncio.sleep(self._plan.seconds)
            self._goes_on = False
            await asyncio.gather(*listeners)
        return report

    async def _listen(self, http: httpx.AsyncClient) -> None:
        heard = Hearing("", 0.0, (), 0)
        while self._goes_on or heard.phase != PHASES[2]:  # all of them also hear the new engine
            heard = await self._hear(http)
            self._report.hearings.append(heard)

    async def _hear(self, http: httpx.AsyncClient) -> Hearing:
        body = {"input": TEXT, "response_format": "pcm", **self._plan.request}
        phase, began, audio, gaps = self._phase, time.monotonic(), 0, list[float]()
        first_s, problem = 0.0, ""
        try:
            async with http.stream("POST", "/v1/audio/speech", json=body) as answer:
                if answer.status_code != 200:
                    problem = f"status {answer.status_code}: {(await answer.aread())[:200]!r}"
                    return Hearing(phase, 0.0, (), 0, problem)
                async for piece in answer.aiter_raw():
                    now = time.monotonic() - began
                    first_s = first_s or now
                    late_s = now - (first_s + sum(gaps) + audio / BYTES_PER_S)
                    if audio and late_s > SHORTEST_GAP_S:
                        gaps.append(late_s)
                    audio += len(piece)
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__} after {audio} bytes: {error}"
        return Hearing(phase, first_s, tuple(gaps), audio, problem)


def drill(plan: UpgradePlan, folder: Path) -> UpgradeReport:
    """Start a server, have it heard, and replace its engine; `folder` takes model and voices."""
    model = make_babble_checkpoint(folder / "tiny") if plan.model == "tiny" else plan.model
    with serving_process(folder, "--model", model, *plan.flags, **plan.variables) as server:
        return asyncio.run(_Drill(plan, server).run())


def main() -> int:
    """Parse, run, print; 1 if a request was lost."""
    default = UpgradePlan()
    parser = argparse.ArgumentParser("python -m tests.soak.upgrade", description=__doc__)
    parser.add_argument("--model", default=default.model, help="name or folder; tiny: random weights  [default: tiny]")
    parser.add_argument("--listeners", type=int, default=default.listeners, help="who listen at once  [default: 64]")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="before and after  [default: 5]")
    parser.add_argument("--flags", default=" ".join(default.flags), help="of `vivavoce serve`")
    options = parser.parse_args()
    request = default.request if options.model == "tiny" else {}
    flags = tuple(options.flags.split())
    with tempfile.TemporaryDirectory() as folder:
        plan = UpgradePlan(options.model, options.listeners, options.seconds, request, flags)
        report = drill(plan, Path(folder))
    print(report)
    return 1 if report.broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
