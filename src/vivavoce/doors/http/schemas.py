"""Requests and answers of the API as its schema documents them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vivavoce.service.host.order import Sampling
from vivavoce.service.text.checks import MAX_TEXT_CHARS

VoiceName = Annotated[str, Field(min_length=1, max_length=200)]


class VoiceId(BaseModel):
    """A voice, as OpenAI names custom ones."""

    model_config = ConfigDict(extra="forbid")
    id: VoiceName = Field(description="The voice's name.")


class SamplingFields(BaseModel):
    """How speech tokens are drawn; what is left out is as the model's own configuration says."""

    model_config = ConfigDict(extra="forbid")
    top_p: float | None = Field(None, ge=0.001, le=1, description="Share of the probability that is drawn from.")
    top_k: int | None = Field(None, ge=1, le=10_000, description="Most ids that are drawn from.")
    win_size: int | None = Field(None, ge=1, le=200, description="Tokens in which a repetition counts.")
    tau_r: float | None = Field(None, ge=0, le=1, description="Share of them from which on another id is drawn.")
    min_ratio: float | None = Field(None, ge=0, le=50, description="Least speech tokens per text token.")
    max_ratio: float | None = Field(None, ge=1, le=50, description="Most speech tokens per text token.")

    def value(self) -> Sampling:
        """As the engine takes it."""
        return Sampling(**self.model_dump())


class SpeechFields(BaseModel):
    """What `/v1/audio/speech` takes: OpenAI's fields, and after `stream_format` some of this server's own."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"model": "mini", "input": "Hello there.", "response_format": "wav"}]},
    )
    model: str = Field("", max_length=200, description="The served model's name, or tts-1, tts-1-hd, gpt-4o-mini-tts.")
    input: str = Field(
        min_length=1, max_length=MAX_TEXT_CHARS, description="The text; numbers, dates and units are read out."
    )
    voice: VoiceName | VoiceId | None = Field(None, description="A voice's name, or {id}. Default: the model's first.")
    instructions: str | None = Field(None, max_length=1000, description="How to say it, in words.")
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = Field(
        "mp3", description="pcm: 16-bit little-endian mono samples without a header; opus: in Ogg; aac: ADTS."
    )
    speed: float = Field(1.0, ge=0.5, le=2.0, description="The pitch stays.")
    stream_format: Literal["audio", "sse"] = Field(
        "audio", description="sse: events with base64 audio, the times of segments and a verdict at the end."
    )
    seed: int = Field(0, ge=0, le=2**53, description="The same seed gives the same audio.")
    mode: Literal["zero_shot", "cross_lingual", "instruct", "sft"] | None = Field(
        None, description="How the voice is used. Default: the fullest that it allows."
    )
    language: Literal["en", "zh"] | None = Field(
        None, description="Whose rules read numbers and dates out. Default: told from the text."
    )
    chunk_policy: Literal["low_latency", "official", "equal", "exponential", "time_based"] | None = Field(
        None, description="How the stream is cut into chunks. Default: low_latency."
    )
    prompt_audio: str | None = Field(
        None, description="A reference recording of 0.5 to 30 s in place of a voice: an audio file in base64."
    )
    prompt_text: str = Field("", max_length=MAX_TEXT_CHARS, description="What the reference recording says.")
    sampling: SamplingFields = Field(default_factory=SamplingFields)


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str = Field(description="One line: the field, the value, the limit, the way out.")
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """Every failure, in OpenAI's shape."""

    error: ErrorBody


class ModelEntry(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    description: str
    sample_rate: int = Field(description="Samples per second of all audio.")
    demo: bool = Field(description="It shows how the program works, and is no real voice.")


class ModelList(BaseModel):
    """All models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class VoiceEntry(BaseModel):
    """A voice that may be asked for."""

    id: str
    name: str
    object: Literal["voice"] = "voice"
    kind: Literal["built_in", "stored"]
    public: bool = Field(description="All callers see it; else its owner alone.")
    description: str
    transcript: str = Field(description='What its reference recording says, "" if unknown.')
    has_prompt: bool = Field(description="It has reference speech, beside a speaker embedding.")


class VoiceLabel(BaseModel):
    """What a list of voices to choose from needs."""

    id: str
    name: str


class VoiceList(BaseModel):
    """All voices that the caller may ask for."""

    object: Literal["list"] = "list"
    data: list[VoiceEntry]
    voices: list[VoiceLabel] = Field(description="The same ones, where Open WebUI looks for them.")


class VoiceDeleted(BaseModel):
    """A voice is gone."""

    id: str
    object: Literal["voice.deleted"] = "voice.deleted"
    deleted: bool = True


class RequestEntry(BaseModel):
    """What became of a request."""

    id: str
    object: Literal["audio.request"] = "audio.request"
    status: Literal["running", "finished"]
    door: str = Field(description="Where it came in.")
    created: int
    finish_reason: Literal["stop", "length", "cancelled", "error"] | None
    audio_seconds: float = Field(description="Audio that was handed to the listener.")
    segments_spoken: int
    segments_given: int
    first_audio_seconds: float | None
    total_seconds: float | None
    error: dict[str, Any] | None
