"""How far a stage in fewer bits is from the same weights in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vivavoce.engine.flow_stage import Attention, FlowChunk, FlowStage
from vivavoce.engine.request import Conditioning
from vivavoce.models.build import Models
from vivavoce.models.lm.prompting import LMPrompt, prompt_rows
from vivavoce.models.lm.slot_cache import SlotCache

Figures = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Said:
    """What the language model says in float32, always the likeliest token.

    texts: ids of each sequence, all of one length; tokens: [sequences, steps] int64; scores: [sequences, steps, ids].
    """

    texts: tuple[tuple[int, ...], ...]
    tokens: Tensor
    scores: Tensor

    @classmethod
    @torch.inference_mode()
    def by(cls, models: Models, sequences: int, text: int, steps: int) -> Said:
        """By the plain network; models: float32; text: ids of each sequence's text, drawn at random."""
        lm, vocabulary = models.lm, models.config.lm.vocabulary
        generator = torch.Generator().manual_seed(0)
        # Of 256 bytes, which every text table begins with.
        texts = tuple(tuple(row) for row in torch.randint(256, (sequences, text), generator=generator).tolist())
        rows = torch.stack([prompt_rows(lm, LMPrompt(one)) for one in texts])
        scores, tokens = [], []
        for _ in range(steps):
            scores.append(lm.speech_head(lm(rows)[:, -1]).float())
            tokens.append(scores[-1][:, : vocabulary.num_speech_tokens].argmax(-1))
            rows = torch.cat((rows, lm.speech_embedding(tokens[-1])[:, None]), dim=1)
        return cls(texts, torch.stack(tokens, 1), torch.stack(scores, 1))


@torch.inference_mode()
def language(models: Models, said: Said, *, int8: bool) -> Figures:
    """Our kernels, fed the same tokens: error of the scores (rms, of their spread), and how often the likeliest token
    is the same.
    """
    found, speech = _scores(models, said, int8=int8), models.config.lm.vocabulary.num_speech_tokens
    best = found[..., :speech].argmax(-1)
    return {
        "logits_error": _relative(found[..., :speech], said.scores[..., :speech]),
        "same_best_share": float((best == said.tokens).float().mean()),
    }


def mel(models: Models, voice: Conditioning, tokens: int, *, kernels: bool, fp8: bool = False) -> Tensor:
    """The flow alone: mel of random tokens in a voice, whole; [frames, bins] float32."""
    generator = torch.Generator().manual_seed(1)
    given = tuple(torch.randint(models.config.flow.num_tokens, (tokens,), generator=generator).tolist())
    with torch.inference_mode():
        stage = FlowStage(models, state_bytes=0, kernels=kernels, fp8=fp8)
        job = stage.start([FlowChunk(stage.open(voice), given, tokens, Attention.FULL)])
        while job.steps_left:
            job.step()
        (made,) = job.result()
    assert made is not None
    return made.float()


def mel_error(made: Tensor, wanted: Tensor) -> Figures:
    """Relative, rms."""
    return {"mel_error": float((made - wanted).norm() / wanted.norm())}


def _scores(models: Models, said: Said, *, int8: bool) -> Tensor:
    """[sequences, steps, ids]."""
    from vivavoce.models.lm.fused import FusedLM

    sequences, steps = said.tokens.shape
    rows = _prompts(models, said)
    capacity = len(said.texts[0]) + 2 + steps
    lm = FusedLM(models.lm, capacity, int8=int8)
    cache = SlotCache.allocate(models.config.lm, sequences + 1, capacity, models.device, models.dtype)
    scores = [lm.prefill(rows, cache).float()]
    running = torch.ones(sequences, dtype=torch.int64, device=models.device)
    for step in range(steps - 1):
        positions = running * (len(said.texts[0]) + 2 + step)
        scores.append(lm.step(said.tokens[:, step].contiguous(), positions, running, cache).float())
    return torch.stack(scores, 1)


def _prompts(models: Models, said: Said) -> Any:
    """Each sequence's prompt in a slot of its own; the slot after them takes what pads."""
    from vivavoce.models.lm.fused import ROW_TILE, TiledRows

    vocabulary, sink = models.config.lm.vocabulary, len(said.texts)
    rows: list[tuple[int, int, int, int]] = []
    last = []
    for slot, text in enumerate(said.texts):
        ids = [(0, vocabulary.sos), *((1, one) for one in text), (0, vocabulary.task)]
        rows += [(kind, one, slot, position) for position, (kind, one) in enumerate(ids)]
        last.append(len(rows) - 1)
        rows += [(0, 0, sink, 0)] * (-len(rows) % ROW_TILE)
    return TiledRows(*torch.tensor(rows, device=models.device).T.contiguous(), torch.tensor(last, device=models.device))


def _relative(made: Tensor, wanted: Tensor) -> float:
    spread = wanted - wanted.mean(-1, keepdim=True)
    return float((made - wanted).norm() / spread.norm())
