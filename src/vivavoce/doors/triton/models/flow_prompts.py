"""The voice that a request of token2wav brings as tensors → what the flow is conditioned on."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.checkpoint.folder import SPEAKERS
from vivavoce.doors.triton import wire
from vivavoce.doors.triton.models.request_voices import RELEASED_SPEAKER
from vivavoce.engine.request import Conditioning
from vivavoce.errors import InvalidRequest
from vivavoce.service.audio.checks import MAX_REFERENCE_S
from vivavoce.service.modes import Mode, condition
from vivavoce.service.voices.built_in import built_in_voices
from vivavoce.service.voices.fit import check_fits

log = logging.getLogger(__name__)

TOKENS, MEL, EMBEDDING = "prompt_speech_tokens", "prompt_speech_feat", "prompt_spk_embedding"
_REMEMBERED = 64
"""Voices; one of 30 s takes about half a megabyte."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """A voice, and a key that only requests share that brought the same tensors."""

    key: bytes
    conditioning: Conditioning


class PromptReader:
    """Reads voices, checks them, and remembers the last ones; each request of a stream brings its voice along.

    Args:
        config: the model's.
        text_size: what is added to speech tokens on their way between models.
    """

    def __init__(self, config: ModelConfig, text_size: int) -> None:
        self._config, self._text_size = config, text_size
        self._known: OrderedDict[bytes, Prompt] = OrderedDict()

    def read(self, backend: Any, request: Any) -> Prompt | None:
        """The voice of a request; None: it brings none. Tokens and mel come together, or an embedding by itself.

        Raises:
            InvalidRequest: something of it is missing, is too long, or does not fit the model or the rest of it.
        """
        tokens = wire.whole_numbers(backend, request, TOKENS)
        mel, embedding = wire.floats(backend, request, MEL), wire.floats(backend, request, EMBEDDING)
        if tokens is None and mel is None and embedding is None:
            return None
        if embedding is None:
            raise InvalidRequest(f"{EMBEDDING}: is missing; send it with {TOKENS} and {MEL}, or send none of the three")
        if (tokens is None) != (mel is None):
            missing, other = (TOKENS, MEL) if tokens is None else (MEL, TOKENS)
            raise InvalidRequest(f"{missing}: is missing beside {other}; send both, or {EMBEDDING} alone")
        ids = np.array(tokens or (), np.int64)
        frames = np.zeros(0, np.float32) if mel is None else mel
        key = _key(ids, frames, embedding)
        if key not in self._known:
            self._known[key] = Prompt(key, self._conditioning(ids, frames, embedding))
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def _conditioning(
        self, ids: NDArray[np.int64], mel: NDArray[np.float32], embedding: NDArray[np.float32]
    ) -> Conditioning:
        config = self._config
        if len(embedding) != config.flow.speaker_size:
            raise InvalidRequest(f"{EMBEDDING}: {len(embedding)} numbers; the model takes {config.flow.speaker_size}")
        most, bins = int(MAX_REFERENCE_S * config.rates.tokens_per_second), config.flow.num_mel_bins
        if len(ids) > most:
            raise InvalidRequest(f"{TOKENS}: {len(ids)} of them; the limit is {most}, {MAX_REFERENCE_S:g} s")
        tokens = speech_tokens(TOKENS, ids.tolist(), self._text_size, config.flow.num_tokens)
        frames = len(ids) * config.rates.frames_per_token
        if len(mel) != frames * bins:
            raise InvalidRequest(
                f"{MEL}: {len(mel)} numbers for {len(ids)} of {TOKENS}; send {config.rates.frames_per_token} frames of "
                f"{bins} for each, {frames} frames in all, with both cut to the same duration"
            )
        # Copies: the server takes its tensors back once the request is answered.
        return Conditioning(
            embedding=torch.tensor(embedding),
            flow_tokens=torch.tensor(tokens, dtype=torch.int64),
            flow_mel=torch.tensor(mel.reshape(frames, bins)) if frames else torch.zeros(0, 0),
        )


def default_prompt(folder: Path, config: ModelConfig, name: str) -> Prompt | None:
    """The voice of requests that bring none, from the folder's spk2info.pt; None: there is none for them.

    name: "" for the release's own speaker, or else the first one. It may be a voice that users stored, whom
    `cosyvoice2` knows: it sends all that there is of a voice with its requests.

    Raises:
        InvalidRequest: the voice does not fit the model.
        CheckpointError: the file is damaged.
    """
    voices = built_in_voices(folder)
    if not voices or (name and name not in voices):
        log.info("requests that bring no voice are refused: %r is not in %s", name, folder / SPEAKERS)
        return None
    chosen = name or (RELEASED_SPEAKER if RELEASED_SPEAKER in voices else next(iter(voices)))
    voice = voices[chosen].aligned(config.rates.frames_per_token)
    check_fits(voice, config)
    mode = Mode.CROSS_LINGUAL if voice.has_prompt else Mode.SFT
    return Prompt(b"", condition(voice, mode))


def speech_tokens(field: str, ids: Sequence[int], text_size: int, num_tokens: int) -> tuple[int, ...]:
    """Speech tokens (0 … num_tokens − 1) of ids of the merged vocabulary.

    Raises:
        InvalidRequest: an id that is no speech token's; the message has the first one.
    """
    first, end = text_size, text_size + num_tokens
    if ids and not (min(ids) >= first and max(ids) < end):
        wrong = next(one for one in ids if not first <= one < end)
        raise InvalidRequest(
            f"{field}: id {wrong} is no speech token's; they are {first} … {end - 1}, the token and {text_size}, where "
            "speech begins in the merged vocabulary; leave out ids that end speech"
        )
    return tuple(one - first for one in ids)


def _key(*arrays: NDArray[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(array.tobytes())
    return digest.digest()
