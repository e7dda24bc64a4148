"""Several models behind one backend: which are in memory, and what a request for another one gets."""

from __future__ import annotations

import asyncio
from typing import cast

import numpy as np
import pytest

from tests.fleet.test_engine_fleet import steps
from tests.server.fake_backend import FakeStream
from tests.server.fake_models import FakeEngines, routed
from vivavoce.engine.request import AudioChunk
from vivavoce.engine_process.messages import EngineProcessSettings
from vivavoce.errors import CheckpointError, EngineStopped, InvalidRequest, ModelNotFound
from vivavoce.frontend.speech import SpeechRequest
from vivavoce.frontend.speech_backend import backend_of
from vivavoce.server.settings import ModelSection
from vivavoce_fleet import model_router
from vivavoce_fleet.engine_fleet import EngineFleet
from vivavoce_fleet.model_router import Limits, ModelRouter, open_models, settings_of_models
from vivavoce_fleet.replacement import Replacement

SOON_S = 0.05


def order(model: str = "", text: str = "Hello.") -> SpeechRequest:
    return SpeechRequest(text, model=model)


async def heard(router: ModelRouter, model: str = "") -> np.ndarray:
    return np.concatenate(
        [event.samples async for event in await router.speak(order(model)) if isinstance(event, AudioChunk)]
    )


def loaded(router: ModelRouter) -> set[str]:
    return {one.name for one in router.about.others if one.loaded}


async def test_the_default_is_ready_first_and_the_others_are_loaded_behind_it() -> None:
    default, kept, lazy = FakeEngines(), FakeEngines(name="kept"), FakeEngines(name="lazy", on_demand=True)
    kept.loads.clear()
    router = routed(default, kept, lazy)
    await router.start()
    await steps()
    assert (router.ready, [one.started for one in (default, kept, lazy)]) == (True, [1, 1, 0])
    assert [one.name for one in router.about.others] == ["kept", "lazy"]
    assert set(router.engines) == {"fake"}
    for model in ("", "fake"):
        assert len(await heard(router, model))
    kept.loads.set()
    assert len(await heard(router, "kept"))
    assert set(router.engines) == {"fake", "kept"}
    assert [len(one.orders) for one in (default, kept, lazy)] == [2, 1, 0]
    await router.close()
    assert [one.closed for one in (default, kept, lazy)] == [1, 1, 0]


async def test_a_default_that_cannot_be_loaded_ends_the_start() -> None:
    router = routed(FakeEngines(failure=CheckpointError("model: llm.pt is corrupt")), FakeEngines(name="other"))
    with pytest.raises(CheckpointError, match="corrupt"):
        await router.start()
    await router.close()


async def test_requests_for_a_model_on_demand_share_one_load() -> None:
    lazy = FakeEngines(name="lazy", on_demand=True)
    lazy.loads.clear()
    router = routed(FakeEngines(), lazy)
    await router.start()
    asking = [asyncio.ensure_future(heard(router, "lazy")) for _ in range(3)]
    await steps()
    asking[0].cancel()  # who leaves ends the load for nobody
    lazy.loads.set()
    for audio in await asyncio.gather(*asking[1:]):
        assert len(audio)
    assert lazy.started == 1
    with pytest.raises(ModelNotFound, match=r"'nobody' is not served here; use one of fake, lazy$"):
        await router.speak(order("nobody"))
    await router.close()


async def test_a_load_that_takes_too_long_goes_on_without_its_request() -> None:
    lazy = FakeEngines(name="lazy", on_demand=True)
    lazy.loads.clear()
    router = routed(FakeEngines(), lazy, wait_s=SOON_S)
    await router.start()
    with pytest.raises(EngineStopped, match="lazy is still being loaded; ask again in 5 s") as refusal:
        await router.speak(order("lazy"))
    assert refusal.value.retry_after_s == 5
    assert len(await heard(router)), "the default model goes on"
    lazy.loads.set()
    assert len(await heard(router, "lazy"))
    assert lazy.started == 1
    await router.close()


async def test_a_load_that_fails_is_told_and_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lazy = FakeEngines(name="lazy", on_demand=True, failure=CheckpointError("model: /secret/llm.pt is corrupt"))
    router = routed(FakeEngines(), lazy)
    await router.start()
    for _ in range(2):
        with pytest.raises(EngineStopped, match=r"lazy cannot be loaded, .*; ask again in 30 s, or take one of fake$"):
            await router.speak(order("lazy"))
    assert (lazy.started, lazy.closed) == (1, 1)
    assert "engine not started: lazy: model: /secret/llm.pt is corrupt" in caplog.messages
    assert len(await heard(router))
    lazy.failure = None
    monkeypatch.setattr(router._models["lazy"], "failed_until", 0.0)
    assert len(await heard(router, "lazy"))
    await router.close()


