"""Several models without an engine: a router over fake engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

from tests.server.fake_backend import FakeBackend
from vivavoce.errors import VivavoceError
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce_fleet.engine_fleet import EngineFleet
from vivavoce_fleet.model_router import Limits, ModelRouter, ServedModel


@dataclass
class FakeEngines(FakeBackend):
    """The engines of one model; on_demand: it is loaded when a request names it; failure: of its next load."""

    name: str = "fake"
    on_demand: bool = False
    instructions: bool = True
    failure: VivavoceError | None = None
    loads: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: a load ends at once."""
    started: int = 0
    closed: int = 0
    added_adapters: tuple[tuple[str, str], ...] = ()
    opened_with: list[tuple[tuple[str, str], ...]] = field(default_factory=list)
    """The adapters of each load."""

    def __post_init__(self) -> None:
        self.loads.set()

    @property
    def about(self) -> ModelInfo:
        return ModelInfo(self.name, "a tone", self.rate, demo=True, instructions=self.instructions, languages=("en",))

    @property
    def engines(self) -> dict[str, FakeEngines]:  # type: ignore[override]
        return {self.name: self}

    @property
    def active(self) -> int:
        return len([one for one in self.streams if one.verdict is None and not one.cancelled.is_set()])

    async def start(self) -> None:
        self.started += 1
        await self.loads.wait()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        self.closed += 1


def routed(*engines: FakeEngines, **limits: float) -> ModelRouter:
    """A router over these models, not started; to be made in its event loop."""

    def opening(one: FakeEngines) -> Callable[[tuple[tuple[str, str], ...]], EngineFleet]:
        def opened(adapters: tuple[tuple[str, str], ...]) -> EngineFleet:
            one.opened_with.append(adapters)
            return cast(EngineFleet, one)

        return opened

    models = {one.name: ServedModel(replace(one.about, loaded=False), opening(one), one.on_demand) for one in engines}
    return ModelRouter(models, Limits(**limits))  # type: ignore[arg-type]
