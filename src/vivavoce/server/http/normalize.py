"""The route that tells how a text is read, without speaking it."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from vivavoce.frontend.speech import SpeechRequest
from vivavoce.frontend.text.checks import MAX_TEXT_CHARS
from vivavoce.frontend.text.official import Code, Emojis, Normalization
from vivavoce.server.http.app_state import AppState, KnownPrincipal
from vivavoce.server.http.errors import BODY_FAILURES, NOT_FOUND
from vivavoce.server.http.speech_input import VoiceName, json_schema, read_json
from vivavoce_textnorm import Language


class NormalizeFields(BaseModel):
    """A text, and what its reading depends on."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"input": "It costs $3.50."}]})
    input: str = Field(min_length=1, max_length=MAX_TEXT_CHARS, description="The text.")
    language: Language | None = Field(None, description="Of the text. Default: told from the text.")
    reading: Normalization = Field("natural", description="Whose rules: our own, CosyVoice's, or nobody's (off).")
    emojis: Emojis = Field("silent", description="With natural rules: silent, or their Unicode names, in English.")
    code: Code = Field("read", description="With natural rules, of code between backticks: read or silent.")
    voice: VoiceName | None = Field(None, description="Whose lexicon counts. Default: the voice of speech without one.")


class ReadingChange(BaseModel):
    """Characters start … end - 1 of the text (Unicode code points), and what is said for them."""

    start: int
    end: int
    written: str
    spoken: str
    rule: str = Field(description="Of natural rules; official: the whole text was changed by the official ones.")


class ReadingAnswer(BaseModel):
    """What is said for a text, and what was changed for it, in order."""

    text: str
    changes: list[ReadingChange]


def router(state: AppState) -> APIRouter:
    """`/v1/audio/normalize`."""
    routes = APIRouter()
    dispatcher = state.dispatcher
    body = {"required": True, "content": {"application/json": {"schema": json_schema(NormalizeFields)}}}

    @routes.post(
        "/v1/audio/normalize",
        summary="How a text is read",
        responses={**BODY_FAILURES, **NOT_FOUND},
        openapi_extra={"requestBody": body},
    )
    async def normalize(request: Request, principal: KnownPrincipal) -> ReadingAnswer:
        with dispatcher.permitted(principal):
            asked = await read_json(request, NormalizeFields)
            how = asked.model_dump(exclude={"input", "voice"})
            found = await dispatcher.speaker.normalize(SpeechRequest(asked.input, asked.voice, principal.owner, **how))
        return ReadingAnswer(
            text=found.spoken,
            changes=[ReadingChange(written=asked.input[one.start : one.end], **vars(one)) for one in found.changes],
        )

    return routes
