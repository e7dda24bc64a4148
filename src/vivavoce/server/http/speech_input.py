"""What clients send to be spoken: its fields, and how they are read from JSON and forms within bounds."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from vivavoce.engine.request import MAX_SPEED, MIN_SPEED, SamplingParams
from vivavoce.errors import InvalidAudio, InvalidRequest, ModelNotFound
from vivavoce.frontend.audio.encode import SAMPLE_RATES
from vivavoce.frontend.speech import Recording, SpeechRequest
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.frontend.text.checks import MAX_TEXT_CHARS
from vivavoce.frontend.text.official import Code, Emojis, Normalization
from vivavoce.server.http.app_state import state_of
from vivavoce.server.http.errors import invalid
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.settings import RequestsSection
from vivavoce_textnorm import Language

MULTIPART, URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Names that programs written for OpenAI's service send, some with a date: the served model answers to them."""
SMALL_BYTES = 1 << 16
"""Bytes or characters of JSON that are read in the event loop; more are read in a thread."""
MAX_SEPARATORS = 1 << 17
"""Commas and brackets of a JSON text: two for each letter of a text to be spoken, and more."""
MAX_FORM_FIELDS = 40
"""Texts of a request's form."""
_OPENAI_MODEL = re.compile(rf"({'|'.join(OPENAI_MODELS)})(-\d+)*", re.ASCII)
_STRUCTURED = ("voice", "sampling")
_WHITE_SPACE = b" \t\r\n"
_UTF_8 = (b"utf-8", b"utf8", b"us-ascii")
_MAX_FIELD_BYTES = 1 << 20
"""Of a field of a urlencoded form as it comes, like a text of a multipart form."""

_Result = TypeVar("_Result")
_Model = TypeVar("_Model", bound=BaseModel)
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


class CommonFields(BaseModel):
    """The fields that `/v1/audio/speech` and the WebSocket's `start` share."""

    model_config = ConfigDict(extra="forbid")
    model: str = Field("", max_length=200, description="The served model's name, or tts-1, tts-1-hd, gpt-4o-mini-tts.")
    voice: VoiceName | VoiceId | None = Field(None, description="A voice's name, or {id}. Default: the model's first.")
    instructions: str | None = Field(
        None, max_length=4096, description="How to say it, in words; left out for a model that cannot follow them."
    )
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm", "ulaw", "alaw"] = Field(
        "mp3", description="pcm: 16-bit little-endian mono samples without a header; opus: in Ogg; aac: ADTS."
    )
    sample_rate: int | None = Field(
        None,
        description="Samples per second. Default: the model's; 8000 for ulaw and alaw, 24000 for pcm over HTTP.",
        json_schema_extra={"enum": [None, *SAMPLE_RATES]},
    )
    speed: float = Field(1.0, ge=0.25, le=4.0, description="The pitch stays. Beyond 0.5 … 2 it is one of these.")
    seed: int = Field(0, ge=0, le=2**53, description="The same seed gives the same audio.")
    mode: Literal["zero_shot", "cross_lingual", "instruct", "sft"] | None = Field(
        None, description="How the voice is used. Default: the fullest that it allows."
    )
    language: Language | None = Field(None, description="Of the text. Default: told from the text.")
    reading: Normalization = Field(
        "natural", description="Whose rules read numbers, dates and signs: our own, CosyVoice's, or nobody's (off)."
    )
    emojis: Emojis = Field("silent", description="With natural rules: silent, or their Unicode names, in English.")
    code: Code = Field("read", description="With natural rules, of code between backticks: read or silent.")
    chunk_policy: Literal["low_latency", "official", "equal", "exponential", "time_based"] | None = Field(
        None, description="How the stream is cut into chunks. Default: low_latency; CosyVoice 1 has official only."
    )
    prompt_audio: str | None = Field(
        None, description="A reference recording of 0.5 to 30 s in place of a voice: an audio file in base64."
    )
    prompt_text: str = Field("", max_length=MAX_TEXT_CHARS, description="What the reference recording says.")
    sampling: SamplingFields = Field(default_factory=SamplingFields)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        """What is null, and a voice without a name, is as good as left out."""
        if not isinstance(fields, dict):
            return fields
        left_out = {name for name in cls.model_fields if fields.get(name) is None}
        left_out |= {"voice"} if fields.get("voice") == "" else set()
        return {name: value for name, value in fields.items() if name not in left_out}

    async def request(
        self,
        text: str | None,
        principal: Principal,
        about: ModelInfo,
        uploaded: bytes | None = None,
        rules: RequestsSection = RequestsSection(),
    ) -> SpeechRequest:
        """What the engine is asked for; text: None if it arrives piece by piece; uploaded: a recording from a form.

        ModelNotFound lists the names that are known; InvalidRequest: both a voice and a recording, or a transcript
        without a recording, or a speed that the rules refuse; InvalidAudio: the recording is not base64.
        """
        if self.model:
            check_model(self.model, about)
        speed, notes = min(max(self.speed, MIN_SPEED), MAX_SPEED), tuple[str, ...]()
        if speed != self.speed:
            problem = f"speed: {self.speed:g} is not in {MIN_SPEED:g} to {MAX_SPEED:g}"
            if rules.speed == "refuse":
                raise InvalidRequest(f"{problem}; choose a number inside")
            notes = (f"{problem}; it is spoken at {speed:g}",)
        recording = None
        if uploaded is not None:
            recording = Recording(uploaded, self.prompt_text)
        elif self.prompt_audio is not None:
            encoded = self.prompt_audio
            recording = Recording(await off_loop(len(encoded), lambda: from_base64(encoded)), self.prompt_text)
        elif self.prompt_text:
            raise InvalidRequest(
                "prompt_text: belongs to a recording, and none came; send prompt_audio, or leave it out"
            )
        if recording is not None and self.voice is not None:
            raise InvalidRequest("voice: a recording came as well; leave voice or prompt_audio out")
        return SpeechRequest(
            text=text,
            voice=recording or (self.voice.id if isinstance(self.voice, VoiceId) else self.voice),
            owner=principal.owner,
            mode=self.mode,
            instruct=self.instructions or None,
            speed=speed,
            seed=self.seed,
            sampling=SamplingParams(**self.sampling.model_dump(exclude_none=True)),
            policy=self.chunk_policy,
            language=self.language,
            reading=self.reading,
            emojis=self.emojis,
            code=self.code,
            notes=notes,
        )


