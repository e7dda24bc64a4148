"""A backend over several models, each with engines of its own; each request goes to the model that it names."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from typing_extensions import Unpack

from vivavoce.checkpoint.folder import BACKBONE, YAML_OF, detect_generation, read_card
from vivavoce.checkpoint.known_models import parse_model, plain_name
from vivavoce.checkpoint.official_yaml import read_official_yaml
from vivavoce.checkpoint.settings import Section
from vivavoce.engine_process.client import RESTART_S, EngineClient
from vivavoce.engine_process.messages import EngineProcessSettings
from vivavoce.errors import EngineStopped, InvalidRequest, ModelNotFound, VivavoceError
from vivavoce.frontend.model_choice import model_folder
from vivavoce.frontend.speech import Recording, SpeechRequest
from vivavoce.frontend.speech_backend import (
    BackendStatistics,
    ModelInfo,
    SpeechStream,
    VoiceOptions,
)
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.server.settings import ModelSection
from vivavoce_fleet.devices import devices_of
from vivavoce_fleet.engine_fleet import EngineFleet, open_engines
from vivavoce_fleet.replacement import Replacement
from vivavoce_textnorm import NormalizedText

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two checks of which models are speaking."""
LOADING_S = 5.0
"""Seconds after which a request for a model that is being loaded may be sent again."""
FAILED_S = 30.0
"""Seconds after a failed load in which requests for the model are refused; the next request then loads it again."""


@dataclass(eq=False)
class ServedModel:
    """One model of a server.

    info: read from the model's folder, or told by its engines once they are loaded. open: returns engines, not started
    yet, with the given adapters besides those of the settings. engines: None if the model is not loaded completely.
    used_at: time of the last request or speech. failed_until: after a failed load, the time of the next try. adapters:
    those that were added before the model was unloaded. changing: its engines are being replaced, so do not unload it.
    """

    info: ModelInfo
    open: Callable[[tuple[tuple[str, str], ...]], EngineFleet]
    on_demand: bool = False
    engines: EngineFleet | None = None
    loading: asyncio.Task[None] | None = None
    used_at: float = 0.0
    failed_until: float = 0.0
    adapters: tuple[tuple[str, str], ...] = ()
    changing: bool = False

    @property
    def is_held(self) -> bool:
        """Whether the model takes memory."""
        return self.engines is not None or self.loading is not None

    @property
    def streams(self) -> int:
        return sum(one.active for one in self.clients.values())

    @property
    def clients(self) -> Mapping[str, EngineClient]:
        """The model's engines by their names, which begin with the model's; empty if it is not in memory."""
        return {} if self.engines is None else self.engines.engines


@dataclass(frozen=True)
class Limits:
    """max_loaded: most models in memory. unload_after_s: idle seconds after which a model may be unloaded for another.
    wait_s: longest wait in seconds for a model. keep_idle_s: idle seconds after which a model is unloaded; None: never.
    """

    max_loaded: int | None = None
    unload_after_s: float = 60.0
    wait_s: float = 30.0
    keep_idle_s: float | None = None


