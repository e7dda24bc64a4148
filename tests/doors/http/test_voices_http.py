"""The routes of voices, as forms and lists meet them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.doors.fake_speaker import FakeSpeaker
from tests.doors.http.serving import Served, make_desk, serving
from vivavoce.doors.http.app import build_app
from vivavoce.errors import InvalidAudio, InvalidRequest, InvalidText, TooLarge, VivavoceError
from vivavoce.service.host.order import Recording
from vivavoce.service.host.speaker import VoiceSummary


class Refusing(FakeSpeaker):
    """Adds no voice, and says so."""

    def __init__(self, error: VivavoceError) -> None:
        super().__init__()
        self._error = error

    async def add_voice(
        self, owner: str, name: str, recording: Recording, *, description: str = "", replace: bool = False
    ) -> VoiceSummary:
        raise self._error


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(build_app) as served:
        yield served


def add(server: Served, **texts: str) -> httpx.Response:
    fields = {"name": "me", **texts}
    return httpx.post(f"{server.url}/v1/audio/voices", data=fields, files={"file": ("me.wav", b"RIFF")})


@pytest.mark.parametrize(
    ("error", "status", "field"),
    [
        (InvalidAudio("reference audio: has 0.2 s, fewer than 0.5; record more"), 400, "file"),
        (TooLarge("reference audio: 9 bytes are more than the limit of 8; cut it"), 413, "file"),
        (InvalidRequest("voice name: 'a b' holds a space; use letters"), 400, "name"),
        (InvalidText("text: control character U+0001 at position 0; remove it"), 400, "transcript"),
        (InvalidRequest("voice: there are 3 voices already, the limit; remove one"), 400, "voice"),
    ],
)
def test_errors_name_the_forms_fields(error: VivavoceError, status: int, field: str) -> None:
    with serving(build_app, lambda: make_desk(Refusing(error))) as server:
        answer = add(server)
        told = answer.json()["error"]
        assert (answer.status_code, told["code"], told["param"]) == (status, error.code, field)
        assert told["message"] == f"{field}:{str(error).partition(':')[2]}"


def test_a_list_is_read_by_open_webui_too(server: Served) -> None:
    assert add(server, description="mine").status_code == 201
    listed = httpx.get(f"{server.url}/v1/audio/voices").json()
    assert [voice["id"] for voice in listed["data"]] == ["anna", "me"]
    assert listed["voices"] == [{"id": "anna", "name": "anna"}, {"id": "me", "name": "me"}]
