"""Whether a server lives, and whether it takes requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI

from tests.doors.fake_speaker import FakeSpeaker
from vivavoce.doors.http import health
from vivavoce.doors.http.desk import Desk
from vivavoce.errors import EngineStopped
from vivavoce.service.host.speaker import ModelAbout
from vivavoce.service.operations.allowances import Allowances
from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.ledger import Ledger
from vivavoce.service.operations.meters import Meters
from vivavoce.service.operations.reception import Reception
from vivavoce.service.operations.settings import ServerSettings


@dataclass
class StartingSpeaker(FakeSpeaker):
    is_ready: bool = False

    @property
    def about(self) -> ModelAbout:
        raise EngineStopped("engine: is starting; try again in some seconds")


def ask(speaker: FakeSpeaker, path: str, *, method: str = "GET", draining: bool = False) -> httpx.Response:
    async def work() -> httpx.Response:
        reception = Reception(speaker, ledger=Ledger(), meters=Meters(), allowances=Allowances())
        app = FastAPI()
        app.include_router(health.router(Desk(reception, KeyRing.none(), ServerSettings())))
        if draining:
            await reception.drain(0.0)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.request(method, path)

    return asyncio.run(work())


def test_a_server_lives_while_its_loop_runs() -> None:
    for speaker in (FakeSpeaker(), StartingSpeaker(), FakeSpeaker(is_ready=False)):
        assert ask(speaker, "/health/live").status_code == 200
    assert ask(FakeSpeaker(), "/health/live", draining=True).status_code == 200


def test_a_server_that_takes_requests_is_ready() -> None:
    answer = ask(FakeSpeaker(), "/health/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    assert "retry-after" not in answer.headers


@pytest.mark.parametrize(
    ("speaker", "draining", "reason"),
    [
        (StartingSpeaker(), False, "engine_starting"),
        (FakeSpeaker(is_ready=False), False, "engine_stopped"),
        (FakeSpeaker(), True, "draining"),
        (FakeSpeaker(is_ready=False), True, "draining"),
    ],
)
def test_a_server_that_takes_none_says_why(speaker: FakeSpeaker, draining: bool, reason: str) -> None:
    answer = ask(speaker, "/health/ready", draining=draining)
    assert (answer.status_code, answer.json()) == (503, {"status": "unavailable", "reason": reason})
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
def test_balancers_may_ask_for_the_head_alone_and_nothing_is_kept(path: str) -> None:
    answer = ask(FakeSpeaker(), path, method="HEAD")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["cache-control"] == "no-store"
    assert ask(FakeSpeaker(), path).headers["cache-control"] == "no-store"
