"""Speech tokens of many requests → samples, by the engine's stages: a batch of the flow, then one of the vocoder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.engine.chunk_policy import Joins
from vivavoce.engine.faults import explained, is_out_of_memory, not_finite
from vivavoce.engine.flow_stage import Attention, FlowChunk, FlowStage, FlowStream, PromptWork
from vivavoce.engine.lane import Lane
from vivavoce.engine.request import Conditioning
from vivavoce.engine.scheduler import Limits
from vivavoce.engine.settings import EngineSettings, MemoryPlan, uses_kernels
from vivavoce.engine.vocoder_stage import Piece, VocoderStage, VocoderStream
from vivavoce.engine.vocoder_stage.joins import CONTEXT_FRAMES, OVERLAP_FRAMES
from vivavoce.errors import InvalidRequest, VivavoceError
from vivavoce.models.build import Models
from vivavoce.models.flow.matching import MAX_FRAMES

log = logging.getLogger(__name__)

T = TypeVar("T")
Samples = NDArray[np.float32]
Made = Tensor | VivavoceError | None
"""Of a batch's row: what it was to give, or why there is none; None where nothing was asked for."""


@dataclass(frozen=True, eq=False)
class Place:
    """One sequence's places in the stages."""

    flow: FlowStream
    wave: VocoderStream


@dataclass(frozen=True, eq=False)
class Portion:
    """What is to be spoken next at a place.

    tokens: all of the sequence that may be heard, the lookahead included; hop: how many after those already spoken
    become audio, at least 1; final: nothing follows; whole: it is all of the sequence, which attends to all of itself.
    """

    place: Place
    tokens: tuple[int, ...]
    hop: int
    final: bool
    whole: bool


