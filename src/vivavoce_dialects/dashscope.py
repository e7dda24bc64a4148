"""The messages of DashScope's WebSocket, the interface of CosyVoice in Aliyun's cloud (docs/from-cosyvoice.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.websockets import WebSocket

from vivavoce.errors import InvalidRequest
from vivavoce.frontend.audio.encode import AudioFormat, OutputFormat
from vivavoce.frontend.speech import SpeechRequest
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.frontend.speech_options import INSTRUCTIONS, MAX_SEED, SPEED
from vivavoce.frontend.text.text_input import parse_language, readable
from vivavoce.server.http.app_state import AppState
from vivavoce.server.http.bodies import AnyText, Number, Whole, validated
from vivavoce.server.http.errors import renamed
from vivavoce.server.http.streaming import compact_json
from vivavoce.server.http.ws_messages import ClientMessage, MessageForm, Signal, Start, Text
from vivavoce.server.http.ws_session import Session
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.settings import RequestsSection
from vivavoce.server.utterance import Reply
from vivavoce_textnorm import MAX_TEXT_CHARS, Lexicon, excerpt, phonemes

DEFAULT_FORMAT, DEFAULT_RATE = "mp3", 22_050
"""Format and rate for a client that names neither; DashScope's own package then sends `Default` and a rate of 0."""
MAX_WORDS = 500
"""Maximum number of words in the `hot_fix` of a task."""
_USUAL_VOLUME = 50
_CLOUD_MODEL = re.compile(r"cosyvoice-v\d(\.\d)?(-[a-z]+)?", re.ASCII)
"""Names of the cloud's models; for each of them, the server's default model speaks."""
_FIELD = "payload.parameters."
_CODES = {
    "unauthorized": "InvalidApiKey",
    "forbidden": "AccessDenied",
    "model_not_found": "ModelNotFound",
    "overloaded": "Throttling.RateQuota",
    "deadline_exceeded": "RequestTimeOut",
    "engine_stopped": "ServiceUnavailable",
    "voice_store_away": "ServiceUnavailable",
    "out_of_memory": "ServiceUnavailable",
}
"""Our error code → the cloud's code; for other codes, `_failed` chooses InternalError or InvalidParameter."""
_SENTENCES = {"segment": "sentence-begin", "segment_done": "sentence-end"}


def router(state: AppState) -> APIRouter:
    routes = APIRouter()

    @routes.websocket("/api-ws/v1/inference")
    @routes.websocket("/api-ws/v1/inference/")
    async def inference(socket: WebSocket) -> None:
        await Session(socket, state, DashScopeForm()).serve()

    return routes


class HotFix(BaseModel):
    """Words of one task: their pronunciation in pinyin, and the text that replaces them."""

    model_config = ConfigDict(extra="forbid")
    pronunciation: list[dict[str, str]] = Field([], max_length=MAX_WORDS)
    replace: list[dict[str, str]] = Field([], max_length=MAX_WORDS)


class Parameters(BaseModel):
    """The parameters of a task."""

    model_config = ConfigDict(extra="allow")
    text_type: Literal["PlainText", "SSML"] = "PlainText"
    voice: str | None = Field(None, max_length=200)
    format: Literal["Default", "pcm", "wav", "mp3", "opus"] = "Default"
    sample_rate: Whole = 0
    bit_rate: Whole = Field(0, ge=0, le=1_000)
    volume: Whole = Field(_USUAL_VOLUME, ge=0, le=100)
    rate: Number = Field(1.0, ge=SPEED.minimum, le=SPEED.maximum)
    pitch: Number = 1.0
    seed: Whole = Field(0, ge=0, le=MAX_SEED)
    type: Whole = Field(0, ge=0, le=0)
    instruction: str | None = Field(None, max_length=INSTRUCTIONS.max_chars)
    language_hints: list[str] = Field([], max_length=20)
    word_timestamp_enabled: bool = False
    hot_fix: HotFix = Field(default_factory=HotFix)
    enable_ssml: bool = True
    enable_markdown_filter: bool = True

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        return {name: one for name, one in fields.items() if one is not None} if isinstance(fields, dict) else fields

    def output(self) -> OutputFormat:
        """Return the audio's format. InvalidRequest: the rate, or the bit rate with this codec, is not supported."""
        codec = AudioFormat(DEFAULT_FORMAT if self.format == "Default" else self.format)
        bits = 1_000 * self.bit_rate or None
        try:
            return OutputFormat(codec, self.sample_rate or DEFAULT_RATE, bits, self.volume / _USUAL_VOLUME)
        except InvalidRequest as error:
            raise renamed(error, {"sample_rate": _FIELD + "sample_rate", "bitrate": _FIELD + "bit_rate"}) from None

    def language(self) -> str | None:
        """Return the language of the first hint. InvalidRequest: the server does not know this language."""
        try:
            return parse_language(self.language_hints[0]) if self.language_hints else None
        except InvalidRequest as error:
            raise renamed(error, {"language": _FIELD + "language_hints"}) from None

    def lexicon(self, marks: frozenset[str]) -> Lexicon:
        """Return the words of `hot_fix`; marks: the model's tags. InvalidRequest: the model lacks a syllable's tags."""
        fix, words = self.hot_fix, dict[str, str]()
        for word, written in (entry for one in fix.pronunciation for entry in one.items()):
            said = phonemes("pinyin", written, marks)
            if said is None:
                raise InvalidRequest(
                    f"{_FIELD}hot_fix.pronunciation: {excerpt(written)} is not pinyin that the served model knows; "
                    "write how the word sounds in hot_fix.replace"
                )
            words[word] = said
        words |= {word: said for one in fix.replace for word, said in one.items()}
        if len(words) > MAX_WORDS:
            raise InvalidRequest(f"{_FIELD}hot_fix: {len(words)} words are more than {MAX_WORDS}; leave some out")
        try:
            return Lexicon(words)
        except InvalidRequest as error:
            raise renamed(error, dict.fromkeys(("lexicon", "text"), _FIELD + "hot_fix")) from None


