"""The model `token2wav`: speech tokens → audio, at once or in steps, by an engine of flow and vocoder."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.checkpoint.folder import BACKBONE, SPEAKERS
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
from vivavoce.engine.handle import Handle
from vivavoce.engine.request import (
    AudioChunk,
    Conditioning,
    EngineRequest,
    InputMode,
    SegmentRequest,
    SpeechTokens,
    check_speed,
)
from vivavoce.engine.settings import CUDA_BYTES, LEAST_ROOM, EngineSettings
from vivavoce.engine.stages import Stages
from vivavoce.engine.vocoder_stage.stage import join_rule
from vivavoce.errors import InvalidRequest, Overloaded, StageFailed, UnsupportedModel
from vivavoce.frontend.audio.samples import MAX_REFERENCE_S, Audio
from vivavoce.frontend.model_choice import choose_dtype
from vivavoce.frontend.modes import CONVERSION, condition
from vivavoce.frontend.speech import check_seed
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.voice import built_in_voices, check_fits
from vivavoce.lru_cache import LruCache
from vivavoce.models.build import Models, build_models
from vivavoce.models.generations import MAX_FRAMES
from vivavoce_triton.models.backend import Inputs, Parameters, answered, check_present, refusal
from vivavoce_triton.models.speaking import RELEASED_SPEAKER, SPEED_DIGITS, recording

log = logging.getLogger(__name__)

PROMPT_TOKENS, MEL, EMBEDDING = "prompt_speech_tokens", "prompt_speech_feat", "prompt_spk_embedding"
TOKENS, OFFSET, LAST = "target_speech_tokens", "token_offset", "finalize"
FREE_SHARE = 0.3
"""Share of the free GPU memory that this model uses. A language model on the same GPU needs half or more."""
_REMEMBERED = 64
"""Number of voices to cache; a voice of 30 s takes about 0.5 MB."""
_POLICY = ChunkPolicy.low_latency()
"""Determines only how chunks are joined. Clients choose the sizes of the steps."""

Samples = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class SynthesisRequest:
    """A request; voice, seed and speed are None if they are not given.

    tokens: speech tokens (0 … V − 1); in a stream, all tokens since its start. offset: number of tokens that earlier
    requests spoke; None if the request is not part of a stream. relative: whether a step has only the tokens that were
    not spoken yet; the stream then gives the offset.
    """

    tokens: tuple[int, ...]
    voice: Conditioning | None
    seed: int | None
    speed: float | None
    id: str
    offset: int | None
    final: bool
    relative: bool


class RequestReader:
    """Reads requests, and caches voices, which every step may repeat. text_size: the first merged id of speech.

    extract: makes the voice of a `reference_wav`; if it is given, steps are relative.
    """

    def __init__(
        self, config: ModelConfig, text_size: int, extract: Callable[[Audio], Conditioning] | None = None
    ) -> None:
        self._config, self._text_size, self._extract = config, text_size, extract
        self._voices: LruCache[Conditioning] = LruCache(_REMEMBERED)

    def read(self, inputs: Inputs) -> SynthesisRequest:
        """Read a request. `InvalidRequest`: a tensor is missing or out of range."""
        check_present(inputs.request.is_cancelled)
        last, name, relative = inputs.number(LAST), inputs.request.request_id(), self._extract is not None
        offset = inputs.number(OFFSET) if not relative else None if last is None else 0
        if (offset is None) != (last is None):
            missing, other = (OFFSET, LAST) if offset is None else (LAST, OFFSET)
            raise InvalidRequest(f"{missing}: is missing beside {other}; a step needs both, a whole utterance neither")
        if offset is not None and not name:
            raise InvalidRequest("request id: is empty; give the steps of a stream an id that no other stream has")
        if offset is not None and offset < 0:
            raise InvalidRequest(f"{OFFSET}: {int(offset)} is below 0; it is the number of tokens already spoken")
        ids = inputs.ids(TOKENS)
        if not ids and not (last and ids is not None):
            what = "missing" if ids is None else "empty"
            raise InvalidRequest(f"{TOKENS}: is {what}; send the tokens that are to be spoken")
        tokens = self._speech_tokens(TOKENS, ids or ())
        seed, speed = inputs.number("seed"), inputs.number("speed")
        if seed is not None:
            check_seed(seed := int(seed))
        if speed is not None:
            check_speed(speed := round(float(speed), SPEED_DIGITS))
        step = None if offset is None else int(offset)
        return SynthesisRequest(tokens, self.voice(inputs), seed, speed, name, step, bool(last), relative)

    def voice(self, inputs: Inputs) -> Conditioning | None:
        """Return the request's voice, or None. `InvalidRequest`: a part of it is missing, too long, or does not fit."""
        extract, wave = self._extract, None if self._extract is None else inputs.floats("reference_wav")
        if extract is not None and wave is not None:
            audio = recording(wave, inputs.whole("reference_wav_len", 1, len(wave)))
            key = hashlib.blake2b(audio.samples.tobytes(), digest_size=16).digest()
            return self._voices.get(key, lambda: extract(audio))
        tokens, mel, embedding = inputs.ids(PROMPT_TOKENS), inputs.floats(MEL), inputs.floats(EMBEDDING)
        if tokens is None and mel is None and embedding is None:
            return None
        if embedding is None:
            raise InvalidRequest(
                f"{EMBEDDING}: is missing; send it with {PROMPT_TOKENS} and {MEL}, or send none of the three"
            )
        if (tokens is None) != (mel is None):
            missing, other = (PROMPT_TOKENS, MEL) if tokens is None else (MEL, PROMPT_TOKENS)
            raise InvalidRequest(f"{missing}: is missing beside {other}; send both, or {EMBEDDING} alone")
        ids = np.array(tokens or (), np.int64)
        frames = np.zeros(0, np.float32) if mel is None else mel
        digest = hashlib.blake2b(digest_size=16)
        for part in (ids, frames, embedding):
            digest.update(len(part).to_bytes(8, "little") + part.tobytes())
        return self._voices.get(digest.digest(), lambda: self._conditioning(ids, frames, embedding))

    def _conditioning(
        self, ids: NDArray[np.int64], mel: NDArray[np.float32], embedding: NDArray[np.float32]
    ) -> Conditioning:
        config, bins, per_token = self._config, self._config.flow.num_mel_bins, self._config.rates.frames_per_token
        if len(embedding) != config.flow.speaker_size:
            raise InvalidRequest(f"{EMBEDDING}: {len(embedding)} numbers; the model needs {config.flow.speaker_size}")
        most = int(MAX_REFERENCE_S * config.rates.tokens_per_second)
        if len(ids) > most:
            raise InvalidRequest(f"{PROMPT_TOKENS}: has {len(ids)} tokens; the limit is {most} ({MAX_REFERENCE_S:g} s)")
        tokens = self._speech_tokens(PROMPT_TOKENS, ids.tolist())
        frames = len(ids) * per_token
        if len(mel) != frames * bins:
            raise InvalidRequest(
                f"{MEL}: has {len(mel)} numbers for {len(ids)} prompt tokens; send {per_token} frames of {bins} for "
                f"each, {frames} frames in all, with both cut to the same duration"
            )
        # Copy the tensors, because their memory belongs to the request.
        return Conditioning(
            embedding=torch.tensor(embedding),
            flow_tokens=torch.tensor(tokens, dtype=torch.int64),
            flow_mel=torch.tensor(mel.reshape(frames, bins)) if frames else torch.zeros(0, 0),
        )

    def _speech_tokens(self, field: str, ids: Sequence[int]) -> tuple[int, ...]:
        first, end = self._text_size, self._text_size + self._config.flow.num_tokens
        if ids and not (min(ids) >= first and max(ids) < end):
            wrong = next(one for one in ids if not first <= one < end)
            raise InvalidRequest(
                f"{field}: id {wrong} is not a speech token; they are {first} … {end - 1}, "
                f"a token plus {first}; leave out ids that end speech"
            )
        return tuple(one - first for one in ids)


