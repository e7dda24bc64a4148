"""Several engines load an adapter all, or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from vivavoce.engine.adapters import AdapterInfo
from vivavoce.engine_process.client import EngineClient
from vivavoce.errors import EngineStopped, Overloaded
from vivavoce_fleet.engine_fleet import EngineFleet


@dataclass
class Holder:
    """An engine that holds names; it refuses further ones when it is full."""

    ready: bool = True
    full: bool = False
    held: list[str] = field(default_factory=list)

    async def add_adapter(self, name: str, folder: str) -> AdapterInfo:
        if self.full:
            raise Overloaded("adapter: all places are taken")
        self.held.append(name)
        return AdapterInfo(name, 4, (), 0)

    async def remove_adapter(self, name: str) -> None:
        self.held.remove(name)


def fleet(*engines: Holder) -> EngineFleet:
    return EngineFleet({str(place): cast(EngineClient, one) for place, one in enumerate(engines)})


async def test_all_engines_load_and_forget_an_adapter() -> None:
    engines = Holder(), Holder()
    assert (await fleet(*engines).add_adapter("brand", "folder")).name == "brand"
    assert [one.held for one in engines] == [["brand"], ["brand"]]
    await fleet(*engines).remove_adapter("brand")
    assert [one.held for one in engines] == [[], []]


async def test_none_keeps_what_another_refuses() -> None:
    engines = Holder(), Holder(full=True)
    with pytest.raises(Overloaded):
        await fleet(*engines).add_adapter("brand", "folder")
    assert [one.held for one in engines] == [[], []]


async def test_engines_that_start_are_waited_for() -> None:
    engines = Holder(), Holder(ready=False)
    with pytest.raises(EngineStopped, match="not all of them are ready to change adapters"):
        await fleet(*engines).add_adapter("brand", "folder")
    assert engines[0].held == []
