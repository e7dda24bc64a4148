"""Replace the engines of a running server, one by one.

The new engine gets requests once it is ready, and the old engine ends when its own requests have ended. If both do not
fit on the device, the old engine ends first: new requests go to other engines of the fleet, or are refused.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

from vivavoce.engine_process.client import EngineClient
from vivavoce.engine_process.messages import EngineProcessSettings
from vivavoce.errors import InvalidRequest, OutOfMemory, VivavoceError
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce_fleet.engine_fleet import make_engines

log = logging.getLogger(__name__)

_REPLACED = "engine: another one has taken its place, and the speech was not finished in time; ask again"


@dataclass(frozen=True)
class Replacement:
    """How the engines of one model are replaced.

    engines: the model's engines by name; the dictionary is changed. drain_s: seconds in which an old engine may finish
    its requests; then another engine speaks those that have no audio yet. gap: whether a single engine may end before
    the new one starts if both do not fit; requests are refused meanwhile. of: see `make_engines`.
    """

    engines: dict[str, EngineClient]
    drain_s: float
    gap: bool = False
    of: str = ""

    async def replace(self, now: EngineProcessSettings, wanted: EngineProcessSettings) -> None:
        """Replace all engines, one by one; adapters that were added stay. now, wanted: the old and the new settings.

        VivavoceError: an engine was not replaced, and neither were the engines after it.
        """
        added = next(iter(self.engines.values())).added_adapters
        fresh, former = (make_engines(one._replace(adapters=added), self.of) for one in (wanted, now))
        for name, old in list(self.engines.items()):
            others = any(one.ready for one in self.engines.values() if one is not old)
            problem = "" if old.ready else "the old one does not answer"
            if old.ready and now.model.device == wanted.model.device:
                problem = await old.room_beside(wanted.model.memory_gb)
            if problem and old.ready and not (others or self.gap):
                raise OutOfMemory(
                    f"engine: two do not fit side by side ({problem}); make room for both, or send SIGUSR2, which ends "
                    "the old one first, with a gap"
                )
            if problem:
                await self._instead(name, old, fresh[name], former[name])
            else:
                await self._beside(name, old, fresh[name])
            fields = {"name": name or "engine", "process": fresh[name].process_id}
            log.info("engine replaced: %(name)s by process %(process)s", fields)

    async def _beside(self, name: str, old: EngineClient, new: EngineClient) -> None:
        try:
            await new.start()
            check_same_rate(old.about, new.about)
        except BaseException:
            await new.close()
            raise
        self.engines[name] = new
        await self._retire(old)

    async def _instead(self, name: str, old: EngineClient, new: EngineClient, former: EngineClient) -> None:
        about = old.about
        log.warning("engine changing: %(name)s ends before the new one starts", {"name": name or "engine"})
        self.engines[name] = new
        await self._retire(old)
        try:
            await new.start()
            check_same_rate(about, new.about)
        except VivavoceError:
            await new.close()
            self.engines[name] = former
            with suppress(VivavoceError):  # the client repeats a failed start
                await former.start(about)
            raise

    async def _retire(self, old: EngineClient) -> None:
        try:
            with suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(old.until_idle(), self.drain_s)
        finally:
            await old.close(_REPLACED)


def check_same_rate(old: ModelInfo, new: ModelInfo) -> None:
    """Raise InvalidRequest if the sample rate would change, because clients have been told the old rate."""
    if old.sample_rate != new.sample_rate:
        raise InvalidRequest(
            f"model.model: {new.name} has audio of {new.sample_rate} Hz, but {old.name}, which runs now, of "
            f"{old.sample_rate} Hz; restart the server with it"
        )