class _Header(BaseModel):
    model_config = ConfigDict(extra="ignore")
    action: Literal["run-task", "continue-task", "finish-task"]
    task_id: str = Field(min_length=1, max_length=100)
    streaming: Literal["duplex"] = "duplex"


class _Input(BaseModel):
    model_config = ConfigDict(extra="ignore")
    text: AnyText | None = Field(None, max_length=MAX_TEXT_CHARS)
    flush: bool = False
    directive: Literal["cancel"] | None = None


class _Payload(BaseModel):
    model_config = ConfigDict(extra="ignore")
    model: str = Field("", max_length=200)
    task_group: Literal["audio"] = "audio"
    task: Literal["tts"] = "tts"
    function: Literal["SpeechSynthesizer"] = "SpeechSynthesizer"
    parameters: Parameters = Field(default_factory=Parameters)
    input: _Input = Field(default_factory=_Input)


class TaskMessage(BaseModel):
    """A message of DashScope's clients; further fields of header, payload and input are ignored."""

    model_config = ConfigDict(extra="ignore")
    header: _Header
    payload: _Payload = Field(default_factory=_Payload)


class _Start(Start):
    parameters: Parameters

    def output(self) -> OutputFormat:
        return self.parameters.output()

    def usual_models(self, about: ModelInfo) -> re.Pattern[str]:
        return _CLOUD_MODEL

    async def request(
        self,
        text: str | None,
        principal: Principal,
        about: ModelInfo,
        uploaded: bytes | None = None,
        rules: RequestsSection = RequestsSection(),
    ) -> SpeechRequest:
        wanted, notes = await super().request(text, principal, about, uploaded, rules), list[str]()
        if unknown := list(self.parameters.model_extra or ()):
            problem = f"{_FIELD[:-1]}: {', '.join(ascii(name[:40])[1:-1] for name in unknown[:10])} are unknown"
            if rules.unknown_fields == "refuse":
                raise InvalidRequest(f"{problem}; leave them out")
            notes.append(f"{problem} and were ignored")
        return replace(
            wanted, lexicon=self.parameters.lexicon(about.of(wanted.model).marks), notes=(*wanted.notes, *notes)
        )


def _start(payload: _Payload) -> _Start:
    asked = payload.parameters
    if asked.pitch != 1:
        raise InvalidRequest(f"{_FIELD}pitch: {asked.pitch:g} is not supported; leave it at 1, the voice's own")
    fields = {
        "model": payload.model,
        "voice": asked.voice,
        "speed": asked.rate,
        "seed": asked.seed,
        "instructions": asked.instruction,
        "language": asked.language(),
        "word_times": asked.word_timestamp_enabled,
        "parameters": asked,
    }
    return validated(_Start, fields, "message")


