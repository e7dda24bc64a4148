"""The fields of requests for speech in JSON and forms; options of speech come from `frontend.speech_options`."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from starlette.requests import Request

from vivavoce.engine.request import MAX_SPEED, MIN_SPEED, SamplingParams
from vivavoce.errors import InvalidAudio, InvalidRequest
from vivavoce.frontend.audio.encode import SAMPLE_RATES
from vivavoce.frontend.speech import Recording, SpeechRequest
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.frontend.speech_options import LANGUAGE, SAMPLING_OPTIONS, SPEECH_OPTIONS, Option
from vivavoce.frontend.text.text_input import parse_language
from vivavoce.server.http.bodies import (
    MAX_FORM_FIELDS,
    MULTIPART,
    NO_SWITCH,
    URLENCODED,
    AnyText,
    Number,
    Whole,
    check_query,
    check_twins,
    known_names,
    media_type,
    off_loop,
    parse_json,
    read_form,
    read_json,
    validated,
    without_ignored,
)
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.served_models import served_model
from vivavoce.server.settings import RequestsSection
from vivavoce_textnorm import MAX_TEXT_CHARS

_STRUCTURED = ("voice", "sampling")
_WHITE_SPACE = b" \t\r\n"

RECORDING_NAMES = ("prompt_audio", "ref_audio", "reference_audio", "prompt_wav", "speaker_wav", "audio_prompt")
"""The field of a reference recording, followed by its names in other engines' APIs."""

_VOICE_NAMES = ("voice", "voice_id", "speaker", "speaker_id", "spk_id")

VoiceName = Annotated[str, Field(min_length=1, max_length=200)]


def fields_of(options: Iterable[Option]) -> dict[str, Any]:
    """Return Pydantic's declarations of options: name → (type, field), as `create_model` takes them."""
    found: dict[str, Any] = {}
    for option in options:
        kind: Any = Literal[option.choices] if option.choices else option.kind
        kind = kind | None if option.default is None else kind
        kind = Annotated[kind, NO_SWITCH] if option.kind in (int, float) else kind
        found[option.name] = (
            Annotated[kind, BeforeValidator(lambda name: parse_language(name) if name else None)]
            if option is LANGUAGE
            else kind,
            Field(
                option.default,
                ge=option.minimum,
                le=option.maximum,
                max_length=option.max_chars,
                description=option.description,
            ),
        )
    return found


if TYPE_CHECKING:
    _SamplingOptions = BaseModel
    _SpeechOptions = BaseModel
else:
    _SamplingOptions = create_model("_SamplingOptions", **fields_of(SAMPLING_OPTIONS))
    _SpeechOptions = create_model("_SpeechOptions", **fields_of(SPEECH_OPTIONS))


class VoiceId(BaseModel):
    """A voice in the form of OpenAI's custom voices: its id decides; other fields only describe it."""

    id: VoiceName = Field(description="The voice's name.", validation_alias=AliasChoices("id", "voice_id", "name"))


def voice_name(voice: str | VoiceId | None) -> str | None:
    return voice.id if isinstance(voice, VoiceId) else voice


class SamplingFields(_SamplingOptions):
    """Options for sampling speech tokens. The default of each field is the model's own setting."""

    model_config = ConfigDict(extra="forbid")


