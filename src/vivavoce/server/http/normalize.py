"""The route that shows how a text is read, without speaking it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.requests import Request

from vivavoce.frontend.speech import SpeechRequest
from vivavoce.frontend.speech_options import READING_OPTIONS
from vivavoce.frontend.text.text_input import readable
from vivavoce.server.http.app_state import AppState, KnownPrincipal
from vivavoce.server.http.bodies import AnyText, check_query, json_schema, known_names, read_json
from vivavoce.server.http.errors import BODY_FAILURES, NOT_FOUND
from vivavoce.server.http.speech_fields import VoiceId, VoiceName, fields_of, voice_name
from vivavoce_textnorm import MAX_TEXT_CHARS

if TYPE_CHECKING:
    _ReadingOptions = BaseModel
else:
    _ReadingOptions = create_model("_ReadingOptions", **fields_of(READING_OPTIONS))


class NormalizeFields(_ReadingOptions):
    """A text, and the options that decide how it is read."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"input": "It costs $3.50."}]})
    input: AnyText = Field(min_length=1, max_length=MAX_TEXT_CHARS, description="The text.")
    voice: VoiceName | VoiceId | None = Field(
        None, description="The voice whose lexicon is used. Default: the default voice of speech."
    )


class ReadingChange(BaseModel):
    """A change of the characters start … end - 1 of the text (Unicode code points)."""

    start: int
    end: int
    written: str
    spoken: str
    rule: str = Field(description="The name of the rule that made the change. `official`: all official rules together.")


class ReadingAnswer(BaseModel):
    """The text as it is spoken, and all changes in order."""

    text: str
    changes: list[ReadingChange]


def router(state: AppState) -> APIRouter:
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
        async with dispatcher.permitted(principal):
            check_query(request, known_names(NormalizeFields))
            asked = await read_json(request, NormalizeFields)
            written = readable(asked.input)
            how = asked.model_dump(exclude={"input", "voice"})
            wanted = SpeechRequest(asked.input, voice_name(asked.voice), principal.owner, **how)
            found = await dispatcher.backend.normalize(wanted)
        return ReadingAnswer(
            text=found.spoken,
            changes=[ReadingChange(written=written[one.start : one.end], **vars(one)) for one in found.changes],
        )

    return routes
