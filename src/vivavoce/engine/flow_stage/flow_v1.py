"""CosyVoice 1's flow stage: each chunk is one call of the network, with its prompt and the tokens that it shares.

A stream keeps the noise and the mu of its prompt and of the frames that its next chunk makes again, and its own
version of these frames, which fades into the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.device import to_device
from vivavoce.engine.flow_stage.planning import FlowChunk, PromptPrefill
from vivavoce.engine.flow_stage.stage import FlowBatch
from vivavoce.engine.request import Conditioning
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.flow.flow_v1 import FlowV1, WholeInput
from vivavoce.models.flow.model import MAX_FRAMES, EulerSchedule, fixed_noise
from vivavoce.models.layers import PairRunner


class WholeStream:
    """What the stage knows of one sequence; only the stage changes it."""

    voice = known = None  # no state of a prompt is kept for other streams

    def __init__(self, conditioning: Conditioning, flow: FlowV1) -> None:
        self.prompt, self.embedding = conditioning.flow_tokens, conditioning.embedding
        self.prompt_mel, self._frames_of = conditioning.flow_mel, flow.rates.frames_of
        self.on_device: tuple[Tensor, Tensor, Tensor] | None = None
        """Prompt, its mel and the speaker, once they were asked for."""
        self.spoken = 0
        """Speech tokens whose mel was given out."""
        self.kept: Tensor | None = None
        self.held: Tensor | None = None
        """[frames, bins] mel of the tokens that the next chunk makes again."""
        self.busy = self.closed = False

    def frames_of(self, chunk: FlowChunk) -> int:
        """Mel frames that a chunk's call computes."""
        return len(self.prompt_mel) + self._frames_of(len(chunk.tokens) - self.spoken)


class WholeRow(NamedTuple):
    """A chunk and its call; shared: frames at the call's end that the next chunk makes again, 0: it is the last."""

    chunk: FlowChunk
    stream: WholeStream
    call: WholeInput
    shared: int


class WholeSolver:
    """Rows on their way from tokens to mel, one call of the network for all."""

    def __init__(self, stage: FlowStageV1, rows: Sequence[WholeRow]) -> None:
        self.rows, self._stage = rows, stage
        self._path, self._kept = stage.flow.begin([row.call for row in rows], stage.schedule, stage.noise, stage.both)
        self._mels: list[Tensor | None] = []

    def step(self, number: int) -> None:
        """Take Euler step `number`."""
        self._path.step(number)

    def commit(self) -> None:
        """Fade what two chunks share, and leave to the streams what their next chunks will need."""
        for row, kept, whole in zip(self.rows, self._kept, self._path.x, strict=True):
            stream, window = row.stream, self._stage.window
            mel = whole[len(row.call.prompt_mel) : self._stage.flow.frames_of(row.call)].clone()
            if stream.held is not None:
                mel[: len(stream.held)].mul_(window[: len(stream.held)]).add_(stream.held * window[len(stream.held) :])
            end = len(mel) - row.shared
            self._mels.append(mel[:end])
            stream.kept, stream.held = (kept, mel[end:]) if row.shared and not stream.closed else (None, None)

    def mels(self) -> list[Tensor | None]:
        """New frames of each row, [frames, bins] float32."""
        return self._mels


class FlowStageV1:
    """Batches of chunks from speech tokens to mel. One thread uses it; rows never affect one another.

    On a CPU each row is computed by itself, and so is the same to the bit beside any other; elsewhere rows are padded,
    and what pads them takes no part in norms and attention. Arguments as of `FlowStage`; there are no kernels, and
    streams hold what they need.
    """

    def __init__(
        self,
        models: Models,
        *,
        state_bytes: int = 0,
        kernels: bool = False,
        deterministic: bool = False,
        most_frames: int | None = None,
        both: PairRunner | None = None,
    ) -> None:
        if kernels or deterministic:
            raise ValueError("CosyVoice 1 has none of its own; run without kernels")
        self.flow, config, self._device = cast(FlowV1, models.flow), models.config.flow, models.device
        self.schedule = EulerSchedule.of(self.flow.estimator, config.num_steps)
        self.noise = fixed_noise(config.num_mel_bins).to(models.device)
        shared = self.flow.rates.frames_of(self.flow.config.overlap)
        self.window = torch.from_numpy(np.hamming(2 * shared).astype(np.float32)).to(models.device)[:, None]
        self.both = both
        self._one_by_one, self._num_steps = models.device.type == "cpu", config.num_steps

    def prepare(self, frames: int | None = None) -> None:
        """Nothing is recorded ahead."""

    def open(self, conditioning: Conditioning) -> WholeStream:
        """A sequence's place."""
        return WholeStream(conditioning, self.flow)

    def close(self, stream: WholeStream) -> None:
        """Free what the stream holds; may be called again."""
        stream.closed, stream.kept, stream.held = True, None, None

    def lacks_prompt(self, stream: WholeStream) -> bool:
        """A prompt has no state of its own."""
        return False

    def start(self, chunks: Sequence[FlowChunk | PromptPrefill]) -> FlowBatch:
        """Begin one batch. InvalidRequest: a row has more frames than the flow has noise for. Nothing was begun."""
        rows = [self._row(cast(FlowChunk, one)) for one in chunks]
        if len({id(row.stream) for row in rows}) < len(rows) or any(
            row.stream.busy or row.stream.closed for row in rows
        ):
            raise ValueError("a stream of the batch is closed, in a running batch, or twice in this one")
        batch = FlowBatch(chunks, self._num_steps, self._end)
        batch.solvers = [WholeSolver(self, part) for part in ([[row] for row in rows] if self._one_by_one else [rows])]
        for row in rows:
            row.stream.busy = True
        return batch

    def _row(self, chunk: FlowChunk) -> WholeRow:
        stream, config = cast(WholeStream, chunk.stream), self.flow.config
        window = chunk.tokens[stream.spoken :]
        if not 1 <= chunk.hop <= len(window):
            raise ValueError(f"hop {chunk.hop} after {stream.spoken} of {len(chunk.tokens)} tokens")
        if stream.frames_of(chunk) > MAX_FRAMES:
            raise InvalidRequest(
                f"text: {len(window)} speech tokens with the voice's {len(stream.prompt)} have more than the "
                f"{MAX_FRAMES} mel frames that the flow takes; split the text or use a shorter recording"
            )
        if stream.on_device is None:
            given = (stream.prompt, stream.prompt_mel.reshape(-1, config.num_mel_bins), stream.embedding[None])
            prompt, mel, embedding = (one.to(self._device, non_blocking=True) for one in given)
            stream.on_device = prompt, mel.float(), self.flow.speaker(embedding)[0]
        prompt, mel, speaker = stream.on_device
        tokens = to_device(torch.tensor(window, dtype=torch.int64), self._device)
        shared = self.flow.rates.frames_of(len(window) - chunk.hop)
        return WholeRow(chunk, stream, WholeInput(prompt, tokens, mel, speaker, stream.kept), shared)

    def _end(self, batch: FlowBatch, done: bool) -> None:
        batch.ended, batch.solvers = True, []
        for one in batch.chunks:
            stream = cast(WholeStream, one.stream)
            stream.busy = False
            if done:
                stream.spoken += cast(FlowChunk, one).hop
