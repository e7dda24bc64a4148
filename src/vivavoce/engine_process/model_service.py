"""The model with its engine, front end and voices, in the engine's process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace as changed
from functools import partial

import torch

from vivavoce.checkpoint.known_models import parse_model
from vivavoce.engine.adapters import AdapterInfo, check_adapter_name
from vivavoce.engine.backends import BACKEND_SETTINGS
from vivavoce.engine.engine import Engine
from vivavoce.engine.loop import STUCK_S
from vivavoce.engine.settings import EngineSettings, host_memory
from vivavoce.engine_process.bounded_executor import BoundedExecutor, Result
from vivavoce.engine_process.messages import EngineProcessSettings
from vivavoce.errors import InvalidRequest, Overloaded, TooLarge, VivavoceError, VoiceStoreAway
from vivavoce.frontend.audio.decoding_process import DecodingProcess
from vivavoce.frontend.audio.samples import MAX_REFERENCE_S
from vivavoce.frontend.front_end import FrontEnd
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.model_choice import choose_device, choose_dtype, count_text_processes, model_folder, share_device
from vivavoce.frontend.speech import Recording, SpeechRequest
from vivavoce.frontend.speech_backend import BackendStatistics, ModelInfo
from vivavoce.frontend.text_heads import know_heads
from vivavoce.frontend.voices.consent import Consent, check_consent
from vivavoce.frontend.voices.extract import kept_recording
from vivavoce.frontend.voices.names import NameRules, VoiceSummary
from vivavoce.frontend.voices.registry import ToBeExtractedError, VoiceRegistry
from vivavoce.frontend.voices.stores import Quota, open_voice_store
from vivavoce.frontend.voices.voice import Voice, built_in_voices
from vivavoce.logs import configure
from vivavoce.server.settings import EngineSection, LoggingSection, ModelSection, VoicesSection
from vivavoce_textnorm import MAX_BLOCK_CHARS, NO_WORDS, Lexicon, Lexicons, NormalizedText

log = logging.getLogger(__name__)

LARGEST_VOICE = 2 << 20
"""Approximate bytes of a stored voice of 30 s: its features for one or two models, and its recording."""
MIN_COMING = 64
"""The lower limit of `max_coming`, the most requests on their way to the engine, for engines with few slots."""
TEXT_THREADS, TEXT_S = 4, 20.0
"""The most short texts that are normalised at once, each in some tenths of a second; and the seconds that any text may
take until the engine has the text's first segment."""
STORE_THREADS, STORE_S = 4, 5.0
"""Number of operations of the voice store at once, and the limit in seconds for each."""
CHECK_S = 1.5
"""Limit in seconds for the voice store's health check."""
EXTRACTION_THREADS, RECORDINGS_WAITING, EXTRACTION_S = 2, 8, 30.0
"""Recordings that are extracted at once, recordings that may wait, and the limit in seconds for each, on a slow CPU."""
ADAPTERS_WAITING, ADAPTER_S = 4, 60.0
"""Adapters that may wait while another is loaded, and the limit in seconds for each, on a slow disk."""
NICENESS = 5
"""The niceness of threads that extract voices: they get a third of other threads' processor time. With much less time,
such a thread would block all other threads while it holds the interpreter's lock."""