def check_model(name: str, about: ModelInfo) -> None:
    """ModelNotFound, with the names that are known: this one is neither the served model's nor one of OpenAI's."""
    if name != about.name and not _OPENAI_MODEL.fullmatch(name):
        known = ", ".join((about.name, *OPENAI_MODELS))
        raise ModelNotFound(f"model: {name[:80]!r} is not served here; use one of {known}")


class SpeechFields(CommonFields):
    """What `/v1/audio/speech` takes: OpenAI's fields, and some of this server's own."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "mini", "input": "Hello there.", "response_format": "wav"}]},
    )
    input: str = Field(
        min_length=1, max_length=MAX_TEXT_CHARS, description="The text; numbers, dates and units are read out."
    )
    stream_format: Literal["audio", "sse"] = Field(
        "audio", description="sse: events with base64 audio, the times of segments and a verdict at the end."
    )


@dataclass(frozen=True)
class Form:
    """The parts of a form in order: fields with their texts, and with the bytes of files."""

    texts: list[tuple[str, str]]
    files: list[tuple[str, bytes]]


async def read_speech(request: Request) -> tuple[SpeechFields, bytes | None]:
    """The fields of a request's body, JSON or a form, and the recording that came as a form's file.

    InvalidRequest: neither JSON nor a form, an unknown field, a value out of its limits.
    """
    if media_type(request) not in (MULTIPART, URLENCODED):
        return await read_json(request, SpeechFields), None
    form = await read_form(request, MAX_FORM_FIELDS)
    if form.texts and form.texts[0][0].lstrip().startswith("{"):
        raise InvalidRequest(
            f"content-type: the body is JSON and came as {media_type(request)}; send content-type: application/json"
        )
    for name, _ in form.files:
        if name != "prompt_audio":
            raise InvalidRequest(f"{name[:40]!r}: a file came where none is taken; send it as prompt_audio")
    values: dict[str, Any] = {}
    for name, text in form.texts:
        is_json = name in _STRUCTURED and text.lstrip().startswith("{")
        values[name] = _json_of(text.encode(), name) if is_json else text
    return validated(SpeechFields, _wanted(request, SpeechFields, values)), form.files[-1][1] if form.files else None


def media_type(request: Request) -> str:
    """The type of a request's body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_separators(text: str | bytes, field: str) -> None:
    """Refuse JSON of too many values before it is read: values take far more memory and time than they have bytes.

    InvalidRequest names `field`.
    """
    encoded = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    count = sum(map(encoded.count, (b",", b"[", b"{")))
    if count > MAX_SEPARATORS:
        raise InvalidRequest(
            f"{field}: holds {count} commas and brackets, more than {MAX_SEPARATORS}; send fewer values"
        )


async def off_loop(size: int, work: Callable[[], _Result]) -> _Result:
    """Do work on a text of this many bytes: in a thread where the event loop would wait too long for it."""
    return work() if size <= SMALL_BYTES else await asyncio.to_thread(work)


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """What JSON of the model has to be, in one piece: routes that read their bodies show it in `/openapi.json`."""
    return dict(_inline(schema := model.model_json_schema(), schema.pop("$defs", {})))


