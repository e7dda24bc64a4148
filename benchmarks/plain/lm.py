"""Text → speech tokens: one sequence, one token after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.engine.request import SegmentRequest
from vivavoce.models.build import Models
from vivavoce.models.flow.model import MAX_FRAMES
from vivavoce.models.lm.qwen2 import Past, SpeechLM
from vivavoce.models.randomness import SamplingRows, sample, uniform
from vivavoce_kernels.layouts import NoiseStream

Chooser = Callable[[Tensor, Sequence[int]], int]
"""(log-probabilities [ids] float32, −inf where forbidden; tokens so far) → the next id."""


@dataclass(frozen=True)
class LMPrompt:
    text: tuple[int, ...]
    prompt_text: tuple[int, ...] = ()
    prompt_speech: tuple[int, ...] = ()


def prompt_rows(lm: SpeechLM, prompt: LMPrompt) -> Tensor:
    """Embeddings [rows, hidden] of sos, prompt text, text, task and prompt speech, in this order."""
    vocabulary = lm.config.vocabulary
    parts = (
        (lm.control_rows, (vocabulary.sos,)),
        (lm.text_embedding, prompt.prompt_text + prompt.text),
        (lm.control_rows, (vocabulary.task,)),
        (lm.speech_embedding, prompt.prompt_speech),
    )
    return torch.cat([table(torch.tensor(ids, dtype=torch.int64, device=table.weight.device)) for table, ids in parts])


def plain_tokens(
    models: Models, request: SegmentRequest, official: bool = False, chooser: Chooser | None = None
) -> list[int]:
    """All speech tokens of a request, without stop ids; a voice conversion's tokens are returned as they are.

    official: forbid only one of the stop ids before the minimum length, as the official code does.
    chooser: replaces repetition-aware sampling with the request's settings and seed.
    """
    return list(decode(models, request, official, chooser))


@torch.inference_mode()
def decode(
    models: Models, request: SegmentRequest, official: bool = False, chooser: Chooser | None = None
) -> Iterator[int]:
    """Like `plain_tokens`, but yields each token as soon as it is drawn."""
    if request.speech_tokens is not None:
        yield from request.speech_tokens
        return
    lm, stop_ids = models.lm, models.config.lm.vocabulary.stop_ids
    choose = chooser or repetition_aware(models, request)
    fewest, most = _lengths(models, request, official)
    forbidden = list(stop_ids)
    if official and request.sampling.exact_tokens is None:
        forbidden = [models.config.lm.vocabulary.masked_before_minimum]
    conditioning = request.conditioning
    assert isinstance(lm, SpeechLM)
    rows = prompt_rows(lm, LMPrompt(request.text, conditioning.lm_text, conditioning.lm_prompt_tokens))
    new = rows[None]
    past: Past = []
    silent = models.config.lm.vocabulary.silent
    silence = silent.run_at_start
    decoded: list[int] = []
    while len(decoded) < most:
        hidden = lm(new, past)
        scores = lm.log_probabilities(hidden[0, -1])
        if len(decoded) < fewest:
            scores[forbidden] = float("-inf")
        token = choose(scores, decoded)
        if token in stop_ids:
            return
        decoded.append(token)
        heard, silence = silent.spoken((token,), silence)
        if heard:
            yield token
        new = lm.speech_embedding(torch.tensor([[token]], device=rows.device))


def repetition_aware(models: Models, request: SegmentRequest) -> Chooser:
    """Sampling with the request's settings, else the checkpoint's, and with the request's seed."""
    given, default, device = request.sampling, models.config.lm.sampling, models.device
    window = default.win_size if given.win_size is None else given.win_size
    tau_r = default.tau_r if given.tau_r is None else given.tau_r
    settings = SamplingRows(
        top_p=torch.tensor([default.top_p if given.top_p is None else given.top_p], device=device),
        top_k=torch.tensor([default.top_k if given.top_k is None else given.top_k], device=device),
        window=torch.tensor([window], device=device),
        max_repeats=torch.tensor([math.ceil(window * tau_r)], device=device),
    )
    seed = torch.tensor([request.seed], dtype=torch.int64, device=device)

    def choose(scores: Tensor, decoded: Sequence[int]) -> int:
        tail = list(decoded[-window:])
        recent = torch.tensor([[-1] * (window - len(tail)) + tail], device=device)
        step = torch.tensor([len(decoded)], device=device)
        uniforms = torch.stack(
            (uniform(seed, NoiseStream.NUCLEUS, step), uniform(seed, NoiseStream.FALLBACK, step)), dim=-1
        )
        return int(sample(scores[None], recent, settings, uniforms))

    return choose


def _lengths(models: Models, request: SegmentRequest, official: bool) -> tuple[int, int]:
    """Fewest and most speech tokens of the request."""
    sampling, num_text = request.sampling, len(request.text)
    if sampling.exact_tokens is not None:
        return sampling.exact_tokens, sampling.exact_tokens
    most = int(sampling.max_ratio * num_text)
    if not official:
        room = models.config.rates.tokens_in(MAX_FRAMES) - len(request.conditioning.flow_tokens)
        most = min(most, room)
    return min(most, max(0 if official else 1, int(sampling.min_ratio * num_text))), most
