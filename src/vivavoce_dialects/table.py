"""The interfaces of other products that a server offers beside its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vivavoce.server.dialect import Dialect
from vivavoce_dialects import cosyvoice_http, dashscope, elevenlabs
from vivavoce_dialects.wyoming import serving_wyoming

if TYPE_CHECKING:
    from vivavoce_grpc.calls import Answer


def _cosyvoice_services() -> Mapping[str, Mapping[str, Answer]]:
    from vivavoce_dialects.cosyvoice_grpc import infer  # imports gRPC

    return {"cosyvoice.CosyVoice": {"Inference": infer}}


DIALECTS = (
    Dialect(
        "ElevenLabs' API",
        {"port": elevenlabs.router},
        models=elevenlabs.models,
        first_message=elevenlabs.first_message,
        socket_query=elevenlabs.SOCKET_QUERY,
    ),
    Dialect("DashScope's tasks", {"port": dashscope.router}),
    Dialect("CosyVoice's own service", {"legacy_port": cosyvoice_http.router}, grpc_services=_cosyvoice_services),
    Dialect("Home Assistant's protocol Wyoming", listeners={"wyoming_port": serving_wyoming}),
)