@dataclass(frozen=True)
class Bounds:
    """Limits of open streams: their number; bytes in all, without flow pages; seconds without a step until the end."""

    streams: int = 1_024
    nbytes: int = 512 << 20
    idle_s: float = 300.0


@dataclass(eq=False)
class SynthesisStream:
    """An open stream. nbytes: its memory; tokens: [n], all so far; spoken: number of tokens with requested audio."""

    id: str
    handle: Handle
    voice: Conditioning
    seed: int
    speed: float
    nbytes: int
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    spoken: int = 0
    used_at: float = 0.0

    def __post_init__(self) -> None:
        self.chunks: Iterator[AudioChunk] = iter(self.handle)

    def push(self, asked: SynthesisRequest, offset: int, lookahead: int) -> None:
        """Add a step. lookahead: number of tokens at the step's end that get no audio yet (0 in the last step).

        `InvalidRequest`: the step was made before, leaves a gap, contradicts earlier steps, or has too few tokens.
        """
        if offset != self.spoken:
            given = f"complete up to token {self.spoken}; go on from there"
            raise InvalidRequest(
                f"{OFFSET}: the step from {offset} of request id {self.id!r} was made already, its audio is "
                f"{given}, or start again with another id"
                if offset < self.spoken
                else f"{OFFSET}: {offset} leaves out tokens of request id {self.id!r}, whose audio is {given}"
            )
        known = len(self.tokens)
        if not np.array_equal(asked.tokens[:known], self.tokens):
            raise InvalidRequest(f"{TOKENS}: do not begin with the {known} tokens before; send all tokens so far")
        if asked.voice is not None and asked.voice.flow_key != self.voice.flow_key:
            raise InvalidRequest("prompt: differs from the stream's first step; send the first prompt, or leave it out")
        for name, value, began in (("seed", asked.seed, self.seed), ("speed", asked.speed, self.speed)):
            if value is not None and value != began:
                raise InvalidRequest(f"{name}: is {value}, but was {began} at first; send {began}, or leave it out")
        ahead = 0 if asked.final else lookahead
        hop = len(asked.tokens) - offset - ahead
        if hop < 1:
            reason = f", because the last {ahead} are only lookahead" if ahead else ""
            raise InvalidRequest(
                f"{TOKENS}: {len(asked.tokens)} tokens were sent, a step that begins at token {offset} needs at least "
                f"{offset + 1 + ahead}{reason}; send all tokens so far, not only the new ones"
            )
        self.handle.text.push(SpeechTokens(asked.tokens[known:], hop, asked.final))
        self.tokens, self.spoken = np.array(asked.tokens, np.int32), self.spoken + hop


