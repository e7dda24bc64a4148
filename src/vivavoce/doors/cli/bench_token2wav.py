"""The flow and the vocoder of a model, run batch by batch or chunk by chunk without an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from vivavoce.bench.chunking import Cut
from vivavoce.bench.offline import Job, Samples
from vivavoce.bench.streaming import Speech
from vivavoce.engine.chunk_policy import Joins
from vivavoce.engine.flow_stage import Attention, FlowChunk, FlowStage, FlowStream, PromptWork
from vivavoce.engine.lane import Lane
from vivavoce.engine.request import Conditioning
from vivavoce.engine.settings import EngineSettings, plan_memory, uses_kernels
from vivavoce.engine.vocoder_stage import Piece, VocoderStage, VocoderStream
from vivavoce.models.build import Models


class StageToken2Wav:
    """Speech tokens → samples through the stages that the engine batches its requests with.

    Not safe between threads. Voices are `Conditioning`s.

    Args:
        models: networks on one device.
        settings: whether kernels of our own are used, and how much memory.
        streams: whether chunks are to be made: the flow then keeps the state of what it has computed.
        overlap: speech tokens that neighbouring chunks share: both versions are faded into each other. 0: the joins of
            the engine's own streams.
    """

    def __init__(self, models: Models, settings: EngineSettings, *, streams: bool = False, overlap: int = 0) -> None:
        self._rates = models.config.rates
        self._overlap = overlap
        # Recorded launches need a CUDA stream of their own; the weights were laid out on another.
        self._lane = Lane(models.device)
        if models.device.type == "cuda":
            torch.cuda.synchronize(models.device)
        kernels = uses_kernels(models, settings)
        state_bytes = plan_memory(models, settings).state_bytes if streams else 0
        with torch.inference_mode(), self._lane.entered():
            self._flow = FlowStage(models, state_bytes=state_bytes, kernels=kernels)
            self._vocoder = VocoderStage(models, kernels=kernels)
            if kernels and models.device.type == "cuda":  # elsewhere nothing is recorded
                self._flow.prepare()
                self._vocoder.prepare()

    @property
    def sample_rate(self) -> int:
        """Of all its audio."""
        return self._rates.sample_rate

    @property
    def fade(self) -> int:
        """Samples over which a chunk is faded into the one before, from its first one on."""
        return max(1, self._overlap * self._rates.frames_per_token) * self._rates.samples_per_frame

    @torch.inference_mode()
    def waves(self, jobs: Sequence[Job], tokens: Sequence[Sequence[int]]) -> list[Samples]:
        """Samples of each job's tokens, [n] float32 on the host, in one batch."""
        return self._whole([(job.voice, job.prompt.seed) for job in jobs], tokens)

    @torch.inference_mode()
    def whole(self, speech: Speech) -> Samples:
        """All of a speech at once: [n] float32 on the host."""
        return self._whole([(speech.voice, speech.seed)], [speech.tokens])[0]

    @torch.inference_mode()
    def hear(self, voice: Conditioning) -> None:
        """Compute the state of a voice's prompt if it is not there, as for a voice that was heard before."""
        with self._lane.entered():
            flow = self._flow.open(voice)
            try:
                if self._flow.lacks_prompt(flow):
                    self._mels([PromptWork(flow)])
            finally:
                self._flow.close(flow)

    def chunks(self, speech: Speech, cuts: Sequence[Cut]) -> Iterator[Samples]:
        """A speech chunk by chunk: [n] float32 on the host, each when it is asked for; a chunk may give nothing yet.

        The state of the voice's prompt is computed with the first chunk unless it was heard before.
        """
        flow = self._flow.open(speech.voice)
        wave = self._open(speech.seed) if not self._overlap else None
        joiner = _Overlapped(self._overlap * self._rates.frames_per_token, self._rates.samples_per_frame)
        try:
            for cut in cuts:
                yield self._chunk(flow, wave, joiner, speech, cut)
        finally:
            self._flow.close(flow)
            if wave is not None:
                self._vocoder.close(wave)

    @torch.inference_mode()
    def _chunk(
        self, flow: FlowStream, wave: VocoderStream | None, joiner: _Overlapped, speech: Speech, cut: Cut
    ) -> Samples:
        with self._lane.entered():
            if self._flow.lacks_prompt(flow):
                self._mels([PromptWork(flow)])
            (mel,) = self._mels([FlowChunk(flow, speech.tokens[: cut.seen], cut.hop, Attention.BLOCKS)])
            if wave is not None:
                return _on_host(self._vocoder.run([Piece(wave, mel, cut.final)])[0])
            alone = self._open(speech.seed)
            (samples,) = self._vocoder.run([Piece(alone, joiner.extended(mel), final=True, whole=True)])
            self._vocoder.close(alone)
            return joiner.faded(_on_host(samples), cut.final)

    def _whole(self, voices: Sequence[tuple[Conditioning, int]], tokens: Sequence[Sequence[int]]) -> list[Samples]:
        with self._lane.entered():
            flows = [self._flow.open(voice) for voice, _ in voices]
            waves = [self._open(seed) for _, seed in voices]
            try:
                mels = self._mels(
                    [FlowChunk(flow, said, len(said), Attention.FULL) for flow, said in zip(flows, tokens, strict=True)]
                )
                pieces = [Piece(wave, mel, final=True, whole=True) for wave, mel in zip(waves, mels, strict=True)]
                return [_on_host(samples) for samples in self._vocoder.run(pieces)]
            finally:
                for flow, wave in zip(flows, waves, strict=True):
                    self._flow.close(flow)
                    self._vocoder.close(wave)

    def _mels(self, work: Sequence[FlowChunk | PromptWork]) -> list[Tensor]:
        job = self._flow.start(work)
        while job.steps_left:
            job.step()
        return [mel for mel in job.result() if mel is not None]

    def _open(self, seed: int) -> VocoderStream:
        return self._vocoder.open(seed, 1.0, Joins.SEAMLESS)


class _Overlapped:
    """Chunks that are vocoded by themselves, each from some frames before its own on, and faded over those.

    The flow's mel of the shared tokens does not change from chunk to chunk, so it is computed once.
    """

    def __init__(self, frames: int, samples_per_frame: int) -> None:
        """frames: of mel that neighbouring chunks share."""
        self._frames, self._samples = frames, frames * samples_per_frame
        self._tail: Tensor | None = None
        self._held: Samples | None = None

    def extended(self, mel: Tensor) -> Tensor:
        """[frames, bins] of a chunk → the same after what it shares with the chunk before."""
        whole = mel if self._tail is None else torch.cat((self._tail, mel))
        self._tail = whole[-self._frames :].clone()
        return whole

    def faded(self, samples: Samples, final: bool) -> Samples:
        """A chunk's samples → those that can be heard now; its end waits for the next chunk unless it is final."""
        if self._held is not None:
            # A raised cosine between sample centres: both sides add up to one everywhere.
            rising = np.square(np.sin(np.pi / 2 * (np.arange(self._samples) + 0.5) / self._samples))
            fade = rising.astype(np.float32)
            start = samples[: self._samples] * fade + self._held * (1 - fade)
            samples = np.concatenate((start, samples[self._samples :]))
        if final:
            return samples
        self._held = samples[-self._samples :]
        return samples[: -self._samples]


def _on_host(samples: Tensor) -> Samples:
    return samples.float().cpu().numpy()
