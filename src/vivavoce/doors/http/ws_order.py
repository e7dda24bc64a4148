"""What the speaker is asked for when an utterance starts."""

from __future__ import annotations

from vivavoce.doors.http.json_input import aside
from vivavoce.doors.http.speech_input import check_model, order_of, recording_from_base64
from vivavoce.doors.http.ws_messages import Start
from vivavoce.errors import InvalidRequest
from vivavoce.service.host.order import Recording, SpeechOrder
from vivavoce.service.host.speaker import ModelAbout
from vivavoce.service.operations.callers import Caller


async def order_from(start: Start, caller: Caller, about: ModelAbout) -> SpeechOrder:
    """An order whose text arrives piece by piece.

    Raises:
        VivavoceError: another model, a recording that is no base64 or comes beside a voice.
    """
    check_model(start.model, about)
    return order_of(start, None, await _recording(start), caller)


async def _recording(start: Start) -> Recording | None:
    encoded = start.prompt_audio
    if encoded is None:
        if start.prompt_text:
            raise InvalidRequest("prompt_text: belongs to a recording, and none came; send prompt_audio too")
        return None
    return await aside(len(encoded), lambda: recording_from_base64(encoded, start.prompt_text))
