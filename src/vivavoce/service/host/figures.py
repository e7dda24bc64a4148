"""What a speaker tells of itself, for metrics and status pages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vivavoce.engine.statistics import StatisticsSnapshot


@dataclass(frozen=True)
class SpeakerStatistics:
    """Figures of one moment.

    engine: counters since the engine's process began; device: where the networks run; memory_used, memory_total: bytes
    of the device (of the process, and of the machine, on a CPU); voices_extracted, voices_remembered: recordings whose
    voices were made, and taken from memory; voice_store: "ok", or what is wrong with it in one line; starts: engine
    processes begun so far.
    """

    engine: StatisticsSnapshot
    device: str
    memory_used: int
    memory_total: int
    voices_extracted: int
    voices_remembered: int
    voice_store: str
    starts: int

    def begun(self, starts: int) -> SpeakerStatistics:
        """The same with the number of processes begun, which the process itself does not know."""
        return replace(self, starts=starts)