class CommonFields(_SpeechOptions):
    """The fields that `/v1/audio/speech` and the WebSocket's `start` share."""

    model_config = ConfigDict(extra="forbid")
    model: str = Field(
        "",
        max_length=200,
        description="A served model's name or published id. The default model: tts-1, tts-1-hd, gpt-4o-mini-tts, none.",
    )
    voice: VoiceName | VoiceId | None = Field(
        None,
        description="A voice's name, or {id}. Default: the model's first.",
        validation_alias=AliasChoices(*_VOICE_NAMES),
    )
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm", "ulaw", "alaw"] = Field(
        "mp3", description="pcm: 16-bit little-endian mono samples without a header; opus: in Ogg; aac: ADTS."
    )
    sample_rate: Whole | None = Field(
        None,
        description="Samples per second. Default: the model's; 8000 for ulaw and alaw, 24000 for pcm over HTTP.",
        json_schema_extra={"enum": [None, *SAMPLE_RATES]},
    )
    speed: Number = Field(  # OpenAI's limits
        1.0,
        ge=0.25,
        le=4.0,
        description="Speed of the speech; the pitch stays. A value outside 0.5 to 2 is clamped to that range.",
    )
    prompt_audio: str | None = Field(
        None,
        description="A reference recording of 0.5 to 30 s instead of a voice: a file in base64. Or `ref_audio`.",
        validation_alias=AliasChoices(*RECORDING_NAMES),
    )
    prompt_text: str = Field(
        "",
        max_length=MAX_TEXT_CHARS,
        description="The words of the reference recording. `ref_text` is another name of this field.",
        validation_alias=AliasChoices("prompt_text", "ref_text", "reference_text", "prompt_transcript"),
    )
    sampling: SamplingFields = Field(default_factory=SamplingFields)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        """Leave out fields that are null and a blank voice name. InvalidRequest: a field came with two names."""
        if not isinstance(fields, dict):
            return fields
        known = known_names(cls)
        given = {
            name: value
            for name, value in fields.items()
            if not ((value is None and name in known) or (name in _VOICE_NAMES and not str(value).strip()))
        }
        check_twins(cls, given)
        return given

    def usual_models(self, about: ModelInfo) -> re.Pattern[str] | None:
        """Return the model names by which another product's clients mean the default model; None: no such names."""
        return None

    async def request(
        self,
        text: str | None,
        principal: Principal,
        about: ModelInfo,
        uploaded: bytes | None = None,
        rules: RequestsSection = RequestsSection(),
    ) -> SpeechRequest:
        """Return the request for speech. text: None if it is streamed; about: the default model; uploaded: a recording
        that came as the file of a form.
        """
        model = served_model(self.model, about, rules, self.usual_models(about)) if self.model else ""
        speed, notes = min(max(self.speed, MIN_SPEED), MAX_SPEED), tuple[str, ...]()
        if speed != self.speed:
            problem = f"speed: {self.speed:g} is not in {MIN_SPEED:g} to {MAX_SPEED:g}"
            if rules.speed == "refuse":
                raise InvalidRequest(f"{problem}; choose a number in this range")
            notes = (f"{problem}; it is spoken at {speed:g}",)
        recording = None
        if uploaded is not None:
            recording = Recording(uploaded, self.prompt_text)
        elif (encoded := self.prompt_audio) is not None:
            recording = Recording(await off_loop(len(encoded), lambda: _from_base64(encoded)), self.prompt_text)
        elif self.prompt_text:
            raise InvalidRequest(
                "prompt_text: belongs to a recording, and none came; send prompt_audio, or leave it out"
            )
        if recording is not None and self.voice is not None:
            raise InvalidRequest("voice: a recording came as well; leave voice or prompt_audio out")
        options = {option.field: getattr(self, option.name) for option in SPEECH_OPTIONS}
        return SpeechRequest(
            text=text,
            voice=recording or voice_name(self.voice),
            owner=principal.owner,
            sampling=SamplingParams(**self.sampling.model_dump(exclude_none=True)),
            notes=notes,
            model=model,
            **{**options, "instruct": options["instruct"] or None, "speed": speed},
        )


class SpeechFields(CommonFields):
    """The fields of `/v1/audio/speech`: OpenAI's, and further ones of this server."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "mini", "input": "Hello there.", "response_format": "wav"}]},
    )
    input: AnyText = Field(
        min_length=1,
        description="The text, up to 20,000 characters unless the server allows more; numbers and dates are read out.",
    )
    stream_format: Literal["audio", "sse"] = Field(
        "audio", description="sse: events with base64 audio, the times of segments and a verdict at the end."
    )
    stream: bool = Field(
        True, description="Accepted for clients of other engines and ignored: audio is always sent as it is made."
    )


async def read_speech(request: Request) -> tuple[SpeechFields, bytes | None]:
    """Return the fields of JSON or a form, and the recording that came as the form's file, or None."""
    check_query(request, known_names(SpeechFields))
    if media_type(request) not in (MULTIPART, URLENCODED):
        return await read_json(request, SpeechFields), None
    form = await read_form(request, MAX_FORM_FIELDS)
    if form.texts and form.texts[0][0].lstrip().startswith("{"):
        raise InvalidRequest(
            f"content-type: the body is JSON and came as {media_type(request)}; send content-type: application/json"
        )
    for name, _ in form.files:
        if name not in RECORDING_NAMES:
            raise InvalidRequest(f"{name[:40]!r}: this field does not take a file; send the file as prompt_audio")
    check_twins(SpeechFields, [*(name for name, text in form.texts if text), *(name for name, _ in form.files)])
    values: dict[str, Any] = {}
    for name, text in form.texts:
        is_json = name in _STRUCTURED and text.lstrip().startswith("{")
        values[name] = parse_json(text.encode(), name) if is_json else text
    fields = validated(SpeechFields, without_ignored(request, SpeechFields, values))
    return fields, form.files[-1][1] if form.files else None


def _from_base64(encoded: str) -> bytes:
    """Decode a recording, plain base64 or a data URL, with or without line breaks. InvalidAudio: not base64."""
    if encoded.startswith("data:"):
        encoded = encoded.partition(",")[2]
    try:
        return base64.b64decode(encoded.encode("ascii").translate(None, _WHITE_SPACE), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidAudio("prompt_audio: is not base64; encode the audio file's bytes") from None
