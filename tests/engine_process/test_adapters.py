"""Adapters of an engine's process: loaded at its start and while it runs, and there again when it is started again."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.adapters import write_adapter
from tests.engine_process.test_engine_host import order, recording, settings_for, spoken, started, until_ready
from vivavoce.engine_process.client import EngineClient
from vivavoce.errors import AdapterNotFound, EngineStopped
from vivavoce.models.build import Models

pytestmark = pytest.mark.process


async def names(host: EngineClient) -> list[str]:
    return [one.name for one in await host.adapters()]


async def test_adapters_live_as_long_as_their_server(babble: Path, models: Models, tmp_path: Path) -> None:
    for seed, name in enumerate(("first", "later", "lost")):
        write_adapter(tmp_path / name, models.lm, seed=seed)
    settings = settings_for(babble, tmp_path / "voices")
    own = {"adapters": {"first": tmp_path / "first"}, "adapters_dir": tmp_path}
    async with started(settings._replace(model=settings.model.model_copy(update=own))) as host:
        await host.add_voice("", "anna", recording())
        await host.add_voice("", "brand", recording(), adapter="later")
        for name in ("later", "lost"):
            await host.add_adapter(name, str(tmp_path / name))
        assert await names(host) == ["first", "later", "lost"]
        plain, adapted = [(await spoken(host, order(adapter=name)))[0] for name in (None, "later")]
        assert not np.array_equal(plain[: len(adapted)], adapted[: len(plain)])
        bound = (await spoken(host, order(voice="brand")))[0]
        assert np.array_equal(bound, adapted)
        assert np.array_equal((await spoken(host, order(voice="brand", adapter="none")))[0], plain)
        with pytest.raises(AdapterNotFound, match="loaded: first, later, lost"):
            await host.speak(order(adapter="other"))
        await host.remove_adapter("first")
        shutil.rmtree(tmp_path / "lost")
        os.kill(host.process_id or 0, signal.SIGKILL)
        while host.ready:
            with pytest.raises(EngineStopped):
                await spoken(host, order(text="One two three. " * 40))
        await until_ready(host)
        assert await names(host) == ["later"]
        assert np.array_equal((await spoken(host, order(adapter="later")))[0], adapted)