async def test_a_load_without_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_router, "RESTART_S", SOON_S)
    lazy = FakeEngines(name="lazy", on_demand=True)
    lazy.loads.clear()
    router = routed(FakeEngines(), lazy)
    await router.start()
    with pytest.raises(EngineStopped, match="lazy cannot be loaded"):
        await router.speak(order("lazy"))
    assert (lazy.closed, router._models["lazy"].is_held) == (1, False)
    assert "engine not started: lazy: it was not ready within 0.05 s" in caplog.messages
    await router.close()


async def test_beyond_the_limit_the_model_that_is_idle_for_longest_makes_room() -> None:
    lazy = [FakeEngines(name=name, on_demand=True) for name in "abc"]
    kept = FakeEngines(name="kept")
    router = routed(FakeEngines(), kept, *lazy, max_loaded=4, unload_after_s=0)
    await router.start()
    for name in "aba":
        await heard(router, name)
    assert loaded(router) == {"kept", "a", "b"}
    await heard(router, "c")
    assert loaded(router) == {"kept", "a", "c"}
    assert ([one.closed for one in lazy], kept.closed) == ([0, 1, 0], 0)
    await heard(router, "b")
    assert loaded(router) == {"kept", "b", "c"}
    assert lazy[1].started == 2
    await router.close()


async def test_a_model_that_speaks_or_spoke_just_now_is_not_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_router, "LOOK_S", 0.01)
    gate = asyncio.Event()
    busy, other = FakeEngines(name="busy", on_demand=True, gate=gate), FakeEngines(name="other", on_demand=True)
    router = routed(FakeEngines(), busy, other, max_loaded=2, unload_after_s=0.2)
    await router.start()
    stream = cast(FakeStream, await router.speak(order("busy")))
    await asyncio.sleep(0.3)
    with pytest.raises(EngineStopped, match=r"other has no room beside 2 others; .* take one of fake, busy") as refusal:
        await router.speak(order("other"))
    assert refusal.value.retry_after_s == 1
    gate.set()
    assert [event async for event in stream]
    with pytest.raises(EngineStopped, match="no room"):  # it spoke until now
        await router.speak(order("other"))
    await asyncio.sleep(0.25)
    await heard(router, "other")
    assert (busy.closed, loaded(router)) == (1, {"other"})
    await router.close()


async def test_who_waits_for_a_load_is_told_when_the_server_closes() -> None:
    lazy = FakeEngines(name="lazy", on_demand=True)
    lazy.loads.clear()
    router = routed(FakeEngines(), lazy)
    await router.start()
    waiting = asyncio.ensure_future(router.speak(order("lazy")))
    await steps()
    await router.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (lazy.started, lazy.closed) == (1, 1)


async def test_names_and_files_are_checked_before_anything_is_loaded() -> None:
    def opened(default: str | None, **further: str) -> ModelRouter:
        sections = {name: (ModelSection(model=f"{name}={one}"), True) for name, one in further.items()}
        router = open_models(EngineProcessSettings(ModelSection(model=default)), sections, Limits())
        assert isinstance(router, ModelRouter)
        return router

    router = opened("mini", second="mini")
    (second,) = [one.info for one in router._models.values() if one.on_demand]
    assert (second.name, second.sample_rate, second.generation, second.loaded) == ("second", 24_000, "v2", False)
    assert "[laughter]" in second.marks
    with pytest.raises(InvalidRequest, match="two models have the name Mini; give one another, as NAME=MODEL"):
        opened(None, Mini="mini")
    with pytest.raises(ModelNotFound, match="nowhere"):
        opened(None, other="nowhere")
    with pytest.raises(CheckpointError, match=r"absent\.pt is not a file"):
        opened(None, other="mini+/absent.pt")


async def test_engines_on_one_gpu_know_of_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: dict[str, bool] = {}

    def note(settings: EngineProcessSettings, name: str, adapters: object = ()) -> FakeEngines:
        shared[name] = settings.shared
        return FakeEngines(name=name)

    monkeypatch.setattr(model_router, "open_engines", note)
    monkeypatch.setattr("vivavoce_fleet.devices.count_gpus", lambda: 4)
    for devices, wanted in {
        ("cpu", "cpu"): (False, False),
        ("auto", "cuda:1"): (False, False),
        ("auto", "cuda"): (True, True),
        ("0,2", "cuda:2"): (True, True),
    }.items():
        sections = [
            ModelSection(model=f"m{place}=mini", **({"gpus": one} if one[0].isdigit() else {"device": one}))  # type: ignore[arg-type]
            for place, one in enumerate(devices)
        ]
        router = open_models(EngineProcessSettings(sections[0]), {"m1": (sections[1], False)}, Limits())
        assert isinstance(router, ModelRouter)
        for model in router._models.values():
            model.open(())
        assert (shared["m0"], shared["m1"]) == wanted, devices


def test_models_that_share_a_gpu_are_told_so() -> None:
    base = EngineProcessSettings(model=ModelSection(device="cuda"))
    further = [ModelSection(device="cuda:1"), ModelSection(device="cuda:0"), ModelSection(device="cpu")]
    found = settings_of_models(base, further)
    assert [(one.model.device, one.shared) for one in found] == [
        ("cuda", True),
        ("cuda:1", False),
        ("cuda:0", True),
        ("cpu", False),
    ]