def _inline(value: Any, definitions: dict[str, Any]) -> Any:
    """The schema with its references replaced by what they refer to."""
    if isinstance(value, list):
        return [_inline(one, definitions) for one in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        rest = {key: one for key, one in value.items() if key != "$ref"}
        return {**_inline(definitions[value["$ref"].rpartition("/")[2]], definitions), **rest}
    return {key: _inline(one, definitions) for key, one in value.items()}


def validated(model: type[_Model], fields: dict[str, Any], where: str = "body") -> _Model:
    """The model with these fields. InvalidRequest names the one that is missing, unknown or out of its limits."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid(list(error.errors(include_url=False, include_context=False)), where) from None


def from_base64(encoded: str) -> bytes:
    """A recording's bytes; a data URL is as good as plain base64, and both may be broken into lines.

    InvalidAudio: it is not base64.
    """
    if encoded.startswith("data:"):
        encoded = encoded.partition(",")[2]
    try:
        return base64.b64decode(encoded.encode("ascii").translate(None, _WHITE_SPACE), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidAudio("prompt_audio: is no base64; encode the audio file's bytes") from None


def _json_of(text: bytes, field: str) -> Any:
    check_separators(text, field)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest(f'{field}: is no JSON; send an object like {{"input": "Hello."}}, or a form') from None


async def read_json(request: Request, model: type[_Model]) -> _Model:
    """The model in a body of JSON; InvalidRequest: it is no object, or as `validated` says."""
    # `request.body()` would keep it for as long as its answer takes: minutes, of speech.
    body = b"".join([piece async for piece in request.stream()])

    def read() -> _Model:
        values = _json_of(body, "body")
        if not isinstance(values, dict):
            needed = next(name for name, field in model.model_fields.items() if field.is_required())
            kind = type(values).__name__
            raise InvalidRequest(f"body: is a {kind}, not an object; send an object with the field {needed}")
        return validated(model, _wanted(request, model, values))

    return await off_loop(len(body), read)


def _wanted(request: Request, model: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """The fields, without unknown ones where the settings have these ignored."""
    if state_of(request).settings.requests.unknown_fields == "refuse":
        return values
    return {name: value for name, value in values.items() if name in model.model_fields}


async def read_form(request: Request, max_fields: int) -> Form:
    """A form with this many texts in strict UTF-8, of a megabyte each at most, and one file; a body of another type
    is not read.

    InvalidRequest: it cannot be read, has too many parts, or texts that are no UTF-8.
    """
    media = media_type(request)
    if media not in (MULTIPART, URLENCODED):
        return Form([], [])
    charset = parse_options_header(request.headers["content-type"])[1].get(b"charset", b"utf-8")
    if charset.lower() not in _UTF_8:
        raise InvalidRequest(f"content-type: charset {charset[:40].decode('latin-1')!r} is not taken; send UTF-8")
    if media == URLENCODED:
        body = b"".join([piece async for piece in request.stream()])
        return Form(await off_loop(len(body), lambda: url_fields(body, max_fields)), [])
    parsed = await _parse_multipart(request, max_fields)
    form = Form([], [])
    try:
        for name, value in parsed.multi_items():
            field = _utf_8(name.encode("latin-1"), "a field's name")
            if isinstance(value, UploadFile):
                form.files.append((field, await value.read()))
            else:
                form.texts.append((field, _utf_8(value.encode("latin-1"), field)))
    finally:
        await parsed.close()
    return form


def url_fields(encoded: bytes, max_fields: int = MAX_FORM_FIELDS) -> list[tuple[str, str]]:
    """The fields of a urlencoded body or a query: UTF-8, percent-encoded or as it is. InvalidRequest as `read_form`."""
    if encoded.count(b"&") >= max_fields:
        raise InvalidRequest(f"form: has more than {max_fields} fields; send fewer")
    fields = []
    for piece in filter(None, encoded.split(b"&")):
        if len(piece) > _MAX_FIELD_BYTES:  # before it is decoded, which takes far more memory
            raise InvalidRequest(f"form: a field has {len(piece)} bytes, more than {_MAX_FIELD_BYTES}; send fewer")
        name, _, value = (unquote_to_bytes(part) for part in piece.replace(b"+", b" ").partition(b"="))
        field = _utf_8(name, "a field's name")
        fields.append((field, _utf_8(value, field)))
    return fields


class _Parser(MultiPartParser):
    spool_max_size = 0
    """Files stay in memory, whatever their size: the bodies' bounds are theirs, and nothing is left on a disk."""
    has_ended = False
    """The boundary after the last part has come: without it parts may be missing, or cut."""

    def on_end(self) -> None:
        self.has_ended = True


async def _parse_multipart(request: Request, max_fields: int) -> FormData:
    """The form, each byte of its texts being a letter of Latin-1."""
    # The parser takes any of Python's codecs, some of quadratic time, and reads what is no UTF-8 as Latin-1.
    headers = Headers({"content-type": f"{request.headers['content-type']}; charset=latin-1"})

    async def whole_body() -> AsyncGenerator[bytes, None]:
        async for piece in request.stream():
            yield piece
        if not parser.has_ended:
            raise MultiPartException("its last boundary is missing")

    parser = _Parser(headers, whole_body(), max_files=1, max_fields=max_fields)
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"body: it is no form that can be read ({error.message.rstrip('.')})") from None


def _utf_8(encoded: bytes, field: str) -> str:
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError as error:
        name = field[:40] if field.isprintable() else "a field"
        raise InvalidRequest(f"{name}: is no UTF-8 from byte {error.start} on; send UTF-8") from None
