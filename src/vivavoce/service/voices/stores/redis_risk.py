"""Settings of a redis that lose voices, though every save was acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis import Redis

_REMEDY = "see docs/voices.md"


def find_risk(redis: Redis) -> str | None:
    """How the server may lose voices, as the predicate of a sentence; None: not, or it does not tell."""
    from redis.exceptions import ResponseError

    try:
        memory: Any = redis.info("memory")
        settings = {**_setting(redis, "save"), **_setting(redis, "appendonly")}
    except ResponseError:  # a service that keeps its settings to itself
        return None
    if memory.get("maxmemory") and str(memory.get("maxmemory_policy")).startswith("allkeys"):
        return f"throws voices away when its memory is full ({memory['maxmemory_policy']}); {_REMEDY}"
    if settings.get("appendonly") == "no" and settings.get("save") == "":
        return f"keeps nothing on disk: voices are lost when it ends (appendonly no); {_REMEDY}"
    return None


def _setting(redis: Redis, name: str) -> dict[str, str]:
    answer: Any = redis.config_get(name)
    return answer
