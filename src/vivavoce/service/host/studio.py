"""What the engine's process holds: the model, its engine and the voices; built from a server's settings."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from vivavoce.engine.precision import FlowLinear, LMWeights, Precision
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import TooLarge
from vivavoce.service.default_model import model_folder
from vivavoce.service.host.figures import SpeakerStatistics
from vivavoce.service.host.order import Recording
from vivavoce.service.host.speaker import ModelAbout, VoiceSummary
from vivavoce.service.operations.settings import ServerSettings
from vivavoce.service.placement import choose_device, choose_dtype, count_text_processes
from vivavoce.service.synthesizer import Synthesizer
from vivavoce.service.voices.built_in import built_in_voices
from vivavoce.service.voices.library import VoiceLibrary
from vivavoce.service.voices.model_voices import ModelVoices
from vivavoce.service.voices.stores.opening import copies_home, open_voice_store
from vivavoce.service.voices.stores.quota import Quota
from vivavoce.service.voices.voice import Voice

STUCK_S = 300.0
"""An engine that is at one step for so long waits for a device that does not answer; compiling a kernel takes less."""
LARGEST_VOICE = 1 << 20
"""Bytes that a stored voice of 30 s takes, about."""


@dataclass(frozen=True, eq=False)
class Studio:
    """One model with its voices. Safe between threads."""

    synthesizer: Synthesizer
    library: VoiceLibrary
    max_recording_bytes: int

    @property
    def about(self) -> ModelAbout:
        """See `Speaker`."""
        card, rates = self.synthesizer.card, self.synthesizer.config.rates
        return ModelAbout(card.name, card.description, rates.sample_rate, demo=card.demo or not card.trained)

    @property
    def healthy(self) -> bool:
        """The engine takes requests, and gets on with them."""
        engine = self.synthesizer.engine
        return engine.healthy and engine.stuck_s < STUCK_S

    def voice(self, owner: str, voice: str | Recording | None) -> Voice:
        """The voice that a request means; errors as `VoiceLibrary.resolve`."""
        if isinstance(voice, Recording):
            self._check_size(voice)
        return self.library.resolve(owner, voice)

    def add_voice(self, owner: str, name: str, recording: Recording, description: str, replace: bool) -> VoiceSummary:
        """See `Speaker`."""
        self._check_size(recording)
        return self.library.add_recording(owner, name, recording, description=description, replace=replace)

    def figures(self) -> SpeakerStatistics:
        """See `Speaker`."""
        device, recordings = self.synthesizer.engine.models.device, self.library.recordings
        used, total = _memory(device)
        return SpeakerStatistics(
            engine=self.synthesizer.engine.statistics,
            device=str(device),
            memory_used=used,
            memory_total=total,
            voices_extracted=recordings.made,
            voices_remembered=recordings.remembered,
            voice_store=self.library.state(),
            starts=1,
        )

    def close(self) -> None:
        """Stop at once: the server has let requests finish that it wanted finished."""
        self.synthesizer.engine.close(drain=False, timeout_s=5.0)
        self.synthesizer.text.close()
        self.library.close()

    def _check_size(self, recording: Recording) -> None:
        if len(recording.content) > self.max_recording_bytes:
            raise TooLarge(
                f"reference audio: {len(recording.content)} bytes are more than the limit of "
                f"{self.max_recording_bytes}; cut it, or store it as FLAC"
            )


def open_studio(settings: ServerSettings) -> Studio:
    """Load model and voices, and warm up; errors as `vivavoce.load`."""
    chosen, kept = settings.model, settings.voices
    device = choose_device(chosen.device)
    synthesizer = Synthesizer.load(
        model_folder(chosen.model),
        device,
        choose_dtype(chosen.dtype, device),
        chosen.variant,
        engine_settings(settings),
        count_text_processes(chosen.text_processes, device),
    )
    if chosen.warm_up_s:
        synthesizer.engine.warm_up(chosen.warm_up_s)
    extractor = synthesizer.extractor
    model = ModelVoices(
        extractor, built_in_voices(synthesizer.folder), lambda: extractor.fingerprint, capacity=kept.cache
    )
    place = open_voice_store(kept.place, copies_home())
    quota = Quota(voices=kept.quota, total_bytes=kept.quota * LARGEST_VOICE)
    library = VoiceLibrary(place, model, owner_quota=quota, public_quota=quota, capacity=kept.cache)
    return Studio(synthesizer, library, kept.max_recording_bytes)


def engine_settings(settings: ServerSettings) -> EngineSettings:
    """The engine's part of a server's settings; InvalidRequest for what does not go together."""
    chosen, engine = settings.model, settings.engine
    return EngineSettings(
        slots=engine.slots,
        memory_bytes=None if chosen.memory_gb is None else int(chosen.memory_gb * 1e9),
        kernels=chosen.kernels,
        deterministic=chosen.deterministic,
        precision=Precision(
            LMWeights.INT8 if chosen.int8_lm else LMWeights.BITS16,
            FlowLinear.FP8 if chosen.fp8_flow else FlowLinear.BITS16,
        ),
        admission=engine.admission,
        max_waiting=engine.max_waiting,
        first_chunk_s=engine.first_chunk_s,
        headroom=engine.headroom,
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
