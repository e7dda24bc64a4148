"""Voices: the class `Voice`, voice files (safetensors, lossless), and the speakers of spk2info.pt as voices.

A voice file has the tensors embedding, speech_tokens, mel and prompt_text (int64). The metadata in its header are the
voice's strings, the format's name and version, and optionally the strings of a consent and the name of an adapter,
which older programs ignore. Version 2 may also have uint8 tensors with the bytes of files: `recording`, an audio file,
and `other 1`, `other 2` …, the features for other models, each as a voice file of version 1. Reading runs no code.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.checkpoint.folder import SPEAKERS, SpeakerCard, read_card
from vivavoce.checkpoint.spk2info import (
    EMBEDDING_SIZE,
    NUM_MEL_BINS,
    SavedPrompt,
    SpeakerEntry,
    read_spk2info,
    write_spk2info,
)
from vivavoce.errors import InvalidRequest, VoiceStoreError
from vivavoce.frontend.voices.consent import Consent
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.rates import Rates
from vivavoce_textnorm import MAX_TEXT_CHARS, excerpt

MAX_SPEECH_TOKENS = 2_000
"""Maximum number of speech tokens; 30 s, the longest reference, have 1500 tokens with CosyVoice 1 (50 per second)."""
MAX_MEL_FRAMES = 4_000
"""Maximum number of mel frames; 30 s have 2813 frames of 256 samples at 24 kHz."""
MAX_MEL_BINS = 512
MAX_EMBEDDING = 4_096
MAX_PROMPT_TEXT = 4_000
"""Maximum number of text ids; 30 s of fast speech have fewer, even with one id for each byte."""

MAX_RECORDING_BYTES = 4 * 1024 * 1024
"""Maximum size of a kept recording; 30 s of 16-bit mono audio at 48 kHz are 2.75 MiB."""
MAX_SETS = 4
"""Maximum number of models for which a voice has features."""

FORMAT = "vivavoce-voice"
PLAIN, WHOLE = "1", "2"
"""File versions: PLAIN has features for one model and no recording, so that older programs can read it; WHOLE is the
version of all other files."""

MAX_VOICE_BYTES = 16 * 1024 * 1024
"""Maximum size of a voice file that is read; a voice within the other limits is not larger."""

_MAX_HEADER_BYTES = 1024 * 1024
_LENGTH_BYTES = 8
"""Size of the little-endian number at the start of a safetensors file, which is the length of its header."""

_STRINGS = ("name", "transcript", "fingerprint", "description", "licence")
_CONSENT = {"consent": "statement", "consent_by": "who", "consent_at": "at"}
"""The name, in a voice file, of each field of `Consent`."""
_OPTIONAL = (*_CONSENT, "adapter")
_TENSORS = ("embedding", "speech_tokens", "mel", "prompt_text")
_AGAIN = "extract it again from its recording"


@dataclass(frozen=True, eq=False)
class Voice:
    """The features of a reference recording, or only a speaker embedding.

    The features fit only models with the tokenizer and encoders that computed them; `fingerprint` identifies these.
    """

    embedding: Tensor
    """[speaker size] float32."""
    fingerprint: str
    """Fingerprint of the model that computed the features; "" if unknown."""
    name: str = ""
    transcript: str = ""
    """Text of the reference recording, as given by the caller."""
    prompt_text: tuple[int, ...] = ()
    """Text ids of the normalised transcript; without them, cloning copies the timbre but not the manner of speaking."""
    speech_tokens: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int32))
    """[n] int32: speech tokens of the reference; after `aligned`, only tokens for which `mel` has frames."""
    mel: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    """[frames, bins] float32: mel of the reference, at the model's mel rate."""
    description: str = ""
    licence: str = ""
    consent: Consent | None = None
    """The consent of the person in the recording."""
    recording: bytes = b""
    """Bytes of the reference's audio file, from which other models can extract features; b"" if it was not kept."""
    language: str = ""
    sex: str = ""
    """The language and sex of a built-in voice, from the model's card; voice files do not store them."""
    adapter: str = ""
    """The LoRA adapter for requests with this voice that name no adapter; "" for none."""
    warnings: tuple[str, ...] = ()
    """Faults of the recording, one line each. Only a newly extracted voice has them; voice files do not."""
    others: tuple[Voice, ...] = ()
    """Features for other models, the newest last; only their tensors, text ids and fingerprints are used."""

    def __repr__(self) -> str:
        return f"Voice({self.name!r}, {len(self.speech_tokens)} speech tokens, {len(self.prompt_text)} text tokens)"

    @property
    def has_prompt(self) -> bool:
        """Whether the voice has reference speech, and not only a speaker embedding."""
        return len(self.speech_tokens) > 0

    @property
    def label(self) -> str:
        """The voice's name for error messages."""
        return excerpt(self.name) if self.name else "the given one"

    def aligned(self, rates: Rates) -> Voice:
        """Cut speech tokens and mel to the same duration, so that the flow can assign frames to tokens. Does nothing
        for CosyVoice 1, whose tokens are not whole frames: its flow stretches the tokens to the mel."""
        if not (per_token := rates.frames_per_token):
            return self
        count = min(len(self.mel) // per_token, len(self.speech_tokens))
        return replace(self, speech_tokens=self.speech_tokens[:count], mel=self.mel[: count * per_token])

    def named(self, name: str) -> Voice:
        """Return this voice with another name."""
        return replace(self, name=name)

    def of(self, fingerprint: str) -> Voice | None:
        """Return the voice with only this model's features, without its recording; None if it lacks these features."""
        kept = {key: getattr(self, key) for key in (*_STRINGS, "consent", "adapter") if key != "fingerprint"}
        found = (one for one in (self, *self.others) if one.fingerprint == fingerprint)
        return next((replace(one, **kept, recording=b"", others=()) for one in found), None)

    def including(self, features: Voice) -> Voice:
        """Return the voice with another model's features added; beyond `MAX_SETS`, the oldest in `others` go."""
        return replace(self, others=(*self.others, features)[1 - MAX_SETS :])


def check_fits(voice: Voice, config: ModelConfig) -> None:
    """Raise InvalidRequest if the model's networks cannot process a voice's tensors or ids.

    Comparing fingerprints is not enough: an imported voice has no fingerprint, and a file may contain any tensors.
    """
    for problem in _misfits(voice, config):
        raise InvalidRequest(f"voice: {voice.label} does not fit this model ({problem}); {_AGAIN}")


def _misfits(voice: Voice, config: ModelConfig) -> Iterator[str]:
    speaker_size, bins = config.flow.speaker_size, config.mel.num_bins
    if tuple(voice.embedding.shape) != (speaker_size,):
        yield f"its embedding is {list(voice.embedding.shape)}, expected [{speaker_size}]"
    if voice.prompt_text and max(voice.prompt_text) >= config.lm.text_vocab_size:
        yield f"text id {max(voice.prompt_text)}, the limit is {config.lm.text_vocab_size - 1}"
    frames = len(voice.speech_tokens) * config.rates.frames_per_token or len(voice.mel)
    if voice.has_prompt and tuple(voice.mel.shape) != (frames, bins):
        yield f"its mel is {list(voice.mel.shape)}, expected [{frames}, {bins}]"
    if voice.has_prompt and int(voice.speech_tokens.max()) >= config.flow.num_tokens:
        yield f"speech token {int(voice.speech_tokens.max())}, the limit is {config.flow.num_tokens - 1}"


def encode_voice(voice: Voice) -> bytes:
    """Encode a voice as the bytes of a voice file. Raises InvalidRequest if a field exceeds its limit."""
    for problem in _problems(voice):
        raise InvalidRequest(f"voice: {excerpt(voice.name)} {problem}; {_AGAIN}")
    arrays = {key: np.ascontiguousarray(_array(getattr(voice, key))) for key in _TENSORS[:-1]}
    arrays["prompt_text"] = np.array(voice.prompt_text, np.int64)
    files = {"recording": voice.recording} if voice.recording else {}
    for place, one in enumerate(voice.others, 1):
        files[f"other {place}"] = encode_voice(replace(one, recording=b"", others=()))
    arrays |= {name: np.frombuffer(content, np.uint8) for name, content in files.items()}
    version = WHOLE if files else PLAIN
    return save(arrays, {"format": FORMAT, "version": version, **_strings(voice)})


def decode_voice(data: bytes, label: str, versions: tuple[str, ...] = (PLAIN, WHOLE)) -> Voice:
    """Decode the bytes of a voice file. label: beginning of error messages; versions: accepted file versions.

    Raises VoiceStoreError if `data` is not a voice file, has a newer version, is damaged, or exceeds a limit."""
    if len(data) > MAX_VOICE_BYTES:
        raise VoiceStoreError(f"{label} is larger than {MAX_VOICE_BYTES >> 20} MiB, so it is not a voice; {_AGAIN}")
    metadata = _metadata(_read_header(io.BytesIO(data)))
    if metadata is None:
        raise VoiceStoreError(f"{label} is damaged, or not a voice of vivavoce; {_AGAIN}")
    if metadata["version"] not in versions:
        raise VoiceStoreError(
            f"{label} has format version {excerpt(metadata['version'])}, this program reads {' and '.join(versions)}; "
            "update vivavoce"
        )
    try:
        tensors = load(data)
    except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise VoiceStoreError(f"{label} is damaged ({type(error).__name__}); {_AGAIN}") from None
    files = {key: tensors.pop(key) for key in sorted(tensors.keys() - set(_TENSORS))}
    text_ids = tensors.pop("prompt_text", torch.zeros(()))
    fits = {*tensors, "prompt_text"} == set(_TENSORS) and text_ids.dtype == torch.int64 and text_ids.dim() == 1
    if not fits or any(metadata["version"] == PLAIN or one.dtype != torch.uint8 for one in files.values()):
        raise VoiceStoreError(f"{label} does not hold the tensors of a voice; {_AGAIN}")
    contents = {key: one.numpy().tobytes() for key, one in files.items()}
    parts: dict[str, Any] = {**tensors, **{key: metadata[key] for key in _STRINGS}}
    parts["consent"], parts["adapter"] = _consent(metadata, label), metadata.get("adapter", "")
    parts["recording"] = contents.pop("recording", b"")
    parts["others"] = tuple(decode_voice(one, label, (PLAIN,)) for one in contents.values())
    voice = Voice(**parts, prompt_text=tuple(text_ids.tolist()))
    for problem in _problems(voice):
        raise VoiceStoreError(f"{label} {problem}; {_AGAIN}")
    return voice


def _strings(voice: Voice) -> dict[str, str]:
    return {**{key: getattr(voice, key) for key in _STRINGS}, **optional_fields(voice)}


def optional_fields(voice: Voice) -> dict[str, str]:
    """Return the voice's strings that only some voices have: those of its consent, and the name of its adapter."""
    given, adapter = voice.consent, {"adapter": voice.adapter} if voice.adapter else {}
    return {**({} if given is None else {name: getattr(given, part) for name, part in _CONSENT.items()}), **adapter}


def _consent(metadata: dict[str, str], label: str) -> Consent | None:
    if "consent" not in metadata:
        return None
    try:
        return Consent(**{part: metadata.get(name, "") for name, part in _CONSENT.items()})
    except InvalidRequest as error:
        raise VoiceStoreError(f"{label} is damaged ({error}); {_AGAIN}") from None


def read_summary(file: BinaryIO) -> VoiceSummary | None:
    """Read a voice file's summary from its header; None if the file is not a voice."""
    header = _read_header(file)
    metadata = _metadata(header)
    if metadata is None:
        return None
    try:
        has_prompt = header["speech_tokens"]["shape"] != [0]
    except (LookupError, TypeError):
        has_prompt = False
    about: dict[str, Any] = {key: metadata[key] for key in ("description", "transcript", *_OPTIONAL) if key in metadata}
    return VoiceSummary(metadata["name"], "stored", True, has_prompt=has_prompt, **about)


def _read_header(file: BinaryIO) -> Any:
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > _MAX_HEADER_BYTES:
        return None
    try:
        return json.loads(file.read(length))
    except (ValueError, RecursionError):
        return None


def _metadata(header: Any) -> dict[str, str] | None:
    try:
        metadata = header["__metadata__"]
        known = {key: metadata[key] for key in ("format", "version", *_STRINGS)}
        known.update({key: metadata[key] for key in _OPTIONAL if key in metadata})
    except (LookupError, TypeError):
        return None
    is_voice = known["format"] == FORMAT and all(isinstance(value, str) for value in known.values())
    return known if is_voice else None


def _problems(voice: Voice) -> Iterator[str]:
    """Yield each problem, as words after the voice's name. After a problem, stop: later checks may fail on it."""
    if len(voice.others) >= MAX_SETS:
        yield f"has features for {1 + len(voice.others)} models, more than {MAX_SETS}"
    if len(voice.recording) > MAX_RECORDING_BYTES:
        yield f"has a recording of {len(voice.recording)} bytes, more than {MAX_RECORDING_BYTES}"
    for part, tensor, dtype, limits in (
        ("embedding", voice.embedding, torch.float32, (MAX_EMBEDDING,)),
        ("speech tokens", voice.speech_tokens, torch.int32, (MAX_SPEECH_TOKENS,)),
        ("mel", voice.mel, torch.float32, (MAX_MEL_FRAMES, MAX_MEL_BINS)),
    ):
        shape = " × ".join(map(str, tensor.shape)) or "a scalar"
        if tensor.dtype != dtype or tensor.dim() != len(limits):
            yield f"has {part} of {tensor.dtype} {shape}, not {dtype} in {len(limits)} dimensions"
        if any(size > most for size, most in zip(tensor.shape, limits, strict=True)):
            yield f"has {part} of size {shape}, more than {' × '.join(map(str, limits))}"
    if not len(voice.embedding):
        yield "has an empty embedding"
    if len(voice.prompt_text) > MAX_PROMPT_TEXT:
        yield f"has {len(voice.prompt_text)} text ids in its prompt, more than {MAX_PROMPT_TEXT}"
    if not np.isfinite(_array(voice.embedding)).all() or not np.isfinite(_array(voice.mel)).all():
        yield "has numbers that are NaN or infinite"
    if (_array(voice.speech_tokens) < 0).any() or any(not 0 <= token < 2**31 for token in voice.prompt_text):
        yield "has token ids outside of 0 … 2147483647"
    if (len(voice.speech_tokens) > 0) != (voice.mel.numel() > 0):
        yield f"has {len(voice.speech_tokens)} speech tokens, but {len(voice.mel)} mel frames"
    for part, text in _strings(voice).items():
        if len(text) > MAX_TEXT_CHARS:
            yield f"has a {part} of {len(text)} characters, more than {MAX_TEXT_CHARS}"
        if any("\ud800" <= character <= "\udfff" for character in text):
            yield f"has a {part} with half of a surrogate pair"


def _array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as a NumPy array, because checks in torch use threads and take 60 ms on two busy cores."""
    return tensor.detach().cpu().numpy()


def built_in_voices(folder: Path) -> dict[str, Voice]:
    """Return the voices in the folder's spk2info.pt, by name; empty without the file.

    Voices on the model's card come first, in its order and with its descriptions, then the others in the file's order.
    """
    path = folder / SPEAKERS
    if not path.is_file():
        return {}
    # Without a fingerprint, a voice is accepted by each model: users may copy the file of an older model on purpose.
    voices = {voice.name: voice for voice in voices_from_spk2info(path, fingerprint="")}
    told = {name: card for name, card in read_card(folder).voices.items() if name in voices}
    names = dict.fromkeys((*told, *voices))
    return {name: replace(voices[name], **asdict(told.get(name) or _official_card(name))) for name in names}


def _official_card(name: str) -> SpeakerCard:
    """Tell language and sex by the Chinese name of an official speaker, such as 中文女 (Chinese, female)."""
    languages = {"中文": "zh", "英文": "en", "日语": "ja", "韩语": "ko", "粤语": "yue"}
    sex = {"女": "female", "男": "male"}.get(name[2:], "")
    return SpeakerCard(languages.get(name[:2], "") if sex else "", sex)


def voices_from_spk2info(path: Path, fingerprint: str) -> list[Voice]:
    """Read the speakers of an spk2info.pt, in its order, as voices. fingerprint: their model's fingerprint, or "".

    A built-in speaker becomes a voice with only an embedding, a saved zero-shot speaker a voice with a prompt. The file
    has text ids but no transcript, so the transcript is "". The file has the speech tokens twice, for the language
    model and for the flow; the voice gets the flow's tokens.

    Raises:
        CheckpointError: the file is missing or corrupt, has objects other than tensors, or a tensor's shape is wrong.
    """
    voices = []
    for name, entry in read_spk2info(path).items():
        voice = Voice(embedding=entry.embedding, fingerprint=fingerprint, name=name)
        if (prompt := entry.prompt) is not None:
            ids = tuple(prompt.text_ids.tolist())
            voice = replace(voice, prompt_text=ids, speech_tokens=prompt.flow_speech_tokens, mel=prompt.mel)
        voices.append(voice)
    return voices


def voices_to_spk2info(voices: Iterable[Voice], path: Path, *, keep: bool = False) -> None:
    """Write voices to an spk2info.pt as the official code does, atomically; transcripts and descriptions are lost.

    keep: keep the file's other speakers.

    Raises:
        InvalidRequest: a voice has no name, two voices have the same name, a voice's sizes differ from the official
            ones, or the file cannot be written.
    """
    entries: dict[str, SpeakerEntry] = {}
    for voice in voices:
        if not voice.name or voice.name in entries:
            problem = "occurs twice" if voice.name else "is empty"
            raise InvalidRequest(f"voice name: {excerpt(voice.name)} {problem}; give each voice a name of its own")
        bins = voice.mel.shape[1] if voice.has_prompt else NUM_MEL_BINS
        if voice.embedding.shape != (EMBEDDING_SIZE,) or bins != NUM_MEL_BINS:
            raise InvalidRequest(
                f"voice: {excerpt(voice.name)} has an embedding of {voice.embedding.numel()} and {bins} mel bins; "
                f"spk2info holds {EMBEDDING_SIZE} and {NUM_MEL_BINS}; keep it in the voice store"
            )
        ids, tokens = torch.tensor(voice.prompt_text, dtype=torch.int32), voice.speech_tokens
        prompt = SavedPrompt(ids, tokens, tokens, voice.mel) if voice.has_prompt else None
        entries[voice.name] = SpeakerEntry(voice.embedding, prompt)
    try:
        write_spk2info(path, entries, keep=keep)
    except OSError as error:
        raise InvalidRequest(f"path: {path.name!r} cannot be written ({error.strerror}); check the folder") from None