class Token2Wav:
    """`target_speech_tokens` [1, n] INT32 → `waveform` [1, samples] FP32 at the model's sample rate.

    Tokens are merged ids. The prompt tensors give the voice (without them: `default`); `seed` and `speed` are [1, 1].

    A request with `token_offset` and `finalize` is a step of the stream with its request id. It has all tokens so far
    and the number of tokens spoken before. Its response has the audio of the new tokens, except the lookahead and the
    last 160 ms, which the next step returns. The first step sets voice, seed and speed; later steps may omit them. A
    true `finalize` ends the stream, or cancels it if there are no tokens. A refused request changes nothing.

    engine: has a flow and a vocoder; `close` closes it. It must admit every stream, as clients set the pace. text_size:
    first merged id of speech. default: voice of requests without a voice, or None to refuse them. extract: see
    `RequestReader`. bins: 0 if the output is audio; else the output is `mel` [1, bins, frames].
    """

    def __init__(
        self,
        backend: Any,
        engine: Engine,
        text_size: int,
        default: Conditioning | None,
        bounds: Bounds = Bounds(),
        clock: Callable[[], float] = time.monotonic,
        *,
        extract: Callable[[Audio], Conditioning] | None = None,
        bins: int = 0,
    ) -> None:
        assert isinstance(engine.models, Models), "the engine has a flow and a vocoder"
        self._backend, self.engine, self._config, self._default = backend, engine, engine.models.config, default
        self._reader, self._bins = RequestReader(self._config, text_size, extract), bins
        vocoder = engine.models.vocoder
        rule = join_rule(_POLICY.joins, vocoder.config.samples_per_frame, vocoder.reach, engine.models.device)
        self._kept_frames = rule.mel_frames  # frames whose mels and samples are kept between steps
        self._bounds, self._clock = bounds, clock
        self.streams: OrderedDict[str, SynthesisStream] = OrderedDict()
        """Request id → stream; the least recently used stream comes first."""

    @classmethod
    def load(cls, given: Parameters, backend: Any) -> Token2Wav:
        """Load the model. `VivavoceError`: the folder, device or voice cannot be used."""
        models = load_models(given)
        default = default_prompt(models.folder, models.config, given["default_voice"])
        engine = open_engine(given, models)
        return cls(backend, engine, len(TextTokenizer.from_folder(models.folder / BACKBONE)), default)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        before = self._clock() - self._bounds.idle_s
        while (oldest := next(iter(self.streams.values()), None)) is not None and oldest.used_at < before:
            self._drop(oldest)
        begun = [self._begin(request) for request in requests]
        return [refusal(self._backend, one) if isinstance(one, Exception) else self._answered(one) for one in begun]

    def _answered(self, work: Callable[[], Samples]) -> Any:
        if self._bins:
            return answered(self._backend, "mel", lambda: np.ascontiguousarray(work().reshape(-1, self._bins).T))
        return answered(self._backend, "waveform", work)

    def close(self) -> None:
        for stream in list(self.streams.values()):
            self._drop(stream)
        self.engine.close(drain=False)

    @property
    def nbytes(self) -> int:
        return sum(stream.nbytes for stream in self.streams.values())

    def _begin(self, request: Any) -> Callable[[], Samples] | Exception:
        try:
            asked = self._reader.read(Inputs(self._backend, request))
            if asked.offset is None:
                return self._whole(asked)
            if not asked.tokens:
                return self._give_up(asked.id)
            if asked.relative and (stream := self.streams.get(asked.id)) is not None:
                spoken = stream.tokens[: stream.spoken].tolist()
                asked = replace(asked, tokens=(*spoken, *asked.tokens), offset=len(spoken))
            return self._step(asked, asked.offset or 0)
        except Exception as error:
            return error

    def _whole(self, asked: SynthesisRequest) -> Callable[[], Samples]:
        voice = self._voice(asked)
        self._check_length(asked, voice)
        segment = SegmentRequest(voice, speech_tokens=asked.tokens, seed=asked.seed or 0, speed=asked.speed or 1.0)
        handle = self.engine.submit(EngineRequest((segment,)))
        return lambda: handle.result().samples

    def _step(self, asked: SynthesisRequest, offset: int) -> Callable[[], Samples]:
        stream = self.streams.get(asked.id) or self._open(asked, offset)
        try:
            self._check_length(asked, stream.voice)
            stream.push(asked, offset, self._config.flow.encoder.lookahead)
        except InvalidRequest:
            if not stream.spoken:
                self._drop(stream)
            raise
        stream.used_at = self._clock()
        if asked.final:
            self.streams.pop(asked.id, None)
        else:
            self.streams.move_to_end(asked.id)

        def samples() -> Samples:
            try:
                chunk = next(stream.chunks, None)
            except Exception:
                self._drop(stream)
                raise
            if chunk is None:
                raise StageFailed(f"token2wav: the stream of request id {asked.id!r} has ended; start another")
            return chunk.samples

        return samples

    def _open(self, asked: SynthesisRequest, offset: int) -> SynthesisStream:
        if offset:
            raise InvalidRequest(
                f"{OFFSET}: {offset}, but request id {asked.id!r} has no stream here: none was begun, it has ended "
                f"or failed, or was idle for {self._bounds.idle_s:g} s; begin at 0"
            )
        voice, seed, speed = self._voice(asked), asked.seed or 0, asked.speed or 1.0
        nbytes, bounds = self._kept_bytes(voice), self._bounds
        if len(self.streams) >= bounds.streams or self.nbytes + nbytes > bounds.nbytes:
            oldest = next(iter(self.streams.values()), None)
            wait_s = 0.0 if oldest is None else max(0.0, oldest.used_at + bounds.idle_s - self._clock())
            raise Overloaded(
                f"token2wav: {len(self.streams)} streams keep {self.nbytes} bytes, the limits are {bounds.streams} and "
                f"{bounds.nbytes}; end some with finalize, or try again in {ceil(wait_s)} s",
                retry_after_s=wait_s,
            )
        segment = SegmentRequest(voice, speech_tokens=(), seed=seed, speed=speed)
        handle = self.engine.submit(EngineRequest((segment,), _POLICY, InputMode.SPEECH))
        stream = self.streams[asked.id] = SynthesisStream(asked.id, handle, voice, seed, speed, nbytes)
        return stream

    def _give_up(self, name: str) -> Callable[[], Samples]:
        stream = self.streams.pop(name, None)

        def nothing() -> Samples:
            # Cancel only now, after the earlier steps in this batch have their audio.
            if stream is not None:
                stream.handle.cancel()
            return np.zeros(0, np.float32)

        return nothing

    def _drop(self, stream: SynthesisStream) -> None:
        if self.streams.get(stream.id) is stream:
            del self.streams[stream.id]
        stream.handle.cancel()

    def _voice(self, asked: SynthesisRequest) -> Conditioning:
        voice = asked.voice or self._default
        if voice is None:
            raise InvalidRequest(f"{MEL}: is missing, and the model has no spk2info.pt with a voice; send a prompt")
        return voice

    def _check_length(self, asked: SynthesisRequest, voice: Conditioning) -> None:
        taken = len(voice.flow_tokens)
        room = self._config.rates.tokens_in(MAX_FRAMES) - taken
        if len(asked.tokens) > room:
            raise InvalidRequest(
                f"{TOKENS}: {len(asked.tokens)} tokens; beside a prompt of {taken} there is room for {room}; send fewer"
            )

    def _kept_bytes(self, voice: Conditioning) -> int:
        """Return the largest number of bytes that a stream keeps between steps, without the flow's pages."""
        vocoder = self._config.vocoder
        given = (voice.embedding, voice.flow_tokens, voice.flow_mel)
        own = 2 * sum(tensor.nbytes for tensor in given)  # on the host and on the device
        tail = 4 * self._kept_frames * (vocoder.num_mel_bins + vocoder.samples_per_frame)
        return own + tail + 4 * self._config.rates.tokens_in(MAX_FRAMES)