class ModelService:
    """One model with its voices; see `SpeechBackend` for its methods. One event loop uses it.

    Each kind of blocking work has its own threads: a store that hangs, or many recordings, delay only their requests.
    """

    def __init__(
        self,
        engine: Engine,
        front_end: FrontEnd,
        registry: VoiceRegistry,
        max_recording_bytes: int,
        decoding: DecodingProcess,
        lexicons: Lexicons | None = None,
        name: str = "",
    ) -> None:
        """name: the model's name, instead of the name in its card."""
        self.engine, self.front_end = engine, front_end
        self.registry, self._lexicons, self._name = registry, lexicons, name
        self.max_coming = max(MIN_COMING, engine.memory.slots)
        self._max_recording_bytes, self._decoding = max_recording_bytes, decoding
        waiting, error = self.max_coming, partial(Overloaded, retry_after_s=1.0)
        recording_error = partial(Overloaded, retry_after_s=5.0)
        self._text = BoundedExecutor("text", TEXT_THREADS, waiting, TEXT_S, error)
        # These threads only wait for the text processes, which schedule all long texts.
        self._long_text = BoundedExecutor("text", waiting, 0, TEXT_S, error)
        self._store = BoundedExecutor("voice store", STORE_THREADS, waiting, STORE_S, VoiceStoreAway)
        self._store_check = BoundedExecutor("voice store", 1, 0, CHECK_S, VoiceStoreAway)
        self._adapters = BoundedExecutor("adapter", 1, ADAPTERS_WAITING, ADAPTER_S, recording_error)
        self._extraction = BoundedExecutor(
            "reference audio", EXTRACTION_THREADS, RECORDINGS_WAITING, EXTRACTION_S, recording_error, NICENESS
        )

    @property
    def about(self) -> ModelInfo:
        front_end, name = self.front_end, self._name
        generation, rate = front_end.config.generation.value, front_end.config.rates.sample_rate
        return ModelInfo.described(front_end.card, generation, rate, front_end.text.marks, name)

    @property
    def healthy(self) -> bool:
        return self.engine.healthy and self.engine.stuck_s < STUCK_S

    def moved_since(self, moment: float) -> bool:
        """Return whether texts and recordings both made progress since `moment`, in seconds of `time.monotonic`."""
        # Recordings may take long. They are stuck when every thread works on a recording that has timed out.
        return self._text.moved_since(moment) and self._extraction.moved_since(moment - EXTRACTION_S)

    async def check_store(self) -> str:
        if self._store.longest_s > CHECK_S:
            return "voice store: it does not answer"
        try:
            return await self._store_check.run(self.registry.state)
        except Exception as failure:
            return str(failure)

    async def read(self, text: str, work: Callable[[], Result]) -> Result:
        """Run `work`, which normalises this text, in a thread. Overloaded: too many texts wait, or it takes long."""
        return await (self._text if len(text) <= MAX_BLOCK_CHARS else self._long_text).run(work)

    async def normalize(self, request: SpeechRequest) -> NormalizedText:
        """Normalise the text of a request, without a voice if neither the request nor the model names one."""
        known = request.voice is not None or self.registry.rules.default is not None or self.registry.built_in
        voice = await self.voice(request.owner, request.voice) if known else None
        how = changed(request, lexicon=self.lexicon(request, voice)).natural
        explain, text = self.front_end.text.explain, request.text or ""
        return await self.read(text, lambda: explain(text, request.language, request.reading, how, request.reasoning))

    def lexicon(self, request: SpeechRequest, voice: Voice | None) -> Lexicon:
        """Return the pronunciations in the server's files and in the request; the request takes precedence."""
        name = "" if voice is None else voice.name
        known = NO_WORDS if self._lexicons is None else self._lexicons.of(request.owner, name)
        return Lexicon({**known, **request.lexicon}) if request.lexicon else known

    async def voice(self, owner: str, voice: str | Recording | None) -> Voice:
        """Find or extract a voice; built-in voices even if the store hangs. Raises like `VoiceRegistry.requested`."""
        if isinstance(voice, Recording):
            return await self._extracted(voice)
        if voice is None and self.registry.rules.default is None:
            return self.registry.requested(None, owner)
        find = partial(self.registry.requested, voice, owner, extract=False)
        try:
            return await self._store.run(find, self.registry.built_in_of(voice))
        except ToBeExtractedError:
            return await self._extraction.run(lambda: self._extract(voice, owner))

    async def voices(self, owner: str) -> list[VoiceSummary]:
        return await self._store.run(lambda: self.registry.summaries(owner))

    async def add_voice(
        self,
        owner: str,
        name: str,
        recording: Recording,
        description: str = "",
        replace: bool = False,
        consent: Consent | None = None,
        adapter: str = "",
    ) -> VoiceSummary:
        if self.registry.require_consent:
            check_consent(consent)
        if adapter:
            check_adapter_name(adapter)
        await self._store.run(lambda: self.registry.check_free(owner, name, replace=replace))
        voice = await self._extracted(recording)
        voice = changed(voice, name=name, description=description, consent=consent, adapter=adapter)
        if self.registry.keep_recordings:
            decode = partial(self._decoding.decode, recording.content, max_seconds=MAX_REFERENCE_S)
            kept = await self._extraction.run(lambda: kept_recording(recording.content, decode))
            voice = changed(voice, recording=kept)
        return await self._store.run(lambda: self.registry.add(owner, voice, replace=replace))

    async def remove_voice(self, owner: str, name: str) -> None:
        await self._store.run(lambda: self.registry.remove(owner, name))

    async def adapters(self) -> tuple[AdapterInfo, ...]:
        return self.engine.adapters

    async def add_adapter(self, name: str, folder: str) -> AdapterInfo:
        return await self._adapters.run(lambda: self.engine.load_adapter(name, folder))

    async def remove_adapter(self, name: str) -> None:
        self.engine.remove_adapter(name)

    async def statistics(self) -> BackendStatistics:
        def statistics() -> BackendStatistics:
            engine, recordings = self.engine, self.registry.recordings
            used, total = _memory(engine.models.device)
            return BackendStatistics(engine.statistics, used, total, recordings.computed, recordings.hits)

        return await self._text.run(statistics)

    async def reload(self, voices: VoicesSection, logging: LoggingSection, lexicons: Lexicons | None) -> None:
        """Apply the settings that may change while requests run, and ignore other changes."""
        configure(logging.format, logging.level, log_text=logging.log_text)
        self._lexicons = lexicons
        self.registry.require_consent, self.registry.keep_recordings = voices.require_consent, voices.keep_recordings
        self.registry.follow(NameRules(voices.aliases, voices.default, voices.unknown))
        with suppress(VivavoceError):  # the store hangs
            await self._store.run(self.registry.warn_of_missing)

    async def room_beside(self, memory_gb: float | None) -> str:
        """Return why a second engine with this `model.memory_gb` does not fit on the device, too; "" if it fits."""
        device, own = self.engine.models.device, self.engine.settings.memory_bytes
        used, total = await self._text.run(lambda: _memory(device))
        if device.type == "cuda":
            return missing_room(used / 1e9, total / 1e9, None if own is None else own / 1e9, memory_gb)
        return missing_room(used / 1e9, total / 1e9, used / 1e9, used / 1e9)

    def close(self) -> None:
        """Stop at once: the server has waited for its requests already."""
        self._decoding.close()
        self.engine.close(drain=False, timeout_s=5.0)
        self.front_end.text.close()
        self.registry.close()

    async def _extracted(self, recording: Recording) -> Voice:
        if len(recording.content) > self._max_recording_bytes:
            raise TooLarge(
                f"reference audio: {len(recording.content)} bytes are more than the limit of "
                f"{self._max_recording_bytes}; cut it, or store it as FLAC"
            )
        voice = await self._text.run(lambda: self.registry.remembered(recording))
        if voice is None:
            voice = await self._extraction.run(lambda: self._extract(recording, ""))
        return voice

    def _extract(self, voice: str | Recording | None, owner: str) -> Voice:
        self.engine.check_load(streaming=True)
        return self.registry.requested(voice, owner)


