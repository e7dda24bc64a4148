"""Whether a voice's features have the sizes of a model."""

from __future__ import annotations

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.errors import InvalidRequest
from vivavoce.service.voices.voice import Voice


def check_fits(voice: Voice, config: ModelConfig) -> None:
    """Refuse a voice whose tensors or ids the model's networks cannot take.

    A fingerprint says where a voice comes from; an imported one has none, and a file may hold anything.

    Raises:
        InvalidRequest: names the first feature that does not fit.
    """
    problem = _problem(voice, config)
    if problem:
        label = repr(voice.name) if voice.name else "the given one"
        raise InvalidRequest(f"voice: {label} does not fit this model ({problem}); extract it again from its recording")


def _problem(voice: Voice, config: ModelConfig) -> str | None:
    speaker_size, bins = config.flow.speaker_size, config.mel.num_bins
    if tuple(voice.embedding.shape) != (speaker_size,):
        return f"its embedding is {list(voice.embedding.shape)}, expected [{speaker_size}]"
    if voice.prompt_text and max(voice.prompt_text) >= config.lm.text_vocab_size:
        return f"text id {max(voice.prompt_text)}, the limit is {config.lm.text_vocab_size - 1}"
    if not voice.has_prompt:
        return None
    frames = len(voice.speech_tokens) * config.rates.frames_per_token
    if tuple(voice.mel.shape) != (frames, bins):
        return f"its mel is {list(voice.mel.shape)}, expected [{frames}, {bins}]"
    if int(voice.speech_tokens.max()) >= config.flow.num_tokens:
        return f"speech token {int(voice.speech_tokens.max())}, the limit is {config.flow.num_tokens - 1}"
    return None
