"""What the engine's process holds: the model with its engine and front end, and the voices."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import TooLarge
from vivavoce.service.engine_process.messages import EngineProcessSettings
from vivavoce.service.model_choice import choose_device, choose_dtype, count_text_processes, model_folder
from vivavoce.service.operations.settings import EngineSection, ModelSection
from vivavoce.service.speaker import ModelAbout, SpeakerStatistics
from vivavoce.service.speech import Recording
from vivavoce.service.synthesizer import Synthesizer
from vivavoce.service.voices.names import VoiceSummary
from vivavoce.service.voices.registry import VoiceRegistry
from vivavoce.service.voices.stores import Quota, copies_home, open_voice_store
from vivavoce.service.voices.voice import Voice, built_in_voices

STUCK_S = 300.0
"""An engine that is at one step for so long waits for a device that does not answer; compiling a kernel takes less."""
LARGEST_VOICE = 1 << 20
"""Bytes that a stored voice of 30 s takes, about."""


@dataclass(frozen=True, eq=False)
class ModelService:
    """One model with its voices; methods of `Speaker` do what they say there. Safe between threads."""

    synthesizer: Synthesizer
    registry: VoiceRegistry
    max_recording_bytes: int

    @property
    def about(self) -> ModelAbout:
        """The model that speaks."""
        card, rates = self.synthesizer.front_end.card, self.synthesizer.front_end.config.rates
        return ModelAbout(card.name, card.description, rates.sample_rate, demo=card.demo or not card.trained)

    @property
    def healthy(self) -> bool:
        """The engine takes requests, and gets on with them."""
        engine = self.synthesizer.engine
        return engine.healthy and engine.stuck_s < STUCK_S

    def voice(self, owner: str, voice: str | Recording | None) -> Voice:
        """The voice that a request means; errors as `VoiceRegistry.requested`."""
        if isinstance(voice, Recording):
            self._check_size(voice)
        return self.registry.requested(voice, owner)

    def voices(self, owner: str) -> list[VoiceSummary]:
        """The public voices, and the owner's own."""
        return self.registry.summaries(owner)

    def add_voice(self, owner: str, name: str, recording: Recording, description: str, replace: bool) -> VoiceSummary:
        """Extract and keep a voice."""
        self._check_size(recording)
        return self.registry.add_recording(owner, name, recording, description=description, replace=replace)

    def remove_voice(self, owner: str, name: str) -> None:
        """Forget a stored voice."""
        self.registry.remove(owner, name)

    def statistics(self) -> SpeakerStatistics:
        """What it has done so far."""
        engine, recordings = self.synthesizer.engine, self.registry.recordings
        used, total = _memory(engine.models.device)
        return SpeakerStatistics(
            engine.statistics, used, total, recordings.made, recordings.remembered, self.registry.state()
        )

    def close(self) -> None:
        """Stop at once: the server has let requests finish that it wanted finished."""
        self.synthesizer.engine.close(drain=False, timeout_s=5.0)
        self.synthesizer.front_end.text.close()
        self.registry.close()

    def _check_size(self, recording: Recording) -> None:
        if len(recording.content) > self.max_recording_bytes:
            raise TooLarge(
                f"reference audio: {len(recording.content)} bytes are more than the limit of "
                f"{self.max_recording_bytes}; cut it, or store it as FLAC"
            )


def open_model_service(settings: EngineProcessSettings) -> ModelService:
    """Load model and voices, and warm up; errors as `vivavoce.load`."""
    model, voices = settings.model, settings.voices
    device = choose_device(model.device)
    synthesizer = Synthesizer.load(
        model_folder(model.model),
        device,
        choose_dtype(model.dtype, device),
        model.variant,
        engine_settings(model, settings.engine),
        count_text_processes(model.text_processes, device),
    )
    if model.warm_up_s:
        synthesizer.engine.warm_up(model.warm_up_s)
    extractor = synthesizer.front_end.extractor
    quota = Quota(voices=voices.quota, total_bytes=voices.quota * LARGEST_VOICE)
    registry = VoiceRegistry(
        extractor,
        open_voice_store(voices.place, copies_home()),
        built_in_voices(synthesizer.front_end.folder),
        lambda: extractor.fingerprint,
        recordings=voices.cache,
        stored=voices.cache,
        owner_quota=quota,
        public_quota=quota,
    )
    return ModelService(synthesizer, registry, voices.max_recording_bytes)


def engine_settings(model: ModelSection, engine: EngineSection) -> EngineSettings:
    """The engine's part; InvalidRequest for what does not go together."""
    return EngineSettings(
        memory_bytes=None if model.memory_gb is None else int(model.memory_gb * 1e9),
        kernels=model.kernels,
        deterministic=model.deterministic,
        **dict(engine),
    )


def _memory(device: torch.device) -> tuple[int, int]:
    """Bytes in use and in all: of the device by this process, or of the machine."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[1]) * page
    except OSError:  # no Linux
        used = 0
    return used, page * os.sysconf("SC_PHYS_PAGES")