class ModelRouter:
    """The `SpeechBackend` of several models; used in one event loop.

    The default model, the first one, stays in memory and keeps the voices. A model that needs other features of a voice
    extracts them from the voice's recording. A model that ends is restarted, without an effect on the others.
    """

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits = Limits()) -> None:
        """models: by name, the default one first."""
        self._models, self._limits = models, limits
        self._default = next(iter(models.values()))
        self._default.engines = self._default.open(())
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        """Tasks that close the engines of unloaded models, until these have freed their memory."""
        self._now = asyncio.get_running_loop().time

    async def start(self) -> None:
        """Wait until the default model is ready, then begin to load the models that are not on demand.

        VivavoceError: the default model cannot be loaded.
        """
        await _opened(self._default).start()
        for model in self._models.values():
            if not model.on_demand and not model.is_held:
                self._load(model)
        if self._limits.max_loaded is not None or self._limits.keep_idle_s is not None:
            self._run(self._keep_looking())

    @property
    def engines(self) -> Mapping[str, EngineClient]:
        """The engines of all models in memory, by their names, which begin with the model's name."""
        return {name: one for model in self._models.values() for name, one in model.clients.items()}

    @property
    def about(self) -> ModelInfo:
        others = tuple(one.info for one in self._models.values() if one is not self._default)
        return replace(_opened(self._default).about, others=others)

    @property
    def ready(self) -> bool:
        return _opened(self._default).ready

    @property
    def stuck(self) -> bool:
        return _opened(self._default).stuck

    @property
    def voice_store(self) -> str:
        return _opened(self._default).voice_store

    async def speak(self, request: SpeechRequest) -> SpeechStream:
        return await (await self.backend_of(request.model)).speak(request)

    async def normalize(self, request: SpeechRequest) -> NormalizedText:
        return await (await self.backend_of(request.model)).normalize(request)

    async def voices(self, owner: str) -> list[VoiceSummary]:
        return await _opened(self._default).voices(owner)

    async def add_voice(
        self, owner: str, name: str, recording: Recording, **options: Unpack[VoiceOptions]
    ) -> VoiceSummary:
        return await _opened(self._default).add_voice(owner, name, recording, **options)

    async def remove_voice(self, owner: str, name: str) -> None:
        await _opened(self._default).remove_voice(owner, name)

    async def statistics(self) -> BackendStatistics | None:
        """Always None, because each engine has statistics of its own."""
        return None

    def settle(self, settings: Sequence[EngineProcessSettings]) -> None:
        """Use these settings, which are in the models' order, whenever the engines of a model are opened."""
        for (name, model), own in zip(self._models.items(), settings, strict=True):
            model.open = partial(open_engines, own, name)

    async def replace(
        self, now: Sequence[EngineProcessSettings], wanted: Sequence[EngineProcessSettings], drain_s: float, gap: bool
    ) -> None:
        """Replace the engines of the models in memory, one by one; other models get the settings when loaded.

        now, wanted: the settings of each model, in the models' order; drain_s, gap and errors as in `Replacement`.
        """
        for (name, model), old, new in zip(self._models.items(), now, wanted, strict=True):
            if model.loading is not None:
                await asyncio.wait((model.loading,))
            if model.engines is not None:
                model.changing = True
                try:
                    await Replacement(model.engines.engines, drain_s, gap, name).replace(old, new)
                finally:
                    model.changing = False
                model.info = model.engines.about
        self.settle(wanted)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # a load that is cancelled closes its engines
        closing = (one.engines.close() for one in self._models.values() if one.engines is not None)
        await asyncio.gather(*self._leaving, *closing)

    async def backend_of(self, model: str) -> EngineFleet:
        """Wait until a model is loaded, and return its engines. model: a name; "" for the default model.

        ModelNotFound: unknown name. EngineStopped: the model is still loading after `wait_s`, failed, or has no room.
        """
        found = self._models.get(model) if model else self._default
        if found is None:
            raise ModelNotFound(f"model: {model[:80]!r} is not served here; use one of {', '.join(self._models)}")
        until = self._now() + self._limits.wait_s
        while found.engines is None:
            loading = self._load(found)
            await asyncio.wait((loading,), timeout=max(0.0, until - self._now()))
            if not loading.done():
                raise _away(f"{found.info.name} is still being loaded", LOADING_S)
            if found.engines is None:
                self._check_failure(found)
                loading.result()  # raises CancelledError if the server is closing
        found.used_at = self._now()
        return found.engines

    def _load(self, model: ServedModel) -> asyncio.Task[None]:
        """Begin to load a model, unless it is being loaded. EngineStopped: the last load failed, or no room is left."""
        if model.loading is None:
            self._check_failure(model)
            self._make_room(model)
            model.loading = self._run(self._loaded(model))
        return model.loading

    def _check_failure(self, model: ServedModel) -> None:
        """Raise EngineStopped if the last load failed and it is too early for another try."""
        if (wait_s := math.ceil(model.failed_until - self._now())) > 0:
            others = ", ".join(one.info.name for one in self._models.values() if one.engines is not None)
            raise _away(f"{model.info.name} cannot be loaded, as the server's log says", wait_s, others)

    async def _loaded(self, model: ServedModel) -> None:
        engines: EngineFleet | None = None
        try:
            if self._leaving:
                await asyncio.wait(set(self._leaving))
            engines = model.open(model.adapters)
            await asyncio.wait_for(engines.start(), RESTART_S)
            model.engines, model.info, model.used_at = engines, engines.about, self._now()
        except (VivavoceError, TimeoutError, asyncio.TimeoutError) as error:
            model.failed_until = self._now() + FAILED_S
            problem = str(error) or f"it was not ready within {RESTART_S:g} s"
            log.error("engine not started: %(name)s: %(error)s", {"name": model.info.name, "error": problem})
        finally:
            model.loading = None
            if engines is not None and model.engines is None:
                await engines.close()

    def _make_room(self, model: ServedModel) -> None:
        """Unload another model if this one needs its room. EngineStopped: all models are in use."""
        held = [one for one in self._models.values() if one.is_held]
        most = self._limits.max_loaded
        if most is None or len(held) < most:
            return
        oldest = min(self._idle(), key=lambda one: one.used_at, default=None)
        wait_s = LOOK_S if oldest is None else oldest.used_at + self._limits.unload_after_s - self._now()
        if oldest is None or wait_s > 0:
            others = ", ".join(one.info.name for one in held)
            raise _away(f"{model.info.name} has no room beside {len(held)} others", math.ceil(wait_s), others)
        log.info("model unloaded: %(name)s, for %(other)s", {"name": oldest.info.name, "other": model.info.name})
        self._unload(oldest)

    def _idle(self) -> list[ServedModel]:
        """The models that may be unloaded, because they have no stream."""
        may_go = [one for one in self._models.values() if one.on_demand and one.engines is not None]
        return [one for one in may_go if not (one.streams or one.changing)]

    def _unload(self, model: ServedModel) -> None:
        engines = _opened(model)
        model.adapters, model.engines, model.info = engines.added_adapters, None, replace(model.info, loaded=False)
        task = asyncio.ensure_future(engines.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def look(self) -> None:
        """Note the time of use of all models that are speaking; unload models that were idle for `keep_idle_s`."""
        now, keep_s = self._now(), self._limits.keep_idle_s
        for model in self._models.values():
            if model.streams:
                model.used_at = now
        if keep_s is None:
            return
        for model in self._idle():
            if now - model.used_at >= keep_s:
                log.info(
                    "model unloaded: %(name)s, idle for %(seconds)g s", {"name": model.info.name, "seconds": keep_s}
                )
                self._unload(model)

    async def _keep_looking(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _away(problem: str, wait_s: float, others: str = "") -> EngineStopped:
    refusal = EngineStopped(f"model: {problem}; ask again in {wait_s:g} s{others and f', or take one of {others}'}")
    refusal.retry_after_s = wait_s
    return refusal


def _opened(model: ServedModel) -> EngineFleet:
    assert model.engines is not None
    return model.engines


def open_models(
    settings: EngineProcessSettings, further: Mapping[str, tuple[ModelSection, bool]], limits: Limits
) -> EngineFleet | ModelRouter:
    """Return a backend for the settings' model and further ones. further: name → section, whether it loads on demand.

    Nothing is started yet. Raises the errors of `model_folder`, `read_info` and `open_engines`, and InvalidRequest if
    two models have the same name.
    """
    if not further:
        return open_engines(settings)
    models: dict[str, ServedModel] = {}
    on_demand = [False, *(later for _, later in further.values())]
    for own, later in zip(settings_of_models(settings, [one for one, _ in further.values()]), on_demand, strict=True):
        info = _info_of(own.model)
        if plain_name(info.name) in map(plain_name, models):
            raise InvalidRequest(f"model: two models have the name {info.name}; give one another, as NAME=MODEL")
        models[info.name] = ServedModel(info, partial(open_engines, own, info.name), later)
    return ModelRouter(models, limits)


def settings_of_models(settings: EngineProcessSettings, further: Iterable[ModelSection]) -> list[EngineProcessSettings]:
    """Return the settings of each model's engines, the default model's first; `shared`: another model uses its GPU."""
    sections = [settings.model, *further]
    gpus = [gpus_of(section) for section in sections]
    shared = [any(own & other for other in (*gpus[:place], *gpus[place + 1 :])) for place, own in enumerate(gpus)]
    return [settings._replace(model=one, shared=some) for one, some in zip(sections, shared, strict=True)]


def gpus_of(section: ModelSection) -> set[str]:
    """Return the GPUs of a model's engines; "auto" and "cuda" count as "cuda:0"."""
    devices = devices_of(section.gpus, section.engines, section.device)
    return {"cuda:0" if device in ("auto", "cuda") else device for device in devices} - {"cpu"}


def _info_of(section: ModelSection) -> ModelInfo:
    written = parse_model(section.model or "mini")
    written.check_file()
    return read_info(model_folder(written.model), written.name)


def read_info(folder: Path, name: str) -> ModelInfo:
    """Describe a model folder without loading the model. Raises CheckpointError if a file that it reads is missing."""
    generation = detect_generation(folder)
    yaml = YAML_OF[generation]
    rate = Section(yaml, read_official_yaml(folder / yaml)).integer("sample_rate")
    marks = TextTokenizer.from_folder(folder / BACKBONE).marks
    return replace(ModelInfo.described(read_card(folder), generation.value, rate, marks, name), loaded=False)