def load_models(given: Parameters) -> Models:
    """Load flow and vocoder. `VivavoceError`: the folder or the device cannot be used."""
    folder, device = given.model_folder, given.device
    models = build_models(folder, device, choose_dtype("auto", device, folder), language_model=False)
    if not models.config.rates.frames_per_token:
        raise UnsupportedModel("model: token2wav cannot serve CosyVoice 1; serve the model vivavoce")
    return models


def open_engine(given: Parameters, models: Models, stages: Stages = Stages()) -> Engine:
    """Make an engine that admits every stream, and warm it up. stages: as for `Engine`."""
    settings = EngineSettings(memory_bytes=_memory_bytes(given, models.device), admission=AdmissionMode.ALL)
    engine = Engine(models, settings, stages=stages)
    engine.warm_up(0.0)
    return engine


def default_prompt(folder: Path, config: ModelConfig, name: str) -> Conditioning | None:
    """Return the default voice from spk2info.pt, or None. name: "" for the released speaker, or else the first voice.

    For a stored voice's name the result is None, without an error: `cosyvoice2` sends stored voices with its requests.
    """
    voices = built_in_voices(folder)
    if not voices or (name and name not in voices):
        fields = {"name": name, "file": folder / SPEAKERS}
        log.info("no default voice: requests without a voice are refused, %(name)r is not in %(file)s", fields)
        return None
    chosen = name or (RELEASED_SPEAKER if RELEASED_SPEAKER in voices else next(iter(voices)))
    voice = voices[chosen].aligned(config.rates)
    check_fits(voice, config)
    return condition(voice, CONVERSION)


def _memory_bytes(parameters: Parameters, device: torch.device) -> int | None:
    """Return the limit in bytes on CUDA (else None): `memory_gb`, or the weights and `FREE_SHARE` of free memory."""
    given = parameters.number("memory_gb", float, "gigabytes above 0, or leave it empty")
    if given is not None and not 0 < given < 10_000:
        raise InvalidRequest(f"memory_gb: {given:g} is not a number of gigabytes above 0; give one, or leave it empty")
    if device.type != "cuda":
        return None
    taken = torch.cuda.memory_reserved(device) + CUDA_BYTES
    if given is None:
        return taken + max(LEAST_ROOM, int(FREE_SHARE * torch.cuda.mem_get_info(device)[0]))
    if given * 2**30 < taken + LEAST_ROOM:
        raise InvalidRequest(
            f"memory_gb: {given:.1f} is too little, the weights and CUDA take {taken / 2**30:.1f}; choose "
            f"{(taken + LEAST_ROOM) / 2**30:.1f} or more, or leave it empty"
        )
    return int(given * 2**30)
