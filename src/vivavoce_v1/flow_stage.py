"""CosyVoice 1's flow stage: each chunk is one call of the network, with the prompt and the chunk's tokens.

The last tokens of a chunk are also the first tokens of the next chunk. A stream keeps the noise and mu of the prompt's
frames and of these tokens' frames. It also keeps the mel of these tokens, to cross-fade it with the next chunk's mel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.cost_model import ShortBatches
from vivavoce.engine.device import to_device
from vivavoce.engine.flow_stage.planning import FlowRow
from vivavoce.engine.flow_stage.stage import FlowBatch
from vivavoce.engine.request import Conditioning, FlowSteps
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.flow.model import MAX_FRAMES, FlowSchedule, fixed_noise
from vivavoce.models.layers import PairRunner
from vivavoce_v1.flow import FlowV1, WholeInput


class FlowStreamV1:
    voice = known = None  # streams with the same voice share no state of the prompt

    def __init__(self, conditioning: Conditioning) -> None:
        self.prompt, self.embedding = conditioning.flow_tokens, conditioning.embedding
        self.prompt_mel = conditioning.flow_mel
        self.on_device: tuple[Tensor, Tensor, Tensor] | None = None
        """Prompt, its mel and the projected speaker embedding; None until the first call."""
        self.spoken = self.prompt_end = 0
        """spoken: the mel of this number of speech tokens was returned; prompt_end: always 0: prompts have no state."""
        self.kept: Tensor | None = None
        self.held: Tensor | None = None
        """[frames, bins], mel of the tokens that the next chunk contains again."""
        self.busy = self.closed = False


class SolverV1:
    """Computes the mel of a batch of rows. calls: the network's input for each row."""

    def __init__(self, stage: FlowStageV1, rows: Sequence[FlowRow], calls: Sequence[WholeInput]) -> None:
        self.rows, self._calls, self._stage = rows, calls, stage
        self._path, self._kept = stage.flow.begin(calls, stage.schedule, stage.noise, stage.both)

    def step(self, number: int) -> None:
        self._path.step(number)

    def finish(self) -> list[Tensor | None]:
        """Cross-fade the frames that two chunks share, and keep the state that the streams' next chunks need."""
        flow, window, mels = self._stage.flow, self._stage.window, list[Tensor | None]()
        for row, call, kept, whole in zip(self.rows, self._calls, self._kept, self._path.x, strict=True):
            stream: FlowStreamV1 = row.stream
            mel = whole[len(call.prompt_mel) : flow.frames_of(call)].clone()
            if stream.held is not None:
                mel[: len(stream.held)].mul_(window[: len(stream.held)]).add_(stream.held * window[len(stream.held) :])
            # Number of frames at the end that the next chunk contains again; 0 in the last chunk.
            shared = flow.rates.frames_of(len(call.tokens) - row.hop)
            end = len(mel) - shared
            mels.append(mel[:end])
            stream.kept, stream.held = (kept, mel[end:]) if shared and not stream.closed else (None, None)
        return mels


class FlowStageV1:
    """Computes mel from speech tokens, in batches of chunks. Only one thread may use it.

    On a CPU, each row is computed alone, so its bits do not depend on other rows. Elsewhere, rows are padded, and norms
    and attention ignore the padding. The arguments are those of `FlowStage`, but there are no kernels, and the streams,
    not the stage, hold the state.
    """

    short = ShortBatches()

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
            raise ValueError("the kernels do not support CosyVoice 1; run without kernels")
        self.flow, config, self._device = cast(FlowV1, models.flow), models.config.flow, models.device
        self.schedule = FlowSchedule.euler(self.flow.estimator, config.num_steps)
        self.noise = fixed_noise(config.num_mel_bins).to(models.device)
        shared = self.flow.rates.frames_of(self.flow.config.overlap)
        self.window = torch.from_numpy(np.hamming(2 * shared).astype(np.float32)).to(models.device)[:, None]
        self.both = both
        self._one_by_one, self._num_steps = models.device.type == "cpu", config.num_steps

    def prepare(self, frames: int | None = None) -> None:
        """Do nothing: this stage has no CUDA graphs."""

    def open(self, conditioning: Conditioning, steps: FlowSteps = FlowSteps.OFFICIAL) -> FlowStreamV1:
        return FlowStreamV1(conditioning)

    def close(self, stream: FlowStreamV1) -> None:
        stream.closed, stream.kept, stream.held = True, None, None

    def lacks_prompt(self, stream: FlowStreamV1) -> bool:
        return False

    def start(self, rows: Sequence[FlowRow]) -> FlowBatch:
        """Begin a batch. Raises InvalidRequest, and begins nothing, if a row has more than `MAX_FRAMES` frames."""
        calls = [self._call(row) for row in rows]
        streams = {row.stream for row in rows}
        if len(streams) < len(rows) or any(stream.busy or stream.closed for stream in streams):
            raise ValueError("batch: a stream is closed, is in a running batch, or occurs twice")
        batch = FlowBatch(self.end, rows, self._num_steps)
        if self._one_by_one:
            batch.solvers += [SolverV1(self, [row], [call]) for row, call in zip(rows, calls, strict=True)]
        else:
            batch.solvers.append(SolverV1(self, rows, calls))
        for stream in streams:
            stream.busy = True
        return batch

    def _call(self, row: FlowRow) -> WholeInput:
        stream: FlowStreamV1 = row.stream
        window = row.speech[stream.spoken :]
        if not 1 <= row.hop <= len(window):
            raise ValueError(f"hop {row.hop} after {stream.spoken} spoken tokens, but {len(row.speech)} exist")
        row.frames = len(stream.prompt_mel) + self.flow.rates.frames_of(len(window))
        if row.frames > MAX_FRAMES:
            raise InvalidRequest(
                f"text: {len(window)} speech tokens with the voice's {len(stream.prompt)} have more than the "
                f"{MAX_FRAMES} mel frames that the flow takes; split the text or use a shorter recording"
            )
        if stream.on_device is None:
            bins = self.flow.config.num_mel_bins
            given = (stream.prompt, stream.prompt_mel.reshape(-1, bins), stream.embedding[None])
            prompt, mel, embedding = (one.to(self._device, non_blocking=True) for one in given)
            stream.on_device = prompt, mel.float(), self.flow.speaker(embedding)[0]
        prompt, mel, speaker = stream.on_device
        tokens = to_device(torch.tensor(window, dtype=torch.int64), self._device)
        return WholeInput(prompt, tokens, mel, speaker, stream.kept)

    def end(self, batch: FlowBatch, finished: bool) -> None:
        batch.ended, batch.solvers = True, []
        for row in batch.rows:
            row.stream.busy = False
            if finished:
                row.stream.spoken += row.hop