class Synthesis:
    """The flow and the vocoder; one thread uses it. What one request hears does not depend on who shares its batch.

    Args:
        models: networks on one device; the language model is not touched.
        memory: what of the device's memory is whose.

    Raises:
        InvalidRequest: the device's kernels do not take networks of these sizes.
    """

    def __init__(self, models: Models, memory: MemoryPlan) -> None:
        self._device, self._config = models.device, models.config
        kernels = uses_kernels(models, EngineSettings())
        self._padded = not kernels
        self._most_frames = Limits().within(memory.batch_frames).batch_frames
        self._lane = Lane(models.device)
        with torch.inference_mode():
            try:
                self._flow = FlowStage(
                    models, state_bytes=memory.state_bytes, kernels=kernels, most_frames=memory.batch_frames
                )
            except ValueError as error:
                raise InvalidRequest(f"device: {error}; use cpu") from None
            self._vocoder = VocoderStage(models, kernels=kernels, most_frames=memory.batch_frames)
        if models.device.type == "cuda":
            # Weights and state were laid out on another stream than the lane's, which does not wait for it.
            torch.cuda.synchronize(models.device)

    @torch.inference_mode()
    def prepare(self) -> None:
        """Do ahead what the first batches of each size would wait for."""
        with self._lane.entered():
            self._flow.prepare()
            self._vocoder.prepare()

    def open(self, conditioning: Conditioning, seed: int, speed: float) -> Place:
        """Places for a sequence; close them."""
        return Place(self._flow.open(conditioning), self._vocoder.open(seed, speed, Joins.SEAMLESS))

    def close(self, place: Place) -> None:
        """Free what a sequence holds."""
        self._flow.close(place.flow)
        self._vocoder.close(place.wave)

    def kept_bytes(self, conditioning: Conditioning) -> int:
        """What a stream of this voice keeps between its steps at most, beside the flow's pages, which are bounded."""
        vocoder = self._config.vocoder
        given = (conditioning.embedding, conditioning.flow_tokens, conditioning.flow_mel)
        voice = 2 * sum(tensor.numel() * tensor.element_size() for tensor in given)  # on the host and on the device
        tail = 4 * (OVERLAP_FRAMES + CONTEXT_FRAMES) * (vocoder.num_mel_bins + vocoder.samples_per_frame)
        return voice + tail + 4 * (MAX_FRAMES // self._config.rates.frames_per_token)

    @torch.inference_mode()
    def run(self, portions: Sequence[Portion]) -> list[Samples | VivavoceError]:
        """Samples of each portion: [n] float32, or what went wrong; then its place is of no more use.

        A stream's last `OVERLAP_FRAMES` mel frames come with its next portion. Places must differ.
        """
        with self._lane.entered():
            self._read_voices(portions)
            made: dict[int, Made] = {}
            for whole in (True, False):
                alike = [number for number, portion in enumerate(portions) if portion.whole is whole]
                work = [_chunk(portions[number]) for number in alike]
                made.update(zip(alike, self._together(work, [one.frames for one in work], self._solve), strict=True))
            mels = {number: mel for number, mel in made.items() if isinstance(mel, Tensor)}
            pieces = [_piece(portions[number], mel) for number, mel in mels.items()]
            waves = self._together(pieces, [piece.frames for piece in pieces], self._vocode)
            made.update(zip(mels, waves, strict=True))
            return self._to_host([made[number] for number in range(len(portions))])

    def _read_voices(self, portions: Sequence[Portion]) -> None:
        """Have the state of voices that streams begin to speak with. Without it each chunk makes its own."""
        new = {
            portion.place.flow.voice: PromptWork(portion.place.flow)
            for portion in portions
            if not portion.whole and self._flow.lacks_prompt(portion.place.flow)
        }
        work = list(new.values())
        self._together(work, [one.frames for one in work], self._solve)

    def _solve(self, work: Sequence[FlowChunk | PromptWork]) -> Sequence[Made]:
        job = self._flow.start(work)
        while job.steps_left:
            job.step()
        try:
            return job.result()
        except Exception as error:
            # Some rows may have left their state: to compute them again from it would be wrong.
            job.abandon()
            return [_failure(error)] * len(work)

    def _vocode(self, pieces: Sequence[Piece]) -> Sequence[Tensor]:
        return self._vocoder.run(pieces)

    def _together(
        self, items: Sequence[T], frames: Sequence[int], run: Callable[[Sequence[T]], Sequence[Made]]
    ) -> list[Made]:
        """What `run` makes of the items, in their order, in batches within the limit."""
        made: dict[int, Made] = {}
        for batch in batches_within(frames, self._most_frames, padded=self._padded):
            made.update(zip(batch, self._attempt([items[number] for number in batch], run), strict=True))
        return [made[number] for number in range(len(items))]

    def _attempt(self, items: Sequence[T], run: Callable[[Sequence[T]], Sequence[Made]]) -> Sequence[Made]:
        """A batch, and if it fails its two halves: one that cannot be computed harms no other."""
        try:
            return run(items)
        except Exception as error:
            if len(items) == 1:
                return [_failure(error)]
            make_room = is_out_of_memory(error) and self._device.type == "cuda"
        # Not in the handler: there the error would keep the batch's tensors alive.
        if make_room:
            torch.cuda.empty_cache()
        half = len(items) // 2
        return [*self._attempt(items[:half], run), *self._attempt(items[half:], run)]

    def _to_host(self, made: Sequence[Made]) -> list[Samples | VivavoceError]:
        """All samples in one copy; those that are no numbers become errors."""
        waves = [one for one in made if isinstance(one, Tensor)]
        sizes = np.cumsum([len(wave) for wave in waves])
        copy = torch.cat(waves).cpu().numpy() if waves else np.zeros(0, np.float32)
        parts = iter(np.split(copy, sizes))
        return [one if isinstance(one, VivavoceError) else _finite(next(parts)) for one in made]


def batches_within(frames: Sequence[int], most: int, *, padded: bool) -> list[list[int]]:
    """Places of rows, batch by batch: rows of like size together, as padding costs. A row beyond `most` goes alone.

    padded: a batch costs as much as its longest row times its rows.
    """
    batches: list[list[int]] = []
    total = 0
    for place in sorted(range(len(frames)), key=frames.__getitem__):
        size = frames[place]
        grown = (len(batches[-1]) + 1) * size if batches and padded else total + size
        if batches and grown <= most:
            batches[-1].append(place)
            total = grown
        else:
            batches.append([place])
            total = size
    return batches


def _chunk(portion: Portion) -> FlowChunk:
    attention = Attention.FULL if portion.whole else Attention.BLOCKS
    return FlowChunk(portion.place.flow, portion.tokens, portion.hop, attention)


def _piece(portion: Portion, mel: Tensor) -> Piece:
    return Piece(portion.place.wave, mel, portion.final, whole=portion.whole)


def _finite(samples: Samples) -> Samples | VivavoceError:
    return samples if np.isfinite(samples).all() else not_finite()


def _failure(error: Exception) -> VivavoceError:
    if not isinstance(error, VivavoceError) and not is_out_of_memory(error):
        log.error("audio of a request could not be made", exc_info=error)
    return explained(error)