class DashScopeForm(MessageForm):
    """Tasks, which run one after another on a connection; each is an utterance whose context is the task's id."""

    is_own, is_strict, answers_to_a_start, end = False, True, True, "finish-task"

    def __init__(self) -> None:
        self._task: str | None = None
        self._ended: str | None = None
        """Id of the last task that has ended; messages that still arrive for it are ignored."""
        self._has_finished = self._has_failed = False
        """Whether all text of the task has arrived, and whether an error was sent, after which nothing may follow."""
        self._request_id = ""
        self._text, self._first, self._characters = "", 0, 0
        """The task's text from character `_first` on, this position, and the number of all characters of the task."""
        self._words: list[dict[str, Any]] = []
        """Words of the sentence that is being spoken."""

    def context_of(self, fields: dict[str, Any]) -> str:
        header = fields.get("header")
        task = header.get("task_id") if isinstance(header, dict) else None
        return task[:100] if isinstance(task, str) else ""

    def request_id_of(self, context: str) -> str | None:
        return context

    def messages(self, fields: dict[str, Any]) -> list[ClientMessage]:
        message = validated(TaskMessage, fields, "message")
        header, payload = message.header, message.payload
        if header.action == "run-task":
            return self._begin(header.task_id, payload)
        if header.task_id != self._task:
            if header.task_id == self._ended:
                return []
            raise InvalidRequest(f"header.task_id: no task {excerpt(header.task_id)} is running; send run-task first")
        if header.action == "finish-task":
            self._has_finished = True
            return [Signal(type="end" if payload.input.directive is None else "cancel")]
        if self._has_finished:
            raise InvalidRequest("header.action: continue-task comes after finish-task; wait, then send run-task")
        if payload.input.text is None and not payload.input.flush:
            raise InvalidRequest("payload.input.text: field required; send more of the text, or finish-task")
        return self._pieces(payload.input)

    def _begin(self, task: str, payload: _Payload) -> list[ClientMessage]:
        if self._task is not None:
            raise InvalidRequest(
                f"header.task_id: {excerpt(self._task)} is still running; wait for task-finished before the next task"
            )
        start = _start(payload)
        self._task, self._has_finished = task, False
        self._text, self._first, self._characters, self._words = "", 0, 0, []
        return [start, *self._pieces(payload.input)]

    def _pieces(self, given: _Input) -> list[ClientMessage]:
        found: list[ClientMessage] = []
        if given.text:
            self._text, self._characters = self._text + given.text, self._characters + len(given.text)
            found.append(Text(text=given.text))
        return [*found, Signal(type="flush")] if given.flush else found

    def render(self, reply: Reply, context: str = "", is_open: bool = False) -> str | bytes | None:
        kind, task = reply["type"], context or self._task or ""
        if self._has_failed:
            return None
        if kind == "audio":
            audio: bytes = reply["audio"]
            return audio
        if kind == "error":
            self._has_failed = True
            return _failed(task, reply["error"])
        if kind == "started":
            self._request_id = reply["request_id"]
            return _event(task, "task-started", {}, request_uuid=self._request_id, warnings=reply.get("warnings"))
        if kind == "words":
            self._words += reply["words"]
        elif kind in _SENTENCES:
            return self._sentence(task, kind, reply)
        elif kind == "cancelled" or (kind == "done" and reply["verdict"]["error"] is None):
            self._task, self._ended = None, task
            told = reply.get("verdict", {})
            reason = told.get("finish_reason", "cancelled")
            attributes = {"request_uuid": self._request_id, "finish_reason": reason, "warnings": told.get("warnings")}
            output: dict[str, Any] = {"sentence": {"words": []}}
            usage = {"characters": self._characters}
            return _event(task, "task-finished", {"output": output, "usage": usage}, **attributes)
        return None

    def _sentence(self, task: str, kind: str, reply: Reply) -> str:
        """The event for the beginning of a sentence, or for its end with the times of its words."""
        start, end = reply["start_character"], reply["end_character"]
        self._text, self._first = self._text[max(0, start - self._first) :], max(start, self._first)
        words, self._words = (self._words, []) if kind == "segment_done" else ([], self._words)
        text = self._text[: end - self._first]  # may have surrogate pairs, which `readable` turns into characters
        timed = [
            {
                "text": one["text"],
                "begin_index": len(readable(text[: one["start_character"] - start])),
                "end_index": len(readable(text[: one["end_character"] - start])),
                "begin_time": round(1_000 * one["start"]),
                "end_time": round(1_000 * one["end"]),
            }
            for one in words
        ]
        output = {
            "type": _SENTENCES[kind],
            "sentence": {"index": reply["segment"], "words": timed},
            "original_text": readable(text),
        }
        usage = {"usage": {"characters": end}} if kind == "segment_done" else {}
        return _event(task, "result-generated", {"output": output, **usage})


def _event(task: str, event: str, payload: Mapping[str, Any], **attributes: Any) -> str:
    told = {name: value for name, value in attributes.items() if value is not None}
    return compact_json({"header": {"task_id": task, "event": event, "attributes": told}, "payload": payload})


def _failed(task: str, error: Mapping[str, Any]) -> str:
    """The event of a failure with the cloud's code; our own code and the field's name are attributes."""
    own = "InternalError" if error["type"] == "server_error" else "InvalidParameter"
    header = {"task_id": task, "event": "task-failed", "error_code": _CODES.get(error["code"], own)}
    told = {"code": error["code"], "param": error["param"]}
    return compact_json({"header": {**header, "error_message": error["message"], "attributes": told}, "payload": {}})