def open_model_service(settings: EngineProcessSettings) -> ModelService:
    """Load model and voices, and warm up; errors are as for `vivavoce.load`."""
    model, voices = settings.model, settings.voices
    device = choose_device(model.device)
    share_device(device, model.engines, bounded=model.memory_gb is not None)
    if settings.shared and device.type == "cuda" and model.memory_gb is None:
        raise InvalidRequest(
            "model.memory_gb: several models on one GPU would each take all of its memory; bound the memory of each, "
            "or give each a GPU of its own"
        )
    decoding = DecodingProcess()  # it starts while the model loads
    wanted = parse_model(model.model or "")
    wanted.check_file()
    folder = model_folder(wanted.model or None)
    engine, front_end = load_model(
        folder,
        (device,),
        choose_dtype(model.dtype, device, folder, wanted.llm),
        model.variant,
        engine_settings(model, settings.engine, settings.provenance.watermark),
        count_text_processes(model.text_processes, device),
        wanted.llm,
    )
    for name, place in settings.adapters:
        try:
            engine.load_adapter(name, place)
        except VivavoceError as error:  # its folder may have changed; start without this adapter
            log.error("adapter not loaded: %(name)s: %(error)s", {"name": name, "error": error})
    if model.warm_up_s:
        front_end.text.warm_up()
        engine.warm_up(model.warm_up_s)
        know_heads(engine, front_end)
    decoding.check()
    extractor = changed(front_end.extractor, decode=decoding.decode)
    registry = VoiceRegistry(
        extractor,
        open_voice_store(voices.place),
        built_in_voices(front_end.folder),
        lambda: extractor.fingerprint,
        recordings=voices.cache,
        stored=voices.cache,
        rules=NameRules(voices.aliases, voices.default, voices.unknown),
        quota=Quota(voices=voices.quota, total_bytes=voices.quota * LARGEST_VOICE),
        keep_recordings=voices.keep_recordings,
        require_consent=voices.require_consent,
    )
    registry.warn_of_missing()
    return ModelService(
        engine, front_end, registry, voices.max_recording_bytes, decoding, settings.lexicons, wanted.name
    )


def engine_settings(model: ModelSection, engine: EngineSection, watermark: bool = False) -> EngineSettings:
    return EngineSettings(
        memory_bytes=None if model.memory_gb is None else int(model.memory_gb * 1e9),
        state_bytes=None if model.state_gb is None else int(model.state_gb * 1e9),
        kernels=model.kernels,
        deterministic=model.deterministic,
        flow_steps=model.flow_steps,
        adapters=model.adapters,
        max_adapters=model.max_adapters if model.adapters or model.adapters_dir else 0,
        max_adapter_rank=model.max_adapter_rank,
        watermark=watermark,
        **{name: getattr(model, name) for name in BACKEND_SETTINGS},
        **dict(engine),
    )


def missing_room(used: float, total: float, own: float | None, wanted: float | None) -> str:
    """Return why a second engine does not fit on the device beside the running engine, or "" if it fits.

    used, total: GB that all programs use, and the device's GB. own, wanted: memory limits in GB of the running and of
    the second engine; None means no limit.
    """
    if own is None or wanted is None:
        return f"each takes all free memory of the device's {total:.1f} GB; model.memory_gb bounds it"
    if max(own, used) + wanted <= total:
        return ""
    return f"of the device's {total:.1f} GB {max(own, used):.1f} are taken, and the new one may take {wanted:.1f}"


def _memory(device: torch.device) -> tuple[int, int]:
    """Return the bytes in use and in total, of a CUDA device, or else of this process and its memory limit."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        used = 0
    return used, host_memory()
