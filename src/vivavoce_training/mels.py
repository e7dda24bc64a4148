"""Generates a corpus's mels with the flow, to train the vocoder on the mels that it gets in use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.models.flow.model import Flow, FlowSchedule, fixed_noise
from vivavoce.models.flow.model import Path as FlowPath
from vivavoce_training.data.store import MELS_PER_TOKEN, Corpus, write_array
from vivavoce_training.flow import SpeakerMajor, speaker_grid
from vivavoce_training.record import log
from vivavoce_training.whole_rows import encode

WINDOW_TOKENS, PROMPT_TOKENS = 300, 100
"""Tokens of a window, which the flow gets at once; the first of them that are a prompt, with the recording's mel."""
BATCH = 32


def write_flow_mels(corpus_folder: Path, flow: Flow, config: ModelConfig, out: Path, device: torch.device) -> None:
    """Write the mel of every token of a corpus that has tokens and embeddings: `.npy`, float16 [tokens · 2, bins].

    A speaker's first `PROMPT_TOKENS` tokens, or all if a window needs more than he has, keep the recording's mel.
    """
    corpus = Corpus.open(corpus_folder)
    speech = SpeakerMajor.load(corpus, config.mel, device)
    made = flow_mels(flow.eval().to(device), speech, window_starts(corpus))
    frames = torch.from_numpy(speaker_grid(corpus)[:, None] * MELS_PER_TOKEN + np.arange(MELS_PER_TOKEN)).flatten()
    in_order = torch.empty_like(made)
    in_order[frames.to(device)] = made
    write_array(out, in_order.cpu().numpy())
    log.info("%s: %d mel frames", out, len(in_order))


def window_starts(corpus: Corpus) -> NDArray[np.int64]:
    """Return the windows' first tokens, ordered by speaker. Each token after the first prompt gets a generated mel."""
    sizes = np.bincount(np.repeat(corpus.speaker, np.diff(corpus.start)), minlength=len(corpus.speakers))
    ends = np.cumsum(sizes)
    starts: list[int] = []
    for first, last in zip(ends - sizes, ends - WINDOW_TOKENS, strict=True):
        if last >= first:
            starts += [*range(first, last, WINDOW_TOKENS - PROMPT_TOKENS), last]
    return np.array(starts, dtype=np.int64)


@torch.inference_mode()
def flow_mels(flow: Flow, speech: SpeakerMajor, starts: NDArray[np.int64]) -> Tensor:
    """Generate the mel of all tokens, ordered by speaker: float16 [tokens · 2, bins]. starts: from `window_starts`."""
    device, config = speech.mels.device, flow.config
    made, prompt = speech.mels.clone(), PROMPT_TOKENS * MELS_PER_TOKEN
    schedule = FlowSchedule.euler(flow.estimator, config.num_steps)
    noise = fixed_noise(config.num_mel_bins)[: WINDOW_TOKENS * MELS_PER_TOKEN].to(device)
    in_window, in_frames = torch.arange(WINDOW_TOKENS), torch.arange(WINDOW_TOKENS * MELS_PER_TOKEN)
    for batch in torch.from_numpy(starts).split(BATCH):
        tokens = speech.tokens[(batch[:, None] + in_window).to(device)].long()
        frames = (batch[:, None] * MELS_PER_TOKEN + in_frames).to(device)
        condition = speech.mels[frames].float()
        condition[:, prompt:] = 0
        embedding = speech.embeddings[speech.utterance_first[batch.to(device)].long()].float()
        count, everything = len(batch), torch.ones(len(batch), dtype=torch.bool, device=device)
        mu, _ = encode(flow, tokens, torch.full((count,), WINDOW_TOKENS, device=device), everything, False)
        given = (noise.expand(count, -1, -1), mu, flow.speaker(embedding), condition, None)
        path = FlowPath(flow.estimator, schedule, config.guidance, *given)
        for number in range(config.num_steps):
            path.step(number)
        made[frames[:, prompt:]] = path.x[:, prompt:].to(made.dtype)
    return made
