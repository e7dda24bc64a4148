"""The two ways to write a WebSocket's messages: this server's own, and that of ElevenLabs' clients."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vivavoce.doors.http.ws_messages import ClientMessage, Start, message_of
from vivavoce.doors.http.ws_outbox import Frame, Reply, compact


class Dialect(Protocol):
    """How one client writes and reads."""

    @property
    def one_utterance(self) -> bool:
        """The connection ends with its first utterance."""

    def messages(self, fields: dict[str, Any]) -> Sequence[ClientMessage]:
        """What a frame's object says; InvalidRequest names the field that is wrong."""

    def started(self, start: Start) -> None:
        """An utterance begins, with these settings."""

    def render(self, reply: Reply) -> Frame:
        """The frame of a reply; None: this client knows no such thing."""


@dataclass
class OwnDialect:
    """As docs/websocket.md has it."""

    base64_audio: bool = False

    @property
    def one_utterance(self) -> bool:
        """Another start may follow."""
        return False

    def messages(self, fields: dict[str, Any]) -> Sequence[ClientMessage]:
        """One message to a frame."""
        return [message_of(fields)]

    def started(self, start: Start) -> None:
        """Each utterance says how it wants its audio."""
        self.base64_audio = start.audio == "base64"

    def render(self, reply: Reply) -> Frame:
        """Audio in binary frames unless base64 was asked for; all else in JSON."""
        if reply["type"] != "audio":
            return compact(reply)
        data: bytes = reply["audio"]
        return compact({"type": "audio", "audio": base64.b64encode(data).decode()}) if self.base64_audio else data