async def test_new_settings_reach_models_in_memory_and_those_that_are_loaded_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced: list[tuple[object, ...]] = []
    opened: list[tuple[object, ...]] = []

    class Recorded(Replacement):
        async def replace(self, now: EngineProcessSettings, wanted: EngineProcessSettings) -> None:
            replaced.append((list(self.engines), self.of, self.drain_s, self.gap, now, wanted))

    lazy = FakeEngines(name="lazy", on_demand=True)

    def opening(settings: EngineProcessSettings, of: str, _: object) -> EngineFleet:
        opened.append((settings, of))
        return cast(EngineFleet, lazy)

    monkeypatch.setattr(model_router, "Replacement", Recorded)
    monkeypatch.setattr(model_router, "open_engines", opening)
    router = routed(FakeEngines(), lazy)
    await router.start()
    now, wanted = (
        [EngineProcessSettings(model=ModelSection(dtype=dtype, model=name)) for name in ("mini", "lazy")]
        for dtype in ("float32", "bfloat16")
    )
    await router.replace(now, wanted, 7.0, True)
    assert replaced == [(["fake"], "fake", 7.0, True, now[0], wanted[0])]
    assert len(await heard(router, "lazy"))
    assert opened == [(wanted[1], "lazy")]
    await router.close()


class Clock:
    """A time that tests move."""

    def __init__(self) -> None:
        self.at_s = 1_000.0

    def __call__(self) -> float:
        return self.at_s


async def test_a_model_on_demand_that_is_idle_for_too_long_is_unloaded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gate, clock = asyncio.Event(), Clock()
    lazy, kept = FakeEngines(name="lazy", on_demand=True, gate=gate), FakeEngines(name="kept")
    router = routed(FakeEngines(), lazy, kept, keep_idle_s=60.0)
    router._now = clock
    await router.start()
    await steps()
    stream = cast(FakeStream, await router.speak(order("lazy")))
    for _ in range(3):  # as long as it speaks it is in use
        clock.at_s += 59.0
        router.look()
    gate.set()
    assert [event async for event in stream]
    clock.at_s += 59.0
    router.look()
    assert loaded(router) == {"lazy", "kept"}
    clock.at_s += 1.0
    router.look()
    await steps()
    assert (loaded(router), lazy.closed, kept.closed) == ({"kept"}, 1, 0)
    assert "model unloaded: lazy, idle for 60 s" in caplog.messages
    assert len(await heard(router, "lazy")), "it is loaded again for the next request"
    assert lazy.started == 2
    await router.close()


async def test_a_model_whose_engines_are_being_replaced_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lazy, starts = Clock(), FakeEngines(name="lazy", on_demand=True), asyncio.Event()

    class Slow(Replacement):
        async def replace(self, *_: EngineProcessSettings) -> None:
            await (starts.wait() if self.of == "lazy" else asyncio.sleep(0))

    monkeypatch.setattr(model_router, "Replacement", Slow)
    router = routed(FakeEngines(), lazy, keep_idle_s=1.0)
    router._now = clock
    await router.start()
    await heard(router, "lazy")
    replacing = asyncio.ensure_future(
        router.replace([EngineProcessSettings()] * 2, [EngineProcessSettings()] * 2, 1.0, True)
    )
    await steps()
    clock.at_s += 2.0
    router.look()
    assert loaded(router) == {"lazy"}
    starts.set()
    await replacing
    router.look()
    assert loaded(router) == set()
    await router.close()


async def test_without_the_setting_an_idle_model_stays() -> None:
    clock, lazy = Clock(), FakeEngines(name="lazy", on_demand=True)
    router = routed(FakeEngines(), lazy)
    router._now = clock
    await router.start()
    await heard(router, "lazy")
    clock.at_s += 1e6
    router.look()
    assert loaded(router) == {"lazy"}
    await router.close()


async def test_a_model_comes_back_with_its_adapters_once_its_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, freed = Clock(), asyncio.Event()
    lazy = FakeEngines(name="lazy", on_demand=True)
    monkeypatch.setattr(lazy, "close", freed.wait)
    router = routed(FakeEngines(), lazy, keep_idle_s=1.0)
    router._now = clock
    await router.start()
    await heard(router, "lazy")
    lazy.added_adapters = (("news", "/srv/news"),)
    clock.at_s += 1.0
    router.look()
    asking = asyncio.ensure_future(heard(router, "lazy"))
    await steps()
    assert (lazy.started, asking.done()) == (1, False)
    freed.set()
    assert len(await asking)
    assert lazy.opened_with == [(), (("news", "/srv/news"),)]
    await router.close()


async def test_each_model_has_a_backend_of_its_own() -> None:
    default, other = FakeEngines(), FakeEngines(name="other", on_demand=True)
    router = routed(default, other)
    await router.start()
    assert await backend_of(router, "") is default
    assert await backend_of(router, "other") is other
    assert await backend_of(default, "other") is default
    with pytest.raises(ModelNotFound, match="'nobody' is not served here"):
        await backend_of(router, "nobody")
    await router.close()
